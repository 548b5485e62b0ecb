"""Attribution graphs against the model written by hand, with attention weights and norms held constant."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import LAYERS, TOKENS, both

import sonde
from sonde import nnx
from sonde.dictionaries import CrossLayerTranscoder, Dictionary, FeatureGraph, attribution_graph, feature_attribution
from sonde.dictionaries.cross_layer import coders_of

WIDTH, HEADS, DEPTH, FEATURES = 16, 2, 8, 7
READS = tuple(f"blocks/{i}/norm2" for i in range(LAYERS))
WRITES = tuple(f"blocks/{i}/mlp/out" for i in range(LAYERS))


def with_random_numbers(dictionary: Dictionary, seed: int) -> Dictionary:
    rng = np.random.default_rng(seed)
    for name in ("encoder", "encoder_bias", "decoder", "decoder_bias", "skip", "gate_bias", "log_gain"):
        if hasattr(dictionary, name):
            variable = getattr(dictionary, name)
            variable[...] = jnp.asarray(rng.standard_normal(variable.shape) * 0.4, jnp.float32)
    return dictionary


def transcoders(kind: str) -> dict[Any, Any]:
    if kind == "cross_layer":
        across = CrossLayerTranscoder(WIDTH, FEATURES, layers=LAYERS, rngs=nnx.Rngs(0))
        for i, part in enumerate(across.parts):
            with_random_numbers(part, i)
        return {(READS, WRITES): across}
    options: Any = {"kind": "transcoder", "activation": "gated"} if kind == "gated" else {"kind": kind}
    made = [Dictionary(WIDTH, FEATURES, rngs=nnx.Rngs(i), **options) for i in range(LAYERS)]
    return {place: with_random_numbers(d, i) for i, (place, d) in enumerate(zip(zip(READS, WRITES), made))}


@functools.cache
def graph_of(kind: str, layers: str = "list") -> FeatureGraph:
    return attribution_graph(both()[layers], transcoders(kind))(TOKENS)


class ByHand:
    """The model in NumPy: a run, and how a small change of what is written goes on if nothing else changes."""

    def __init__(self, coders: list[Any]) -> None:
        model = both()["list"]
        array = lambda v: np.asarray(v[...], np.float64)
        self.coders, self.length = coders, TOKENS.shape[1]
        self.table, self.last = array(model.embed.embedding), array(model.norm.scale)
        self.embedded = self.table[TOKENS[0]]
        self.blocks = []
        stream = self.embedded
        _, records = sonde.capture(model)(TOKENS)
        for i, block in enumerate(model.blocks):
            scales = array(block.norm1.scale), array(block.norm2.scale)
            kernels = [array(getattr(block.attn, name).kernel) for name in "vo"]
            first = self.factor(stream)
            weights = np.asarray(records[f"blocks/{i}/attn/weights"].value, np.float64)[0]
            stream = stream + self.attention(stream * first * scales[0], weights, kernels)
            second = self.factor(stream)
            self.blocks.append((scales, kernels, first, weights, second))
            stream = stream + np.asarray(records[f"blocks/{i}/mlp/out"].value, np.float64)[0]
        self.end = self.factor(stream)
        self.outputs = [np.asarray(records[name].value, np.float64)[0] for name in WRITES]

    @staticmethod
    def factor(x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt((x**2).mean(-1, keepdims=True) + both()["list"].norm.epsilon)

    @staticmethod
    def attention(x: np.ndarray, weights: np.ndarray, kernels: list[np.ndarray]) -> np.ndarray:
        value = (x @ kernels[0]).reshape(len(x), HEADS, DEPTH)
        return np.einsum("hqk,khd->qhd", weights, value).reshape(len(x), -1) @ kernels[1]

    def spread(self, embedded: np.ndarray, written: list[np.ndarray], skips: bool = False) -> tuple[Any, np.ndarray]:
        """What is read in each layer, and the last logits, if this is written."""
        stream, reads = embedded, []
        for i, (scales, kernels, first, weights, second) in enumerate(self.blocks):
            stream = stream + self.attention(stream * first * scales[0], weights, kernels)
            reads.append(stream * second * scales[1])
            stream = stream + written[i]
            if skips:
                stream = stream + reads[-1] @ np.asarray(self.coders[i].dictionary.skip[...], np.float64)
        return reads, ((stream * self.end * self.last) @ self.table.T)[-1]

    def source(self, node: Any, graph: FeatureGraph, errors: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """What a source writes."""
        embedded, written = np.zeros((self.length, WIDTH)), [np.zeros((self.length, WIDTH)) for _ in range(LAYERS)]
        if node.kind == "token":
            embedded[node.position] = self.embedded[node.position]
        elif node.kind == "error":
            written[node.layer][node.position] = errors[node.layer][node.position]
        else:
            coder = self.coders[node.layer]
            row = np.asarray(coder.dictionary.decoder[...], np.float64)[node.index].reshape(-1, WIDTH)
            for name, part in zip(coder.writes, row):
                written[WRITES.index(name)][node.position] = node.value * part
        return embedded, written


def errors_of(by_hand: ByHand, features: list[np.ndarray], reads: list[np.ndarray], skips: bool) -> list[np.ndarray]:
    missing = [x.copy() for x in by_hand.outputs]
    for k, coder in enumerate(by_hand.coders):
        d = coder.dictionary
        output = features[k] @ np.asarray(d.decoder[...]) + np.asarray(d.decoder_bias[...])
        output = output + (reads[k] @ np.asarray(d.skip[...]) if skips else 0)
        for name, part in zip(coder.writes, np.split(output, len(coder.writes), axis=1)):
            missing[WRITES.index(name)] -= part
    return missing


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["transcoder", "skip_transcoder", "cross_layer", "gated"])
def test_every_edge_is_that_of_the_model_by_hand(kind: str) -> None:
    graph, coders = graph_of(kind), coders_of(transcoders(kind), "test")
    by_hand, skips = ByHand(coders), kind == "skip_transcoder"
    _, records = sonde.capture(both()["list"], *READS)(TOKENS)
    reads = [np.asarray(records[name].value[0]) for name in READS]
    features = [np.asarray(c.dictionary.activate(c.dictionary.pre_activations(x))) for c, x in zip(coders, reads)]
    assert len(graph.features) == graph.active == sum(int((x > 0).sum()) for x in features)
    errors = errors_of(by_hand, features, reads, skips)
    for column, node in enumerate(graph.sources):
        read, logits = by_hand.spread(*by_hand.source(node, graph, errors), skips)
        for row, target in enumerate(graph.targets):
            if target.kind == "logit":
                expected = logits[target.index] - logits.mean()
            else:
                d = coders[target.layer].dictionary
                gain = np.exp(np.asarray(d.log_gain[...]))[target.index] if kind == "gated" else 1
                direction = np.asarray(d.encoder[...], np.float64)[:, target.index]
                expected = gain * (read[target.layer][target.position] @ direction)
            assert graph.matrix[row, column] == pytest.approx(expected, rel=1e-4, abs=2e-5), (node, target)
    values = [target.value for target in graph.targets]
    np.testing.assert_allclose(graph.matrix.sum(1) + graph.bias, values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(graph.left_out, 0, atol=1e-5)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["transcoder", "skip_transcoder", "cross_layer"])
def test_a_scan_gives_the_graph_of_the_list(kind: str) -> None:
    listed, scanned = graph_of(kind), graph_of(kind, "scan")
    assert [n.name for n in scanned.sources] == [n.name for n in listed.sources]
    np.testing.assert_allclose(scanned.matrix, listed.matrix, rtol=1e-3, atol=1e-5)


def test_what_a_feature_writes_can_be_taken_away() -> None:
    """Brute force, in the replacement model: without a feature, each target that reads it directly loses the edge."""
    graph, coders = graph_of("transcoder"), coders_of(transcoders("transcoder"), "test")
    by_hand = ByHand(coders)
    whole = [x.copy() for x in by_hand.outputs]
    before = by_hand.spread(by_hand.embedded, whole)[1]
    strongest = max(range(len(graph.features)), key=lambda i: abs(graph.matrix[-1, i]))
    node = graph.features[strongest]
    whole[node.layer][node.position] -= node.value * np.asarray(coders[node.layer].dictionary.decoder[...])[node.index]
    lost = before - by_hand.spread(by_hand.embedded, whole)[1]
    token = graph.targets[-1].index
    assert graph.matrix[-1, strongest] == pytest.approx(lost[token] - lost.mean(), rel=1e-3, abs=1e-5)


def test_with_few_features_the_sums_say_what_is_left_out() -> None:
    whole = graph_of("transcoder")
    ask = attribution_graph(both()["list"], transcoders("transcoder"), max_features=6, batch=3)
    few = ask(TOKENS)
    assert len(few.features) == 6 and few.active == whole.active
    values = [target.value for target in few.targets]
    np.testing.assert_allclose(few.matrix.sum(1) + few.left_out + few.bias, values, rtol=1e-4, atol=1e-5)
    assert np.abs(few.left_out).max() > 0.01
    rows = [[n.name for n in whole.targets].index(n.name) for n in few.targets]
    columns = [[n.name for n in whole.sources].index(n.name) for n in few.sources]
    np.testing.assert_allclose(few.matrix, whole.matrix[np.ix_(rows, columns)], rtol=1e-4, atol=1e-5)
    # Those that are kept have more influence than most.
    through = dict(zip((n.name for n in whole.sources), whole.influence()))
    median = np.median([through[n.name] for n in whole.features])
    assert min(through[n.name] for n in few.features) > median


def test_influence_is_the_sum_over_all_paths() -> None:
    graph = graph_of("transcoder")
    count = len(graph.features)
    sizes = np.abs(graph.matrix) / np.abs(graph.matrix).sum(1, keepdims=True)
    square = np.zeros((count, count))
    square[:] = sizes[:count, :count]
    into_logits = np.array([n.share for n in graph.logits]) / sum(n.share for n in graph.logits) @ sizes[count:]
    through_features = into_logits[:count] @ np.linalg.inv(np.eye(count) - square)
    expected = into_logits + through_features @ sizes[:count]
    np.testing.assert_allclose(graph.influence(), expected, rtol=1e-5, atol=1e-7)
    ends = [x for node, x in zip(graph.sources, expected) if node.kind in ("token", "error")]
    assert sum(ends) == pytest.approx(1, rel=1e-5)  # all paths end at tokens or errors


def test_pruned_and_grouped() -> None:
    graph = graph_of("transcoder")
    pruned = graph.prune(0.8, 0.98)
    assert 0 < len(pruned.features) < len(graph.features)
    values = [target.value for target in pruned.targets]
    np.testing.assert_allclose(pruned.matrix.sum(1) + pruned.left_out + pruned.bias, values, rtol=1e-4, atol=1e-5)
    count = len(pruned.features)
    for i in range(count):
        assert pruned.matrix[i].any() and pruned.matrix[:, i].any()
    assert pruned.targets[:count] == pruned.sources[:count] == pruned.features
    everything = graph.prune(1, 1)
    np.testing.assert_allclose(everything.matrix[-1].sum(), graph.matrix[-1].sum(), rtol=1e-5)
    one, two = (node.name for node in pruned.features[:2])
    alone = {e[:2]: e.score for e in pruned.edges()}
    edges = {e[:2]: e.score for e in pruned.edges({"both": [one, two]})}
    logit = pruned.targets[-1].name
    together = alone.get((one, logit), 0) + alone.get((two, logit), 0)
    assert edges.get(("both", logit), 0) == pytest.approx(together)
    assert not any(one in pair or two in pair for pair in edges)
    with pytest.raises(ValueError, match="is the name of no node"):
        pruned.edges({"both": ["nowhere"]})
    with pytest.raises(ValueError, match="share from 0 to 1"):
        graph.prune(1.5)


def test_the_file_has_the_graph(tmp_path: Path) -> None:
    graph = graph_of("transcoder").prune()
    tokens, file = TOKENS[0].tolist(), tmp_path / "graph.json"
    name = graph.features[0].name
    graph.save(file, tokens=tokens, tokenizer=lambda token: f"<{token}>", groups={"first": [name]})
    stored = json.loads(file.read_text())
    assert set(stored) == {"metadata", "qParams", "nodes", "links"}
    assert stored["metadata"]["prompt_tokens"] == [f"<{token}>" for token in tokens]
    ids = [node["node_id"] for node in stored["nodes"]]
    assert len({*ids}) == len(ids) == len(graph.sources) + len(graph.logits)
    assert len(stored["links"]) == np.count_nonzero(graph.matrix)
    assert all(link["source"] in ids and link["target"] in ids for link in stored["links"])
    kinds = {node["feature_type"] for node in stored["nodes"]}
    assert kinds == {"cross layer transcoder", "mlp reconstruction error", "embedding", "logit"}
    node = graph.features[0]
    assert stored["qParams"]["supernodes"] == [["first", f"{node.layer}_{node.index}_{node.position}"]]
    into = [link["weight"] for link in stored["links"] if link["target"] == f"{LAYERS + 1}_{graph.logits[0].index}_5"]
    assert sum(into) == pytest.approx(float(graph.matrix[len(graph.features)].sum()), rel=1e-5)
    assert sum(node["is_target_logit"] for node in stored["nodes"]) == 1
    with pytest.raises(ValueError, match="6 positions, got 2 tokens"):
        graph.save(file, tokens=tokens[:2])


def test_devices_share_the_targets() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("targets",))
    ask = attribution_graph(both()["list"], transcoders("transcoder"), max_features=4, batch=4, mesh=mesh, tokens=[3])
    shared = ask(TOKENS)
    alone = attribution_graph(both()["list"], transcoders("transcoder"), max_features=4, batch=4, tokens=[3])(TOKENS)
    np.testing.assert_allclose(shared.matrix, alone.matrix, rtol=1e-5, atol=1e-6)


def test_a_part_of_the_targets_and_features_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for long texts, of which not all gradients fit into memory."""
    ask = lambda: attribution_graph(both()["list"], transcoders("transcoder"), max_features=4, batch=4, tokens=[3])
    whole = ask()(TOKENS)
    monkeypatch.setattr(feature_attribution, "_TOGETHER", 1)
    monkeypatch.setattr(feature_attribution, "_ROWS_TOGETHER", 4)
    in_parts = ask()(TOKENS)
    # In words, since an error and a token have no value, which is NaN and not equal to itself.
    assert repr((in_parts.sources, in_parts.targets)) == repr((whole.sources, whole.targets))
    np.testing.assert_allclose(in_parts.matrix, whole.matrix, rtol=1e-5, atol=1e-7)


def test_a_program_that_is_not_linear_is_an_error() -> None:
    model, some = both()["list"], transcoders("transcoder")
    with pytest.raises(ValueError, match="the program is not linear there"):
        attribution_graph(model, some, frozen="**/factor", max_features=1)(TOKENS)
    without_one = {place: some[place] for place in list(some)[1:]}
    with pytest.raises(ValueError, match="give every MLP a transcoder"):
        attribution_graph(model, without_one, max_features=1)(TOKENS)
    with pytest.raises(ValueError, match="a graph is of one text"):
        attribution_graph(model, some)(np.concatenate([TOKENS, TOKENS]))
    with pytest.raises(ValueError, match="must be one value, got 3"):
        attribution_graph(model, {("blocks/*/norm2", "blocks/1/mlp/out"): next(iter(some.values()))})(TOKENS)
    with pytest.raises(ValueError, match="as many sites each"):
        attribution_graph(model, {(READS[:2], WRITES): next(iter(transcoders("cross_layer").values()))})
    with pytest.raises(ValueError, match="tokens= are numbers from 0 to 19"):
        attribution_graph(model, some, tokens=[20])(TOKENS)
