"""What a value is to attribute assignment: data, or something static."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


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
