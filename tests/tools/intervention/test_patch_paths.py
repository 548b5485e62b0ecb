"""Path patching to the queries of single heads, against the two runs written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tools.scanned import OTHERS, TOKENS, both

import sonde
from sonde import nnx
from sonde.tools import patch_paths


def metric(logits: Any) -> Any:
    return logits[0, -1, 3] - logits[0, -1, 2]


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_heads_are_receivers_of_their_own(kind: str) -> None:
    model = nnx.clone(both()[kind])
    model.set_attributes(split_inputs=True)
    senders, receivers = ("blocks/0/attn/out", "blocks/0/mlp/out"), ("blocks/1/q_in", "blocks/1/mlp_in")
    ask = patch_paths(model, senders, receivers, metric=metric, split={"blocks/*/q_in": -2})
    found = ask((TOKENS,), (OTHERS,))
    assert list(found.scores)[:3] == [(senders[0], "blocks/1/q_in/0"), (senders[0], "blocks/1/q_in/1"),
                                      (senders[0], "blocks/1/mlp_in")]  # fmt: skip
    _, clean = sonde.capture(model, *senders)(TOKENS)
    _, corrupt = sonde.capture(model, *senders)(OTHERS)
    for sender, receiver, head in ((senders[0], "blocks/1/q_in", 1), (senders[1], "blocks/1/q_in", 0)):
        held = {path: (clean if path == sender else corrupt)[path].value for path in senders}
        _, between = sonde.capture(sonde.edit(model, held), receiver)(OTHERS)
        value = between[receiver].value
        last = sonde.edit(model, {receiver: lambda x, v=value, h=head: x.at[..., h, :].set(v[..., h, :])})
        expected = metric(last(OTHERS))
        np.testing.assert_allclose(found.scores[sender, f"{receiver}/{head}"], expected, rtol=1e-4, atol=1e-5)
    assert abs(float(found.scores[senders[0], "blocks/1/q_in/0"] - found.corrupt)) > 1e-6
