"""A table of the Modules of a model."""

import jax.numpy as jnp
import pytest
from tests.nnx.dense import Dense, Model

from sonde import nnx


def test_table():
    m = Model(nnx.Rngs(0))
    before = nnx.clone(m)
    for _ in range(2):  # the second time, jit has traced the layers before
        text = nnx.tabulate(m, jnp.ones((4, 2)), scale=2, console_kwargs={"force_terminal": False})
        for part in (
            "Model Summary",
            "layers/0",
            "layers/1",
            "float32[4,2]",
            "y: float32[4,3]",
            "kernel: float32[2,3]",
        ):
            assert part in text
        assert "scale: 2" in text and "Total Parameters: 25 (104 B)" in text and "21 (84 B)" in text
    assert text.index("layers/0") < text.index("layers/1") and text.index("Model ") < text.index("layers/0")
    assert type(m.layers[0]) is Dense and m.seen.sum() == 0
    assert nnx.graphdef(m) == nnx.graphdef(before)


def test_a_shared_module_is_called_under_its_first_name():
    class Tied(nnx.Module):
        def __init__(self):
            self.first = self.second = Dense(2, 2, nnx.Rngs(0))

        def __call__(self, x):
            return self.second(self.first(x))

    text = nnx.tabulate(Tied(), jnp.ones((4, 2)), console_kwargs={"force_terminal": False})
    assert "first" in text and "second" not in text and "Total Parameters: 6 (24 B)" in text


def test_table_options():
    m = Model(nnx.Rngs(0))
    plain = {"force_terminal": False}
    assert "layers/0" not in nnx.tabulate(m, jnp.ones((4, 2)), depth=0, console_kwargs=plain)
    only = nnx.tabulate(m, jnp.ones((4, 2)), row_filter=lambda row: row.type is Dense, console_kwargs=plain)
    assert "layers/1" in only and "y: float32" not in only
    flops = nnx.tabulate(m, jnp.ones((4, 2)), compute_flops=True, compute_vjp_flops=True, console_kwargs=plain)
    assert "vjp_flops" in flops and " 60 " in flops  # 4 x 3 x (2 + 2 - 1) multiplications and additions, and the bias
    with pytest.raises(TypeError):
        nnx.tabulate(m, console_kwargs=plain)
