"""The logit lens on values whose logits are known."""

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import HIDDEN, X, every_face, forward

import sonde
from sonde import nnx, sow
from sonde.errors import NoSuchSiteError
from sonde.tools import LensMap, LensMaps, logit_lens, patch_sweep


@every_face
def test_every_face(face):
    lens = logit_lens(forward(face), "hidden", readout=lambda h: h, k=2)(X)
    reading = lens["hidden"]
    p = jax.nn.softmax(HIDDEN)
    np.testing.assert_array_equal(reading.tokens, [[0, 2], [0, 1]])
    np.testing.assert_allclose(reading.probabilities, [[p[0, 0], p[0, 2]], [p[1, 0], p[1, 1]]], rtol=1e-6)
    np.testing.assert_allclose(reading.entropy, -jnp.sum(p * jnp.log(p), -1), rtol=1e-5)


def test_loops_calls_and_ruled_out_tokens():
    def f(x):
        x = sow(sow(x, "x") + 1, "x")
        return lax.scan(lambda c, _: (sow(jnp.roll(c, 1), "c"), None), x, length=2)[0]

    lens = logit_lens(jax.jit(f), readout=lambda h: jnp.where(h > 1, h, -jnp.inf), k=1)(jnp.array([0.0, 3.0, 0.0, 0.0]))
    assert list(lens) == ["x", "x[1]", "c"]
    np.testing.assert_array_equal(lens["c"].tokens, [[2], [3]])
    np.testing.assert_allclose(lens["x"].entropy, 0.0)


class LanguageModel:
    """Reads token ids; its vocabulary has a blank and a line end."""

    tokenizer = ("the", " ", "\n", "cat")

    def __call__(self, ids):
        return sow(jnp.eye(4)[(ids.astype(int) + 1) % 4], "h")[0, 0, 0]


def test_tokens_of_a_language_model_are_shown_as_text():
    from rich.console import Console

    model = LanguageModel()
    ids = jnp.array([[3, 0, 1]])
    for f in (model, jax.jit(model)):
        lens = logit_lens(f, readout=lambda h: 5 * h, k=1)(ids)
        heat = lens.heat()
        assert (list(heat.columns), heat.texts) == (["cat", "the", " "], [["the", "␣", "↵"]])
        assert ">cat</th>" in lens._repr_html_() and ">␣</td>" in lens._repr_html_()
    printed = io.StringIO()
    Console(file=printed, width=100).print(lens)
    assert "cat" in printed.getvalue() and "↵ 0." in printed.getvalue()
    assert lens.heat(tokens=["a", "b", "c"], tokenizer=list("wxyz")).texts == [["w", "x", "y"]]
    sweep = patch_sweep(model, "h", metric=lambda y: y)(ids, ids.at[0, 1].set(2))
    assert list(sweep.heat().columns) == ["cat", "\n → the", " "]
    # Arrays that are not token ids, and inputs inside a transform, have no text.
    assert list(logit_lens(model, readout=lambda h: h, k=1)(ids.astype(float)).heat().columns) == ["0", "1", "2"]
    jax.jit(lambda ids: logit_lens(model, readout=lambda h: h, k=1)(ids)["h"].tokens)(ids)


def test_table_and_errors():
    from rich.console import Console

    f = lambda x: sow(x, "h")
    shown = io.StringIO()
    lens = logit_lens(f, readout=lambda h: h, k=1)(X)
    Console(file=shown, width=100).print(lens.table(lambda t: "ab"[t], example=0), lens)
    assert "b 0.73" in shown.getvalue() and "a 0.95" in shown.getvalue()
    with pytest.raises(ValueError, match=r"logits of shape \[2, 2\], which has no 5 tokens"):
        logit_lens(f, readout=lambda h: h)(X)
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        logit_lens(f, "no", readout=lambda h: h, k=1)(X)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        logit_lens(f, readout=lambda h: h, k=0)


def test_a_readout_that_is_trained_in_between() -> None:
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    f = lambda x: sonde.sow(x, "h")
    x = jnp.arange(3.0)
    for maps in (None, LensMaps({"h": LensMap(np.eye(3, dtype=np.float32), np.zeros(3, np.float32))}, 1)):
        lens = logit_lens(f, readout=lambda h: model(h), k=1, maps=maps)
        for scale in (1.0, -2.0):
            model.kernel[...] = model.kernel[...] * scale
            assert int(lens(x)["h"].tokens[0]) == int(jnp.argmax(model(x)))


def test_a_program_that_looks_at_numbers_runs_as_it_is() -> None:
    def f(x: Any) -> Any:
        return sonde.sow(x if float(x[0]) > 0 else -x, "h")

    assert logit_lens(f, readout=lambda h: h, k=1)(jnp.array([-1.0, 5.0]))["h"].tokens.tolist() == [0]
