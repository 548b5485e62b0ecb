"""Operations that draw what a result comes from: edges between components, or between features of transcoders.

Both graphs are pruned by a share of all scores, keep what was pinned, and are exported as circuit-tracer reads them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from sonde.dictionaries import FeatureGraph, GraphNode, attribution_graph
from sonde.dictionaries.feature_graph import graph_json
from sonde.report.plain_json import number
from sonde.tools import attribute_edges
from sonde.tools.circuits.attribute_edges import Edge, Edges
from sonde.viewer.changes import changed
from sonde.viewer.explained import explained_number
from sonde.viewer.operations import Job, changes_of, operation
from sonde.viewer.runs import Runs

_MOST_EDGES = 600  # that are drawn
_FROM_PINNED = 3  # edges of a pinned node that stay
_MOST_FEATURES = 1024


@operation
def graph(
    job: Job,
    subject: str,
    kind: str = "components",
    other: str = "",
    explained: Any = None,
    prompt: str | None = None,
    changes: Any = (),
    share: float = 0.5,
    pinned: Sequence[str] = (),
) -> dict[str, Any]:
    """What the explained logit comes from, pruned, and how faithful what is left is.

    Args:
        job: The question.
        subject: The program.
        kind: `"components"`: which component feeds which. `"features"`: which features of transcoders, errors and
            tokens.
        other: For components, the prompt of the other run; empty: zeros take its place.
        explained: Which logit or difference is explained.
        prompt: The prompt.
        changes: The changes.
        share: For components, the share of all scores that the edges have; for features, the share of the influence.
        pinned: The names of nodes that stay.
    """
    runs = job.runs(subject)
    if kind == "features":
        unpruned = _feature_graph(runs, prompt, changes, explained)
        small = unpruned.prune(share, pinned=pinned)
        nodes = [_feature_node(node, runs, prompt) for node in (*small.sources, *small.logits)]
        listed, kept, total = small.edges(), len(small.features), len(unpruned.features)
        faithful = small.explained()
    else:
        edges = _component_edges(runs, prompt, changes, explained, other)
        listed = _with_pinned(edges, edges.prune(share), pinned)
        ends = {end for edge in listed for end in (edge.sender, edge.receiver)}
        nodes = list({node["id"]: node for node in map(_component_node, sorted(ends))}.values())
        kept, total = len(listed), len(edges)
        with runs.lock:
            faithful = listed.measured()
    named = {end: _name_of(kind, end) for edge in listed for end in (edge.sender, edge.receiver)}
    return {
        "nodes": nodes,
        "edges": [[named[e.sender], named[e.receiver], number(e.score)] for e in listed[:_MOST_EDGES]],
        "drawn": min(len(listed), _MOST_EDGES),
        "kept": kept,
        "of": total,
        "faithfulness": number(faithful),
        "code": _graph_code(runs, prompt, kind, other, explained, share),
    }


def _graph_code(runs: Runs, prompt: str | None, kind: str, other: str, explained: Any, share: float) -> str:
    """Python for the graph; the page puts the program, its arguments and the metric in front."""
    if kind == "features":
        position, tokens, _ = explained_number(runs, prompt, explained or {})
        return (
            "transcoders = {place: d for place, d in dictionaries.items() if d.kind != 'autoencoder'}\n"
            "graph = sonde.dictionaries.attribution_graph(\n    model, transcoders, max_features="
            f"{_MOST_FEATURES}, tokens=[{int(tokens[0])}], logits=lambda result: result[0, {position}]\n)(*args)\n"
            f"kept = graph.prune({share})\nprint(kept, kept.explained())"
        )
    baseline = f"(jnp.asarray([{runs.subject.token_ids(other)}]), *args[1:])" if other else "0"
    return (
        "senders, receivers, _ = model.circuit_sites()\n"
        f"edges = sonde.tools.attribute_edges(f, senders, receivers, metric=metric, baseline={baseline})(*args)\n"
        f"kept = edges.prune({share})\nprint(kept, kept.measured())"
    )


@operation
def graph_file(
    job: Job,
    subject: str,
    kind: str = "components",
    other: str = "",
    explained: Any = None,
    prompt: str | None = None,
    changes: Any = (),
    share: float = 0.5,
    pinned: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The pruned graph as circuit-tracer reads it; the arguments are those of `graph`, and groups of nodes by name."""
    runs = job.runs(subject)
    ids = runs.subject.token_ids(prompt)
    language = runs.subject.language
    assert language is not None  # there is no graph without
    if kind == "features":
        small = _feature_graph(runs, prompt, changes, explained).prune(share, pinned=pinned)
        known = {node.name for node in (*small.sources, *small.targets)}
        kept = {group: [name for name in names if name in known] for group, names in (groups or {}).items()}
        options: dict[str, Any] = {"groups": kept, "pinned": [name for name in pinned if name in known]}
        return small.to_json(tokens=ids, tokenizer=language.tokenizer, slug=_slug(subject), **options)
    edges = _component_edges(runs, prompt, changes, explained, other)
    listed = _with_pinned(edges, edges.prune(share), pinned)
    position, tokens, _ = explained_number(runs, prompt, explained or {})
    ends = sorted({end for edge in listed for end in (edge.sender, edge.receiver)})
    nodes = list(
        {node["id"]: _component_json(node, position, int(tokens[0])) for node in map(_component_node, ends)}.values()
    )
    links = [
        {"source": _name_of(kind, e.sender), "target": _name_of(kind, e.receiver), "weight": float(e.score)}
        for e in listed
    ]
    known = {node["node_id"] for node in nodes}
    supernodes = [[group, *(name for name in names if name in known)] for group, names in (groups or {}).items()]
    held = [name for name in pinned if name in known]
    return graph_json(
        language.pieces(ids), nodes, links, slug=_slug(subject), scan="custom", pinned=held, groups=supernodes
    )


def _slug(subject: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-") or "graph"


# ------------------------------------------------------------------------------------------------------ components


def _component_edges(runs: Runs, prompt: str | None, changes: Any, explained: Any, other: str) -> Edges:
    language = runs.subject.language
    if language is None or language.model is None:
        raise ValueError("the graph needs a model of `sonde.models`, whose components are known")
    model, made = language.model, tuple(c for c in changes_of(changes) if not c.is_of_gradient)
    senders, receivers, _ = model.circuit_sites()
    position, tokens, signs = explained_number(runs, prompt, explained or {})

    def metric(logits: Any) -> Any:
        return jnp.sum(logits[0, position][tokens] * signs)

    def compute() -> Edges:
        if made and runs.subject.dictionaries:
            raise ValueError("the graph of components is that of the model alone: switch the changes off")
        baseline = runs.subject.arguments(other) if other else 0
        program: Callable[..., Any] = changed(model, *runs.placed(prompt, made)) if made else model
        find = attribute_edges(program, senders, receivers, metric=metric, baseline=baseline)
        return find(*runs.subject.arguments(prompt))

    return runs.remembered(("edges", prompt, made, other, position, tokens.tobytes(), signs.tobytes()), compute)


def _with_pinned(edges: Edges, pruned: Edges, pinned: Collection[str]) -> Edges:
    """The edges that are left, and the strongest ones of each node that was pinned."""
    left = {(edge.sender, edge.receiver) for edge in pruned}
    more: list[Edge] = []
    for name in pinned:
        own = [e for e in edges if name in (_name_of("components", e.sender), _name_of("components", e.receiver))]
        more += [e for e in own[:_FROM_PINNED] if (e.sender, e.receiver) not in left and e not in more]
    whole = sorted((*pruned, *more), key=lambda edge: -abs(edge.score))
    return dataclasses.replace(pruned, edges=tuple(whole))


_LANES = {"embedded": 1, "attn": 0, "mlp": 2, "output": 1}


def _component_kind(path: str) -> str:
    return next(
        (kind for kind in ("mlp", "attn") if kind in path), "embedded" if path.startswith("embed") else "output"
    )


def _name_of(kind: str, end: str) -> str:
    """A component is one node, whether it sends or receives: blocks/3/mlp/out and blocks/3/mlp_in are `3 mlp`."""
    if kind == "features":
        return end
    layer, what = re.search(r"\d+", end), _component_kind(end)
    head = re.search(r"\[(\d+)\]", end)
    return what if layer is None or what in ("embedded", "output") else f"{layer[0]} {what}{head[0] if head else ''}"


def _component_node(end: str) -> dict[str, Any]:
    what, layer = _component_kind(end), re.search(r"\d+", end)
    column = {"embedded": -1, "output": 10**6}.get(what, int(layer[0]) if layer else 0)
    name = _name_of("components", end)
    return {"id": name, "name": name, "column": column, "lane": _LANES[what], "kind": what, "path": end, "value": None}


def _component_json(node: Mapping[str, Any], position: int, token: int) -> dict[str, Any]:
    layer = {"embedded": "E", "output": "10000"}.get(node["kind"], str(node["column"]))
    kind = {"embedded": "embedding", "output": "logit"}.get(node["kind"], "cross layer transcoder")
    return {
        "node_id": node["id"],
        "feature": token if kind == "logit" else node["lane"],
        "layer": layer,
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": kind == "logit",
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{node['id']}-0",
        "clerp": node["name"],
        "influence": None,
        "activation": None,
    }


# -------------------------------------------------------------------------------------------------------- features


def _feature_graph(runs: Runs, prompt: str | None, changes: Any, explained: Any) -> FeatureGraph:
    language, made = runs.subject.language, changes_of(changes)
    transcoders = {place: d for place, d in runs.subject.dictionaries.items() if d.kind != "autoencoder"}
    if language is None or language.model is None or not transcoders:
        raise ValueError(
            "a graph of features needs a model of `sonde.models` with transcoders: --dictionary READS,REPLACES=FOLDER"
        )
    if made:
        raise ValueError("the graph of features is that of the unchanged program: switch the changes off")
    position, tokens, signs = explained_number(runs, prompt, explained or {})
    if signs[1]:
        raise ValueError("a graph of features explains one logit: take the second token back")
    chosen = [int(tokens[0])]

    def compute() -> FeatureGraph:
        find = attribution_graph(
            language.model,  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
            transcoders,
            logits=lambda result: result[0, position],
            tokens=chosen,
            max_features=_MOST_FEATURES,
        )
        return find(*runs.subject.arguments(prompt))

    return runs.remembered(("feature graph", prompt, position, tuple(chosen)), compute)


def _feature_node(node: GraphNode, runs: Runs, prompt: str | None) -> dict[str, Any]:
    language = runs.subject.language
    assert language is not None
    replaced = list(runs.subject.replaced)
    texts = language.pieces(runs.subject.token_ids(prompt))
    name = {"token": texts[node.position], "logit": language.pieces([max(node.index, 0)])[0]}.get(node.kind, node.name)
    is_feature = node.kind == "feature"
    return {
        "id": node.name,
        "name": name,
        "column": node.position,
        "lane": node.layer,
        "kind": node.kind,
        "path": f"{replaced[node.layer]}/features" if is_feature else "",
        "feature": node.index if is_feature else None,
        "value": None if math.isnan(node.value) else number(node.value),
    }
