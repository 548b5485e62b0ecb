"""`qk_attribution`: which two components made an attention head look from one position to another?

A score is the product of a query and a key. Both are linear in the stream once the factors of norms are held constant,
and the stream is the sum of what components write. So a score is a sum over pairs: what one component gives to the
query, times what another gives to the key. The sum is exact, and the run checks that it is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    Records,
    StaticPart,
    Supplied,
    Where,
    arrays_in,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    put_by_rule,
    static_and_arrays,
    wrapped_like,
)
from sonde.tools.circuits.edge_nodes import aligned, graph_of
from sonde.tools.circuits.known_circuits import circuit_of
from sonde.tools.execution.record_values import chooses, each_seen
from sonde.tools.intervention.patch_values import not_differentiated, recorded_here, values_to_place
from sonde.tools.reading.heatmap import Drawn, Heat

P = ParamSpec("P")
_VERB = "qk_attribution"
_SHOWN = 30


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class QKAttribution(Drawn):
    """What `qk_attribution` returns: a score as a sum over pairs of components.

    Attributes:
        names: The components; then `"other"`, what else is in the stream, and `"bias"`, what does not depend on it.
        table: What each pair contributes: components of the query by components of the key.
        score: The score, which is the sum of the table.
    """

    names: tuple[str, ...]
    table: np.ndarray
    score: float

    def best(self, n: int = 5) -> list[tuple[str, str, float]]:
        """The `n` pairs that contribute most, by magnitude: of the query, of the key, and how much."""
        order = np.argsort(-np.abs(self.table), axis=None)[:n]
        pairs = zip(*np.unravel_index(order, self.table.shape))
        return [(self.names[q], self.names[k], float(self.table[q, k])) for q, k in pairs]

    def _heat(self) -> Heat:
        return Heat(self.table, self.names, self.names, f"score {self.score:.4g} by pair", "component of the key")

    def __repr__(self) -> str:
        pairs = ", ".join(f"{q} x {k} ({x:.3g})" for q, k, x in self.best(3))
        return f"QKAttribution(score {self.score:.4g}, {len(self.names)} components; most: {pairs})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("query", "key", "contribution", title=f"score {self.score:.4g}")
        for q, k, x in self.best(_SHOWN):
            table.add_row(Text(q), Text(k), f"{x:.4g}")
        if self.table.size > _SHOWN:
            table.add_row(f"... and {self.table.size - _SHOWN} more", "", "")
        return WholePaths(table)


class _Asked(NamedTuple):
    """What the traced function depends on, besides the program."""

    attention: str
    reads: Pattern
    senders: tuple[Pattern, ...]
    split: Mapping[Pattern, int]
    frozen: tuple[Pattern, ...]
    inside: InsideRequest | None


def qk_attribution(
    f: Callable[P, Any],
    attention: str,
    *,
    head: int,
    query: int,
    key: int,
    example: int = 0,
    senders: Pattern | Sequence[Pattern] | None = None,
    split: Mapping[Pattern, int] | None = None,
    reads: Pattern | None = None,
    scale: float | None = None,
    frozen: Pattern | Sequence[Pattern] = "**/factor",
    inside: object = None,
) -> Callable[P, QKAttribution]:
    """A function that runs `f` and explains one score of an attention head by pairs of components.

    Args:
        f: Any callable. Models are not changed by the runs.
        attention: The path of the attention, with the sites `q_rotated` and `k_rotated`, or `q` and `k`, of shape
            `(batch, length, heads, depth)`, and `scores`, `(batch, heads, queries, keys)`.
        head: The head. With fewer key heads than heads, each key head belongs to as many heads in a row.
        query: The position that attends.
        key: The position that it attends to.
        example: Which example of the batch.
        senders: Where components write into the stream. None for models that know theirs: those of `sonde.models`.
        split: For senders with an axis for heads: the axis. None for models that know theirs.
        reads: The site of the stream as this attention reads it; by default `attn_in` beside the attention.
        scale: What products of queries and keys are multiplied by; 1/√depth if None.
        frozen: Sites whose values are held constant: the factors of norms; `()` if there are no norms.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `QKAttribution`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        IndexError: When called: there is no such head, position or example.
        ValueError: When called: queries or keys are not linear in the stream, or the sum is not the score.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import qk_attribution
        >>> def f(x):
        ...     x = x + sonde.sow(2 * x, "mlp")
        ...     read = sonde.sow(x, "attn_in")[:, :, None]
        ...     q, k = sonde.sow(read, "attn/q"), sonde.sow(3 * read, "attn/k")
        ...     return sonde.sow(jnp.einsum("bihd,bjhd->bhij", q, k) / 2**0.5, "attn/scores")
        >>> ask = qk_attribution(f, "attn", head=0, query=1, key=0, senders="mlp", frozen=())
        >>> ((of_query, of_key, contribution),) = ask(jnp.eye(2)[None] + 1).best(1)
        >>> of_query, of_key, round(contribution, 2)
        ('mlp', 'mlp', 33.94)
    """
    check_callable(f, _VERB)
    sending, _, axes = circuit_of(f, senders, (), split, _VERB)
    above = attention.rpartition("/")[0]
    site = reads if reads is not None else f"{above}/attn_in" if above else "attn_in"
    constant = check_patterns(frozen, _VERB)
    asked = _Asked(attention, site, sending, axes, constant, inside_request(inside))
    compiled = JitByStaticPart.shared(functools.partial(_parts, asked), f)

    def explained(*args: P.args, **kwargs: P.kwargs) -> QKAttribution:
        parts: _Parts = jax.device_get(compiled(*static_and_arrays((f, args, kwargs), asked.inside)))
        _, batch, length, heads, depth = parts.queries.shape
        at = {"example": (example, batch), "query": (query, length), "key": (key, length), "head": (head, heads)}
        for name, (number, size) in at.items():
            if not -size <= number < size:
                raise IndexError(f"{_VERB}: {name}={number}, but there are {size}")
        key_head = head % heads // (heads // parts.keys.shape[3])
        left, right = parts.queries[:, example, query, head], parts.keys[:, example, key, key_head]
        table = left.astype(np.float64) @ right.T * (depth**-0.5 if scale is None else scale)
        score, total = float(parts.scores[example, head, query, key]), float(table.sum())
        if not abs(total - score) <= parts.tolerance * np.abs(table).sum():
            raise ValueError(
                f"{_VERB}: the pairs add up to {total:.6g}, but {attention}/scores has {score:.6g} there: products of "
                "queries and keys may be multiplied by something else than 1/√depth (name it with scale=), or scores "
                "have a cap or a bias, which is no sum over pairs"
            )
        return QKAttribution((*parts.names, "other", "bias"), table, total)

    return wrapped_like(explained, f)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["queries", "keys", "scores"],
    meta_fields=["names", "tolerance"],
)
@dataclasses.dataclass(frozen=True)
class _Parts:
    """What each component gives to queries and keys.

    Attributes:
        queries: Components, batch, length, heads, depth.
        keys: The same.
        scores: Batch, heads, queries, keys.
        names: The components without the last two.
        tolerance: How far a sum of pairs may be from a score, as a share of their magnitudes.
    """

    queries: Any
    keys: Any
    scores: Any
    names: tuple[str, ...]
    tolerance: float


def _parts(asked: _Asked, static: StaticPart, arrays: list[Any]) -> _Parts:
    f, args, kwargs = static.whole(arrays)
    graph = graph_of(f, (args, kwargs), asked.senders, [asked.reads], asked.split, asked.inside)
    if len(graph.receivers) != 1:
        raise ValueError(f"{_VERB}: {asked.reads!r} must be one value, got {[node.name for node in graph.receivers]}")
    (reads,), used = graph.receivers, [node for node, row in zip(graph.senders, graph.exists) if row[0]]
    patterns = (asked.reads, *asked.senders, *asked.frozen, f"{asked.attention}/*")
    _, records = values_to_place(f, *patterns, inside=asked.inside)(*args, **kwargs)
    stream = reads.of(records)
    if stream.ndim != 3:
        raise ValueError(f"{_VERB}: {reads.path!r} is (batch, length, width), got the shape {list(stream.shape)}")
    written = [aligned(node.of(records), stream.shape).astype(stream.dtype) for node in used]
    query_path, key_path = (_site(records, asked.attention, name) for name in ("q", "k"))
    seen = {(s.path, s.call): s for s in each_seen(records, stacked=True)}
    held = {s.place[0] for s in each_seen(records) if any(chooses(p, records[s.path]) for p in asked.frozen)}

    def projected(new: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Queries and keys, if the attention reads another stream."""

        def rule(values: Sequence[Any], where: Where) -> Supplied | None:
            key = where.path, where.call
            if key == reads.key:
                not_differentiated(where, _VERB)
                is_row = where.is_in([reads.row]) if where.named else None
                return Supplied([[new if is_row is None else jnp.where(is_row, new, values[0])]])
            return recorded_here(seen[key], where) if key in held else None

        paths = {reads.key[0], *(path for path, _ in held)}
        program = put_by_rule(f, rule, paths=paths, inside=asked.inside)
        _, now = capture(program, query_path, key_path, inside=asked.inside)(*args, **kwargs)
        return arrays_in(now[query_path].value)[0], arrays_in(now[key_path].value)[0]

    at_zero = projected(jnp.zeros_like(stream))
    parts = jnp.stack([*written, stream - sum(written, jnp.zeros_like(stream))])
    of_parts = [x - zero for x, zero in zip(jax.lax.map(projected, parts), at_zero)]
    whole = [jnp.concatenate([x, zero[None]]).astype(jnp.float32) for x, zero in zip(of_parts, at_zero)]
    if whole[0].ndim != 5 or whole[0].shape[3] % whole[1].shape[3]:
        raise ValueError(
            f"{_VERB}: {query_path!r} and {key_path!r} are (batch, length, heads, depth), got the shapes "
            f"{list(at_zero[0].shape)} and {list(at_zero[1].shape)}"
        )
    scores = arrays_in(records[f"{asked.attention}/scores"].value)[0].astype(jnp.float32)
    tolerance = float(max(jnp.finfo(x.dtype).eps for x in (stream, *at_zero))) ** 0.5
    return _Parts(whole[0], whole[1], scores, tuple(node.name for node in used), tolerance)


def _site(records: Records, attention: str, name: str) -> str:
    """The path of queries or keys as they are compared."""
    rotated, plain = f"{attention}/{name}_rotated", f"{attention}/{name}"
    return rotated if rotated in records else plain
