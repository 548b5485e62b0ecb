"""Modules of any library: found by identity, by what they are copies of, or by their arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde.core.capture import run_with
from sonde.core.collect import Collect
from sonde.core.module_calls import run_method
from sonde.core.module_index import ModuleKind, path_between, register_modules
from sonde.core.module_paths import Request
from sonde.core.record import make_records

X = jnp.arange(3.0) + 0.5


@jax.tree_util.register_pytree_with_keys_class
class Frozen:
    """A library of its own: objects with attributes, all of which are data, and a method that is a scope."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def tree_flatten_with_keys(self):
        keys = sorted(vars(self))
        return [(jax.tree_util.GetAttrKey(k), vars(self)[k]) for k in keys], (type(self), tuple(keys))

    @classmethod
    def tree_unflatten(cls, aux, children):
        new = object.__new__(aux[0])
        vars(new).update(zip(aux[1], children))
        return new

    def __call__(self, *args, **kwargs):
        if sonde.core.context.looking() is None:
            return self.forward(*args, **kwargs)
        return run_method(self, "__call__", type(self).forward, args, kwargs)


register_modules(
    Frozen, ModuleKind(lambda m: sorted(vars(m).items()), stamp=lambda: 0, arrays=lambda m: jax.tree.leaves(m))
)


@jax.tree_util.register_pytree_with_keys_class
class Layer(Frozen):
    def forward(self, x):
        return sonde.sow(jnp.sin(x * self.w), "y")


def call(module, x):
    return module(x)


jitted, remat = jax.jit(call), jax.checkpoint(call)


def parted(module, x):
    """As libraries do that jit what is not an array: the arrays go in, the rest is put together again inside."""
    leaves, tree = jax.tree.flatten(module)
    return inner(leaves, tree, x)


inner = jax.jit(lambda leaves, tree, x: jax.tree.unflatten(tree, leaves)(x), static_argnums=1)


@jax.tree_util.register_pytree_with_keys_class
class Stack(Frozen):
    run = staticmethod(call)

    def forward(self, x):
        for layer in self.parts["layers"]:
            x = self.run(layer, x)
        return x


def make(run, weights=(1.0, 2.0, 3.0)):
    cls = type("Stack", (Stack,), {"run": staticmethod(run)})
    jax.tree_util.register_pytree_with_keys_class(cls)
    return cls(parts={"layers": [Layer(w=jnp.float32(w)) for w in weights]})


def check(records):
    x = X
    assert list(records) == [f"parts/layers/{i}/y" for i in range(3)]
    for record, w in zip(records.values(), (1.0, 2.0, 3.0)):
        x = jnp.sin(x * w)
        np.testing.assert_allclose(record.value, x, rtol=1e-6)


@pytest.mark.parametrize("outer", [call, jitted, remat, parted, lambda m, x: jax.tree.map(lambda a: a, m)(x)])
@pytest.mark.parametrize("run", [call, jitted, lambda m, x: jax.jit(lambda x: m(x))(x)])
def test_paths(run, outer):
    model = make(run)
    for _ in range(2):
        check(sonde.capture(outer)(model, X)[1])
    check(sonde.capture(lambda x: outer(model, x))(X)[1])


def test_one_jitted_function_and_many_modules_is_traced_once_per_place():
    traces = []

    @jax.jit
    def run(layer, x):
        traces.append(1)
        return layer(x)

    for _ in range(2):
        check(sonde.capture(make(run))(X)[1])
    assert len(traces) == 3


def test_a_copy_is_found_by_its_class_if_it_is_the_only_one():
    @jax.tree_util.register_pytree_with_keys_class
    class One(Frozen):
        def forward(self, x):
            return lax.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]

    _, records = sonde.capture(One(layers=Layer(w=jnp.array([1.0, 2.0]))))(X)
    assert list(records) == ["layers/y"]
    np.testing.assert_allclose(records["layers/y"].value, [jnp.sin(X), jnp.sin(2 * jnp.sin(X))], rtol=1e-6)


def test_copies_by_their_arrays():
    model = make(lambda m, x: jax.tree.map(lambda a: a, m)(x))
    check(sonde.capture(model)(X)[1])
    check(sonde.capture(jitted)(model, X)[1])


def test_what_a_call_takes_and_returns():
    model = make(jitted)

    def run(request):
        _, handler = run_with(lambda depth: Collect((), depth=depth), model, (X,), {}, request=request)
        return make_records(handler.items, handler.met)

    records = run(Request(methods=frozenset({"__call__"})))
    layers = [f"parts/layers/{i}/{name}" for i in range(3) for name in ("in", "y", "out")]
    assert list(records) == ["in", *layers, "out"]
    np.testing.assert_array_equal(records["parts/layers/1/in"].value, records["parts/layers/0/out"].value)
    line = Layer.forward.__code__.co_firstlineno
    assert records["parts/layers/0/out"].source == f"{__file__}:{line}"
    assert list(run(None)) == [path for path in layers if path.endswith("y")]


def test_path_between_follows_changes():
    class Loose:
        pass

    register_modules(Loose, ModuleKind(lambda m: list(vars(m).items())))
    root, a, b = Loose(), Loose(), Loose()
    root.items = {"x": [a]}
    assert path_between(root, a) == ("items", "x", 0)
    assert path_between(root, b) is None
    root.items["x"].insert(0, b)
    assert path_between(root, b) == ("items", "x", 0)
    assert path_between(root, a) == ("items", "x", 1)
    root.items = None
    assert path_between(root, a) is None
    root.self = root
    assert path_between(root, root) == ()
