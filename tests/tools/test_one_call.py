"""Methods of papers, one call each, against hand-written JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import LAYERS, OTHERS, TOKENS, both

import sonde
from sonde import sow
from sonde.errors import EditError
from sonde.tools import (
    ablate,
    attention_heads,
    attribute,
    attribute_edges,
    compare,
    logit_attribution,
    logit_lens,
    patch_paths,
    patch_sweep,
    steer,
)

W = [jax.random.normal(jax.random.key(i), (3, 3)) / 2 for i in range(3)]
X = jax.random.normal(jax.random.key(9), (4, 3))
Y = jax.random.normal(jax.random.key(8), (4, 3))


def stream(x: Any) -> Any:
    """A residual network of three components; what each reads and writes is marked."""
    for i, w in enumerate(W):
        x = x + sow(jnp.tanh(sow(x, f"{i}/in") @ w), f"{i}/out")
    return jnp.sum(sow(x, "end/in") ** 2)


def by_hand(x: Any, outs: dict[int, Any] | None = None, ins: dict[int, Any] | None = None) -> tuple[Any, list, list]:
    """The same with some outputs and inputs given; also what was read and written."""
    outs, ins = outs or {}, ins or {}
    read, written = [], []
    for i, w in enumerate(W):
        read.append(ins.get(i, x))
        written.append(outs.get(i, jnp.tanh(read[-1] @ w)))
        x = x + written[-1]
    read.append(ins.get(3, x))
    return jnp.sum(read[-1] ** 2), read, written


def test_path_patching() -> None:
    found = patch_paths(stream, ("0/out", "1/out", "2/out"), "*/in", metric=lambda y: y)(X, Y)
    _, _, clean = by_hand(X)
    corrupt, _, held = by_hand(Y)
    assert float(found.corrupt) == pytest.approx(float(corrupt), rel=1e-6)
    assert len(found.scores) == 6
    for s in range(3):
        _, read, _ = by_hand(Y, outs={**dict(enumerate(held)), s: clean[s]})
        for r in range(s + 1, 4):
            expected, _, _ = by_hand(Y, ins={r: read[r]})
            name = f"{r}/in" if r < 3 else "end/in"
            np.testing.assert_allclose(found.scores[f"{s}/out", name], expected, rtol=1e-5)


def test_edges_and_attribution_patching() -> None:
    edges = attribute_edges(stream, "*/out", "*/in", baseline=Y)(X)
    _, _, clean = by_hand(X)
    _, _, other = by_hand(Y)
    gradients = jax.grad(lambda ins: _with_reads(ins))([jnp.zeros_like(X)] * 4)
    assert len(edges) == 6
    for edge in edges:
        s = int(edge.sender[0])
        r = 3 if edge.receiver == "end/in" else int(edge.receiver[0])
        assert edge.score == pytest.approx(float(jnp.sum((clean[s] - other[s]) * gradients[r])), rel=1e-4)
    assert [abs(e.score) for e in edges] == sorted((abs(e.score) for e in edges), reverse=True)
    assert len(edges.prune(0.0)) == 0 and len(edges.prune(1.0)) == 6
    half = edges.prune(0.5)
    total = sum(abs(e.score) for e in edges)
    assert sum(abs(e.score) for e in half) >= 0.5 * total > sum(abs(e.score) for e in half[:-1])
    assert edges.dot().count("->") == 6
    found = attribute(stream, "*/out", baseline=(Y,))(X)
    at_outputs = jax.grad(lambda outs: by_hand(X, outs=dict(enumerate(outs)))[0])
    for i in range(3):
        whole = jax.grad(lambda o, i=i: by_hand(X, outs={i: o})[0])(clean[i])
        np.testing.assert_allclose(found[f"{i}/out"][0], (clean[i] - other[i]) * whole, rtol=1e-4, atol=1e-6)
    del at_outputs
    integrated = attribute(stream, "1/out", baseline=Y, method="integrated", steps=64)(X)
    change = by_hand(X)[0] - by_hand(X, outs={1: other[1]})[0]
    assert integrated.totals["1/out"] == pytest.approx(float(change), rel=1e-3)
    with pytest.raises(ValueError, match="baseline=; both must have the same"):
        attribute(stream, "0/out", baseline=Y[:2])(X)


def _with_reads(added: list[Any]) -> Any:
    """The end of the network with something added to what each component reads, and to nothing else."""
    x = X
    for i, w in enumerate(W):
        x = x + jnp.tanh((x + added[i]) @ w)
    return jnp.sum((x + added[3]) ** 2)


@pytest.mark.parametrize("layers", ["list", "scan"])
def test_direct_logits(layers: str) -> None:
    model = both()[layers]
    names = ("embedded", "blocks/*/attn/out", "blocks/*/mlp/out")
    metric = lambda logits: logits[0, 3] - logits[0, 2]
    found = logit_attribution(model, *names, residual=f"blocks/{LAYERS - 1}/out", readout=model.readout, metric=metric)(
        TOKENS
    )
    logits, records = sonde.capture(model)(TOKENS)
    end = np.asarray(records[f"blocks/{LAYERS - 1}/out"].value[0, -1])
    table = np.asarray(model.embed.embedding[...])
    size = np.sqrt((end**2).mean() + model.config.epsilon)
    direction = np.asarray(model.norm.scale[...]) * (table[3] - table[2]) / size
    assert len(found) == 1 + 2 * LAYERS
    for path, share in found.items():
        assert float(share) == pytest.approx(float(records[path].value[0, -1] @ direction), abs=2e-4)
    assert sum(found.totals.values()) == pytest.approx(float(logits[0, -1, 3] - logits[0, -1, 2]), rel=1e-3, abs=1e-3)
    if layers == "list":
        down = np.asarray(model.blocks[1].mlp.down.kernel[...])
        neurons = logit_attribution(
            model,
            "blocks/1/mlp/hidden",
            residual=f"blocks/{LAYERS - 1}/out",
            readout=model.readout,
            metric=metric,
            writes={"blocks/1/mlp/hidden": down},
        )(TOKENS)
        hidden = np.asarray(records["blocks/1/mlp/hidden"].value[0, -1])
        np.testing.assert_allclose(neurons["blocks/1/mlp/hidden"], hidden * (down @ direction), atol=2e-4)


def test_attention_heads() -> None:
    tokens = jnp.array([[1, 2, 3, 1, 2, 3], [4, 5, 4, 5, 6, 6]])
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 3, 6, 6)), -1)
    found = attention_heads(lambda t: sow(weights, "w"), "w")(tokens)
    sums = {kind: np.zeros((3, 2)) for kind in ("previous", "duplicate", "induction")}
    for b, row in enumerate(np.asarray(tokens)):
        for q in range(6):
            keys = {
                "previous": [q - 1] if q else [],
                "duplicate": [k for k in range(q) if row[k] == row[q]],
                "induction": [k + 1 for k in range(q) if row[k] == row[q]],
            }
            for kind, mine in keys.items():
                if mine:
                    sums[kind][:, 0] += np.asarray(weights)[b, :, q, mine].sum(0)
                    sums[kind][:, 1] += 1
    for kind, total in sums.items():
        np.testing.assert_allclose(found[kind][0], total[:, 0] / total[:, 1], rtol=1e-5)
    model = both()["scan"]
    assert attention_heads(model, "blocks/*/attn/weights")(TOKENS).previous.shape == (LAYERS, 2)
    with pytest.raises(ValueError, match="is not attention over 6 tokens"):
        attention_heads(lambda t: sow(weights[..., :5], "w"), "w")(tokens)


def test_positions_and_head_means() -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)
    f = lambda x: sow(x, "h")
    np.testing.assert_array_equal(ablate(f, "h", positions=-1)(x), x.at[:, 2].set(0))
    np.testing.assert_array_equal(ablate(f, "h", positions=(0, 2), units=1)(x), x.at[:, [0, 2], 1].set(0))
    np.testing.assert_array_equal(steer(f, {"h": jnp.ones(4)}, positions=0)(x), x.at[:, 0].add(1))
    heads = jnp.arange(48.0).reshape(2, 3, 2, 4)
    mean = heads.mean((0, 1))
    np.testing.assert_allclose(
        ablate(f, "h", units=1, unit_axis=-2, value="mean")(heads), heads.at[:, :, 1].set(mean[1])
    )
    np.testing.assert_array_equal(
        sonde.edit(f, {"h": sonde.Edit(jnp.zeros_like, positions=1, position_axis=0)})(x), x.at[1].set(0)
    )
    mapped = jax.vmap(lambda x: sonde.edit(f, {"h": sonde.Edit(lambda h: -h, positions=1)})(x))(x)
    np.testing.assert_array_equal(mapped, x.at[:, 1].multiply(-1))
    _, other = sonde.capture(f)(x[::-1])
    np.testing.assert_array_equal(ablate(f, "h", value=other)(x), x[::-1])
    np.testing.assert_array_equal(ablate(f, "h", value={"h": x[0]}, units=2)(x), x.at[:, :, 2].set(x[0, :, 2]))
    loop = lambda x: jax.lax.scan(lambda c, _: (sow(c + 1, "c"), None), x, length=4)[0]
    assert float(ablate(loop, "c", iterations=2)(jnp.zeros((1, 1)))[0, 0]) == 1.0
    with pytest.raises(EditError, match="no position 3 along axis -2"):
        ablate(f, "h", positions=3)(x)


def test_sweeps_over_axes_and_directions() -> None:
    model = both()["scan"]
    metric = lambda logits: logits[0, -1, 3] - logits[0, -1, 2]
    heads = patch_sweep(model, "blocks/{1..2}/attn/heads", metric=metric, axis=(-2, -3))((TOKENS,), (OTHERS,))
    _, records = sonde.capture(model)(TOKENS)
    assert heads.stacked().shape == (2, 2, 6)
    clean = records["blocks/2/attn/heads"].value
    by_edit = sonde.edit(model, {"blocks/2/attn/heads": lambda x: x.at[:, 5, 1].set(clean[:, 5, 1])})(OTHERS)
    np.testing.assert_allclose(heads.scores["blocks/2/attn/heads"][1, 5], metric(by_edit), rtol=1e-5)
    direction = jax.random.normal(jax.random.key(0), (16,))
    unit = direction / jnp.linalg.norm(direction)
    along = patch_sweep(model, "blocks/1/out", metric=metric, directions=direction)((TOKENS,), (OTHERS,))
    clean = records["blocks/1/out"].value

    def moved(x: Any) -> Any:
        return x.at[:, 4].add(((clean - x) @ unit)[:, 4, None] * unit)

    expected = metric(sonde.edit(model, {"blocks/1/out": moved})(OTHERS))
    np.testing.assert_allclose(along.scores["blocks/1/out"][4, 0], expected, rtol=1e-5)
    with pytest.raises(TypeError, match="axis= must be a number"):
        patch_sweep(model, "embedded", metric=metric, axis="head")((TOKENS,), (OTHERS,))
    with pytest.raises(ValueError, match="twice"):
        patch_sweep(model, "embedded", metric=metric, axis=(-2, 1))((TOKENS,), (OTHERS,))


def test_compare_by_norm_and_names() -> None:
    def model(x: Any, dtype: Any = jnp.float32, name: str = "h", wrong: float = 0.0) -> Any:
        x = x.astype(dtype)
        for i, w in enumerate(W * 4):
            x = x + sow(jnp.tanh(x @ w.astype(dtype)), f"{name}{i}/out")
            x = x + wrong * (i == 5)
        return sow(x.astype(jnp.float32), "end")

    half = lambda **options: lambda x: model(x, jnp.bfloat16, **options)
    assert compare(half(), model)(X).first is None
    broken = compare(half(wrong=1.0), model)(X)
    assert broken.first is not None and broken.first.path == "h6/out"
    assert broken.jumps(1)[0][0].path == "h6/out"
    assert compare(half(), model, rtol=1e-4)(X).first is not None
    renamed = compare(lambda x: model(x, name="block"), model)(X)
    assert renamed.first is None and not renamed.only_first
    assert renamed.names["block3/out"] == "h3/out" and len(renamed.drifts) == 13
    given = compare(lambda x: sow(x, "a"), lambda x: sow(x, "b"), match_paths={"a": "b"})(X)
    assert len(given.drifts) == 1 and given.first is None
    with pytest.raises(ValueError, match="second program has no site 'c'"):
        compare(lambda x: sow(x, "a"), lambda x: sow(x, "b"), match_paths={"a": "c"})(X)


def test_lens_shows_words() -> None:
    lens = logit_lens(lambda x: sow(x, "h"), readout=lambda h: h, k=1)(jnp.eye(3)[None])
    table = lens.table(["a", "b", "c"], tokens=["The", "cat", "sat"])
    assert [str(c.header) for c in table.columns] == ["site", "The", "cat", "sat"]
    with pytest.raises(TypeError, match="load the tokenizer"):
        lens.table("gpt2")
