"""What `attribution_graph` found: nodes, exact edges, and what they leave out. Prunes, groups, draws and exports it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sonde._atomic_files import replaced_file
from sonde.tools.circuits.attribute_edges import Edge, Edges
from sonde.tools.reading.heatmap import Drawn, Heat
from sonde.tools.reading.token_labels import TokenNames, shown_by


@dataclasses.dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of an attribution graph.

    Attributes:
        kind: `"feature"`, `"error"`, `"token"` or `"logit"`.
        layer: The number of the transcoder, or of the value that has the error; -1 for a token, and for a logit the
            number of transcoders.
        position: The position in the text.
        index: The number of the feature, or the token of a logit; -1 for errors and tokens.
        value: How active the feature is; for a logit, how far it is above the mean of all logits. NaN for others.
        share: The probability of a logit's token.
    """

    kind: Literal["feature", "error", "token", "logit"]
    layer: int
    position: int
    index: int
    value: float
    share: float = 0.0

    @property
    def name(self) -> str:
        """A short name, such as `3/f17@5`: of layer 3, feature 17 at position 5."""
        match self.kind:
            case "feature":
                return f"{self.layer}/f{self.index}@{self.position}"
            case "error":
                return f"{self.layer}/error@{self.position}"
            case "token":
                return f"token@{self.position}"
            case _:
                return f"logit {self.index}"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class FeatureGraph(Drawn):
    """Which features, errors and tokens the logits of one text come from.

    For each target, `matrix.sum(1) + left_out + bias` is its value.

    Attributes:
        sources: What edges start from: features, then errors, then tokens.
        targets: What edges lead to: the same features in the same order, then logits.
        matrix: The edges, targets by sources.
        bias: What biases contribute to each target.
        left_out: What sources that are not in the graph, and edges that were cut, contribute to each target.
        left_out_size: The same, with the magnitudes of these edges added up.
        active: How many features were active; the others are left out.
    """

    sources: tuple[GraphNode, ...]
    targets: tuple[GraphNode, ...]
    matrix: np.ndarray
    bias: np.ndarray
    left_out: np.ndarray
    left_out_size: np.ndarray
    active: int

    @property
    def features(self) -> tuple[GraphNode, ...]:
        """The features: the first sources, and the first targets."""
        return tuple(node for node in self.targets if node.kind == "feature")

    @property
    def logits(self) -> tuple[GraphNode, ...]:
        """The logits, which are the last targets."""
        return self.targets[len(self.features) :]

    def _shares(self) -> np.ndarray:
        """The edges as shares of all that leads to a target, by magnitude."""
        sizes = np.abs(self.matrix).astype(np.float64)
        whole = sizes.sum(1) + self.left_out_size
        return sizes / np.where(whole > 0, whole, 1)[:, None]

    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """How much of the logits goes through each target, and through each source."""
        shares, count = self._shares(), len(self.features)
        through = np.zeros(len(self.sources))
        weights = np.zeros(len(self.targets))
        probabilities = np.array([node.share for node in self.logits])
        total = probabilities.sum()
        weights[count:] = probabilities / total if total else 1 / len(probabilities)
        layers = np.array([node.layer for node in self.targets])
        for layer in sorted({*layers.tolist()}, reverse=True):
            rows = np.flatnonzero(layers == layer)
            through += weights[rows] @ shares[rows]
            weights[:count] = through[:count]  # complete for all layers below this one
        return weights, through

    def influence(self) -> np.ndarray:
        """For each source, the share of the logits that goes through it, directly or through other features."""
        return self._weights()[1]

    def explained(self) -> float:
        """The share of the logits, by magnitude, that can be followed to tokens; errors and the rest break it off."""
        through = self.influence()
        return float(sum(x for node, x in zip(self.sources, through) if node.kind == "token"))

    def prune(self, nodes: float = 0.8, edges: float = 0.98, *, pinned: Collection[str] = ()) -> FeatureGraph:
        """The part of the graph with the most influence on the logits.

        Args:
            nodes: From 0 to 1: features and errors are kept, the most influential first, until they have this share of
                the influence of all. Tokens and logits stay.
            edges: From 0 to 1: edges are kept until they have this share of the influence of all edges that are left.
                Features that then lead nowhere, or that nothing leads to, are cut, and so are errors.
            pinned: The names of nodes that stay, whatever their influence.

        Returns:
            The graph. What was cut is in `left_out`, so that its sums are still exact.

        Raises:
            ValueError: A share is not from 0 to 1.
        """
        for name, share in (("nodes", nodes), ("edges", edges)):
            if not 0 <= share <= 1:
                raise ValueError(f"prune: {name}= is a share from 0 to 1, got {share}")
        through = self.influence()
        is_token = np.array([node.kind == "token" for node in self.sources], bool)
        stay = is_token | np.array([node.name in pinned for node in self.sources], bool)
        small = self._cut(_enough(through, nodes) | stay, np.ones(self.matrix.shape, bool))
        score = small._shares() * small._weights()[0][:, None]
        stays = _enough(score.reshape(-1), edges).reshape(score.shape)
        count = len(small.features)
        stay = np.array([node.kind == "token" or node.name in pinned for node in small.sources], bool)
        kept = np.ones(len(small.sources), bool)
        while True:
            used = stays & kept & np.concatenate([kept[:count], np.ones(len(self.logits), bool)])[:, None]
            leads = used.any(0) | stay
            leads[:count] &= used[:count].any(1) | stay[:count]
            if (leads >= kept).all():
                return small._cut(kept, stays)
            kept &= leads

    def _cut(self, kept: np.ndarray, stays: np.ndarray) -> FeatureGraph:
        """The graph with some of the sources, and the features among them as targets, and some of the edges."""
        count = len(self.features)
        rows = np.flatnonzero(np.concatenate([kept[:count], np.ones(len(self.logits), bool)]))
        columns = np.flatnonzero(kept)
        matrix = np.where(stays[np.ix_(rows, columns)], self.matrix[np.ix_(rows, columns)], 0)
        before = self.matrix[rows].astype(np.float64)
        return FeatureGraph(
            tuple(self.sources[i] for i in columns),
            tuple(self.targets[i] for i in rows),
            matrix,
            self.bias[rows],
            self.left_out[rows] + before.sum(1) - matrix.sum(1, dtype=np.float64),
            self.left_out_size[rows] + np.abs(before).sum(1) - np.abs(matrix).sum(1, dtype=np.float64),
            self.active,
        )

    def edges(self, groups: Mapping[str, Sequence[str]] | None = None) -> Edges:
        """The edges that are not zero, the strongest first; between groups, the sums of the edges of their nodes.

        Args:
            groups: By the name of a group, the names of its nodes, such as `{"capital": ["3/f17@5", "4/f2@5"]}`.
                All other nodes stay alone.

        Raises:
            ValueError: A name is of no node, or in two groups.
        """
        known = {node.name for node in (*self.sources, *self.targets)}
        group_of: dict[str, str] = {}
        for group, names in (groups or {}).items():
            for name in names:
                if name not in known or name in group_of:
                    why = "is in two groups" if name in group_of else "is the name of no node of this graph"
                    raise ValueError(f"edges: {name!r} {why}")
                group_of[name] = group
        total: dict[tuple[str, str], float] = {}
        for t, s in np.argwhere(self.matrix):
            ends = (self.sources[s].name, self.targets[t].name)
            sender, receiver = (group_of.get(name) or name for name in ends)
            if sender != receiver:
                total[sender, receiver] = total.get((sender, receiver), 0.0) + float(self.matrix[t, s])
        edges = sorted((Edge(a, b, x) for (a, b), x in total.items()), key=lambda e: -abs(e.score))
        first = len(self.features)
        return Edges(tuple(edges), self.targets[first].value, float(self.bias[first]))

    def _heat(self) -> Heat:
        order = np.argsort(-self.influence(), kind="stable")[:40]
        names = [self.sources[i].name for i in order]
        table = self.matrix[:, order].T.astype(np.float64)
        return Heat(table, names, [node.name for node in self.targets], f"edges from {len(names)} sources", "target")

    def __repr__(self) -> str:
        return (
            f"FeatureGraph({len(self.features)} of {self.active} active features, {len(self.logits)} logits, "
            f"{int(np.count_nonzero(self.matrix))} edges; {self.explained():.0%} followed to tokens)"
        )

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        through = self.influence()
        table = Table("node", "value", "influence", title=Text(repr(self)))
        for i in np.argsort(-through, kind="stable")[:40]:
            node = self.sources[i]
            value = "" if np.isnan(node.value) else f"{node.value:.4g}"
            table.add_row(Text(node.name), value, f"{through[i]:.3f}")
        return WholePaths(table)

    def to_json(
        self,
        *,
        tokens: Sequence[int],
        tokenizer: TokenNames | None = None,
        slug: str = "graph",
        scan: str = "custom",
        groups: Mapping[str, Sequence[str]] | None = None,
        pinned: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The graph as circuit-tracer and its web pages read it.

        Args:
            tokens: The tokens of the text.
            tokenizer: Turns a token into a string, as in `Lens.table`.
            slug: A name for the graph.
            scan: Which transcoders these are; web pages look for the features' examples under this name.
            groups: As in `edges`; shown as supernodes.
            pinned: The names of nodes that are pinned.

        Raises:
            ValueError: There are more positions than tokens, or a name is of no node.
        """
        length = 1 + max(node.position for node in (*self.sources, *self.targets))
        if len(tokens) < length:
            raise ValueError(f"save: the graph has {length} positions, got {len(tokens)} tokens")
        show = shown_by(tokenizer)
        layers = self.logits[0].layer
        ids = {node.name: _id(node, tokens, layers) for node in (*self.sources, *self.targets)}
        self.edges(groups)  # for its checks
        unknown = [name for name in pinned if name not in ids]
        if unknown:
            raise ValueError(f"save: {unknown[0]!r} is the name of no node of this graph")
        through = self.influence()
        order = np.argsort(-through, kind="stable")
        so_far = np.empty(len(through))
        so_far[order] = np.cumsum(through[order]) / max(through.sum(), 1e-30)
        nodes = [_as_json(node, tokens, layers, float(x), show) for node, x in zip(self.sources, so_far)]
        best = max(self.logits, key=lambda node: node.share)
        for node in self.logits:
            nodes.append({**_as_json(node, tokens, layers, None, show), "is_target_logit": node is best})
        links = [
            {"source": ids[self.sources[s].name], "target": ids[self.targets[t].name], "weight": float(x)}
            for (t, s), x in zip(np.argwhere(self.matrix), self.matrix[np.nonzero(self.matrix)])
        ]
        names = [show(int(token)) for token in tokens]
        supernodes = [[group, *(ids[name] for name in members)] for group, members in (groups or {}).items()]
        return graph_json(names, nodes, links, slug=slug, scan=scan, pinned=[ids[x] for x in pinned], groups=supernodes)

    def save(self, file: str | os.PathLike[str], **options: Any) -> None:
        """Writes the graph as circuit-tracer and its web pages read it.

        Args:
            file: The file, by convention `<slug>.json`.
            **options: The arguments of `to_json`; `tokens` is needed.

        Raises:
            ValueError: As `to_json`.
        """
        whole = self.to_json(**options)
        with replaced_file(Path(file)) as place:
            place.write_text(json.dumps(whole))


def graph_json(
    tokens: Sequence[str],
    nodes: Sequence[Mapping[str, Any]],
    links: Sequence[Mapping[str, Any]],
    *,
    slug: str,
    scan: str,
    pinned: Sequence[str] = (),
    groups: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
    """A graph in the form of circuit-tracer: nodes and links around what web pages need to know.

    Args:
        tokens: The tokens of the text, as strings.
        nodes: The nodes.
        links: The edges.
        slug: A name for the graph.
        scan: Under which name web pages look for the features' examples.
        pinned: The ids of nodes that are pinned.
        groups: For each group its name, then the ids of its nodes.
    """
    return {
        "metadata": {
            "slug": slug,
            "scan": scan,
            "transcoder_list": [],
            "prompt_tokens": list(tokens),
            "prompt": "".join(tokens),
            "node_threshold": None,
            "schema_version": 1,
        },
        "qParams": {
            "pinnedIds": list(pinned),
            "supernodes": [list(group) for group in groups],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": list(nodes),
        "links": list(links),
    }


def _enough(sizes: np.ndarray, share: float) -> np.ndarray:
    """Which numbers, the largest first, have a share of the sum of all; none that are zero."""
    order = np.argsort(-sizes, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    kept = np.zeros(len(sizes), bool)
    kept[order] = before < share * sizes.sum() * (1 - 1e-12)
    return kept & (sizes > 0)


def _id(node: GraphNode, tokens: Sequence[int], layers: int) -> str:
    """What circuit-tracer calls a node."""
    match node.kind:
        case "token":
            return f"E_{int(tokens[node.position])}_{node.position}"
        case "logit":
            return f"{layers + 1}_{node.index}_{node.position}"
        case _:
            return f"{node.layer}_{node.index}_{node.position}"


def _as_json(node: GraphNode, tokens: Sequence[int], layers: int, influence: float | None, show: Any) -> dict[str, Any]:
    layer, token = node.layer, int(tokens[node.position])
    kinds = {
        # By kind: layer, number of the feature, name of the kind, and the number that web pages use.
        "feature": (str(layer), _paired(layer, node.index), "cross layer transcoder", f"{layer}_{node.index}-0"),
        "error": (str(layer), -1, "mlp reconstruction error", f"{layer}_-1-{node.position}"),
        "token": ("E", node.position, "embedding", f"E_{token}-{node.position}"),
        "logit": (str(layers + 1), node.index, "logit", f"L_{node.index}-{node.position}"),
    }
    shown_layer, number, kind, page_id = kinds[node.kind]
    is_logit = node.kind == "logit"
    return {
        "node_id": _id(node, tokens, layers),
        "feature": number,
        "layer": shown_layer,
        "ctx_idx": node.position,
        "feature_type": kind,
        "token_prob": node.share,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": page_id,
        "clerp": f'Output "{show(node.index)}" (p={node.share:.3f})' if is_logit else "",
        "influence": influence,
        "activation": node.value if node.kind == "feature" else None,
    }


def _paired(a: int, b: int) -> int:
    """One number for two (Cantor's)."""
    return (a + b) * (a + b + 1) // 2 + b
