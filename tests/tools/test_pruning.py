"""Edges pruned to a faithfulness, against a program by hand in which every receiver adds up what senders write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde.tools import Edges, attribute_edges

LAYERS, WIDTH = 3, 5
WEIGHTS = jax.random.normal(jax.random.key(0), (LAYERS, 2, WIDTH, WIDTH)) * 0.5
CLEAN, CORRUPT = (jax.random.normal(jax.random.key(i), (4, WIDTH)) for i in (1, 2))


def layer(x, w):
    for i, name in enumerate("am"):
        x = x + sonde.sow(jnp.tanh(sonde.sow(x, f"{name}/in") @ w[i]), f"{name}/out")
    return x, None


def listed(x):
    x = sonde.sow(x, "embed")
    for i in range(LAYERS):
        with sonde.scope(f"blocks/{i}"):
            x, _ = layer(x, WEIGHTS[i])
    return jnp.sum(sonde.sow(x, "end/in") ** 2)


def scanned(x):
    x = sonde.sow(x, "embed")
    with sonde.scope("blocks/*"):
        x, _ = jax.lax.scan(layer, x, WEIGHTS)
    return jnp.sum(sonde.sow(x, "end/in") ** 2)


def by_hand(kept):
    """The faithfulness of edges, computed with NumPy alone."""

    def run(x, other=None):
        written = {"embed": np.asarray(x, np.float64)}

        def read(receiver):
            return sum(v if other is None or (s, receiver) in kept else other[s] for s, v in written.items())

        for i in range(LAYERS):
            for j, name in enumerate("am"):
                place = f"blocks/{i}/{name}"
                written[f"{place}/out"] = np.tanh(read(f"{place}/in") @ np.asarray(WEIGHTS[i, j], np.float64))
        return written, (read("end/in") ** 2).sum()

    other, low = run(CORRUPT)
    return (run(CLEAN, other)[1] - low) / (run(CLEAN)[1] - low)


@pytest.mark.parametrize("f", [listed, scanned, jax.jit(listed)], ids=["list", "scan", "jit"])
def test_faithfulness_is_measured_by_running_the_program(f):
    edges = attribute_edges(f, ("embed", "**/out"), "**/in", baseline=CORRUPT)(CLEAN)
    assert len(edges) == 28  # 7 senders, 7 receivers, each with those before it
    for n in (0, 1, 5, 12, 20, 28):
        np.testing.assert_allclose(edges[:n].measured(), by_hand({e[:2] for e in edges[:n]}), rtol=1e-4, atol=1e-5)
    pruned = edges.prune(faithfulness=0.8)
    assert 0 < len(pruned) < len(edges) and abs(1 - pruned.measured()) <= 0.2 + 1e-5
    assert abs(1 - edges[: len(pruned) - 1].measured()) > 0.2
    assert pruned.dot().count("->") == len(pruned) and f"{len(pruned)} edges" in pruned._repr_html_()


def test_errors():
    edges = attribute_edges(listed, "embed", "end/in", baseline=CORRUPT)(CLEAN)
    with pytest.raises(ValueError, match="faithfulness= is a number from 0 to 1, got 2"):
        edges.prune(faithfulness=2)
    with pytest.raises(ValueError, match="have no program to run"):
        Edges((), 1.0, 0.0).measured()
