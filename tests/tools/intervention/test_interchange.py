"""Interchange interventions against the same program written by hand, and the search on a variable that is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import LAYERS, OTHERS, TOKENS, both

import sonde
from sonde.tools import interchange

WIDTH = 6
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)


def adds_then_compares(x: Any) -> Any:
    """Is `x0 + x1 > x2`? The sum is along one direction of a hidden value, everything else along the others."""
    plain = jnp.concatenate([x[:, :1] + x[:, 1:2], x[:, 2:]], -1)
    hidden = sonde.sow(plain @ ROTATION, "hidden") @ ROTATION.T
    score = 4 * (hidden[:, 0] - hidden[:, 1])
    return jnp.stack([-score, score], -1)


def examples(seed: int, n: int = 64) -> Any:
    base, source = jax.random.normal(jax.random.key(seed), (2, n, WIDTH + 1))
    return base, source, (source[:, 0] + source[:, 1] > base[:, 2]).astype(int)


def test_a_known_variable_is_found_and_the_controls_are_not() -> None:
    train, test = [examples(i) for i in range(4)], [examples(i, 256) for i in (10, 11)]
    whole = interchange(adds_then_compares, "hidden")
    base, source, _ = test[0]
    # Scores are differences of values near 1: one is compiled, the other runs operation by operation.
    np.testing.assert_allclose(whole(base, source), adds_then_compares(source), rtol=1e-5, atol=1e-5)

    found = whole.train(train, size=1, steps=150, learning_rate=0.1)
    assert abs(float(found.directions[0] @ ROTATION[0])) > 0.98
    numbers = found.controls(train, test, seeds=1, steps=60)
    assert numbers["this"] > 0.96 and found.losses[-1] < found.losses[0]
    by_hand = [
        np.mean([np.argmax(adds_then_compares(inputs), -1) == wanted for *_, inputs, wanted in rows])
        for rows in ([(b, w) for b, _, w in test], [(s, w) for _, s, w in test])
    ]
    assert [numbers["nothing"], numbers["whole"]] == pytest.approx(by_hand)
    assert max(numbers["nothing"], numbers["whole"], numbers["random"], numbers["shuffled"]) < 0.9
    known = interchange(adds_then_compares, "hidden", directions=3 * ROTATION[:1])
    assert known.accuracy(test) == 1.0


@pytest.mark.every(2)
def test_part_of_a_value_by_hand_in_a_list_and_a_scan() -> None:
    directions = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    projection = np.linalg.pinv(directions) @ directions
    path = f"blocks/{LAYERS - 2}/out"
    for model in both().values():
        _, records = sonde.capture(model, path)(OTHERS)

        def mixed(x: Any, other: Any = records[path].value) -> Any:
            return x.at[:, 2].add((other[:, 4] - x[:, 2]) @ projection)

        expected = sonde.edit(model, {path: mixed})(TOKENS)
        # The positions differ between the two runs, so a function says where: here by the first token.
        first = int(TOKENS[0, 0])
        assert first != int(OTHERS[0, 0])
        ask = interchange(model, path, directions=directions, positions=lambda t: jnp.where(t[:, 0] == first, 2, 4))
        np.testing.assert_allclose(ask(TOKENS, OTHERS), expected, atol=2e-5)
        some = interchange(model, path, positions=[1, 3])(TOKENS, OTHERS)
        by_hand = sonde.edit(model, {path: lambda x, o=records[path].value: x.at[:, [1, 3]].set(o[:, [1, 3]])})
        np.testing.assert_allclose(some, by_hand(TOKENS), atol=2e-5)


def test_a_head_has_its_positions_along_another_axis() -> None:
    model = both()["list"]
    path = "blocks/1/attn/heads"
    _, records = sonde.capture(model, path)(OTHERS)
    by_hand = sonde.edit(model, {path: lambda x, o=records[path].value: x.at[:, 3].set(o[:, 3])})(TOKENS)
    ask = interchange(model, path, positions=lambda t: jnp.full((1, 1), 3), position_axis=-3)
    np.testing.assert_allclose(ask(TOKENS, OTHERS), by_hand, atol=2e-5)


def test_what_does_not_fit_is_an_error() -> None:
    ask = interchange(adds_then_compares, "hidden", directions=np.ones((1, 4)))
    base, source, wanted = examples(0)
    with pytest.raises(ValueError, match=r"shape \[64, 6\], and the directions are 4 long"):
        ask(base, source)
    whole = interchange(adds_then_compares, "hidden")
    with pytest.raises(ValueError, match="both must have the same"):
        whole(base, source[:3])
    with pytest.raises(ValueError, match="a wanted class for each example"):
        whole.accuracy([(base, source, wanted[:5])])
    with pytest.raises(ValueError, match="size is from 1 to 6"):
        whole.train([(base, source, wanted)], size=7)
    with pytest.raises(ValueError, match="independent rows"):
        interchange(adds_then_compares, "hidden", directions=np.ones((2, 6)))
    with pytest.raises(ValueError, match="controls are for a subspace"):
        whole.controls([], [])
    with pytest.raises(ValueError, match="there are no examples"):
        whole.accuracy([])
