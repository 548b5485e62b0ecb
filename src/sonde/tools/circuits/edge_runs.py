"""Runs a program with some of its edges cut, or with some of its values between those of two runs.

Along a cut edge, the receiver gets what the sender wrote in the other run:

    input := input - (sender now - sender in the other run), for every cut edge

"Now" means in the same run, in which earlier receivers already have changed inputs. If the components run one after the
other in one trace, one run is enough. Otherwise, senders may be in another iteration of a scan or in another jitted
function, so the program is run until the values stop changing: every run is right for one more component than the run
before, and there are at most as many runs as senders.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    ADDED,
    InsideRequest,
    Pattern,
    Records,
    Rule,
    StaticPart,
    Supplied,
    Where,
    added,
    arrays_in,
    capture,
    put_by_rule,
)
from sonde.tools.attribution.site_gradients import number_and_gradients, number_of
from sonde.tools.circuits.edge_nodes import Graph, Key, Node, aligned, graph_of, values_of
from sonde.tools.execution.record_values import Seen, each_seen
from sonde.tools.intervention.patch_values import SELECTED, in_record, not_differentiated, values_to_place

_VERB = "attribute_edges"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What `attribute_edges` was asked for.

    Attributes:
        sending: The senders.
        receiving: The receivers.
        split: For sites whose values have an axis for heads: the axis.
        metric: A function of the program's result; None if the result is the number.
        inside: As in `sonde.capture`.
    """

    sending: tuple[Pattern, ...]
    receiving: tuple[Pattern, ...]
    split: tuple[tuple[Pattern, int], ...]
    metric: Callable[[Any], Any] | None
    inside: InsideRequest | None


class Program:
    """A traced program with its nodes, for use inside a jitted function.

    Args:
        asked: What was asked for.
        rest: The program, its arguments and keyword arguments, and the arguments of the other run or a number in place
            of its values, without arrays.
        arrays: The arrays.
    """

    def __init__(self, asked: Asked, rest: StaticPart, arrays: Sequence[Any]) -> None:
        self._asked, self._rest, self._arrays = asked, rest, arrays
        f, args, kwargs, _ = rest.whole(arrays)
        self.graph: Graph = graph_of(f, (args, kwargs), asked.sending, asked.receiving, dict(asked.split), asked.inside)
        result, self.other = self._of_other_run(asked.sending)
        self._check_same_nodes()
        self._sender_tables = _tables(self.graph.senders)
        self._receiver_tables = _tables(self.graph.receivers)
        self._groups = _groups(self.graph)
        self._before = [self._written(self.other, group) for group in self._groups]
        everything = jnp.asarray(self.graph.exists, jnp.float32)
        self.baseline = self.metric_with(everything) if result is None else number_of(asked.metric, result)

    def _of_other_run(self, patterns: Sequence[Pattern]) -> tuple[Any, Records]:
        """The result and the values of the other run; None and numbers, if a number stands for it."""
        f, args, kwargs, other = self._rest.whole(self._arrays)
        if isinstance(other, tuple):
            return values_to_place(f, *patterns, inside=self._asked.inside)(*other, **kwargs)
        _, records = values_to_place(f, *patterns, inside=self._asked.inside)(*args, **kwargs)
        return None, jax.tree.map(lambda x: jnp.full_like(x, other), records)

    def _check_same_nodes(self) -> None:
        sites = {(seen.path, seen.call): seen for seen in each_seen(self.other, stacked=True)}
        for node in self.graph.senders:
            shape = node.shape_in(sites[node.key]) if node.key in sites else None
            if shape != node.shape:
                raise ValueError(
                    f"attribute_edges: {node.name!r} has the shape {list(node.shape)} in this run and "
                    f"{'is missing' if shape is None else list(shape)} in that of baseline=; both must have the same"
                )

    def changes(self, which: Iterable[int], shape: tuple[int, ...], records: Records) -> Any:
        """How far what some senders write is from the other run: senders by elements of a value that is read."""
        senders = [self.graph.senders[i] for i in which]
        return values_of(senders, records, shape) - values_of(senders, self.other, shape)

    def gradients(self, changed: Callable[[Callable], Callable] | None = None) -> tuple[Any, Records]:
        """The metric, and records of all nodes with gradients; if `changed` changes the program, of that program."""
        return number_and_gradients(
            (*self._asked.sending, *self._asked.receiving),
            self._asked.metric,
            self._asked.inside,
            lambda arrays: self._rest.whole(arrays)[:3],
            self._arrays,
            changed,
        )

    def between(self, patterns: Sequence[Pattern], part: Any) -> Callable[[Callable], Callable]:
        """Puts the values at some sites of a program between those of the other run, 0, and of this run, 1."""
        f, args, kwargs, _ = self._rest.whole(self._arrays)
        _, clean = values_to_place(f, *patterns, inside=self._asked.inside)(*args, **kwargs)
        _, corrupt = self._of_other_run(patterns)
        ends = {(s.path, s.call): s for s in each_seen(clean, stacked=True)}
        starts = {(s.path, s.call): s for s in each_seen(corrupt, stacked=True)}

        def rule(values: Sequence[Any], where: Where) -> Supplied | None:
            key = where.path, where.call
            return None if key not in ends else _between(values, where, starts[key], ends[key], part)

        return self._changing(rule, [path for path, _ in ends])

    def _changing(self, rule: Rule, paths: Iterable[str]) -> Callable[[Callable], Callable]:
        return functools.partial(put_by_rule, rule=rule, put=SELECTED, paths=list(paths), inside=self._asked.inside)

    def sender_between(self, clean: Records, which: Any, part: Any) -> Callable[[Callable], Callable]:
        """Puts what one sender site of a program writes between its values in the two runs.

        Args:
            clean: What the senders write in this run.
            which: The number of the site, as `sender_sites` counts.
            part: 0 for the other run, 1 for this run.
        """
        numbers = {site: i for i, site in enumerate(self.sender_sites)}
        ends = {(s.path, s.call): s for s in each_seen(clean, stacked=True) if not s.gradient}
        starts = {(s.path, s.call): s for s in each_seen(self.other, stacked=True)}

        def rule(values: Sequence[Any], where: Where) -> Supplied | None:
            key = where.path, where.call
            if key not in self._sender_tables:
                return None
            ids = self._sender_tables[key]
            of_row = np.vectorize(lambda i: -1 if i < 0 else numbers[_site(self.graph.senders[i])])(ids[..., 0])
            between = _between(values, where, starts[key], ends[key], part)
            return Supplied(between.arrays, _looked_up(of_row, where) == which)

        return self._changing(rule, [path for path, _ in self._sender_tables])

    @property
    def sender_sites(self) -> list[tuple[Key, tuple[int, ...]]]:
        """The sites of the senders; heads of one site count once."""
        return list(dict.fromkeys(_site(node) for node in self.graph.senders))

    def metric_with(self, cut: Any) -> Any:
        """The metric of the program with some edges cut.

        Args:
            cut: 1 for every edge that is cut and 0 for all others: senders by receivers.
        """
        return self._in_one_run(cut) if self.graph.at_once else self._in_several_runs(cut)

    def _in_one_run(self, cut: Any) -> Any:
        buffers = [jnp.zeros_like(before) for before in self._before]

        def rule(arrays: Sequence[Any], where: Where) -> Supplied | None:
            key, less = (where.path, where.call), None
            if key in self._receiver_tables:
                off = [
                    jnp.matmul(cut[np.ix_(g.senders, g.receivers)].T, buffer, precision="highest")
                    for g, buffer in zip(self._groups, buffers)
                ]
                less = self._less(arrays, not_differentiated(where, _VERB), off)
            if key not in self._sender_tables:
                return less
            values = arrays if less is None else added(list(arrays), list(less.arrays[0]))
            for node in self.graph.senders:
                if node.key == key:
                    not_differentiated(where, _VERB)
                    part = values[0] if node.axis is None else jnp.take(values[0], node.head, node.axis)
                    for i, group in enumerate(self._groups):
                        if node in group.of_sender:
                            at = group.of_sender[node]
                            new = aligned(_whole(part, where), group.shape).reshape(-1) - self._before[i][at]
                            buffers[i] = buffers[i].at[at].set(new)
            return less

        return self._number(rule)

    def _in_several_runs(self, cut: Any) -> Any:
        def run(less: list[Any]) -> tuple[Any, list[Any]]:
            off = [
                jnp.matmul(cut[np.ix_(g.senders, g.receivers)].T, x, precision="highest")
                for g, x in zip(self._groups, less)
            ]

            def rule(arrays: Sequence[Any], where: Where) -> Supplied | None:
                if (where.path, where.call) not in self._receiver_tables:
                    return None
                return self._less(arrays, not_differentiated(where, _VERB), off)

            f, args, kwargs, _ = self._rest.whole(self._arrays)
            program = capture(self._less_edges(f, rule), *self._asked.sending, inside=self._asked.inside)
            result, records = program(*args, **kwargs)
            now = [self._written(records, group) - before for group, before in zip(self._groups, self._before)]
            return number_of(self._asked.metric, result), now

        def step(state: Any) -> Any:
            less, _, n, _ = state
            number, new = run(less)
            same = [jnp.all(a == b) for a, b in zip(new, less)]
            return new, number, n + 1, jnp.all(jnp.stack(same))

        number, less = run([jnp.zeros_like(before) for before in self._before])
        most = len(self.sender_sites)
        return jax.lax.while_loop(lambda s: ~s[3] & (s[2] <= most), step, (less, number, 0, False))[1]

    def _number(self, rule: Rule) -> Any:
        f, args, kwargs, _ = self._rest.whole(self._arrays)
        return number_of(self._asked.metric, self._less_edges(f, rule)(*args, **kwargs))

    def _less_edges(self, f: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
        paths = {path for path, _ in (*self._sender_tables, *self._receiver_tables)}
        return put_by_rule(f, rule, ADDED, paths=paths, inside=self._asked.inside)

    def _written(self, records: Records, group: _Group) -> Any:
        return values_of([self.graph.senders[s] for s in group.senders], records, group.shape)

    def _less(self, values: Sequence[Any], where: Where, off: Sequence[Any]) -> Supplied | None:
        """What to add to the value that a receiver reads: minus what cut edges take off."""
        key = where.path, where.call
        ids = self._receiver_tables[key]
        node = self.graph.receivers[int(ids.max())]
        group = next((g for g in self._groups if g.shape == node.shape), None)
        if group is None:
            return None
        within = np.full(len(self.graph.receivers) + 1, -1)
        within[group.receivers] = np.arange(len(group.receivers))
        chosen = _looked_up(within[ids], where)
        rows = jnp.concatenate([off[self._groups.index(group)], jnp.zeros((1, int(np.prod(group.shape))))])
        taken = rows[chosen].reshape(len(ids[(0,) * (ids.ndim - 1)]), *group.shape)
        taken = taken[0] if node.axis is None else jnp.moveaxis(taken, 0, node.axis)
        taken = where.slice_of(taken, 0, ())
        return Supplied([[-taken.astype(values[0].dtype), *map(jnp.zeros_like, values[1:])]])


@dataclasses.dataclass(frozen=True)
class _Group:
    """Receivers whose values have one shape, and the senders that have an edge to one of them."""

    shape: tuple[int, ...]
    senders: np.ndarray
    receivers: np.ndarray
    of_sender: Mapping[Node, int]


def _groups(graph: Graph) -> list[_Group]:
    found = []
    for shape in dict.fromkeys(node.shape for node, there in zip(graph.receivers, graph.reading) if there):
        receivers = np.array([i for i, node in enumerate(graph.receivers) if node.shape == shape])
        senders = np.flatnonzero(graph.exists[:, receivers].any(1))
        of_sender = {graph.senders[s]: i for i, s in enumerate(senders)}
        found.append(_Group(shape, senders, receivers, of_sender))
    return found


def _site(node: Node) -> tuple[Key, tuple[int, ...]]:
    return node.key, node.row


def _tables(nodes: Sequence[Node]) -> dict[Key, np.ndarray]:
    """By key, the numbers of its nodes: by row of the loops around it, and head; -1 where there is none."""
    found: dict[Key, np.ndarray] = {}
    for key in dict.fromkeys(node.key for node in nodes):
        mine = [(i, node) for i, node in enumerate(nodes) if node.key == key]
        lengths = [1 + max(numbers) for numbers in zip(*(node.row for _, node in mine))]
        found[key] = np.full((*lengths, 1 + max(node.head for _, node in mine)), -1)
        for i, node in mine:
            found[key][(*node.row, node.head)] = i
    return found


def _looked_up(table: np.ndarray, where: Where) -> Any:
    """The entry of a table for the current iteration; -1 if it has none."""
    if not where.iteration:
        return table
    return jnp.asarray(table).at[tuple(where.iteration)].get(mode="fill", fill_value=-1)


def _whole(value: Any, where: Where) -> Any:
    """A value with all mapped axes that a record would have."""
    for position, axis in enumerate(where.view.axes):
        if not axis.on_leaf(0):
            value = jnp.expand_dims(value, position)
    return value


def _between(values: Sequence[Any], where: Where, start: Seen, end: Seen, part: Any) -> Supplied:
    """Values between those of two runs, in the rows that were recorded; only floats can be between."""
    is_there, steps = in_record(where, end)
    new, masks = [], []
    for i, (old, a, b) in enumerate(zip(values, arrays_in(start.value), arrays_in(end.value))):
        a, b = where.slice_of(a, i, steps), where.slice_of(b, i, steps)
        is_float = jnp.issubdtype(old.dtype, jnp.floating)
        new.append(a + jnp.asarray(part, old.dtype) * (b - a) if is_float else old)
        masks.append(jnp.broadcast_to(is_there if is_float else False, jnp.shape(old)))
    return Supplied([new, masks])
