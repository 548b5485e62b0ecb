"""How attribute assignment treats a value: as data, or as static."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sonde import nnx
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, OTHER, VARIABLE, has_data, kind_of


def test_registered_data_types(same):
    def use(nnx):
        @nnx.register_data_type
        @dataclasses.dataclass(frozen=True)
        class Token:
            n: int

        class Holder(nnx.Pytree):
            def __init__(self):
                self.t = Token(3)

        return len(jax.tree.leaves(Holder())), nnx.is_data(Token(1))

    same(use)


def test_is_data(same):
    def use(nnx):
        values = [
            1,
            1.0,
            "s",
            None,
            jnp.ones(1),
            np.ones(1),
            np.float32(1),
            nnx.Param(1),
            nnx.Dict(),
            [jnp.ones(1)],
            {},
        ]
        values += [jax.random.key(0), nnx.State({}), True, nnx.List([])]
        return [nnx.is_data(v) for v in values], [len(nnx.has_data(v)) for v in values]

    same(use)


class Late:
    """A type that is registered with JAX after its kind was first requested."""


def test_kinds():
    expected = {
        VARIABLE: [nnx.Param(1), type("Mine", (nnx.Variable,), {})(2)],
        NODE: [nnx.Dict(), nnx.Rngs(0), nnx.List()],
        ARRAY: [np.ones(2), jnp.ones(2), jax.random.key(0)],
        CONTAINER: [[], (), {}, None, nnx.State({})],
        OTHER: [1, 2.0, "text", len, nnx.Param, np.float32(1), object()],
    }
    for kind, values in expected.items():
        assert [kind_of(value) for value in values] == [kind] * len(values)
    jax.jit(lambda x: [kind_of(x)] == [ARRAY] or 1 / 0)(1.0)


def test_a_type_may_be_registered_with_jax_later():
    value = Late()
    assert kind_of(value) == OTHER
    jax.tree_util.register_pytree_node(Late, lambda _: ((), None), lambda *_: Late())
    assert kind_of(value) == CONTAINER


def test_the_data_inside_a_value():
    w, x = nnx.Param(1), np.ones(2)
    assert has_data(w) == [w]
    assert has_data(3) == []
    found = has_data({"a": [w, 3], "b": (x, "text")})
    assert [id(value) for value in found] == [id(w), id(x)]
    assert has_data(None) == []
