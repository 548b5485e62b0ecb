"""Sown values from everywhere: what flax.linen can do, and what it cannot."""

import threading

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.linen.against_flax import KEYS, assert_same, check

import sonde
from sonde import linen as nn
from sonde.errors import JaxTransformError, NameInUseError

X = jnp.arange(12.0).reshape(3, 4) / 5


def intermediates(module, *args, variables=None, **options):
    output, changed = module.apply(variables or {}, *args, mutable=["intermediates"], **options)
    for leaf in jax.tree.leaves((output, changed)):
        assert not isinstance(leaf, jax.core.Tracer)
    return changed.get("intermediates", {})


def sowing(body):
    """A module with `body(self, x)` as its call."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return body(self, x)

    return Model()


def squares(self, x):
    self.sow("intermediates", "square", x**2)
    return x + 1


def rows(n=3):
    x, found = X, []
    for _ in range(n):
        found.append(x**2)
        x = x + 1
    return jnp.stack(found)


PLAIN = {
    "jit": (lambda f: jax.jit(f), X, X**2),
    "checkpoint": (lambda f: jax.checkpoint(f), X, X**2),
    "vmap": (lambda f: jax.vmap(f), X, X**2),
    "vmap axis 1": (lambda f: jax.vmap(f, in_axes=1), X, X.T**2),
    "scan": (lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0], X, rows()),
    "scan of jit of vmap": (
        lambda f: lambda x: lax.scan(lambda c, _: (jax.jit(jax.vmap(f))(c), None), x, None, length=3)[0],
        X,
        rows(),
    ),
    "fori_loop": (lambda f: lambda x: lax.fori_loop(0, 3, lambda i, c: f(c), x), X, rows()),
    "map": (lambda f: lambda x: lax.map(f, x), X, X**2),
    "while_loop": (
        lambda f: lambda x: lax.while_loop(lambda c: c[1] < 3, lambda c: (f(c[0]), c[1] + 1), (x, 0))[0],
        X,
        rows()[-1],
    ),
    "cond": (lambda f: lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x), X, X**2),
    "cond not taken": (lambda f: lambda x: lax.cond(x.sum() < 0, f, lambda x: x, x), X, X * 0),
    "grad": (lambda f: lambda x: jax.grad(lambda x: f(x).sum())(x), X, X**2),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("transform, x, expected", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_a_value_sown_in_a_plain_jax_transform_arrives(transform, x, expected, jitted):
    model = sowing(lambda self, x: transform(lambda x: squares(self, x))(x))
    run = lambda x: intermediates(model, x)
    with jax.checking_leaks():
        found = (
            jax.jit(lambda x: model.apply({}, x, mutable=["intermediates"])[1]["intermediates"]) if jitted else run
        )(x)
    (value,) = found["square"]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    output = model.apply({}, x)
    np.testing.assert_allclose(model.apply({}, x, mutable=["intermediates"])[0], output)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        h = nn.Dense(4, name="dense")(x)
        self.sow("intermediates", "h", h)
        return jnp.sin(h), None


LIFTED = {
    "scan": lambda: nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(),
    "scan with shared params": lambda: nn.scan(
        Layer, variable_broadcast="params", split_rngs={"params": False}, length=3
    )(),
    "scan of remat": lambda: nn.scan(
        nn.remat(Layer, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
    )(),
    "vmap": lambda: nn.vmap(Layer, variable_axes={"params": None}, split_rngs={"params": False}, in_axes=(0, None))(),
    "jit of params": lambda: nn.jit(Layer, variables="params")(),
}


@pytest.mark.parametrize("build", LIFTED.values(), ids=LIFTED)
def test_a_value_sown_in_a_lifted_transform_needs_no_variable_axes(build):
    module = build()
    variables = module.init(jax.random.key(0), X, None)
    (h,) = intermediates(module, X, None, variables=variables)["h"]
    kernel = variables["params"]["dense"]["kernel"]
    if kernel.ndim == 3 or type(module).__name__ == "ScanLayer":
        x, expected = X, []
        for i in range(3):
            k = kernel[i] if kernel.ndim == 3 else kernel
            expected.append(x @ k)
            x = jnp.sin(expected[-1])
        # Products of about 1 cancel in a sum: its error is that of a number near 1.
        np.testing.assert_allclose(h, jnp.stack(expected), rtol=1e-5, atol=np.finfo(np.float32).eps)
    else:
        np.testing.assert_allclose(h, X @ kernel, rtol=1e-5)
    # Again, through the same compiled functions.
    (again,) = intermediates(module, X, None, variables=variables)["h"]
    np.testing.assert_array_equal(h, again)


def test_outputs_of_methods_arrive_from_lifted_transforms():
    module = LIFTED["scan"]()
    variables = module.init(jax.random.key(0), X, None)
    found = intermediates(module, X, None, variables=variables, capture_intermediates=True)
    assert jax.tree.map(jnp.shape, found["dense"]["__call__"]) == ((3, 3, 4),)
    only = lambda module, method: isinstance(module, nn.Dense)
    assert list(intermediates(module, X, None, variables=variables, capture_intermediates=only)) == ["dense", "h"]


def test_branches_that_sow_different_things():
    def body(self, x):
        def first(module, x):
            module.sow("intermediates", "first", x)
            module.sow("intermediates", "both", x + 1)
            return x

        def second(module, x):
            module.sow("intermediates", "both", x + 2)
            return x

        return nn.cond(x.sum() > 0, first, second, self, x)

    for x, first, both in ((X, X, X + 1), (-X, X * 0, -X + 2)):
        found = intermediates(sowing(body), x)
        np.testing.assert_allclose(found["first"][0], first)
        np.testing.assert_allclose(found["both"][0], both)


def test_switch_and_while_loop_of_a_module():
    def body(self, x):
        def branch(n):
            def run(module, x):
                module.sow("intermediates", f"branch{n}", x + n)
                return x

            return run

        x = nn.switch(1, [branch(0), branch(1)], self, x)

        def step(module, carry):
            module.sow("intermediates", "step", carry[0])
            return carry[0] * 2, carry[1] + 1

        return nn.while_loop(lambda m, c: c[1] < 3, step, self, (x, 0), carry_variables="intermediates")[0]

    found = intermediates(sowing(body), X)
    np.testing.assert_allclose(found["branch1"][0], X + 1)
    np.testing.assert_allclose(found["step"][0], X * 4)


def test_values_are_in_program_order_inside_and_outside_of_transforms():
    def body(self, x):
        self.sow("intermediates", "v", jnp.float32(0))
        jax.jit(lambda: self.sow("intermediates", "v", jnp.float32(1)) and None)()
        self.sow("intermediates", "v", jnp.float32(2))
        lax.scan(lambda c, x: (self.sow("intermediates", "v", x) and None, None), None, jnp.arange(3.0) + 3)
        seen = self.get_variable("intermediates", "v")
        self.sow("intermediates", "v", jnp.float32(6))
        return len(seen)

    n_seen, changed = sowing(body).apply({}, X, mutable=["intermediates"])
    assert n_seen == 4
    assert [np.asarray(v).tolist() for v in changed["intermediates"]["v"]] == [0, 1, 2, [3, 4, 5], 6]


def test_reduce_fn_sees_iterations_one_by_one():
    add = {"reduce_fn": lambda a, b: a + b, "init_fn": lambda: jnp.float32(10)}

    def body(self, x):
        self.sow("losses", "total", jnp.float32(1), **add)
        lax.scan(lambda c, x: (self.sow("losses", "total", x, **add) and None, None), None, jnp.arange(4.0))
        return x

    changed = sowing(body).apply({}, X, mutable=["losses"])[1]
    assert float(changed["losses"]["total"]) == 17


def test_reduce_fn_over_what_was_given():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("losses", "total", x.sum(), reduce_fn=lambda a, b: a + b, init_fn=lambda: 0.0)
            return x

    changed = Model().apply({"losses": {"total": jnp.float32(100)}}, X, mutable=["losses"])[1]
    np.testing.assert_allclose(changed["losses"]["total"], 100 + X.sum())


def test_like_flax_where_flax_works():
    def build(nn):
        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x, _=None):
                h = nn.Dense(4)(x)
                self.sow("intermediates", "h", h)
                self.sow("losses", "l2", (h**2).sum(), reduce_fn=lambda a, b: a + b, init_fn=lambda: 0.0)
                return jnp.sin(h), None

        axes = {"params": 0, "intermediates": 1, "losses": 0}

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                inner = Inner()
                x = inner(inner(x)[0])[0]
                self.sow("intermediates", "x", {"a": x, "b": (x, 1)})
                scanned = nn.scan(Inner, variable_axes=axes, split_rngs={"params": True}, length=3)()
                return scanned(scanned(x, None)[0], None)[0]

        return Model()

    check(build, X)


def test_sow_says_whether_the_value_is_kept():
    kept = []
    model = sowing(lambda self, x: kept.append(self.sow("intermediates", "x", x)))
    model.apply({}, X)
    model.apply({}, X, mutable=["other"])
    model.apply({}, X, mutable=["intermediates"])
    assert kept == [False, False, True]


def test_a_sown_name_must_be_free():
    def body(self, x):
        nn.Dense(3, name="dense")(x)
        self.sow("intermediates", "dense", x)

    with pytest.raises(NameInUseError, match=r"sown 'intermediates' value 'dense' in Model at /"):
        sowing(body).init(KEYS, X, mutable=True)


def test_a_bound_module_cannot_take_a_value_out_of_a_transform():
    bound = Sower().bind({}, mutable=["intermediates"])
    bound(X)
    assert len(bound.variables["intermediates"]["x"]) == 1
    with pytest.raises(
        JaxTransformError, match=r"module /, which was bound with bind, sows 'x' inside a JAX transform"
    ):
        jax.jit(lambda x: bound(x))(X)


class Sower(nn.Module):
    def __call__(self, x):
        self.sow("intermediates", "x", x)
        return x


def test_perturb():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = self.perturb("hidden", nn.Dense(3)(x))
            return self.perturb("out", {"a": x * 2, "b": x}, "other")["a"]

    variables = Model().init(jax.random.key(0), X)
    assert set(variables) == {"params", "perturbations", "other"}
    loss = lambda p: (Model().apply({**variables, "perturbations": p}, X) ** 2).sum()
    grad = jax.grad(loss)(variables["perturbations"])["hidden"]
    hidden = X @ variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(grad, 8 * hidden, rtol=1e-5)
    assert_same(Model().apply({"params": variables["params"]}, X), Model().apply(variables, X))
    with pytest.raises(ValueError, match="module / perturbs 'hidden'"):
        Model().apply({**variables, "perturbations": {"another": X}}, X)


def test_sonde_capture_sees_sown_values_under_the_path_of_the_module():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.Dense(4, name="shared")
            x = Layer(name="layer")(shared(x))[0]
            return Wrap(shared, name="wrap")(jax.vmap(lambda r: Sower(name="in_vmap")(r))(x))

    class Wrap(nn.Module):
        inner: nn.Module

        @nn.compact
        def __call__(self, x):
            return nn.LayerNorm(name="norm")(self.inner(x))

    variables = Model().init(jax.random.key(0), X)
    output, records = sonde.capture(Model().apply)(variables, X)
    np.testing.assert_allclose(output, Model().apply(variables, X))
    assert {"layer/h", "in_vmap/x", "wrap/norm/normalized"} <= set(records)
    (_, changed), again = sonde.capture(lambda: Model().apply(variables, X, mutable=["intermediates"]))()
    assert set(again) == set(records)
    np.testing.assert_allclose(changed["intermediates"]["layer"]["h"][0], records["layer/h"].value)


def test_sonde_capture_sees_gradients_at_perturbed_values():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return (self.perturb("hidden", x * 3) ** 2).sum()

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Model(name="model")(x)

    _, records = sonde.capture(jax.grad(lambda x: Outer().apply({}, x)), grads=True)(X)
    np.testing.assert_allclose(records["model/hidden"].grad, 6 * X, rtol=1e-6)


def test_loops_in_loops_and_runs_in_runs():
    class Inner(nn.Module):
        def __call__(self, x, _=None):
            def step(c, _):
                self.sow("intermediates", "c", c)
                return c + 1, None

            return lax.scan(step, x, None, length=2)[0], None

    for axes in ({}, {"intermediates": 0}):
        looped = nn.scan(Inner, variable_axes=axes, length=3)()
        (value,) = intermediates(looped, X, None)["c"]
        np.testing.assert_allclose(value, X + jnp.arange(6.0).reshape(3, 2, 1, 1))

    def body(self, x):
        inside = looped.apply({}, x, None, mutable=["intermediates"])[1]
        self.sow("intermediates", "outside", x)
        lax.map(lambda row: self.sow("intermediates", "row", row), x)
        return inside

    inside, changed = sowing(body).apply({}, X, mutable=["intermediates"])
    assert jax.tree.map(jnp.shape, inside["intermediates"]) == {"c": ((3, 2, 3, 4),)}
    assert jax.tree.map(jnp.shape, changed["intermediates"]) == {"outside": ((3, 4),), "row": ((3, 4),)}


def test_threads_do_not_mix():
    model = sowing(lambda self, x: lax.scan(lambda c, _: (squares(self, c), None), x, None, length=2)[0])
    errors = []

    def work(k):
        for i in range(3):
            (value,) = intermediates(model, X + k + i)["square"]
            if not np.allclose(value[0], (X + k + i) ** 2):
                errors.append((k, i))

    threads = [threading.Thread(target=work, args=(10 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_the_program_is_the_same_when_nobody_looks():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return lax.scan(lambda c, _: (nn.Dense(4, name="dense")(c), None), x, None, length=2)[0]

    class Sown(nn.Module):
        @nn.compact
        def __call__(self, x):
            def body(c, _):
                h = nn.Dense(4, name="dense")(c)
                self.sow("intermediates", "h", h)
                return h, None

            return lax.scan(body, x, None, length=2)[0]

    variables = {"params": {"dense": nn.Dense(4).init(jax.random.key(0), X)["params"]}}
    jaxprs = [jax.make_jaxpr(lambda v, x, m=m: m.apply(v, x))(variables, X) for m in (Plain(), Sown())]
    assert str(jaxprs[0]) == str(jaxprs[1])
    flax = flax_nn.Dense(4)
    assert len(jax.make_jaxpr(nn.Dense(4).apply)({"params": variables["params"]["dense"]}, X).eqns) <= len(
        jax.make_jaxpr(flax.apply)({"params": variables["params"]["dense"]}, X).eqns
    )


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_sown_value_has_its_gradient(wrap):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = jnp.tanh(nn.Dense(4, name="dense")(x))
            self.sow("intermediates", "h", h)
            return h

    variables = nn.Dense(4).init(jax.random.key(0), X)
    model = Model()

    def loss(params):
        return jnp.sum(model.apply({"params": {"dense": params}}, X) ** 3)

    _, records = sonde.capture(jax.grad(wrap(loss)), grads=True)(variables["params"])
    h = jnp.tanh(nn.Dense(4).apply(variables, X))
    np.testing.assert_allclose(records["h"].grad, 3 * h**2, rtol=1e-5)
