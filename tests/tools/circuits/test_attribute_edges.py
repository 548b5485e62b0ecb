"""Edges between components and heads of a language model, against the model written by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import LAYERS, OTHERS, TOKENS, both

import sonde
from sonde import models, nnx
from sonde.errors import CaptureError
from sonde.models.config import Config
from sonde.models.decoder import Decoder
from sonde.tools import attribute_edges
from sonde.tools.circuits.edge_nodes import graph_of
from sonde.tools.circuits.known_circuits import circuit_of

HEADS, DEPTH, WIDTH = 2, 8, 16
NORMS = ("blocks/*/norm1/in", "blocks/*/norm2/in", "norm/in")
WRITES = ("embedded", "blocks/*/attn/out", "blocks/*/mlp/out")


def metric(logits: Any) -> Any:
    return logits[0, -1, 3] - logits[0, -1, 2]


def scores(edges: Any) -> dict[tuple[str, str], float]:
    return {e[:2]: e.score for e in edges}


def close(a: dict, b: dict, **tolerance: Any) -> None:
    assert a.keys() == b.keys()
    np.testing.assert_allclose([a[k] for k in a], [b[k] for k in a], **{"rtol": 1e-3, "atol": 1e-5, **tolerance})


class ByHand:
    """A model in which every head, query, key, value and MLP reads a sum of what was written before it."""

    def __init__(self, model: Decoder) -> None:
        self.model = model

    def run(
        self, tokens: Any, other: Any = None, cut: Any = (), read: Any = None, fixed: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """The metric and what is written, if edges are cut, numbers are added to what is read, or senders are fixed."""
        model, config = self.model, self.model.config
        fixed = fixed or {}
        written: dict[str, Any] = {"embedded": fixed.get("embedded", model.embed(tokens))}
        bias = jnp.where(np.tri(tokens.shape[1], dtype=bool), 0, -jnp.inf)

        def stream(receiver: str) -> Any:
            total = sum(other[s] if (s, receiver) in cut else x for s, x in written.items())
            return total if read is None else total + read.get(receiver, 0)

        for i, block in enumerate(model.blocks):
            at, attn, new = f"blocks/{i}", block.attn, {}
            for h in range(config.heads):
                columns = slice(h * DEPTH, (h + 1) * DEPTH)
                q, k, v = (
                    block.norm1(stream(f"{at}/{name}_in/{h}")) @ getattr(attn, name).kernel[...][:, columns]
                    for name in "qkv"
                )
                weights = jax.nn.softmax(q @ k.mT / np.sqrt(DEPTH) + bias, -1)
                new[f"{at}/attn/results/{h}"] = weights @ v @ attn.o.kernel[...][columns]
            written |= {name: fixed.get(name, x) for name, x in new.items()}
            mlp, x = block.mlp, block.norm2(stream(f"{at}/mlp_in"))
            hidden = jax.nn.silu(x @ mlp.gate.kernel[...]) * (x @ mlp.up.kernel[...])
            written[f"{at}/mlp/out"] = fixed.get(f"{at}/mlp/out", hidden @ mlp.down.kernel[...])
        end = stream(f"blocks/{LAYERS - 1}/out")
        return metric(model.norm(end) @ model.embed.embedding[...].T), written


@functools.cache
def with_heads(kind: str) -> Decoder:
    state = nnx.state(both()[kind])
    model = Decoder(both()[kind].config, layers=kind, rngs=nnx.Rngs(0))
    nnx.update(model, state)
    model.set_attributes(per_head=True, split_inputs=True)
    return model


@functools.cache
def of_heads(kind: str) -> Any:
    return attribute_edges(with_heads(kind), metric=metric, baseline=OTHERS)(TOKENS)


@pytest.fixture(scope="module")
def hand() -> ByHand:
    return ByHand(both()["list"])


def test_edges_of_heads_and_their_inputs(hand: ByHand) -> None:
    edges = of_heads("list")
    clean, other = hand.run(TOKENS)[1], hand.run(OTHERS)[1]
    assert edges.output == pytest.approx(float(metric(both()["list"](TOKENS))), rel=1e-4)
    receivers = {e.receiver for e in edges}
    assert len(receivers) == LAYERS * (3 * HEADS + 1) + 1 and {e.sender for e in edges} == set(clean)
    zeros = {r: jnp.zeros((1, 6, WIDTH)) for r in receivers}
    gradients = jax.grad(lambda d: hand.run(TOKENS, read=d)[0])(zeros)
    found = scores(edges)
    expected = {(s, r): float(jnp.sum((clean[s] - other[s]) * gradients[r])) for s, r in found}
    close(found, expected)
    # A head and the MLP of its block: the MLP reads it, the other heads of the block do not.
    assert ("blocks/1/attn/results/0", "blocks/1/mlp_in") in found
    assert ("blocks/1/attn/results/0", "blocks/1/q_in/1") not in found
    assert not edges.alone
    close(scores(of_heads("scan")), found, atol=1e-4)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_some_edges_are_cut(hand: ByHand, kind: str) -> None:
    edges = of_heads(kind)
    everything = {e[:2] for e in edges}
    other, low = hand.run(OTHERS)[1], float(hand.run(OTHERS)[0])
    for n in (0, 7, 40, len(edges)):
        kept = {e[:2] for e in edges[:n]}
        number = float(hand.run(TOKENS, other, everything - kept)[0])
        assert edges[:n].measured() == pytest.approx((number - low) / (edges.output - low), rel=2e-3, abs=1e-4)
        number = float(hand.run(TOKENS, other, kept)[0])
        assert edges[:n].completeness() == pytest.approx((number - low) / (edges.output - low), rel=2e-3, abs=1e-4)


def test_exact_edges_are_runs_with_one_edge_cut(hand: ByHand) -> None:
    model = with_heads("list")
    senders = ("embedded", "blocks/{0..1}/attn/results")
    exact = attribute_edges(model, senders, "blocks/2/{q_in,mlp_in}", metric=metric, baseline=OTHERS, method="exact")
    edges = exact(TOKENS)
    other, whole = hand.run(OTHERS)[1], float(hand.run(TOKENS)[0])
    assert len(edges) == 5 * 3
    close(scores(edges), {e[:2]: whole - float(hand.run(TOKENS, other, {e[:2]})[0]) for e in edges}, atol=2e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_nothing_in_place_of_another_run(hand: ByHand, kind: str) -> None:
    senders = ("embedded", "blocks/{0..1}/attn/results")
    receivers = "blocks/2/{q_in,mlp_in}"
    edges = attribute_edges(with_heads(kind), senders, receivers, metric=metric, baseline=0, method="exact")(TOKENS)
    other, whole = {e.sender: 0.0 for e in edges}, float(hand.run(TOKENS)[0])
    close(scores(edges), {e[:2]: whole - float(hand.run(TOKENS, other, {e[:2]})[0]) for e in edges}, atol=2e-5)
    low = float(hand.run(TOKENS, other, {e[:2] for e in edges})[0])
    assert edges.baseline == pytest.approx(low, rel=1e-3, abs=1e-5) and edges.measured() == pytest.approx(1, abs=1e-4)
    assert edges[:0].measured() == pytest.approx(0, abs=1e-3)


@pytest.mark.every(2)
def test_integrated_edges(hand: ByHand) -> None:
    model, steps = with_heads("list"), 3
    clean, other = hand.run(TOKENS)[1], hand.run(OTHERS)[1]
    receivers = ["blocks/2/mlp_in", "blocks/1/q_in/0", "blocks/1/q_in/1"]
    zeros = {r: jnp.zeros((1, 6, WIDTH)) for r in receivers}

    def ask(method: Any) -> Any:
        names = "embedded", "blocks/0/attn/results", "blocks/1/mlp/out"
        asked = attribute_edges(
            model,
            names,
            ("blocks/2/mlp_in", "blocks/1/q_in"),
            metric=metric,
            baseline=OTHERS,
            method=method,
            steps=steps,
        )
        return scores(asked(TOKENS))

    @jax.jit
    def gradients(fixed: dict[str, Any]) -> Any:
        return jax.grad(lambda d: hand.run(TOKENS, read=d, fixed=fixed)[0])(zeros)

    parts = [k / steps for k in range(1, steps + 1)]
    between = lambda s, a: other[s] + a * (clean[s] - other[s])
    of_inputs = [gradients({"embedded": between("embedded", a)}) for a in parts]
    found = ask("inputs")
    for s, r in found:
        mean = sum(g[r] for g in of_inputs) / steps
        assert found[s, r] == pytest.approx(float(jnp.sum((clean[s] - other[s]) * mean)), rel=2e-3, abs=1e-5)
    found = ask("activations")
    heads = [f"blocks/0/attn/results/{h}" for h in range(HEADS)]
    for together in (["embedded"], heads, ["blocks/1/mlp/out"]):
        steps_of = [gradients({s: between(s, a) for s in together}) for a in parts]
        for s, r in found:
            if s in together:
                mean = sum(g[r] for g in steps_of) / steps
                assert found[s, r] == pytest.approx(float(jnp.sum((clean[s] - other[s]) * mean)), rel=2e-3, abs=1e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_a_value_that_is_marked_twice_is_one_sender(kind: str) -> None:
    """With inside=, the output of a module that marks it itself is marked again, under the same path."""
    model = both()[kind]
    known = attribute_edges(model, metric=metric, baseline=OTHERS)(TOKENS)
    marked = attribute_edges(model, WRITES, NORMS, metric=metric, baseline=OTHERS, inside=model)(TOKENS)
    names = {"attn_in": "norm1/in", "mlp_in": "norm2/in", f"blocks/{LAYERS - 1}/out": "norm/in"}

    def renamed(path: str) -> str:
        return names.get(path) or "/".join(names.get(part, part) for part in path.split("/"))

    close(scores(marked), {(s, renamed(r)): x for (s, r), x in scores(known).items()})
    for n in (3, 12):
        assert marked[:n].measured() == pytest.approx(known[:n].measured(), rel=1e-3, abs=1e-4)


def test_the_stream_is_no_receiver() -> None:
    model = both()["list"]
    for receivers in ("blocks/*/in", "blocks/1/in", "blocks/*/mid", ("blocks/*/attn_in", "blocks/1/mid")):
        with pytest.raises(ValueError, match=r"is the stream itself and not what one component reads.*attn_in"):
            attribute_edges(model, WRITES, receivers, metric=metric, baseline=OTHERS)(TOKENS)


def test_senders_without_edges_are_named() -> None:
    heads = with_heads("list")
    model = lambda tokens: heads(tokens)
    unsplit = ("blocks/*/attn/results", "blocks/*/mlp/out")
    with pytest.raises(ValueError, match=r"no edges: blocks/0/attn/results \[1, 6, 2, 16\], .*split="):
        attribute_edges(model, unsplit, "blocks/*/mlp_in", metric=metric, baseline=OTHERS)(TOKENS)
    with pytest.raises(ValueError, match=r"no edges: blocks/0/mlp/hidden \[1, 6, 32\]"):
        attribute_edges(model, ("blocks/*/mlp/hidden", "embedded"), "blocks/*/mlp_in", metric=metric, baseline=OTHERS)(
            TOKENS
        )
    edges = attribute_edges(model, "blocks/*/mlp/out", "blocks/*/mlp_in", metric=metric, baseline=OTHERS)(TOKENS)
    assert edges.alone == ("blocks/2/mlp/out", "blocks/0/mlp_in") and "without an edge: blocks/2/mlp/out" in repr(edges)


@pytest.mark.every(2)
def test_blocks_whose_parts_run_side_by_side() -> None:
    """The MLP of a parallel block is computed after attention and does not read it."""
    for shares in (False, True):
        config = Config("phi", layers=2, width=8, heads=2, hidden=8, depth=4, key_heads=2, vocabulary=20, tied=True)
        config = Config(**{**vars(config), "style": "parallel", "shares_norm": shares})
        model = Decoder(config, rngs=nnx.Rngs(0))
        for split in (False, True):
            model.set_attributes(split_inputs=split)
            found = scores(attribute_edges(model, metric=metric, baseline=OTHERS)(TOKENS))
            assert ("blocks/0/attn/out", "blocks/1/mlp_in") in found or (shares and not split)
            assert ("blocks/0/attn/out", "blocks/0/mlp_in") not in found
            np.testing.assert_allclose(model(TOKENS), Decoder(config, rngs=nnx.Rngs(0))(TOKENS), rtol=1e-3, atol=1e-4)


@pytest.mark.every(2)
def test_few_keys_biases_and_norms_of_heads() -> None:
    """With inputs for every head, the numbers stay the same; keys and values have fewer heads than queries."""
    config = Config("qwen", layers=2, width=8, heads=4, hidden=8, depth=2, key_heads=2, vocabulary=20, tied=True)
    config = Config(**{**vars(config), "qkv_bias": True, "qk_norm": "rms"})
    model = Decoder(config, rngs=nnx.Rngs(0))
    for block in model.blocks:
        block.attn.q.bias[...] = jnp.arange(8.0)
    whole = model(TOKENS)
    model.set_attributes(per_head=True, split_inputs=True)
    np.testing.assert_allclose(model(TOKENS), whole, rtol=1e-3, atol=1e-4)
    edges = attribute_edges(model, metric=metric, baseline=OTHERS)(TOKENS)
    readers = {e.receiver for e in edges if e.receiver.startswith("blocks/1/") and "_in/" in e.receiver}
    assert readers == {f"blocks/1/{x}_in/{h}" for x, n in (("q", 4), ("k", 2), ("v", 2)) for h in range(n)}
    assert edges.measured() == pytest.approx(1, abs=1e-3)


def test_models_that_know_no_edges() -> None:
    config = Config("bert", layers=1, width=8, heads=2, hidden=8, depth=4, key_heads=2, vocabulary=20, style="post")
    with pytest.raises(ValueError, match="no sum of what components write"):
        attribute_edges(Decoder(config, rngs=nnx.Rngs(0)), metric=metric, baseline=OTHERS)
    with pytest.raises(ValueError, match="name senders and receivers"):
        attribute_edges(lambda x: x, baseline=OTHERS)


def test_a_loop_without_a_name() -> None:
    def f(x: Any) -> Any:
        step = lambda c, _: (c + sonde.sow(jnp.tanh(sonde.sow(c, "in")), "out"), None)
        return jnp.sum(jax.lax.scan(step, x, length=3)[0])

    with pytest.raises(CaptureError, match=r"'out'.*is in a loop that has no name.*sonde.scope\('blocks/\*'\)"):
        attribute_edges(f, "out", "in", baseline=jnp.zeros(2))(jnp.ones(2))


def test_only_the_value_just_before_is_a_term() -> None:
    """A carry that is replaced in every iteration keeps nothing of earlier ones."""

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return sonde.sow(jnp.tanh(sonde.sow(c, "in")), "out") + 1, None

        with sonde.scope("steps/*"):
            x = jax.lax.scan(step, x, length=3)[0]
        return jnp.sum(sonde.sow(x, "end"))

    found = scores(attribute_edges(f, "steps/*/out", ("steps/*/in", "end"), baseline=jnp.zeros(2))(jnp.ones(2)))
    assert set(found) == {(f"steps/{i}/out", f"steps/{i + 1}/in") for i in (0, 1)} | {("steps/2/out", "end")}


@pytest.mark.every(2)
def test_over_batches() -> None:
    asked = attribute_edges(both()["list"], metric=metric, baseline=OTHERS)
    pairs = [(TOKENS, OTHERS), (OTHERS, TOKENS + 1)]
    edges = asked.over(pairs)
    single = [attribute_edges(both()["list"], metric=metric, baseline=b)(a) for a, b in pairs]
    close(scores(edges), {k: (scores(single[0])[k] + scores(single[1])[k]) / 2 for k in scores(edges)})
    kept = edges[:9]
    of_each = [[e for e in one if e[:2] in {k[:2] for k in kept}] for one in single]
    numbers = [
        one.baseline + (one.output - one.baseline) * one.program.faithfulness([e[:2] for e in some])
        for one, some in zip(single, of_each)
    ]
    expected = (np.mean(numbers) - edges.baseline) / (edges.output - edges.baseline)
    assert kept.measured() == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ValueError, match="no batches"):
        asked.over([])


def test_the_graph_of_gpt2_has_the_published_number_of_edges() -> None:
    """32,491: between embedding, heads, their queries, keys and values, MLPs and logits, as in the benchmark MIB."""
    config = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 12, "n_positions": 4, "vocab_size": 5}
    model = models.from_config({**config, "architectures": ["GPT2LMHeadModel"]})
    model.set_attributes(per_head=True, split_inputs=True)
    circuit = circuit_of(model, None, None, None, "attribute_edges")
    graph = graph_of(model, ((jnp.array([[1, 2]]),), {}), circuit.senders, circuit.receivers, dict(circuit.split), None)
    assert graph.exists.sum() == 32_491
