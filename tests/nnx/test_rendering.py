import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx


class Dense(nnx.Module):
    def __init__(self, n_in, n_out, rngs):
        self.kernel = nnx.Param(rngs.normal((n_in, n_out)))
        self.bias = nnx.Param(jnp.zeros(n_out))
        self.size = n_out

    def __call__(self, x):
        return x @ self.kernel + self.bias


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Dense(2, 3, rngs), Dense(3, 3, rngs)])
        self.seen = nnx.BatchStat(jnp.zeros(2))
        self.rngs = rngs

    def __call__(self, x, *, scale=1):
        for layer in self.layers:
            x = jax.jit(lambda layer, x: layer(x))(layer, x)
        self.seen[...] += 1
        return {"y": x * scale + self.rngs.normal(x.shape)}


def test_variables_and_states(same):
    same(lambda nnx: repr(nnx.Param(jnp.ones(3), a=1)))
    same(lambda nnx: repr(nnx.State({"a": nnx.Param(1), "b": {"c": jnp.ones(1)}})))
    same(lambda nnx: repr(nnx.to_flat_state(nnx.State({"a": nnx.Param(1)}))))


def test_modules(same):
    def use(nnx):
        d = nnx.Dict(w=nnx.Param(1.0), n=3, text="x")
        d.l = nnx.List([nnx.Param(2.0), "s"])
        return repr(d)

    same(use)


def test_a_model_that_contains_itself():
    d = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    d.me = d
    assert repr(d) == (
        "Dict({ # Param: 2 (8 B)\n  'w': Param( # 2 (8 B)\n    value=Array(shape=(2,), dtype=float32)\n  ),\n"
        "  'me': Dict(...)\n})"
    )


def test_sizes():
    text = repr(Model(nnx.Rngs(0)))
    assert text.startswith("Model( # BatchStat: 2 (8 B), Param: 21 (84 B), RngCount: 1 (4 B), RngKey: 1 (8 B)")
    assert repr(nnx.graphdef(Model(nnx.Rngs(0)))) == "GraphDef(Model, num_leaves=7)"


def test_display(capsys):
    nnx.display(nnx.Param(1), nnx.State({}))
    assert capsys.readouterr().out == "Param(\n  value=1\n)\nState({})\n"


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


def test_treescope_is_not_imported():
    program = "import sys; from sonde import nnx; print('treescope' in sys.modules, 'IPython' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "False"]


def test_treescope_protocol():
    import treescope  # Flax brings it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # treescope looks through all of NumPy, deprecated names included
        text = treescope.render_to_text(nnx.Dict(w=nnx.Param(1.5), s=nnx.data(nnx.State({"a": 1}))))
    assert "Dict" in text and "1.5" in text
