"""Edges pruned to a faithfulness, against a program by hand in which every receiver adds up what senders write."""

import itertools

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
    return by_hand_of(kept, None)


def by_hand_of(kept, every):
    """The same if only some edges, `every`, can be cut; all of them, if None."""

    def run(x, other=None):
        written = {"embed": np.asarray(x, np.float64)}

        def is_cut(pair):
            return pair not in kept and (every is None or pair in every)

        def read(receiver):
            return sum(other[s] if other is not None and is_cut((s, receiver)) else v for s, v in written.items())

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


def test_the_figures_of_mib():
    """CPR and CMD over the benchmark's numbers of edges, from the faithfulness by hand."""
    edges = attribute_edges(listed, ("embed", "**/out"), "**/in", baseline=CORRUPT)(CLEAN)
    shares = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    faithful = [by_hand({e[:2] for e in edges[: int(share * 28)]}) for share in shares]
    cpr = cmd = 0.0
    for i in range(len(shares) - 1):
        step = shares[i + 1] - shares[i]
        cpr += step * (faithful[i] + faithful[i + 1]) / 2
        cmd += step * (abs(1 - faithful[i]) + abs(1 - faithful[i + 1])) / 2
    curve = edges.curve()
    assert curve.sizes == (0, 0, 0, 0, 0, 1, 2, 5, 14, 28)
    assert (curve.area, curve.distance) == (pytest.approx(cpr, abs=1e-4), pytest.approx(cmd, abs=1e-4))


def test_more_edges_may_be_worse():
    """Two paths that cancel each other: what is enough is not what the next size is."""
    gains = (3.0, -2.5, 1.0)

    def summed(x):
        parts = [sonde.sow(gain * x, f"{i}/out") for i, gain in enumerate(gains)]
        return jnp.sum(sonde.sow(sum(parts), "end/in"))

    edges = attribute_edges(summed, "*/out", "end/in", baseline=jnp.zeros(1))(jnp.ones(1))
    faithful = [edges[:n].measured() for n in range(4)]
    np.testing.assert_allclose(faithful, [0, 2, 1 / 3, 1], atol=1e-5)
    assert len(edges.prune(faithfulness=0.9)) == 3
    assert [e.sender for e in edges.prune(faithfulness=0.3, search="exact")] == ["2/out"]
    np.testing.assert_allclose(edges.curve([0, 1 / 3, 2 / 3, 1]).faithfulness, faithful, atol=1e-5)
    assert edges.curve([0, 1]).area == pytest.approx(0.5, abs=1e-5)
    assert edges.curve([0, 1]).distance == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("search", ["greedy", "exact"])
def test_searches_against_all_sets(search):
    edges = attribute_edges(listed, ("embed", "blocks/{0..1}/*/out"), ("blocks/1/m/in", "end/in"), baseline=CORRUPT)(
        CLEAN
    )
    assert len(edges) == 9
    pairs = [e[:2] for e in edges]
    enough = lambda chosen: abs(1 - by_hand_of(set(chosen), set(pairs))) <= 0.3 + 1e-5
    found = [e[:2] for e in edges.prune(faithfulness=0.7, search=search)]
    assert enough(found)
    if search == "exact":
        fewer = [c for n in range(len(found)) for c in itertools.combinations(pairs, n) if enough(c)]
        assert not fewer and len(found) < len(pairs)
    else:
        kept = list(pairs)
        for pair in reversed(pairs):
            without = [p for p in kept if p != pair]
            kept = without if enough(without) else kept
        assert found == kept


def test_a_greedy_search_tries_every_edge():
    """More edges than are tried at once, of which one matters."""

    def summed(x):
        parts = [sonde.sow((i == 17) * x, f"{i}/out") for i in range(40)]
        return jnp.sum(sonde.sow(sum(parts), "end/in"))

    edges = attribute_edges(summed, "*/out", "end/in", baseline=jnp.zeros(1))(jnp.ones(1))
    for search in ("greedy", "threshold"):
        assert [e.sender for e in edges.prune(faithfulness=0.9, search=search)] == ["17/out"]


def test_errors():
    edges = attribute_edges(listed, "embed", "end/in", baseline=CORRUPT)(CLEAN)
    with pytest.raises(ValueError, match="faithfulness= is a number from 0 to 1, got 2"):
        edges.prune(faithfulness=2)
    with pytest.raises(ValueError, match="search= is one of threshold, greedy, exact, got 'best'"):
        edges.prune(faithfulness=0.5, search="best")
    many = attribute_edges(listed, ("embed", "**/out"), "**/in", baseline=CORRUPT)(CLEAN)
    with pytest.raises(ValueError, match="16 edges at most, got 28"):
        many.prune(faithfulness=0.5, search="exact")
    with pytest.raises(ValueError, match=r"with all 5 edges the faithfulness is .* no set that was tried is within"):
        many[:5].prune(faithfulness=1.0)
    with pytest.raises(ValueError, match="have no program to run"):
        Edges((), 1.0, 0.0).measured()
