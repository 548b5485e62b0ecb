"""A small library of modules, for the tests of what the engine does with the modules of any library."""

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde.core.modules.calls import run_method
from sonde.core.modules.index import ModuleKind, register_modules
from sonde.inside.match_copies import CopiesByArrays

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
        if sonde.core.session.session.capture_state() is None:
            return self.forward(*args, **kwargs)
        return run_method(self, "__call__", type(self).forward, args, kwargs)


register_modules(
    Frozen,
    ModuleKind(lambda m: sorted(vars(m).items()), stamp=lambda: 0, copies=CopiesByArrays(lambda m: jax.tree.leaves(m))),
)


@jax.tree_util.register_pytree_with_keys_class
class Layer(Frozen):
    def forward(self, x):
        return sonde.sow(jnp.sin(x * self.w), "y")


def call(module, x):
    return module(x)


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
