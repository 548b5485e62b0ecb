"""The senders and receivers of a program, and which sender is a term of what which receiver reads.

A node is one value: that of a site, of a row of a named loop, or of an index along an axis for heads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import Handler, InsideRequest, Pattern, Records, Site, View, arrays_in, run_with
from sonde.errors import CaptureError
from sonde.tools.circuits.terms import Sums, Term, marked, sums_in
from sonde.tools.execution.record_values import Seen, chooses, each_seen
from sonde.tools.intervention.patch_values import not_differentiated, values_to_place

Key = tuple[str, int]  # a path with a * for every named loop, and the number of the call


class Node(NamedTuple):
    """A sender or a receiver.

    Attributes:
        name: Its name: a path, with the number of the head at the end if there are heads.
        path: The path of the site, as records have it.
        call: Which of the calls under that path.
        key: Where a rule meets it: the path with a `*` for every named loop, and the call there.
        row: The numbers of the iterations of the named loops around it.
        shape: The shape of the value, without the axis for heads.
        axis: The axis for heads, counted from the end; None if there is none.
        head: The index along it.
    """

    name: str
    path: str
    call: int
    key: Key
    row: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int | None = None
    head: int = 0

    def of(self, records: Records) -> Any:
        """The value of the node in records of a run."""
        value = arrays_in(records[self.path].values[self.call])[0]
        return value if self.axis is None else jnp.take(value, self.head, self.axis)

    def shape_in(self, seen: Seen) -> tuple[int, ...]:
        """The shape of the value of the node, in another run in which its site has these values."""
        shape = list(arrays_in(seen.value)[0].shape[len(self.row) :])
        if self.axis is not None and self.axis >= -len(shape):
            del shape[self.axis]
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class Graph:
    """The nodes of a program and the edges that there are between them.

    Attributes:
        senders: The senders, in program order.
        receivers: The receivers, in program order.
        exists: Which sender is a term of what which receiver reads: senders by receivers.
        at_once: Whether all nodes are in code that runs once, as one trace, so that a rule at one node may use what a
            rule saw at another.
    """

    senders: tuple[Node, ...]
    receivers: tuple[Node, ...]
    exists: np.ndarray
    at_once: bool

    @property
    def writing(self) -> list[bool]:
        """For every sender, whether it has an edge."""
        return [bool(row.any()) for row in self.exists]

    @property
    def reading(self) -> list[bool]:
        """For every receiver, whether it has an edge."""
        return [bool(column.any()) for column in self.exists.T]


def aligned(value: Any, shape: tuple[int, ...]) -> Any:
    """What a sender writes, in the shape that a receiver reads.

    Raises:
        ValueError: It does not fit.
    """
    if value.shape == shape:
        return value
    if value.size == np.prod(shape, dtype=np.int64):
        return value.reshape(shape)
    return jnp.broadcast_to(value, shape)


def values_of(nodes: Sequence[Node], records: Records, shape: tuple[int, ...], *, gradients: bool = False) -> jax.Array:
    """The values of nodes in records of a run: nodes by elements of a value of this shape, in single precision.

    All heads and layers of a site are taken at once: with an operation for each, the program of the scores takes longer
    to compile than the model.

    Args:
        nodes: The nodes.
        records: The records.
        shape: What a receiver reads; what a sender writes is aligned with it.
        gradients: Whether to return gradients; zeros if the metric does not depend on the node.
    """
    sites = {(seen.path, seen.call): seen for seen in each_seen(records, stacked=True) if seen.gradient == gradients}
    by_site: dict[Key, list[int]] = {}
    for i, node in enumerate(nodes):
        by_site.setdefault(node.key, []).append(i)
    parts = []
    for key, which in by_site.items():
        if key in sites:
            parts.append(_values_at(sites[key], [nodes[i] for i in which], shape))
        else:
            parts.append(jnp.zeros((len(which), math.prod(shape))))
    order = np.argsort([i for which in by_site.values() for i in which])
    return _picked(jnp.concatenate(parts), order)


def _values_at(seen: Seen, nodes: Sequence[Node], shape: tuple[int, ...]) -> jax.Array:
    """The values of nodes of one site, which are rows of named loops and heads."""
    value, axis = arrays_in(seen.value)[0], nodes[0].axis
    rows = [axis.rows for axis in seen.axes if axis.rows is not None]
    numbers = [[rows[i].index(n) for i, n in enumerate(node.row)] for node in nodes]
    if axis is not None:
        value = jnp.moveaxis(value, axis, len(rows))
        numbers = [[*number, node.head] for number, node in zip(numbers, nodes)]
    leading = len(numbers[0])
    lengths, own = value.shape[:leading], value.shape[leading:]
    if math.prod(own) != math.prod(shape):
        value = value.reshape(*lengths, *[1] * (len(shape) - len(own)), *own)
        value = jnp.broadcast_to(value, (*lengths, *shape))
    value = value.reshape(math.prod(lengths), -1).astype(jnp.float32)
    return _picked(value, np.array([np.ravel_multi_index(number, lengths) if lengths else 0 for number in numbers]))


def _picked(value: jax.Array, rows: np.ndarray) -> jax.Array:
    return value if np.array_equal(rows, np.arange(len(value))) else value[rows]


def graph_of(
    f: Callable,
    call: tuple[Any, ...],
    sending: Sequence[Pattern],
    receiving: Sequence[Pattern],
    split: Mapping[Pattern, int],
    inside: InsideRequest | None,
) -> Graph:
    """The nodes and edges of a program. It is traced, not run.

    Args:
        f: The program.
        call: Its arguments and keyword arguments.
        sending: The senders.
        receiving: The receivers.
        split: For sites whose values have an axis for heads: the axis.
        inside: As in `sonde.capture`.

    Raises:
        NoSuchSiteError: A pattern matches no site.
        CaptureError: A node is in a loop without a name.
        ValueError: A node is not one array of numbers, a sender is a term of nothing that is read, or a receiver is the
            stream.
    """
    args, kwargs = call
    _, records = jax.eval_shape(values_to_place(f, *sending, *receiving, inside=inside), *args, **kwargs)
    roles = ("writes", sending), ("reads", receiving)
    nodes = {role: _nodes(records, patterns, split) for role, patterns in roles}
    levels: set[Any] = set()
    labels = {role: {node.key for node in found} for role, found in nodes.items()}

    def labeled(*args: Any, **kwargs: Any) -> Any:
        return run_with(_Labelling(labels, levels), f, args, kwargs, edits=True, inside=inside)

    jaxpr = jax.make_jaxpr(labeled)(*args, **kwargs)
    axes = {_label("writes", node.key): node.axis for node in nodes["writes"]}
    names = {_label(role, node.key): f"{role} {node.key[0]}" for role, found in nodes.items() for node in found}
    sums = sums_in(jaxpr, axes, names)
    at_once = len(levels) == 1 and not any(repeated for _, repeated in levels)
    senders, receivers = (_without_copies(role, nodes[role], sums) for role, _ in roles)
    _check_no_stream(receivers, sums)
    exists = np.zeros((len(senders), len(receivers)), bool)
    for r, receiver in enumerate(receivers):
        terms = sums.terms.get(_term("reads", receiver), frozenset())
        for s, sender in enumerate(senders):
            exists[s, r] = _term("writes", sender) in terms
    graph = Graph(senders, receivers, exists, at_once)
    _check_all_fit(graph, records, sending, receiving)
    return graph


class _Labelling(Handler):
    """Marks the values of nodes in the traced program, for `sums_in`; the program is not run.

    Attributes:
        labels: The nodes, by role.
        levels: Where nodes were met: the trace, and whether in a loop.
    """

    knows_loops = True

    def __init__(self, labels: Mapping[str, set[Key]], levels: set[Any]) -> None:
        super().__init__(None, ())
        self.labels = labels
        self.levels = levels

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """The outputs of the site, with the marks of its nodes."""
        outs = super().at_site(args, site, view)
        if not view.is_value or view.role != "site" or not self.sees(site):
            return outs
        where = self.locate(site, view, self.position.names)
        key = where.path, self.counts.next(where.path, view.gates)
        roles = [role for role, keys in self.labels.items() if key in keys]
        if roles:
            not_differentiated(where, "attribute_edges")
            self.levels.add((getattr(outs[0], "_trace", None), bool(where.loops)))
        for role in roles:
            outs[0] = marked(outs[0], _label(role, key))
        return outs


def _label(role: str, key: Key) -> str:
    return f"{role} {key[1]} {key[0]}"


def _term(role: str, node: Node) -> Term:
    return Term(_label(role, node.key), node.row)


def _nodes(records: Records, patterns: Sequence[Pattern], split: Mapping[Pattern, int]) -> list[Node]:
    found = []
    for seen in each_seen(records):
        record = records[seen.path]
        if any(chooses(p, record) for p in patterns):
            axis = next((a for p, a in split.items() if chooses(p, record)), None)
            found += _of_site(seen, axis)
    return found


def _of_site(seen: Seen, axis: int | None) -> list[Node]:
    where = f"{seen.path!r} ({seen.site.line})"
    if seen.count is not None or any(a.is_loop for a in seen.axes):
        raise CaptureError(in_unnamed_loop("attribute_edges", seen))
    arrays = arrays_in(seen.value)
    if len(arrays) != 1 or not jnp.issubdtype(arrays[0].dtype, jnp.floating):
        kinds = [str(x.dtype) for x in arrays]
        raise ValueError(f"attribute_edges: a sender or receiver is one array of floats, but {where} has {kinds}")
    shape = tuple(arrays[0].shape)
    call = f"[{seen.call}]" if seen.call else ""
    made = Node(seen.path + call, seen.path, seen.call, *seen.place, shape)
    if axis is None:
        return [made]
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"attribute_edges: split= names axis {axis} of {where}, whose shape is {list(shape)}")
    axis = axis % len(shape) - len(shape)
    at = axis % len(shape)
    own = shape[:at] + shape[at + 1 :]
    return [made._replace(name=f"{made.name}/{i}", shape=own, axis=axis, head=i) for i in range(shape[at])]


def in_unnamed_loop(verb: str, seen: Seen) -> str:
    """What an error says about a site in a loop that has no name."""
    kind = "a while_loop" if seen.count is not None else "a loop that has no name"
    return (
        f"{verb}: {seen.path!r} ({seen.site.line}) is in {kind}, so its iterations cannot be told apart; run the "
        "loop in a scope that names it, as in `with sonde.scope('blocks/*')` around jax.lax.scan"
    )


def _without_copies(role: str, nodes: Sequence[Node], sums: Sums) -> tuple[Node, ...]:
    """The nodes without those that only mark a value again, such as the output of a module that marks it itself."""
    kept = [node for node in nodes if _term(role, node) not in sums.same]
    paths: dict[tuple[str, int], set[int]] = {}
    for node in kept:
        paths.setdefault((node.path, node.head), set()).add(node.call)
    alone = {path for path, calls in paths.items() if len(calls) == 1}
    return tuple(
        node._replace(name=node.name.replace(f"[{node.call}]", "", 1)) if (node.path, node.head) in alone else node
        for node in kept
    )


def _check_no_stream(receivers: Sequence[Node], sums: Sums) -> None:
    """Raises ValueError if later components get a receiver's value, too: an edge to it would count for all of them."""
    read = {_term("reads", node): node for node in receivers}
    for term, terms in sums.terms.items():
        for other in terms:
            if term in read and other in read:
                _raise_stream(read[other], f"{read[term].name!r} gets it, too")
    for term, others in sums.joined.items():
        if term in read:
            _raise_stream(read[term], f"what {min(others).label.split(' ', 2)[2]!r} writes is added to it")


def _raise_stream(receiver: Node, why: str) -> None:
    raise ValueError(
        f"attribute_edges: the receiver {receiver.path!r} is the stream itself and not what one component reads: {why}"
        ". Name the place where the component reads it: in sonde.models blocks/*/attn_in and blocks/*/mlp_in, "
        "elsewhere the input of the component's first module (inside=model, as in blocks/*/norm1/in), or a sow around "
        "what it reads"
    )


def _check_all_fit(graph: Graph, records: Records, sending: Sequence[Pattern], receiving: Sequence[Pattern]) -> None:
    """Raises ValueError for patterns whose nodes have no edges, and for nodes that have another shape than the rest.

    Single nodes may have none: nothing reads what the last component writes, unless the end is a receiver. So may
    patterns with nothing after their senders, or before their receivers.
    """
    wrong: list[Node] = []
    order = {path: i for i, path in enumerate(records)}
    last = max(order[node.path] for node in graph.receivers)
    first = min(order[node.path] for node in graph.senders)
    sides = (graph.senders, graph.writing, sending), (graph.receivers, graph.reading, receiving)
    shapes = {node.shape for nodes, used, _ in sides for node, there in zip(nodes, used) if there}
    for nodes, used, patterns in sides:
        for pattern in patterns:
            chosen = [(n, u) for n, u in zip(nodes, used) if chooses(pattern, records[n.path])]
            if not any(there for _, there in chosen):
                writes = nodes is graph.senders
                wrong += [n for n, _ in chosen if (order[n.path] < last if writes else order[n.path] > first)]
        wrong += [node for node, there in zip(nodes, used) if not there and node.shape not in shapes]
    if wrong:
        wrong = list(dict.fromkeys(wrong))
        shown = ", ".join(f"{node.name} {list(node.shape)}" for node in wrong[:8])
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ValueError(
            f"attribute_edges: these have no edges: {shown}{more}. What a sender writes must be added, as it is, to a "
            "sum that a later receiver reads. If it has an axis for heads over which it is summed, or a receiver has "
            "one, name the axis: split={'blocks/*/attn/results': -2}"
        )
