"""The part of an attribution graph that is worked out on the host: which features are in it, and the graph.

Edges are computed for a batch of targets at a time, beginning with the logits. The features through which most of the
logits goes, along the edges that are known by then, are the next targets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from sonde.dictionaries.feature_graph import FeatureGraph, GraphNode

_VERB = "attribution_graph"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which nodes the graph gets, and how they are computed."""

    tokens: tuple[int, ...] | None
    max_features: int
    max_logits: int
    batch: int
    mesh: jax.sharding.Mesh | None


@dataclasses.dataclass(frozen=True)
class Sources:
    """All that writes: active features by layer, padded to one number; then errors, then tokens.

    Attributes:
        position: Layers by features: where each is active.
        index: Its number in the dictionary.
        act: How active it is; 0 for padding.
        counts: How many are active in each layer.
        errors: How many values are replaced, each with an error at every position.
        length: How many positions there are.
    """

    position: np.ndarray
    index: np.ndarray
    act: np.ndarray
    counts: tuple[int, ...]
    errors: int
    length: int

    @classmethod
    def of(cls, acts: Sequence[np.ndarray], errors: int, length: int) -> Sources:
        """The sources of features by layer, positions by features."""
        active = [np.nonzero(a) for a in acts]
        counts = tuple(len(at) for at, _ in active)
        size = 1 << (max([*counts, 1]) - 1).bit_length()  # few sizes, so that few programs are compiled
        position, index = (np.zeros((len(acts), size), np.int32) for _ in range(2))
        act = np.zeros((len(acts), size), np.float32)
        for k, (at, which) in enumerate(active):
            position[k, : len(at)], index[k, : len(at)], act[k, : len(at)] = at, which, acts[k][at, which]
        return cls(position, index, act, counts, errors, length)

    @property
    def features(self) -> int:
        """How many numbers features have, with padding."""
        return self.act.size

    def node(self, number: int) -> GraphNode:
        """The node of a source."""
        size = self.act.shape[1]
        if number < self.features:
            k, n = divmod(number, size)
            return GraphNode("feature", k, int(self.position[k, n]), int(self.index[k, n]), float(self.act[k, n]))
        layer, position = divmod(number - self.features, self.length)
        if layer < self.errors:
            return GraphNode("error", layer, position, -1, math.nan)
        return GraphNode("token", -1, position, -1, math.nan)


class Target(NamedTuple):
    """What edges lead to: a feature, or a logit, whose layer is the number of layers.

    Attributes:
        layer: The number of the transcoder.
        position: The position.
        number: The number of the feature, or the token.
        source: Its number among the sources; -1 for a logit.
        value: What the edges and the bias add up to.
        share: For a logit, its probability.
    """

    layer: int
    position: int
    number: int
    source: int
    value: float
    share: float = 0.0


class EdgesInto(NamedTuple):
    """The edges into a target."""

    which: np.ndarray
    edges: np.ndarray
    total: float
    size: float


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The probabilities that logits stand for."""
    exps = np.exp(logits.astype(np.float64) - logits.max())
    return exps / exps.sum()


def logit_targets(sources: Sources, logits: np.ndarray, choice: Choice) -> list[Target]:
    """The logits."""
    shares = probabilities(logits)
    if choice.tokens is None:
        order = np.argsort(-shares, kind="stable")[: choice.max_logits]
        enough = int(np.searchsorted(np.cumsum(shares[order]), 0.95)) + 1
        tokens = [int(token) for token in order[:enough]]
    else:
        tokens = list(choice.tokens)
        if not tokens or any(not 0 <= token < len(logits) for token in tokens):
            raise ValueError(f"{_VERB}: tokens= are numbers from 0 to {len(logits) - 1}, got {tokens}")
    mean = float(np.mean(logits.astype(np.float64)))
    layers, last = len(sources.counts), sources.length - 1
    return [Target(layers, last, token, -1, float(logits[token]) - mean, float(shares[token])) for token in tokens]


def edges_by_influence(
    sources: Sources, logits: Sequence[Target], rows: Callable[[Sequence[Target]], list[EdgesInto]], choice: Choice
) -> dict[Target, EdgesInto]:
    """The edges into the logits, and into the features that have the most influence on them."""
    found: dict[Target, EdgesInto] = {}
    for start in range(0, len(logits), choice.batch):
        part = logits[start : start + choice.batch]
        found |= dict(zip(part, rows(part)))
    every = [k * sources.act.shape[1] + n for k, count in enumerate(sources.counts) for n in range(count)]
    waiting = np.zeros(sources.features, bool)
    waiting[every] = True
    most = min(choice.max_features, len(every))
    features = 0
    while features < most:
        # Each time more rows are known, the influence of the others is known better.
        strength = np.where(waiting, _influence(sources, found) if most < len(every) else 1.0, -1.0)
        step = min(choice.batch, most - features)
        numbers = np.argsort(-strength, kind="stable")[:step]
        nodes = [sources.node(int(number)) for number in numbers]
        part = [Target(n.layer, n.position, n.index, int(i), n.value) for n, i in zip(nodes, numbers)]
        found |= dict(zip(part, rows(part)))
        waiting[numbers] = False
        features += step
    return found


def _influence(sources: Sources, rows: Mapping[Target, EdgesInto]) -> np.ndarray:
    """How much of the logits goes through each feature, along the edges that are known."""
    weight = np.zeros(sources.features)
    known = sorted(rows, key=lambda target: -target.layer)
    for target in known:  # later layers first: all that a target goes into has been visited
        share = target.share if target.source < 0 else weight[target.source]
        row = rows[target]
        if share and row.size:
            inside = row.which < sources.features
            np.add.at(weight, row.which[inside], share * np.abs(row.edges[inside]) / row.size)
    return weight


def check_sums(rows: Mapping[Target, EdgesInto], biases: Mapping[Target, float], tolerance: float) -> None:
    """Raises ValueError if the edges into a target and its bias do not add up to its value."""
    for target, row in rows.items():
        total = float(row.total) + biases[target]
        if not abs(total - target.value) <= tolerance * (float(row.size) + abs(biases[target]) + abs(target.value)):
            name = "logit" if target.source < 0 else f"feature of transcoder {target.layer}"
            raise ValueError(
                f"{_VERB}: the edges into {name} {target.number} at position {target.position} and its bias add up to "
                f"{total:.6g}, but its value is {target.value:.6g}: the program is not linear there. Hold more sites "
                "constant with frozen= (attention weights, factors of norms), give every MLP a transcoder, and undo a "
                "cap of the logits with logits="
            )


def graph_of(
    rows: Mapping[Target, EdgesInto], biases: Mapping[Target, float], sources: Sources, shares: np.ndarray
) -> FeatureGraph:
    """The graph of these targets, and of all errors and tokens."""
    targets = sorted(rows, key=lambda t: (t.layer, t.position, t.number))
    numbers = [target.source for target in targets if target.source >= 0]
    numbers += range(sources.features, sources.features + (sources.errors + 1) * sources.length)
    columns = np.full(sources.features + (sources.errors + 1) * sources.length, -1)
    columns[numbers] = np.arange(len(numbers))
    matrix = np.zeros((len(targets), len(numbers)), np.float32)
    left_out, sizes = np.zeros((2, len(targets)))
    for i, target in enumerate(targets):
        row = rows[target]
        column = columns[row.which]
        matrix[i, column[column >= 0]] = row.edges[column >= 0]
        left_out[i] = float(row.total) - matrix[i].sum(dtype=np.float64)
        sizes[i] = max(float(row.size) - np.abs(matrix[i]).sum(dtype=np.float64), 0)
    nodes = [
        sources.node(target.source)
        if target.source >= 0
        else GraphNode(
            "logit", target.layer, target.position, target.number, target.value, float(shares[target.number])
        )
        for target in targets
    ]
    return FeatureGraph(
        tuple(sources.node(number) for number in numbers),
        tuple(nodes),
        matrix,
        np.array([biases[target] for target in targets]),
        left_out,
        sizes,
        sum(sources.counts),
    )
