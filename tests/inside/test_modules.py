"""Models of six libraries as they are, against the same models with a site sown by hand."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.inside import models
from tests.inside.models import BY_HAND, KINDS, LIBRARIES, MORE, SITES, VARIABLES, X

import sonde
from sonde.core.marks.path import glob_matches

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries
CASES = [(library, kind) for library in LIBRARIES for kind in KINDS]
TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda f: lambda p, x: jax.vmap(f, (None, 0))(p, jnp.stack([x, x + 1])),
    "scan": lambda f: lambda p, x: jax.lax.scan(lambda c, v: (c, f(p, v)), 0.0, jnp.stack([x, x + 1]))[1],
    "remat": jax.checkpoint,
}


def arrays(value):
    return [np.asarray(x) for x in jax.tree.leaves(value)]


def by_hand(look):
    """Runs something with the models that were changed by hand."""
    BY_HAND[0] = True
    try:
        return look()
    finally:
        BY_HAND[0] = False


def close(got, want, rtol=1e-5):
    for a, b in zip(arrays(got), arrays(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def first_part(values):
    """Of what a module returns at each call, the first array: a cell returns its state twice, and one is sown."""
    return [arrays(value)[0] for value in values]


def check(library, kind, transform):
    """Values, gradients, edits and the first value that is not finite, of a module and of a variable."""
    model, params, apply, x = LIBRARIES[library](kind)
    inside = [model, f"{models.__file__}:{library}.*", *MORE.get((library, kind), [])]
    run = transform(lambda p, x: apply(p, x))
    loss = lambda p, x: (run(p, x) ** 2).sum()
    module, variable = SITES.get((library, kind), KINDS[kind]), VARIABLES.get((library, kind), "**/hidden")

    (value, grads), mine = sonde.capture(jax.value_and_grad(loss), grads=True, inside=inside)(params, x)
    _, hand = by_hand(lambda: sonde.capture(jax.value_and_grad(loss), grads=True)(params, x))
    close((value, grads), jax.value_and_grad(loss)(params, x))
    assert f"{module.removesuffix('out')}in" in mine
    names = [path for path in mine if glob_matches(variable, path)]
    assert names

    close(first_part(mine[module].values), hand[module].values)
    close([mine[name].values for name in names], hand["hidden"].values)
    cotangents = [sum(arrays(g)) if kind == "recurrent" else arrays(g)[0] for g in mine[module].grads]
    close(cotangents, hand[module].grads, rtol=1e-4)
    close([mine[name].grads for name in names], hand["hidden"].grads, rtol=1e-4)

    halve, spoil = (lambda v, f=f: jax.tree.map(f, v) for f in (lambda a: a * 0.5, lambda a: jnp.sqrt(-1 - a * a)))
    for path, first, sown in ((module, module, module), (variable, names[0], "hidden")):
        again = lambda: transform(lambda p, x: apply(p, x))
        expected = by_hand(lambda: sonde.edit(again(), {sown: halve})(params, x))
        close(sonde.edit(run, {path: halve}, inside=inside)(params, x), expected)
        # Before this site everything is finite; at it, the edit makes NaN.
        found = sonde.first_nonfinite(sonde.edit(run, {path: spoil}, inside=inside), inside=inside)(params, x)
        want = by_hand(lambda: sonde.first_nonfinite(sonde.edit(again(), {sown: spoil}))(params, x))
        assert found is not None and want is not None
        assert (found.path, found.iteration, want.path) == (first, want.iteration, sown)
    assert sonde.first_nonfinite(run, inside=inside)(params, x) is None


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transformer_of_every_library(library):
    """The values of a module and an edit of it; the rest is in the thorough test."""
    model, params, apply, x = LIBRARIES[library]("transformer")
    site = SITES.get((library, "transformer"), KINDS["transformer"])
    result, mine = sonde.capture(jax.jit(apply), inside=model)(params, x)
    plain, hand = by_hand(lambda: sonde.capture(jax.jit(lambda p, x: apply(p, x)))(params, x))
    close((result, mine[site].values), (plain, hand[site].values))
    # The line is that of a layer, not of what calls it: a decorator, an interceptor.
    places = {source.partition(":")[0] for record in mine.values() for source in (record.sites[0].source,)}
    ours = [str(Path(module.__file__).parent) + os.sep for module in (sonde, jax)]
    assert not [place for place in places if place.startswith(tuple(ours)) or place.endswith("layers/layer.py")]
    zero = lambda v: jax.tree.map(jnp.zeros_like, v)
    expected = by_hand(lambda: sonde.edit(jax.jit(lambda p, x: apply(p, x)), {site: zero})(params, x))
    close(sonde.edit(jax.jit(apply), {site: zero}, inside=model)(params, x), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("library", "kind"), CASES)
def test_every_model_under_every_transform(library, kind, transform):
    check(library, kind, TRANSFORMS[transform])


def test_a_library_is_not_loaded_before_its_user_has_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport jax.numpy as jnp, sonde\n\ndef f(x):\n    y = x + 1\n    return y\n\n"
        "for inside in (f, [f, 'jax.nn']):\n    sonde.capture(f, inside=inside)(jnp.ones(2))\nprint(*sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, check=True
    ).stdout.split()
    adapters = {"equinox", "flax_linen", "flax_nnx", "haiku", "keras", "penzai"}
    assert not {
        "equinox",
        "flax",
        "haiku",
        "keras",
        "penzai",
        *(f"sonde.inside.libraries.{name}" for name in adapters),
    } & set(loaded)
    folder = Path(sonde.__file__).parent / "inside" / "libraries"
    assert all(len((folder / f"{name}.py").read_text().splitlines()) < 100 for name in adapters)


def test_nothing_is_left_behind():
    model, params, apply, x = LIBRARIES["equinox"]("transformer")
    methods = [vars(type(m)).get("__call__") for m in (model, model.mlp, model.attention)]
    codes = [getattr(f, "method", f).__code__ for f in methods]
    sonde.capture(lambda x: model(x), inside=model)(x)
    assert [getattr(f, "method", f).__code__ for f in methods] == codes


def test_modules_of_a_model_called_by_a_function_have_their_paths():
    import equinox as eqx

    class Pair(eqx.Module):
        left: eqx.nn.Linear
        right: eqx.nn.Linear
        both: list

    one = eqx.nn.Linear(8, 8, key=jax.random.key(0))
    two = eqx.nn.Linear(8, 8, key=jax.random.key(1))
    pair = Pair(one, two, [one])

    @eqx.filter_jit
    def run(pair, x):
        return pair.right(pair.left(x)) + pair.both[0](x)

    _, records = sonde.capture(run, inside=pair)(pair, X[0, 0])
    assert {"left/out", "right/out"} <= set(records)
    np.testing.assert_allclose(records["right/in"].value, records["left/out"].values[0])


def test_a_shared_module_of_nnx_has_one_path_before_and_after_a_split():
    from flax import nnx

    class Tied(nnx.Module):
        def __init__(self):
            self.up = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
            self.down = self.up

        def __call__(self, x):
            return self.down(self.up(x))

    tied = Tied()
    merged = lambda tied, x: nnx.merge(*nnx.split(tied))(x)
    for f in (lambda tied, x: tied(x), nnx.jit(lambda tied, x: tied(x)), merged, lambda tied, x: nnx.clone(tied)(x)):
        _, records = sonde.capture(f, inside=tied)(tied, X)
        assert list(records) == ["in", "down/in", "down/out", "out"]


def test_layers_that_are_stacked_for_a_scan_have_their_path():
    import equinox as eqx

    from flax import nnx

    class Stack(eqx.Module):
        layers: eqx.nn.MLP

        def __call__(self, x):
            arrays, rest = eqx.partition(self.layers, eqx.is_array)
            return jax.lax.scan(lambda h, part: (eqx.combine(part, rest)(h), None), x, arrays)[0]

    make = eqx.filter_vmap(lambda key: eqx.nn.MLP(8, 8, 4, 1, key=key))
    stack = Stack(make(jax.random.split(jax.random.key(0), 3)))
    _, records = sonde.capture(eqx.filter_jit(lambda m, x: m(x)), inside=stack)(stack, X[0, 0])
    assert records["layers/layers/1/out"].value.shape == (3, 8)

    class Stacked(nnx.Module):
        def __init__(self):
            self.layers = nnx.vmap(lambda rngs: nnx.Linear(8, 8, rngs=rngs))(nnx.Rngs(0).fork(split=3))

        def __call__(self, x):
            return nnx.scan(lambda h, layer: layer(h), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)

    stacked = Stacked()
    _, records = sonde.capture(nnx.jit(lambda m, x: m(x)), inside=stacked)(stacked, X)
    assert records["layers/out"].value.shape == (3, *X.shape)


def test_functions_that_are_looked_into_are_no_part_of_a_modules_path():
    """As with modules that are found by identity."""
    model, params, apply, x = LIBRARIES["flax_linen"]("transformer")
    _, records = sonde.capture(jax.jit(apply), inside=[model, type(model)])(params, x)
    assert {"in", "attention/out", "attention/query/out", "mlp/in"} <= set(records)
    assert any(path.endswith("Transformer.__call__/hidden") for path in records)


def test_named_arrays_of_penzai_are_arrays():
    from penzai import pz

    def f(x):
        doubled = x * 2.0
        pair = (doubled, 3)
        return pair[0].unwrap("f").sum()

    x = pz.nx.wrap(jnp.arange(3.0)).tag("f")
    (_, _), records = sonde.capture(jax.value_and_grad(f), inside=f, grads=True)(x)
    below = next(path for path in records if path.endswith("doubled")).removesuffix("doubled")
    np.testing.assert_array_equal(records[f"{below}doubled"].value.unwrap("f"), 2.0 * jnp.arange(3.0))
    np.testing.assert_array_equal(records[f"{below}doubled"].grad.unwrap("f"), jnp.ones(3))
    np.testing.assert_array_equal(records[f"{below}pair"].grad[0].unwrap("f"), jnp.ones(3))
    assert sonde.edit(f, {"**/doubled": lambda v: v * 0.0}, inside=f)(x) == 0.0
    # Penzai's own code, in which such objects are half made, and which takes them apart and makes them again.
    for grads in (False, True):
        result, records = sonde.capture(
            lambda x: jax.vmap(lambda v: v)(x.untag("f")).tag("f") * 2.0, inside="penzai.core.*", grads=grads
        )(x)
        np.testing.assert_array_equal(result.unwrap("f"), 2.0 * jnp.arange(3.0))
        assert records


def test_methods_by_name():
    from flax import nnx

    class Coder(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))

        def encode(self, x, scale=1.0):
            return self.layer(x) * scale

    coder = Coder()
    _, records = sonde.capture(lambda c, x: c.encode(x), inside=sonde.Inside(coder, methods=["encode"]))(coder, X)
    assert list(records) == ["encode/in", "layer/in", "layer/out", "encode/out"]
    assert records["encode/in"].value.shape == X.shape


@pytest.mark.parametrize("face", ["nnx", "linen"])
def test_models_of_sonde(face):
    if face == "nnx":
        from sonde import nnx

        model = nnx.Sequential(nnx.Linear(8, 4, rngs=nnx.Rngs(0)), nnx.relu)
        run, path = (lambda x: model(x)), "layers/0/out"
    else:
        from sonde import linen as nn

        model = nn.Sequential([nn.Dense(4), nn.relu])
        variables = model.init(jax.random.key(0), X)
        run, path = (lambda x: model.apply(variables, x)), "layers_0/out"
    plain = run(X)
    result, records = sonde.capture(jax.jit(run), inside=model)(X)
    np.testing.assert_allclose(result, plain, rtol=1e-6)
    np.testing.assert_allclose(jnp.maximum(records[path].value, 0), plain, rtol=1e-6)
    zero = sonde.edit(jax.jit(run), {path: jnp.zeros_like}, inside=model)(X)
    np.testing.assert_array_equal(zero, jnp.zeros_like(plain))


@pytest.mark.parametrize("face", ["sonde.nnx", "sonde.linen"])
def test_numbers_that_a_jitted_model_depends_on_are_left_alone_by_edits(face):
    lib = importlib.import_module(face)
    if face == "sonde.nnx":

        class Net(lib.Module):
            def __init__(self):
                self.dense, self.drop = lib.Linear(8, 4, rngs=lib.Rngs(0)), lib.Dropout(0.5, rngs=lib.Rngs(0))

            def __call__(self, x, *, train):
                return self.drop(self.dense(x), deterministic=not train)

        net = Net()
        run, args = lib.jit(lambda net, x: net(x, train=False)), (net, X)
    else:

        class Net(lib.Module):
            @lib.compact
            def __call__(self, x, *, train):
                return lib.Dropout(0.5)(lib.Dense(4, name="dense")(x), deterministic=not train)

        net = Net()
        run, args = jax.jit(lambda v, x: net.apply(v, x, train=False)), (net.init(jax.random.key(0), X, train=False), X)
    assert not sonde.edit(run, {"dense/out": jnp.zeros_like}, inside=net)(*args).any()


@pytest.mark.parametrize("library", ["equinox", "flax.nnx", "flax.linen", "sonde.linen", "sonde.nnx"])
def test_a_method_has_the_name_of_the_attribute_that_holds_it(library):
    lib = importlib.import_module(library)

    def plainly(f):  # without `functools.wraps`
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs)

        return wrapper

    class Decorated(lib.Module):
        @plainly
        def __call__(self, x):
            return jnp.tanh(x)

        @plainly
        def other(self, x):
            return x

    class Over(Decorated):
        def __call__(self, x):
            return super().__call__(x) * 2

    class Assigned(lib.Module):
        def forward(self, x):
            return jnp.tanh(x)

        __call__ = forward

    for cls in (Decorated, Over, Assigned):
        model: Any = cls()
        run = (lambda m, x: m.apply({}, x)) if library.endswith("linen") else (lambda m, x: m(x))
        assert [site.path for site in sonde.sites(run, inside=model)(model, X)] == ["in", "out"]
    model = Decorated()
    run = (lambda m, x: m.apply({}, x, method="other")) if library.endswith("linen") else (lambda m, x: m.other(x))
    found = sonde.sites(run, inside=sonde.Inside(model, methods=["other"]))(model, X)
    assert [site.path for site in found] == ["other/in", "other/out"]


def test_modules_with_tied_weights_of_equinox():
    import equinox as eqx

    class Net(eqx.Module):
        tied: eqx.nn.Shared

        def __call__(self, i):
            embed, head = self.tied()
            return head(embed(i))

    embed, head = eqx.nn.Embedding(5, 3, key=jax.random.key(0)), eqx.nn.Linear(3, 5, False, key=jax.random.key(1))
    net = Net(eqx.nn.Shared((embed, head), lambda pair: pair[1].weight, lambda pair: pair[0].weight))
    call = lambda net, i: net(i)
    for f in (call, eqx.filter_jit(call), eqx.filter_checkpoint(call)):
        _, records = sonde.capture(f, "**/out", inside=net)(net, jnp.int32(2))
        assert list(records) == ["tied/pytree/0/out", "tied/pytree/1/out", "out"]
        np.testing.assert_allclose(records["tied/pytree/1/out"].value, embed.weight @ embed.weight[2], rtol=1e-5)


def test_a_model_and_variables_at_once():
    import flax.linen as nn

    model, params, apply, x = LIBRARIES["flax_linen"]("transformer")
    _, records = sonde.capture(jax.jit(apply), inside=[model, nn.attention.dot_product_attention_weights])(params, x)
    assert "attention/out" in records
    assert any(path.endswith("dot_product_attention_weights/attn_weights") for path in records)


def test_a_keras_model_that_is_called_without_state():
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x, training=False):
            return self.dense(x)

    net: Any = Net()
    x = jnp.ones((1, 3))
    net(x)
    variables = [v.value for v in net.trainable_variables], [v.value for v in net.non_trainable_variables]
    run = lambda x: net.stateless_call(*variables, x)[0]
    for f in (run, jax.jit(run), net):
        result, records = sonde.capture(f, inside=net)(x)
        assert set(records) == {"in", "dense/in", "dense/out", "out"}
        assert {len(record.values) for record in records.values()} == {1}
        np.testing.assert_allclose(records["out"].value, result)
    np.testing.assert_allclose(sonde.edit(run, {"out": lambda y: y * 2}, inside=net)(x), 2 * net(x), rtol=1e-6)


def test_edits_leave_the_state_of_equinox_alone():
    """The statistics of a norm are shared by the examples of a `vmap`; edits of other sites must not make them vary."""
    import equinox as eqx

    class Net(eqx.Module):
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __call__(self, x, state):
            x, state = self.norm(x, state)
            return self.head(x), state

    make = lambda: Net(eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.Linear(8, 2, key=jax.random.key(0)))
    net, state = eqx.nn.make_with_state(make)()
    run = jax.vmap(net, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    x = X[0]
    plain, after = run(x, state)
    for path, edit in (
        ("head/out", jnp.zeros_like),
        ("norm/out", lambda v: jax.tree.map(jnp.zeros_like, v)),
        ("norm/out", lambda v: (v[0] * 0.0, v[1])),
    ):
        result, new = sonde.edit(eqx.filter_jit(run), {path: edit}, inside=net)(x, state)
        expected = jnp.zeros_like(plain) + (net.head.bias if path == "norm/out" else 0.0)
        close((result, new), (expected, after))
    _, records = sonde.capture(run, inside=net)(x, state)
    assert len(jax.tree.leaves(records["norm/out"].value)) == 1 + len(jax.tree.leaves(after))


def test_captures_see_only_the_calls_of_their_own_models():
    """The code of a method is replaced for all captures that run, nested or in other threads."""
    import equinox as eqx
    import flax.linen as nn

    mlp: Any = eqx.nn.MLP(8, 2, 4, 1, key=jax.random.key(0))
    norm = eqx.nn.LayerNorm(8)
    dense = nn.Dense(2)
    variables = dense.init(jax.random.key(0), X)

    def run(x):
        return mlp(norm(x)) + dense.apply(variables, x)

    paths = lambda inside, f=run: list(sonde.capture(f, inside=inside)(X[0, 0])[1])
    alone = [paths(norm), paths(dense)]
    assert alone == [["in", "out"], ["in", "out"]]
    inner: list[Any] = []
    outer = paths([mlp, dense], lambda x: (inner.append(paths(norm)), run(x))[1])
    assert inner == alone[:1] and "layers/0/out" in outer
    paths(mlp, lambda x: (inner.append(paths(dense)), run(x))[1])
    assert inner == alone


def test_a_part_of_a_model_has_one_path_in_a_copy_of_the_model():
    import equinox as eqx

    mlp: Any = eqx.nn.MLP(8, 2, 4, 1, key=jax.random.key(0))
    _, records = sonde.capture(eqx.filter_jit(mlp), inside=mlp.layers[0])(X[0, 0])
    assert list(records) == ["in", "out", "self/layers/1/in", "self/layers/1/out"]
    np.testing.assert_allclose(records["out"].value, mlp.layers[0](X[0, 0]), rtol=1e-6)


def test_tools_of_a_model_in_a_transform_of_equinox():
    """Such a function has no name once it has been rebuilt."""
    import equinox as eqx

    mlp = eqx.nn.MLP(8, 2, 4, 1, key=jax.random.key(0))
    for f in (eqx.filter_jit(mlp), eqx.filter_checkpoint(mlp)):
        assert "layers/0/out" in {site.path for site in sonde.sites(f, inside=mlp)(X[0, 0])}


def test_layers_of_keras_in_nested_containers_and_private_attributes():
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = {"a": [keras.layers.Dense(4), (keras.layers.BatchNormalization(),)]}
            self.attention = keras.layers.MultiHeadAttention(2, 2)
            self._head = keras.layers.Dense(4)
            self._more = [keras.layers.Dense(4)]

        def call(self, x):
            x = self.parts["a"][1][0](self.parts["a"][0](x))
            return self._more[0](self._head(self.attention(x, x)))

    net: Any = Net()
    net(X)
    _, records = sonde.capture(net, "**/out", inside=net)(X)
    parts = ["parts/a/0", "parts/a/1/0", *(f"attention/{x}" for x in ("query", "key", "value", "attention_output"))]
    assert list(records) == [f"{path}/out" for path in [*parts, "attention", "_head", "_more/0"]] + ["out"]
    np.testing.assert_allclose(records["parts/a/0/out"].value, net.parts["a"][0](X), rtol=1e-5)


def test_models_of_keras_in_a_sequential_one():
    import keras

    given = keras.Input((8,))
    inner = keras.Model(given, keras.layers.Dense(4, name="dense")(given), name="inner")
    net = keras.Sequential([given, inner, keras.Sequential([keras.layers.Dense(2, name="last")], name="more")])
    _, records = sonde.capture(net, "**/out", inside=net)(X[0])
    assert list(records) == ["inner/dense/out", "inner/out", "more/last/out", "more/out", "out"]


def test_private_attributes_of_flax():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            self._first, self._more = nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.List([nnx.Linear(8, 8, rngs=nnx.Rngs(1))])

        def __call__(self, x):
            return self._more[0](self._first(x))

    net = Net()
    for f in (net.__call__, nnx.jit(lambda x: net(x)), nnx.remat(lambda x: nnx.clone(net)(x))):
        assert [site.path for site in sonde.sites(f, "**/out", inside=net)(X)] == ["_first/out", "_more/0/out", "out"]


@pytest.mark.parametrize("face", ["flax.linen", "sonde.linen"])
def test_lifted_transforms_inside_modules_of_linen_keep_the_names_of_parameters(face):
    nn: Any = importlib.import_module(face)

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            return nn.remat(nn.Dense)(8, name="dense")(x), None

    class Loop(nn.Module):
        @nn.compact
        def __call__(self, x):
            loop = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            return nn.RNN(nn.LSTMCell(8))(loop(name="loop")(x, None)[0])

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Loop(name="layers")(Block(name="block")(x)[0])

    net = Net()
    variables = net.init(jax.random.key(0), X)
    block, loop = variables["params"]["block"]["dense"], variables["params"]["layers"]["loop"]["dense"]
    for apply in (net.apply, jax.jit(net.apply)):
        _, records = sonde.capture(apply, "**/out", inside=net)(variables, X)
        named = {f"{'/'.join(key.key for key in path[1:-1])}/out" for path, _ in jax.tree.leaves_with_path(variables)}
        assert "layers/LSTMCell_0/hf/out" in named <= set(records)
        calls = {"block", "layers/loop", "layers/RNN_0", "layers/LSTMCell_0", "layers"}
        assert set(records) == named | {f"{path}/out" for path in calls} | {"out"}
        first = X @ block["kernel"] + block["bias"]
        np.testing.assert_allclose(records["block/dense/out"].value, first, rtol=1e-5)
        second = first @ loop["kernel"][0] + loop["bias"][0]
        np.testing.assert_allclose(records["layers/loop/dense/out"].value[0], second, rtol=1e-5)


def test_a_loop_of_linen_that_flax_tries_first():
    """Flax traces the body once more to see what depends on the iteration; that trial has no sites."""
    import flax.linen as nn

    class Cell(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            hidden = sonde.sow(jnp.tanh(nn.Dense(3)(carry)), "sown")
            return hidden + x, hidden.sum()

    class Loop(nn.Module):
        @nn.compact
        def __call__(self, x):
            cell = nn.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
            return cell()(jnp.ones(3), x)

    x = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
    model = Loop()
    variables = model.init(jax.random.key(0), x)
    params = variables["params"]["ScanCell_0"]["Dense_0"]
    carry, hidden = jnp.ones(3), []
    for row in x:
        hidden.append(jnp.tanh(carry @ params["kernel"] + params["bias"]))
        carry = hidden[-1] + row
    for inside in ({}, {"inside": Cell}, {"inside": model}):
        (last, _), records = sonde.capture(jax.jit(model.apply), **inside)(variables, x)
        np.testing.assert_allclose(last, carry, rtol=1e-6)
        path = next(path for path in records if path.endswith("sown"))
        np.testing.assert_allclose(records[path].value, jnp.stack(hidden), rtol=1e-6)

    def loss(variables):
        return model.apply(variables, x)[0].sum()

    grads, records = sonde.capture(jax.grad(loss), inside=Cell, grads=True)(variables)
    jax.tree.map(np.testing.assert_array_equal, grads, jax.grad(loss)(variables))
    hidden = next(record for path, record in records.items() if path.endswith("hidden"))
    np.testing.assert_allclose(hidden.grad[1], jnp.ones(3))
    initial, _ = sonde.capture(model.init, inside=Cell)(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, initial, variables)


def test_a_mask_of_keras_stays_with_its_array():
    """Keras keeps masks by the identity of arrays, and an array that passes through a site comes out as another."""
    import keras

    class Doubled(keras.layers.Layer):
        supports_masking = True

        def call(self, x, mask=None):
            return x if mask is None else 2 * x

    class Marked(Doubled):
        def __init__(self):
            super().__init__()
            self.inner = Doubled()

        def call(self, x, mask=None):
            return self.inner(sonde.sow(x, "sown"))

    start = keras.initializers.RandomNormal(seed=0)
    model = keras.Sequential([keras.layers.Embedding(5, 3, mask_zero=True, embeddings_initializer=start), Marked()])
    tokens, wanted = np.array([[1, 2, 0, 0], [3, 4, 1, 0]]), np.ones((2, 4, 3), np.float32)
    model(tokens)
    weights, others = ([v.value for v in some] for some in (model.trainable_variables, model.non_trainable_variables))
    error = keras.losses.MeanSquaredError()

    def loss(weights):
        return error(wanted, model.stateless_call(weights, others, tokens)[0])

    run = jax.value_and_grad(loss)
    plain = run(weights)
    unmasked = ((2 * weights[0][tokens] - wanted) ** 2).mean()
    assert abs(plain[0] - unmasked) > 1e-3
    for inside, path in ((model, "**/out"), ([keras.Layer, keras.losses.Loss], "**/outputs")):
        close(sonde.capture(run, inside=inside, grads=True)(weights)[0], plain)
        close(sonde.edit(run, {path: lambda x: x}, inside=inside)(weights), plain)
    for grads in (False, True):
        result, records = sonde.capture(jax.jit(run), grads=grads)(weights)
        close(result, plain)
        assert list(records) == ["sown"]
    close(sonde.edit(run, {"sown": lambda x: x})(weights), plain)
    for inside, path in ((None, "sown"), (model, "**/out")):  # without a transform around
        close(sonde.edit(loss, {path: lambda x: x * 1}, inside=inside)(weights), plain[0])


@pytest.mark.parametrize("library", ["equinox", "nnx"])
def test_a_dict_whose_keys_cannot_be_sorted(library):
    """JAX refuses it as an argument of its own functions, but a model that is only called may take it."""
    import equinox as eqx

    from sonde import nnx

    class OfEquinox(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, inputs):
            return {"y": self.layer(inputs["x"]), 4: inputs[3]}

    class OfNnx(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

        def __call__(self, inputs):
            return {"y": self.layer(inputs["x"]), 4: inputs[3]}

    model = OfNnx() if library == "nnx" else OfEquinox(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    inputs = {"x": jnp.ones(2), 3: jnp.full(2, 5.0)}
    expected = model(inputs)
    for grads in (False, True):
        result, records = sonde.capture(model, inside=model, grads=grads)(inputs)
        assert list(result) == ["y", 4]
        np.testing.assert_array_equal(result["y"], expected["y"])
        np.testing.assert_array_equal(records["in"].value["x"], inputs["x"])
        np.testing.assert_array_equal(records["in"].value[3], inputs[3])
        np.testing.assert_array_equal(records["out"].value[4], inputs[3])
        assert "'out', values=float32[2] float32[2]" in repr(records)
    edited = sonde.edit(model, {"layer/out": jnp.zeros_like}, inside=model)(inputs)
    np.testing.assert_array_equal(edited["y"], np.zeros(2))
