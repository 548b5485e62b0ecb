"""Every lifted transform against its namesake in flax.linen."""

from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import KEYS, assert_same, assert_same_runs, check

from sonde import linen as nn
from sonde.errors import NameInUseError, TransformedMethodReturnValueError, TransformTargetError

X = jnp.arange(10.0).reshape(2, 5) / 7

SCAN = {
    "variable_axes": {"params": 0, "intermediates": 0, "count": 0},
    "split_rngs": {"params": True, "dropout": True},
    "length": 3,
}
WRAPS = {
    "scan": lambda nn: lambda layer: nn.scan(layer, **SCAN),
    "scan backwards": lambda nn: lambda layer: nn.scan(layer, **SCAN, reverse=True, unroll=2),
    "scan with shared params": lambda nn: (
        lambda layer: nn.scan(
            layer,
            variable_broadcast="params",
            variable_axes={"count": 0, "intermediates": 0},
            split_rngs={"params": False, "dropout": True},
            length=3,
        )
    ),
    "scan of remat": lambda nn: lambda layer: nn.scan(nn.remat(layer, prevent_cse=False), **SCAN),
    "vmap": lambda nn: (
        lambda layer: nn.vmap(
            layer,
            variable_axes={"params": 0, "intermediates": 0, "count": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, None),
        )
    ),
    "vmap with shared params": lambda nn: (
        lambda layer: nn.vmap(
            layer,
            variable_axes={"params": None, "intermediates": 0, "count": 0},
            split_rngs={"params": False, "dropout": True},
            in_axes=(0, None),
        )
    ),
    "remat": lambda nn: nn.remat,
    "jit": lambda nn: nn.jit,
    "fold_rngs": lambda nn: nn.fold_rngs,
    "map_variables": lambda nn: (
        lambda layer: nn.map_variables(
            layer,
            "params",
            trans_in_fn=lambda v: jax.tree.map(lambda x: x * 2, v),
            trans_out_fn=lambda v: jax.tree.map(lambda x: x / 2, v),
            init=True,
            mutable=True,
        )
    ),
}


def layer_of(nn):
    class Layer(nn.Module):
        sub: Any = None

        @nn.compact
        def __call__(self, x, _=None):
            h = nn.Dense(5)(x)
            self.sow("intermediates", "h", h)
            if self.sub is not None:
                h = self.sub(h)
            count = self.variable("count", "c", lambda: jnp.zeros(()))
            count.value = count.value + h.sum()
            return nn.Dropout(0.5, deterministic=False)(jnp.sin(h)), h.sum()

    return Layer


@pytest.mark.every(2)
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_classes(wrap):
    check(lambda nn: wrap(nn)(layer_of(nn))(), X, None, capture=True)


@pytest.mark.parametrize("name", ["scan", "vmap", "jit", "map_variables"])
def test_classes_with_a_submodule_given(name):
    check(lambda nn: WRAPS[name](nn)(layer_of(nn))(nn.Dense(5)), X, None)


@pytest.mark.parametrize("name", ["scan with shared params", "vmap with shared params", "remat", "jit"])
def test_inside_a_model(name):
    wrap = WRAPS[name]

    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                x = nn.Dense(5)(x)
                x = wrap(nn)(layer_of(nn))(None)(x, None)[0]
                x = wrap(nn)(layer_of(nn))(None, name="second")(x, None)[0]
                return nn.Dense(2)(x)

        return Model()

    check(build, X, capture=True)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["remat", "jit", "fold_rngs", "vmap with shared params", "scan with shared params"])
def test_functions_of_a_module(name):
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                def body(module, x, _):
                    return nn.Dense(5)(nn.Dense(5, name="named")(x)), x

                wrap = WRAPS[name](nn)
                x, _ = wrap(body)(self, x, None)
                x, _ = wrap(lambda module, x, _: (module(x), x))(nn.Dense(5), x, None)
                return nn.Dense(5)(x)

        return Model()

    check(build, X, grads=True)


def test_methods():
    def build(nn):
        class Model(nn.Module):
            def setup(self):
                self.inner = nn.Dense(5)

            @nn.remat
            def encode(self, x):
                return jnp.sin(self.inner(x))

            @nn.jit
            def decode(self, x):
                return self.inner(x) + 1

            def __call__(self, x):
                return self.decode(self.encode(x))

        return Model()

    check(build, X, grads=True)


def test_some_methods_of_a_class_with_options_each():
    def build(nn):
        class Inner(nn.Module):
            def setup(self):
                self.dense = nn.Dense(5)

            def encode(self, x):
                return self.dense(x)

            def decode(self, x, y):
                return self.dense(x) + y

        shared = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
        lifted = nn.vmap(
            Inner,
            methods={"encode": {"in_axes": 0, **shared}, "decode": {"in_axes": (0, None), "out_axes": 1, **shared}},
        )

        class Model(nn.Module):
            def setup(self):
                self.inner = lifted()

            def __call__(self, x):
                return self.inner.decode(self.inner.encode(x), x[0])

        return Model()

    check(build, X)


def test_a_shared_submodule_stays_shared_in_a_transform():
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                dense = nn.Dense(5)
                x = dense(x)
                x = nn.remat(layer_of(nn))(dense)(x)[0]
                return nn.jit(lambda module, other, x: module(other(x)))(dense, nn.Dense(5), x)

        return Model()

    check(build, X)


def test_scan_over_inputs_and_outputs():
    def build(nn):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, carry, x, scale):
                carry = nn.Dense(5)(carry) + x
                return carry, {"a": carry * scale, "b": carry.sum()}

        return nn.scan(
            Cell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=(1, nn.broadcast),
            out_axes={"a": 1, "b": 0},
        )()

    check(build, X, jnp.ones((2, 4, 5)), jnp.float32(2.0), grads=True)


@pytest.mark.parametrize("leading", [("a", "b"), ("b", "a")])  # by name, a leaf that is broadcast comes first or last
def test_scan_over_a_tree_in_which_one_leaf_is_broadcast(leading):
    shared, looped = leading

    def build(nn):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, carry, tree):
                carry = nn.Dense(5)(carry) * tree[shared] + tree[looped][0]
                return carry, carry + tree[looped][1]

        axes = {shared: nn.broadcast, looped: (1, 0)}
        return nn.scan(Cell, variable_broadcast="params", split_rngs={"params": False}, in_axes=(axes,))()

    rows = jnp.arange(20.0).reshape(4, 5)
    check(build, X, {shared: jnp.float32(2.0), looped: (jnp.ones((2, 4, 5)), rows)}, grads=True)


def test_scan_carries_variables():
    def run(nn):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, carry, x):
                total = self.variable("count", "total", lambda: jnp.zeros(()))
                total.value = total.value + x
                return carry + total.value, total.value

        loop = nn.scan(Cell, variable_carry="count")()
        return loop.apply({"count": {"total": jnp.float32(1)}}, jnp.float32(0), jnp.arange(3.0), mutable=True)

    assert_same_runs(run)


def test_a_shared_variable_that_every_iteration_changes():
    def run(nn, **options):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, carry, _):
                count = self.variable("count", "n", lambda: jnp.zeros(()))
                if self.is_mutable_collection("count"):
                    count.value += 1
                return carry + count.value, count.value

        loop = nn.scan(Cell, variable_broadcast="count", length=3, **options)()
        given = {"count": {"n": jnp.float32(5)}}
        return (
            loop.init_with_output(KEYS, jnp.float32(0), None),
            loop.apply(given, jnp.float32(0), None, mutable=["count"]),
            loop.apply(given, jnp.float32(0), None),
        )

    assert_same_runs(run)
    options = {"check_constancy_invariants": False}
    assert_same_runs(lambda nn: run(nn, **options))


def test_variables_mapped_twice_in_an_iteration():
    def build(nn):
        halved = lambda module, x: nn.map_variables(
            lambda module, x: module(x),
            "params",
            trans_in_fn=lambda tree: jax.tree.map(lambda p: p / 2, tree),
            init=module.is_initializing(),
            mutable=module.is_initializing(),
        )(module, x)

        class Twice(nn.Module):
            @nn.compact
            def __call__(self, carry, _):
                layer = nn.Dense(5)
                return halved(layer, halved(layer, carry)), None

        return nn.scan(Twice, variable_broadcast="params", split_rngs={"params": False}, length=2)()

    check(build, X, None)


def test_scan_says_what_is_wrong():
    class Cell(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            made = self.variable("count", "made", lambda: carry)
            return carry, made.value

    key = jax.random.key(0)
    with pytest.raises(TypeError, match=r"nn.scan of ScanCell at /: variables \['count/made'\] of a carried"):
        nn.scan(Cell, variable_carry="count")().init(key, jnp.float32(0), jnp.arange(3.0))
    with pytest.raises(ValueError, match=r"variable_broadcast='count'.* depends on the carry or on the iteration"):
        nn.scan(Cell, variable_broadcast="count")().init(key, jnp.float32(0), jnp.arange(3.0))
    with pytest.raises(ValueError, match=r"nn.scan of ScanCell at /: .*length should be specified"):
        nn.scan(Cell)().init(key, jnp.float32(0), None)
    with pytest.raises(ValueError, match=r"inconsistent scan lengths: \[3, 4\]"):
        nn.scan(Cell, length=4)().init(key, jnp.float32(0), jnp.arange(3.0))


def test_maps_leave_keyword_arguments_out_and_say_so():
    class Cell(nn.Module):
        @nn.compact
        def __call__(self, x, y=1.0, scale=1.0):
            return x * y * scale, x

    for lifted in (nn.scan(Cell)(), nn.vmap(Cell, in_axes=0)()):
        with pytest.warns(RuntimeWarning, match=r"at / ignores the keyword arguments \['scale'\]"):
            out = lifted.apply({}, jnp.ones(3), jnp.ones(3), scale=5.0)
        assert float(out[0].max()) == 1.0
    with pytest.raises(TypeError, match=r"keyword arguments \['y'\]: it takes only the carry"):
        nn.remat_scan(Cell, lengths=(2,))().apply({}, 1.0, y=2.0)


class _OwnParam:
    """A module that makes a parameter and a submodule in `setup`, for either library."""

    @staticmethod
    def of(nn):
        class Scaled(nn.Module):
            def setup(self):
                self.dense = nn.Dense(5)
                self.scale = self.param("scale", nn.initializers.uniform(), (5,))

            def __call__(self, x, _=None):
                return self.dense(x) * self.scale, None

        return Scaled


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["scan", "scan backwards", "vmap", "vmap with shared params", "remat", "jit"])
def test_what_a_lifted_class_makes_in_setup_is_lifted_too(name):
    def build(nn):
        class Top(nn.Module):
            @nn.compact
            def __call__(self, x):
                return WRAPS[name](nn)(_OwnParam.of(nn))(name="layers")(x, None)

        return Top()

    # Flax runs `setup` outside of its jit too, which makes `scale` the first
    check(build, X, grads=True, in_order=name != "jit")


def test_branches_may_give_the_same_names():
    def build(nn):
        class Heads(nn.Module):
            @nn.compact
            def __call__(self, x, i):
                def head(sign):
                    return lambda module, x: sign * nn.Dense(3, name="head")(nn.Dense(4)(x))

                y = nn.switch(i, [head(1.0), head(-1.0)], self, x)
                y = nn.cond(y.sum() > 0, lambda m, y: nn.Dense(2)(y), lambda m, y: -nn.Dense(2)(y), self, y)
                return nn.Dense(2)(y)

        return Heads()

    for i in range(2):
        check(build, X, i, grads=True)


def test_bound_methods_stand_for_methods():
    def build(nn):
        class Model(nn.Module):
            def setup(self):
                self.dense = nn.Dense(5)

            def twice(self, x):
                return self.dense(self.dense(x))

            def once(self, x):
                return self.dense(x)

            def total(self, x):
                return self.dense(x).sum()

            def goes_on(self, state):
                return state[0] < 3

            def step(self, state):
                return state[0] + 1, self.dense(state[1])

            def __call__(self, x):
                y = nn.cond(x.sum() > 0, self.twice, self.once, self, x)
                _, z = nn.while_loop(self.goes_on, self.step, self, (0, x))
                (gradient,) = nn.grad(self.total, self, x)
                _, pull_back = nn.vjp(self.total, self, x)
                return y + z + gradient + pull_back(1.0)[1]

        return Model()

    check(build, X)


def test_remat_scan():
    def build(nn):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x):
                return jnp.sin(nn.Dense(5)(x))

        return nn.remat_scan(Layer, lengths=(2, 3))()

    check(build, X, grads=True)


def test_while_loop():
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                dense = nn.Dense(5)
                dense(x)
                steps = self.variable("count", "steps", lambda: jnp.int32(0))

                def body(module, carry):
                    steps = module.variable("count", "steps", lambda: jnp.int32(0))
                    steps.value = steps.value + 1
                    noise = jax.random.normal(module.make_rng("dropout"), ())
                    return carry[0] * 2 + noise, carry[1] + 1

                def keep_on(module, carry):
                    return carry[1] < 3

                del steps
                init = (x, jnp.int32(0))
                return nn.while_loop(keep_on, body, self, init, carry_variables="count", split_rngs={"dropout": True})

        return Model()

    check(build, X)


def test_cond_and_switch():
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x, pred, index):
                first, second = nn.Dense(5), nn.Dense(5)
                if self.is_initializing():
                    first(x), second(x)
                x = nn.cond(pred, lambda m, x: jnp.sin(x), lambda m, x: x + 1, self, x)
                branches = [lambda m, x: m(x), lambda m, x: m(x) * 2, lambda m, x: x]
                return nn.switch(index, branches, first, x)

        return Model()

    for pred, index in ((True, 0), (False, 2)):
        check(build, X, jnp.asarray(pred), jnp.asarray(index))


def test_derivatives():
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                dense = nn.Dense(5)
                y, pullback = nn.vjp(lambda m, x: m(x), dense, x)
                y2, pullback2, aux = nn.vjp(lambda m, x: (m(x), x), dense, x, has_aux=True)
                total, grads = nn.value_and_grad(lambda m, x: (m(x) ** 2).sum(), dense, x)
                only = nn.grad(lambda m, x: (m(x) ** 2).sum(), dense, x)
                with_aux = nn.grad(lambda m, x: ((m(x) ** 2).sum(), x), dense, x, has_aux=True)
                tangents = {"params": jax.tree.map(jnp.ones_like, dense.variables["params"])}
                along = nn.jvp(lambda m, x: m(x), dense, (x,), (x,), tangents)
                fixed = nn.jvp(lambda m, x: m(x), dense, (x,), (x,), {})
                return y, pullback(y), y2, pullback2(y2), aux, total, grads, only, with_aux, along, fixed

        return Model()

    check(build, X)


def test_custom_vjp():
    def build(nn):
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                def forward(module, x, power):
                    return nn.vjp(lambda m, x: m(x) ** power, module, x)

                def backward(power, pullback, cotangent):
                    of_params, of_x = pullback(cotangent)
                    return jax.tree.map(jnp.sign, of_params), of_x * power

                f = nn.custom_vjp(lambda m, x, power: m(x) ** power, forward, backward, nondiff_argnums=(1,))
                return f(nn.Dense(5), x, 2)

        return Model()

    check(build, X, grads=True)


def test_boxes_gain_and_lose_axes():
    def build(nn):
        kernel = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        logical = nn.with_logical_partitioning(nn.initializers.zeros, ("out",))

        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x, _=None):
                return nn.Dense(5, kernel_init=kernel, bias_init=logical)(x), None

        named = {nn.PARTITION_NAME: "layers"}
        scanned = nn.scan(
            Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3, metadata_params=named
        )

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                x, _ = scanned()(x, None)
                mapped = nn.vmap(Layer, variable_axes={"params": 1}, split_rngs={"params": True}, metadata_params=named)
                return mapped()(x)[0]

        return Model()

    check(build, X)
    specs = [lib.get_partition_spec(build(lib).init(KEYS, X)) for lib in (nn, flax_nn)]
    assert specs[0] == specs[1]


def test_add_metadata_axis():
    def build(nn):
        kernel = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        layer = nn.add_metadata_axis(
            nn.Dense, variable_axes={"params": 0}, metadata_params={nn.PARTITION_NAME: "copies"}
        )
        return layer(3, kernel_init=kernel)

    ours, theirs = (jax.eval_shape(build(lib).init, jax.random.key(0), X) for lib in (nn, flax_nn))
    assert ours["params"]["kernel"].names == theirs["params"]["kernel"].names == ("copies", "in", "out")


def test_static_arguments():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(5)(x) if train else x

    for wrap in (nn.remat, nn.jit):
        layer = wrap(Layer, static_argnums=(2,))()
        variables = layer.init(jax.random.key(0), X, True)
        assert layer.apply(variables, X, False) is not None
        assert_same(layer.apply(variables, X, False), X)


def test_jit_compiles_once_for_equal_modules():
    traces = []

    class Layer(nn.Module):
        size: int

        @nn.compact
        def __call__(self, x):
            traces.append(self.size)
            return nn.Dense(self.size)(x) * jax.random.uniform(self.make_rng("dropout"))

    jitted = nn.jit(Layer)
    variables = jitted(5).init(KEYS, X)
    traces.clear()
    outputs = [jitted(5).apply(variables, X, rngs={"dropout": jax.random.key(i)}) for i in range(3)]
    assert traces == [5]
    assert not jnp.allclose(outputs[0], outputs[1])


def test_what_cannot_be_transformed():
    with pytest.raises(TransformTargetError, match=r"nn\.vmap takes a module class or a function"):
        nn.vmap(nn.Dense(3))

    class Leaky(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.remat(lambda module, x: nn.Dense(3))(self, x)

    with pytest.raises(TransformedMethodReturnValueError, match=r"of Leaky at / .* returns a Dense"):
        Leaky().init(jax.random.key(0), X)


@pytest.mark.parametrize("transform", [nn.jit, nn.remat])
def test_names_stay_taken_inside_a_lifted_method(transform):
    class Model(nn.Module):
        @transform
        def helper(self, x, other):
            nn.Dense(2, name="a")
            return other(x)

        @nn.compact
        def __call__(self, x):
            return self.helper(x, nn.Dense(2, name="a"))

    with pytest.raises(NameInUseError, match="submodule 'a' in Model"):
        Model().init(jax.random.key(0), jnp.ones(2))


def test_paths_that_name_the_transforms():
    def paths(nn):
        seen = []

        class Leaf(nn.Module):
            @nn.compact
            def __call__(self, x):
                seen.append(self.scope.debug_path)
                return x * self.param("w", nn.initializers.ones, ())

        class Inner(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Leaf(name="leaf")(x)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                layer = Inner(name="inner")
                layer(x)
                run = lambda module, *x: module(*x)
                nn.vmap(nn.jit(nn.remat(Inner)), variable_axes={"params": 0}, split_rngs={"params": True})(name="a")(x)
                nn.scan(lambda m, c, _: (m(c), None), variable_broadcast="params", length=2)(layer, x, None)
                nn.while_loop(lambda m, i: i < 2, lambda m, i: (m(x), i + 1)[1], layer, 0)
                nn.cond(True, run, run, layer, x), nn.switch(0, [run], layer, x)
                nn.vjp(run, layer, x), nn.jvp(run, layer, (x,), (x,), {}), nn.fold_rngs(run)(layer, x)
                nn.value_and_grad(lambda m, x: m(x).sum(), layer, x)
                return nn.map_variables(run, "params", lambda tree: tree)(layer, x)

        nn.jit(Model)().init(jax.random.key(0), X)
        return list(dict.fromkeys(seen))

    assert paths(nn) == paths(flax_nn)
    assert ("jit()", "remat(jit(vmap(a)))", "leaf") in paths(nn)
