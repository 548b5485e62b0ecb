"""Pairs behind a score against products of weights, written out, and against values left out of the stream by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import TOKENS, both

import sonde
from sonde import nnx
from sonde.models.config import Config
from sonde.models.decoder import Decoder
from sonde.tools import qk_attribution

PARTS = ("embedded", "blocks/0/attn/out", "blocks/0/mlp/out")


def grouped(**options: Any) -> Decoder:
    """A model with two heads for each key head."""
    config = Config(
        "llama", layers=2, width=16, heads=4, hidden=32, depth=8, key_heads=2, vocabulary=20, kind_of=(0, 0),
        gated=True, tied=True, **options,
    )  # fmt: skip
    return Decoder(config, layers="list", rngs=nnx.Rngs(1))


def test_pairs_are_products_of_weights() -> None:
    model = grouped(qkv_bias=True)
    biases = jax.random.normal(jax.random.key(0), (2, 32))
    model.blocks[1].attn.q.bias[...], model.blocks[1].attn.k.bias[...] = biases[0], biases[1, :16]
    found = qk_attribution(model, "blocks/1/attn", head=3, query=4, key=-5)(TOKENS)
    assert found.names == (*PARTS, "other", "bias")
    _, records = sonde.capture(model, *PARTS, "blocks/1/norm1/factor", "blocks/1/attn/scores")(TOKENS)
    block, zero = model.blocks[1], jnp.zeros((1, 6, 16))
    factor = records["blocks/1/norm1/factor"].value * block.norm1.scale[...]
    # These layers have no rotation. The query of head 3 is at position 4, and its key is that of key head 1, at 1.
    parts = [*(records[path].value * factor for path in PARTS), zero]
    queries = [(part[0, 4] @ block.attn.q.kernel[...])[24:] for part in parts] + [biases[0, 24:]]
    keys = [(part[0, 1] @ block.attn.k.kernel[...])[8:] for part in parts] + [biases[1, 8:16]]
    np.testing.assert_allclose(found.table, np.array(queries) @ np.array(keys).T / 8**0.5, atol=2e-5)
    score = records["blocks/1/attn/scores"].value[0, 3, 4, 1]
    assert found.score == pytest.approx(float(score), abs=1e-4)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["list", "scan", "bf16"])
def test_pairs_by_leaving_parts_out(kind: str) -> None:
    model = both()["list" if kind == "bf16" else kind]
    atol = 1e-4
    if kind == "bf16":
        model, atol = nnx.clone(model), 0.05
        nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(model)))
    found = qk_attribution(model, "blocks/1/attn", head=1, query=5, key=2)(TOKENS)
    listed = both()["list"] if kind != "bf16" else model
    _, records = sonde.capture(listed, *PARTS, "blocks/1/norm1/factor")(TOKENS)
    parts = [records[path].value for path in PARTS]

    def score(of_query: Any, of_key: Any) -> float:
        """The score if the query is computed from one stream and the key from another; biases are zero here."""
        stream = sum(parts).at[:, 5].set(of_query[:, 5]).at[:, 2].set(of_key[:, 2])
        held = {"blocks/1/norm1/factor": records["blocks/1/norm1/factor"].value, "blocks/1/attn_in": stream}
        _, now = sonde.capture(sonde.edit(listed, held), "blocks/1/attn/scores")(TOKENS)
        return float(now["blocks/1/attn/scores"].value[0, 1, 5, 2])

    by_hand = [[score(q, k) for k in parts] for q in parts]
    np.testing.assert_allclose(found.table[:3, :3], by_hand, atol=atol)
    assert found.table.sum() == pytest.approx(found.score)
    assert abs(found.best(1)[0][2]) == np.abs(found.table).max()


def test_a_sum_that_is_not_the_score_is_an_error() -> None:
    ask = {"head": 0, "query": 3, "key": 1}
    with pytest.raises(ValueError, match="multiplied by something else"):
        qk_attribution(grouped(scale=0.5), "blocks/1/attn", **ask)(TOKENS)
    assert qk_attribution(grouped(scale=0.5), "blocks/1/attn", scale=0.5, **ask)(TOKENS).score
    with pytest.raises(ValueError, match="add up to"):
        qk_attribution(grouped(), "blocks/1/attn", frozen=(), **ask)(TOKENS)
    with pytest.raises(IndexError, match="key=6, but there are 6"):
        qk_attribution(grouped(), "blocks/1/attn", head=0, query=3, key=6)(TOKENS)
    with pytest.raises(ValueError, match="does not say where its components write"):
        qk_attribution(lambda x: x, "attn", **ask)
