"""`nnx.capture`: what Modules sow, from inside every transform, against values computed by hand."""

import functools
import string
import threading
import warnings

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import nnx
from sonde.nnx.modules import module

X = jnp.arange(4.0) * 0.3 + 0.1
XB = jnp.arange(12.0).reshape(3, 4) * 0.1 + 0.05
WS = jnp.array([0.5, 1.5, -0.7])


class Block(nnx.Module):
    def __init__(self, w=2.0):
        self.w = nnx.Param(jnp.asarray(w, jnp.float32))

    def __call__(self, x):
        h = x * self.w[...]
        self.sow(nnx.Intermediate, "h", h)
        return jnp.sin(h)


class Two(nnx.Module):
    def __init__(self):
        self.a = Block(2.0)
        self.b = Block(3.0)

    def __call__(self, x):
        return self.b(self.a(x))


class Noted(nnx.Module):
    """Perturbs."""

    def __init__(self):
        self.w = nnx.Param(jnp.float32(2.0))

    def __call__(self, x):
        return jnp.sin(self.perturb("p", x * self.w[...]))


def flat(state):
    return {"/".join(map(str, p)): v.get_value() for p, v in nnx.to_flat_state(state)}


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def check_two(out, seen, x=X):
    close(out, jnp.sin(jnp.sin(2 * x) * 3))
    seen = flat(seen)
    assert sorted(seen) == ["a/h", "b/h"]
    close(seen["a/h"][0], 2 * x)
    close(seen["b/h"][0], jnp.sin(2 * x) * 3)


def call(m, x):
    return m(x)


INSIDE = {
    "nothing": lambda m, x: m(x),
    "nnx.jit": lambda m, x: nnx.jit(call)(m, x),
    "nnx.jit, tree": lambda m, x: nnx.jit(call, graph=False)(m, x),
    "nnx.remat": lambda m, x: nnx.remat(call)(m, x),
    "nnx.cond": lambda m, x: nnx.cond(True, call, lambda m, x: x, m, x),
    "nnx.switch": lambda m, x: nnx.switch(1, [lambda m, x: x, call], m, x),
    "jax.jit closure": lambda m, x: jax.jit(lambda x: m(x))(x),
    "jax.jit pytree": lambda m, x: jax.jit(call)(m, x),
    "jax.jit in jax.jit": lambda m, x: jax.jit(lambda x: jax.jit(call)(m, x))(x),
    "jax.checkpoint": lambda m, x: jax.checkpoint(call)(m, x),
    "lax.cond": lambda m, x: lax.cond(x.sum() > 0, lambda x: m(x), lambda x: x, x),
    "partial": lambda m, x: functools.partial(m)(x),
    "split and merge": lambda m, x: jax.jit(lambda s, x, g=nnx.graphdef(m): nnx.merge(g, s)(x))(nnx.state(m), x),
    "nnx.call": lambda m, x: nnx.call(nnx.split(m))(x)[0],
    "clone in jit": lambda m, x: nnx.jit(lambda m, x: m(x))(m, x),
}


@pytest.mark.parametrize("name", INSIDE)
def test_inside(name):
    model = Two()
    before = nnx.to_pure_dict(nnx.state(model))
    check_two(*nnx.capture(INSIDE[name], nnx.Intermediate)(model, X))
    assert not [k for _, m in nnx.iter_modules(model) for k in vars(m) if k not in ("a", "b", "w")]
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.state(model)))


OUTSIDE = {
    "nnx.jit": lambda f: nnx.jit(f),
    "jax.jit": lambda f: jax.jit(f),
    "nnx.remat": lambda f: nnx.remat(f),
    "jax.checkpoint": lambda f: jax.checkpoint(f),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name):
    model = Two()
    for _ in range(2):
        out, seen = OUTSIDE[name](lambda m, x: nnx.capture(m, nnx.Intermediate)(x))(model, X)
        check_two(out, seen)


def test_vmap_puts_the_mapped_axis_first():
    for mapped in (
        lambda m, x: nnx.vmap(call, in_axes=(None, 0))(m, x),
        lambda m, x: jax.vmap(lambda r: m(r))(x),
        lambda m, x: jax.vmap(call, in_axes=(None, 0))(m, x),
        lambda m, x: nnx.vmap(call, in_axes=(None, 1), out_axes=1)(m, x.T).T,
    ):
        _, seen = nnx.capture(mapped, nnx.Intermediate)(Two(), XB)
        close(flat(seen)["a/h"][0], 2 * XB)


def layers_by_hand(x, ws=WS):
    hs = []
    for w in ws:
        hs.append(x * w)
        x = jnp.sin(hs[-1])
    return x, jnp.stack(hs)


@pytest.mark.parametrize(
    "scan",
    [
        lambda m, x: nnx.scan(call, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(m, x),
        lambda m, x: lax.scan(lambda x, layer: (layer(x), None), x, m)[0],
        lambda m, x: nnx.jit(nnx.scan(nnx.remat(call), in_axes=(0, nnx.Carry), out_axes=nnx.Carry))(m, x),
    ],
    ids=["nnx.scan", "lax.scan", "jit of scan of remat"],
)
def test_scan_over_layers(scan):
    out, seen = nnx.capture(scan, nnx.Intermediate)(Block(WS), X)
    want, hs = layers_by_hand(X)
    close(out, want)
    close(flat(seen)["h"][0], hs)


def test_scan_over_time_and_fori_loop():
    model = Block(1.5)
    want, hs = layers_by_hand(X, [1.5] * 3)
    for loop in (
        lambda m, x: lax.scan(lambda c, _: (m(c), None), x, length=3)[0],
        lambda m, x: lax.fori_loop(0, 3, lambda i, c: m(c), x),
        lambda m, x: nnx.fori_loop(0, 3, lambda i, c: (c[0], c[0](c[1])), (m, x))[1],
    ):
        out, seen = nnx.capture(loop, nnx.Intermediate)(model, X)
        close(out, want)
        close(flat(seen)["h"][0], hs)
    _, seen = nnx.capture(
        lambda m, x: lax.while_loop(lambda c: c[1] < 3, lambda c: (m(c[0]), c[1] + 1), (x, 0))[0], nnx.Intermediate
    )(model, X)
    close(flat(seen)["h"][0], hs[-1])


def test_reduce_over_iterations_of_a_loop():
    class Sum(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "sum", x, init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b)
            return x + 1

    out, seen = nnx.capture(lambda m, x: lax.scan(lambda c, _: (m(c), None), x, length=4)[0], nnx.Intermediate)(
        Sum(), X
    )
    close(flat(seen)["sum"], 4 * X + 6)


def test_branch_that_was_not_taken():
    f = lambda m, x, p: lax.cond(p, lambda x: m(x), lambda x: x, x)
    assert flat(nnx.capture(f, nnx.Intermediate)(Block(), X, False)[1]) == {}
    close(flat(nnx.capture(f, nnx.Intermediate)(Block(), X, True)[1])["h"][0], 2 * X)


def test_vmap_of_cond_is_one_value():
    f = lambda m, x: jax.vmap(lambda x: lax.cond(x.sum() > 1, lambda x: m(x), lambda x: m(2 * x), x))(x)
    _, seen = nnx.capture(f, nnx.Intermediate)(Block(), XB)
    (value,) = flat(seen)["h"]
    close(value, jnp.where((XB.sum(1) > 1)[:, None], 2 * XB, 4 * XB))


def test_one_jitted_function_two_modules():
    f = jax.jit(call)
    g = nnx.jit(call)
    for jitted in (f, g):
        _, seen = nnx.capture(lambda m, x, j=jitted: j(m.b, j(m.a, x)), nnx.Intermediate)(Two(), X)
        check_two(jnp.sin(jnp.sin(2 * X) * 3), seen)


def test_two_modules_go_through_one_tree_map():
    def f(m, x):
        mean = jax.tree.map(lambda a, b: (a + b) / 2, m.a, m.b)
        fresh = Block(1.0)
        both = jax.tree.map(lambda a, b: a + b, m.a, fresh)
        return mean(x), both.w[...] + 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (out, w), _ = nnx.capture(f, nnx.Intermediate)(Two(), X)
    close(out, jnp.sin(2.5 * X))
    close(w, 3.0)


def test_the_same_function_for_another_root():
    model = Two()
    g = jax.jit(lambda x: model.a(x))
    _, seen = nnx.capture(lambda m, x: g(x), nnx.Intermediate)(model, X)
    assert list(flat(seen)) == ["a/h"]
    _, seen = nnx.capture(lambda m, x: g(x), nnx.Intermediate)(model.a, X)
    assert list(flat(seen)) == ["h"]


def test_module_by_keyword_and_name_of_the_wrapper():
    def forward(x, *, model):
        """Doc."""
        return model(x)

    captured = nnx.capture(forward, nnx.Intermediate)
    assert (captured.__name__, captured.__doc__, captured.__wrapped__) == ("forward", "Doc.", forward)
    check_two(*captured(X, model=Two()))


def test_name_sown_under_two_types_and_name_of_a_child():
    class Other(nnx.Intermediate):
        pass

    class M(nnx.Module):
        def __init__(self):
            self.h = Block()

        def __call__(self, x):
            y = self.h(x)
            self.sow(nnx.Intermediate, "s", x)
            self.sow(Other, "s", x + 1)
            self.sow(nnx.Intermediate, "h", y)
            return y

    _, one, other = nnx.capture(M(), nnx.Intermediate, Other)(X)
    assert sorted(flat(one)) == ["h/", "h/h", "s"] and sorted(flat(other)) == ["s"]
    close(flat(other)["s"][0], X + 1)
    close(flat(one)["h/"][0], jnp.sin(2 * X))


def test_modules_added_and_made_during_the_call():
    class M(nnx.Module):
        def __call__(self, x):
            self.blk = Block(2.0)
            return Block(3.0)(self.blk(x))

    _, seen = nnx.capture(M(), nnx.Intermediate)(X)
    seen = flat(seen)
    close(seen["blk/h"][0], 2 * X)
    close(seen["Block/h"][0], jnp.sin(2 * X) * 3)


def test_nested_captures_have_paths_of_their_own():
    def f(m, x):
        y, inner = nnx.capture(m.a, nnx.Intermediate)(x)
        return m.b(y), inner

    (out, inner), outer = nnx.capture(f, nnx.Intermediate)(Two(), X)
    check_two(out, outer)
    assert list(flat(inner)) == ["h"]


def test_threads_see_their_own_values():
    model, errors = Two(), []

    def work(k):
        try:
            for i in range(3):
                check_two(*nnx.capture(model, nnx.Intermediate)(X + k + i), X + k + i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


def test_after_an_exception_everything_works():
    class Boom(nnx.Module):
        def __init__(self):
            self.a = Block()
            self.fail = True

        def __call__(self, x):
            y = self.a(x)
            if self.fail:
                raise RuntimeError("boom")
            return y

    model = Boom()
    for f in (call, nnx.jit(call), jax.jit(call)):
        with pytest.raises(RuntimeError, match="boom"):
            nnx.capture(f, nnx.Intermediate)(model, X)
    model.fail = False
    close(flat(nnx.capture(model, nnx.Intermediate)(X)[1])["a/h"][0], 2 * X)
    with pytest.warns(DeprecationWarning, match="nnx.capture"):
        model(X)
    assert model.a.h.get_value()[0].shape == (4,)


def test_leaks_nothing():
    with jax.checking_leaks():
        check_two(*nnx.capture(lambda m, x: nnx.jit(call)(m, x), nnx.Intermediate)(Two(), X))
        nnx.capture(lambda m, x: lax.scan(lambda x, layer: (layer(x), None), x, m)[0], nnx.Intermediate)(Block(WS), X)


# ---------------------------------------------------------------------------------- method outputs


def test_method_outputs_of_inherited_and_overriding_methods():
    class Base(nnx.Module):
        def encode(self, x):
            return x * 2

        def __call__(self, x):
            return self.encode(x)

        @staticmethod
        def helper(x):
            return x

        def _private(self, x):
            return x

    class Derived(Base):
        def __call__(self, x):
            return super().__call__(self.helper(self._private(x))) + 1

    out, seen = nnx.capture(Derived(), method_outputs=nnx.Intermediate)(X)
    seen = flat(seen)
    assert sorted(seen) == ["__call__", "encode"]
    assert len(seen["__call__"]) == 1
    close(seen["__call__"][0], 2 * X + 1)


def test_method_outputs_of_a_mixin():
    class Mixin:
        def shift(self, x):
            return x + 1

    class Mixin2(Mixin):
        def shift(self, x):
            return super().shift(x) * 10

    class Model(Mixin, nnx.Module):
        def __call__(self, x):
            return self.shift(x)

    class Between(Model, Mixin2):
        """The methods of Mixin2 come before those of Mixin, although Model has them."""

    class Overrides(Between):
        def shift(self, x):
            return super().shift(x) + 0.5

    for cls, expected in ((Model, 2.0), (Between, 20.0), (Overrides, 20.5)):
        y, seen = nnx.capture(cls(), nnx.Intermediate, method_outputs=nnx.Intermediate)(1.0)
        assert y == cls()(1.0) == expected
        assert flat(seen) == {"shift": (expected,), "__call__": (expected,)}
    Mixin.shift = lambda self, x: x + 2
    assert Model()(1.0) == 3.0 and Between()(1.0) == 30.0


def test_methods_of_pythons_own_library_are_no_calls_of_a_module():
    class Model(nnx.Module, string.Formatter):
        def __call__(self, x):
            return self.format("{}", x)

    _, seen = nnx.capture(Model(), nnx.Intermediate, method_outputs=nnx.Intermediate)(1.0)
    assert flat(seen) == {"__call__": ("1.0",)}


def test_a_method_that_calls_itself():
    class M(nnx.Module):
        def down(self, n):
            return n if n == 0 else self.down(n - 1) + 1

    _, seen = nnx.capture(M().down, method_outputs=nnx.Intermediate)(3)
    assert flat(seen)["down"] == (0, 1, 2, 3)


# ---------------------------------------------------------------------------------- perturb


@pytest.mark.parametrize(
    "inside",
    [
        call,
        lambda m, x: nnx.jit(call)(m, x),
        lambda m, x: jax.jit(lambda x: m(x))(x),
        lambda m, x: jax.checkpoint(call)(m, x),
    ],
    ids=["plain", "nnx.jit", "jax.jit", "checkpoint"],
)
def test_perturb(inside):
    model = Noted()
    _, zeros = nnx.capture(inside, nnx.Perturbation)(model, X)
    close(flat(zeros)["p"], jnp.zeros(4))

    def loss(m, p, x):
        return nnx.capture(inside, init=p)(m, x).sum()

    grads = nnx.grad(loss, argnums=1)(model, zeros, X)
    close(flat(grads)["p"], jnp.cos(2 * X))
    shifted = jax.tree.map(lambda z: z + 1, zeros)
    close(nnx.capture(inside, init=shifted)(model, X), jnp.sin(2 * X + 1))


def test_values_and_gradients_of_a_training_step_in_one_call():
    model = Noted()

    def step(model, x):
        return nnx.value_and_grad(lambda m: m(x).sum())(model)

    for f in (step, nnx.jit(step)):
        (value, grads), values, inner = nnx.capture_grads(f)(model, X)
        close(value, jnp.sin(2 * X).sum())
        close(flat(values)["p"][0], 2 * X)
        close(flat(inner)["p"][0], jnp.cos(2 * X))
    _, values, inner = nnx.capture_grads(step, method_outputs=nnx.Intermediate)(model, X)
    close(flat(inner)["__call__"][0], jnp.ones(4))


# ---------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("library", [nnx, flax.nnx], ids=["sonde", "flax"])
@pytest.mark.parametrize("init", [None, "empty", "of another type"])
@pytest.mark.parametrize("jitted", ["inside", "outside"])
def test_without_types_nothing_is_stored_and_nothing_is_traced_again(library, init, jitted):
    class Scale(library.Module):
        def __init__(self):
            self.w = library.Param(jnp.float32(2.0))

        def __call__(self, x):
            traces.append(1)
            x = x * self.w[...]
            self.sow(library.Intermediate, "h", x)
            return self.perturb("p", x)

    model, traces = Scale(), []
    given = {None: None, "empty": library.State({}), "of another type": library.State({"q": library.Param(1.0)})}[init]
    forward = lambda m, x: m(x)
    if jitted == "inside":
        step = library.capture(library.jit(forward), init=given)
    else:
        step = library.jit(library.capture(forward, init=given))
    for _ in range(3):
        close(step(model, X), 2 * X)
    assert set(library.state(model)) == {"w"}
    assert len(traces) == 1


def test_the_flag_for_doing_nothing_outside_a_capture(monkeypatch):
    model = Block()
    monkeypatch.setattr(module, "flag", lambda name: name == "nnx_sow_capture_noop")
    close(model(X), jnp.sin(2 * X))
    close(Noted()(X), jnp.sin(2 * X))
    assert set(nnx.state(model)) == {"w"}
    assert model.sow(nnx.Intermediate, "h", X) is False and model.perturb("p", 3.0) == 3.0
    with pytest.warns(DeprecationWarning):
        assert model.sow(nnx.Intermediate, "h", X, capture_noop=False)


def test_errors():
    with pytest.raises(TypeError, match="found no Module: pass"):
        nnx.capture(lambda x: x, nnx.Intermediate)(X)
    with pytest.raises(TypeError, match="or a bound method of it; got no arguments$"):
        nnx.capture(lambda: X, nnx.Intermediate)()
    with pytest.raises(TypeError, match="takes types of Variable"):
        nnx.capture(Two(), "Intermediate")
    with pytest.raises(TypeError, match="nnx.capture takes a callable, got 42"):
        nnx.capture(42, nnx.Intermediate)


def test_what_was_sown_has_its_gradient():
    model = Two()

    def step(model, x):
        return nnx.grad(lambda m: m(x).sum())(model)

    for f in (step, nnx.jit(step), jax.jit(step)):
        _, values, grads = nnx.capture_grads(f)(model, X)
        close(flat(values)["b/h"][0], jnp.sin(2 * X) * 3)
        close(flat(grads)["b/h"][0], jnp.cos(jnp.sin(2 * X) * 3))
        close(flat(grads)["a/h"][0], jnp.cos(jnp.sin(2 * X) * 3) * 3 * jnp.cos(2 * X))
    _, _, grads = nnx.capture_grads(lambda m, x: nnx.grad(lambda m: lax.scan(body, x, m)[0].sum())(m))(Block(WS), X)
    _, hs = layers_by_hand(X)
    by_hand = jax.grad(lambda d: shifted_layers(X, d).sum())(jnp.zeros_like(hs))
    close(flat(grads)["h"][0], by_hand)


def body(x, layer):
    return layer(x), None


def shifted_layers(x, shifts):
    for w, shift in zip(WS, shifts):
        x = jnp.sin(x * w + shift)
    return x


@pytest.mark.parametrize("jitted", [False, True])
def test_perturbed_numbers_keep_their_weak_types(jitted):
    def types(nnx):
        class Model(nnx.Module):
            def __call__(self, x):
                return 3 * self.perturb("g", x)

        model = Model()
        run = nnx.jit(lambda m, x: m(x)) if jitted else lambda m, x: m(x)
        _, zeros = nnx.capture(run, nnx.Perturbation)(model, 1.0)

        def loss(model, zeros):
            return nnx.capture(run, nnx.Intermediate, init=zeros)(model, 1.0)[0]

        gradient = nnx.grad(loss, argnums=1)(model, zeros)["g"].get_value()
        return gradient.item(), gradient.weak_type, loss(model, zeros).weak_type

    assert types(nnx) == types(flax.nnx)


def test_only_what_modules_mark_is_in_the_program():
    layer = nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0), decode=False)
    norm = nnx.LayerNorm(4, rngs=nnx.Rngs(0))

    def run(layer, x):
        return layer(norm(x))

    def seen(layer, x):
        return nnx.capture(run, nnx.Intermediate)(layer, x)[0]

    plain = str(jax.make_jaxpr(run, static_argnums=0)(layer, XB))
    assert str(jax.make_jaxpr(seen, static_argnums=0)(layer, XB)) == plain  # the layers' own sites are not wanted
    around, records = sonde.capture(seen)(layer, XB)
    assert "weights" in records  # unless a capture around is there to see them
    inside, _ = nnx.capture(lambda layer, x: sonde.capture(run)(layer, x), nnx.Intermediate)(layer, XB)
    close(inside[1]["weights"].value, records["weights"].value)
    close(around, inside[0])
