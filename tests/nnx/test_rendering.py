import warnings

import jax.numpy as jnp
from tests.nnx.dense import Model

from sonde import nnx


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


def test_treescope_protocol():
    import treescope  # Flax brings it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # treescope looks through all of NumPy, deprecated names included
        text = treescope.render_to_text(nnx.Dict(w=nnx.Param(1.5), s=nnx.data(nnx.State({"a": 1}))))
    assert "Dict" in text and "1.5" in text
