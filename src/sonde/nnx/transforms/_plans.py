"""Plans: what `nnx.jit` remembers so that calling a jitted function costs what `jax.jit` costs.

Taking Modules apart costs far more than calling a compiled function, so it is done once per set of objects. A call is
sorted into *roots* (Modules and Variables, wherever they stand in the arguments) and *plain* arguments (arrays and
containers of arrays, which JAX flattens faster than anybody).

A `Plan` belongs to certain roots: it lists their Variables, so that a call only has to read their values into a list.
It holds while the structure epoch has not moved; if it has, the plan asks each node whether it was changed since. It
keeps nodes by weak references and is dropped with the first root that dies, so it keeps no model alive.

A `Program` belongs to a structure: models of equal structure share it, and with it the traces and the compiled code.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from sonde._jax import trace_level
from sonde.nnx._epoch import EPOCH
from sonde.nnx._kinds import ARRAY, CONTAINER, KIND, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx._walk import Walk, build, flatten_once, unflatten_once
from sonde.nnx.pytree import Pytree
from sonde.nnx.transforms._lifting import Fixed, output, write
from sonde.nnx.variable import Variable

V = TypeVar("V")
ROOT, PLAIN = "root", "plain"

#: How many structures a transform remembers compiled code for.
PROGRAMS = 512


def holds_objects(value: Any) -> bool:
    """Whether there are Modules or Variables in a value."""
    kind = KIND.get(type(value))
    if kind is None:
        kind = kind_of(value)
    if kind != CONTAINER:
        return kind in (NODE, VARIABLE)
    if value is None:
        return False
    cls = type(value)
    if cls is dict:
        children: Any = value.values()
    elif cls is list or cls is tuple:
        children = value
    else:
        children = flatten_once(value)[1]
    kinds = {KIND.get(t) for t in set(map(type, children))}  # most containers hold arrays only: one look at each type
    if kinds <= {ARRAY, OTHER}:
        return False
    return any(map(holds_objects, children))


class Sorted:
    """The arguments of a call, sorted.

    Attributes:
        skeleton: how to put the arguments together again; hashable.
        roots: Modules and Variables.
        names: what messages call them.
        places: for each root, the position or name of the argument it is in.
        plain: the other arguments.
        plain_places: the same for them.
    """

    __slots__ = ("names", "places", "plain", "plain_places", "roots", "skeleton")

    def __init__(self, args: Sequence[Any], keywords: tuple[str, ...], static: frozenset[Any]):
        self.roots: list[Any] = []
        self.names: list[str] = []
        self.places: list[Any] = []
        self.plain: list[Any] = []
        self.plain_places: list[Any] = []
        n = len(args) - len(keywords)
        parts = []
        for i, value in enumerate(args):
            place, name = (i, f"args[{i}]") if i < n else (keywords[i - n], f"kwargs[{keywords[i - n]!r}]")
            parts.append(_fixed(value, name) if place in static else self._sort(value, name, place))
        self.skeleton = (n, keywords, tuple(parts))

    def _sort(self, value: Any, name: str, place: Any) -> Any:
        if not holds_objects(value):
            self.plain.append(value)
            self.plain_places.append(place)
            return PLAIN
        if kind_of(value) != CONTAINER:
            self.roots.append(value)
            self.names.append(name)
            self.places.append(place)
            return ROOT
        keys, children, rebuild = flatten_once(value)
        parts = tuple(self._sort(child, f"{name}[{key!r}]", place) for key, child in zip(keys, children))
        return (type(value), keys, rebuild, parts)


def _fixed(value: Any, name: str) -> Fixed:
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"Non-hashable static arguments are not supported: nnx.jit was given {name} of type "
            f"{type(value).__name__}, which cannot be hashed ({error}). Pass a hashable one, such as a tuple."
        ) from None
    return Fixed(value)


def along(prefix: Any, skeleton: Any) -> tuple[list[Any], list[Any]]:
    """The parts of a prefix of the positional arguments for the roots, and those for the plain arguments."""
    roots: list[Any] = []
    plain: list[Any] = []

    def visit(part: Any, p: Any) -> None:
        if isinstance(part, Fixed):
            return
        if part in (ROOT, PLAIN):
            (roots if part == ROOT else plain).append(p)
            return
        cls, keys, _, parts = part
        if isinstance(p, cls) and tuple(flatten_once(p)[0]) == tuple(keys):
            below = flatten_once(p)[1]
        else:
            below = [p] * len(parts)
        for q, child in zip(below, parts):
            visit(child, q)

    n, keywords, parts = skeleton
    if isinstance(prefix, (tuple, list)):
        if len(prefix) != n:
            raise ValueError(f"nnx.jit was given {len(prefix)} in_shardings and {n} positional arguments.")
        given = [*prefix, *([None] * len(keywords))]
    else:
        given = [prefix] * n + [None] * len(keywords)
    for part, p in zip(parts, given):
        visit(part, p)
    return roots, plain


def assemble(skeleton: Any, roots: Sequence[Any], plain: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments from sorted ones."""
    n, keywords, parts = skeleton
    root, other = iter(roots), iter(plain)
    values = [_put_together(part, root, other) for part in parts]
    return tuple(values[:n]), dict(zip(keywords, values[n:]))


def _put_together(part: Any, roots: Iterator[Any], plain: Iterator[Any]) -> Any:
    if part == ROOT:
        return next(roots)
    if part == PLAIN:
        return next(plain)
    if isinstance(part, Fixed):
        return part.value
    cls, keys, rebuild, parts = part
    return unflatten_once(cls, keys, rebuild, [_put_together(p, roots, plain) for p in parts])


class Changes:
    """What a trace says about its results.

    Attributes:
        changed: the leaves that got a new value.
        metadata: for each of them its new metadata, or None; None if no metadata changed.
        plain: whether the output is a plain pytree of arrays.
        definition: how to build the output, or None if it is a plain pytree.
        outcome: everything, when the results come in several lists.
    """

    __slots__ = ("changed", "definition", "metadata", "outcome", "plain")

    def __init__(self, changed: tuple[int, ...], metadata: tuple[Any, ...], definition: Any, outcome: Any):
        self.plain = definition is None and outcome is None
        self.changed = changed
        self.metadata = metadata if any(m is not None for m in metadata) else None
        self.definition = definition
        self.outcome = outcome

    def output(self, out: Any, news: Any) -> tuple[Any, Any]:
        """The output and the new values, from what the program returned."""
        if self.outcome is not None:
            return output((out, self.outcome))
        return (out if self.definition is None else build(self.definition, out).values[0]), news

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and all(getattr(self, s) == getattr(other, s) for s in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


class Program:
    """One `jax.jit` for all calls of one structure, and what its traces said about their results.

    It returns the output alone if nothing changes, unless that is a tuple; else a tuple of the output, the new values
    of Variables and, except for the first trace, the number of the trace as the key of a dict; or, when new values are
    among the lists of the output, a tuple of the output and such a dict. One program may be traced several times (for
    other shapes, or while a capture looks) with other results.

    Attributes:
        run: the jitted function of some lists (bare arrays, values of Variables that are kept, values of those that are
            donated; the empty ones are left out) and of the plain arguments.
        arrays: the leaves that are bare arrays.
        kept: the Variables whose values stay.
        donated: the Variables whose values are donated.
        traces: what each trace said.
    """

    __slots__ = ("_lock", "arrays", "donated", "kept", "run", "traces")

    def __init__(self, arrays: Sequence[int], kept: Sequence[int], donated: Sequence[int]):
        self.arrays = tuple(arrays)
        self.kept = tuple(kept)
        self.donated = tuple(donated)
        self.traces: list[Changes] = []
        self._lock = threading.Lock()
        self.run: Any = None

    def lists(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """Something for each leaf, as the lists that `run` takes."""
        given = [[leaves[i] for i in numbers] for numbers in (self.arrays, self.kept, self.donated)]
        return [one for one in given if one] or [[]]

    def output(self, result: Any) -> Any:
        """The output in what `run` returned."""
        if type(result) is not tuple:
            return result
        out, news, changes = self.unpack(result)
        return changes.output(out, news)[0]

    def result(self, out: Any, news: list[Any] | None, changes: Changes) -> Any:
        """What a trace returns."""
        with self._lock:
            if changes not in self.traces:
                self.traces.append(changes)
            number = self.traces.index(changes)
        if news is None:
            return out, {number: ()}
        return (out, news, {number: ()}) if number else (out, news)

    def unpack(self, result: tuple[Any, ...]) -> tuple[Any, Any, Changes]:
        """The output, the new values, and what they are."""
        numbers = result[-1]
        return result[0], result[1], self.traces[next(iter(numbers)) if type(numbers) is dict else 0]


class Plan:
    """What is needed to call a program with certain roots.

    Attributes:
        epoch: the structure epoch up to which the plan is known to hold.
        program: what to call.
        leaves: all Variables and bare arrays of the roots, in the order of the walk.
        cells: the cells of the Variables, if the program takes one list of values, all of them of Variables, else None.
        loose: whether there are lists or dicts among the data of nodes, whose changes nobody announces.
        run: the program's jitted function.
    """

    __slots__ = (
        "_contents",
        "_level",
        "_lists",
        "_metadata",
        "_numbers",
        "_records",
        "_shared",
        "_targets",
        "cells",
        "epoch",
        "leaves",
        "loose",
        "program",
        "run",
    )

    def __init__(self, found: Walk, program: Program):
        self.epoch = found.epoch
        self._records = [_Record(node) for _, node in found.nodes]
        self._contents = [(r, _contents(node)) for r, (_, node) in zip(self._records, found.nodes) if r.containers]
        self.loose = bool(found.loose)
        self._set(program, found.leaves, [getattr(x, "_metadata", None) for x in found.leaves])
        met = sum(record.n_variables for record in self._records)
        self._shared = bool(self._contents) or met > sum(x is not None for x in self._metadata)

    def _set(self, program: Program, leaves: list[Any], metadata: list[Any]) -> None:
        self.program = program
        self.run = program.run
        self.leaves = leaves
        self._metadata = metadata
        self._numbers = {id(x): i for i, x in enumerate(leaves)}
        self._lists = program.lists(leaves)
        if not program.arrays:
            self._lists = [[v._cell for v in one] for one in self._lists]
        else:
            self._lists[1:] = [[v._cell for v in one] for one in self._lists[1:]]
        self.cells = self._lists[0] if len(self._lists) == 1 and not program.arrays else None
        levels = {id(x._level): x._level for x in leaves if isinstance(x, Variable)}
        self._level = next(iter(levels.values())) if len(levels) == 1 else None
        self._targets: list[list[Any]] | None = None  # cells that the first trace changes, once that is known

    def match(self) -> Plan | None:
        """What holds now: this plan, or one for other Variables in the same places, or None."""
        now = EPOCH.value
        if now == self.epoch and not self.loose:
            return self
        epoch = self.epoch
        swapped: dict[int, Variable[Any]] = {}
        for record in self._records:
            node = record.node()
            if node is None or (node._stamp > epoch and not self._same(record, node, swapped)):
                return None
        for leaf, metadata in zip(self.leaves, self._metadata):
            if metadata is not None and leaf._metadata is not metadata and leaf._metadata != metadata:
                return None
        for record, before in self._contents:
            node = record.node()
            if node is None or not _same_contents(_contents(node), before):
                return None
        if swapped:
            return self._with(swapped, now)
        self.epoch = now
        return self

    def _same(self, record: _Record, node: Any, swapped: dict[int, Variable[Any]]) -> bool:
        """Whether a node is as it was, except for Variables that were replaced by others of the same kind."""
        layout, data, static = node._structure()
        if layout is not record.layout or (static is not record.static and static != record.static):
            return False
        for x, before in zip(data, record.data):
            if id(x) == before:
                continue
            i = None if before is None else self._numbers.get(before)
            if i is None or self._shared or id(x) in self._numbers:
                return False
            old = self.leaves[i]
            if not isinstance(old, Variable) or type(x) is not type(old) or x._metadata != self._metadata[i]:
                return False
            swapped[i] = x
        return True

    def _with(self, swapped: dict[int, Variable[Any]], epoch: int) -> Plan | None:
        """The plan for a model in which some Variables are others."""
        if len({id(x) for x in swapped.values()}) < len(swapped):
            return None  # one Variable now stands at two places
        new = object.__new__(Plan)
        new.epoch = epoch
        new._contents, new.loose, new._shared = self._contents, self.loose, False
        leaves, metadata = list(self.leaves), list(self._metadata)
        renamed = {}
        for i, x in swapped.items():
            renamed[id(leaves[i])] = id(x)
            leaves[i], metadata[i] = x, x._metadata
        new._records = [record.renamed(renamed) for record in self._records]
        new._set(self.program, leaves, metadata)
        return new

    def read(self) -> list[list[Any]]:
        """The values of leaves, as the program takes them."""
        first = 1 if self.program.arrays else 0
        return [*self._lists[:first], *([cell[0] for cell in one] for one in self._lists[first:])]

    def run_with(self, plain: Sequence[Any]) -> Any:
        """Calls the program and completes its results."""
        result = self.run(*self.read(), *plain)
        return self.finish(result) if type(result) is tuple else result

    def finish(self, result: tuple[Any, ...]) -> Any:
        """Completes the output and writes the new values of Variables."""
        cells = self._targets
        if cells is None or len(result) != 2 or self._level is not trace_level():
            return self._finish_any(result)
        for cell, value in zip(cells, result[1]):
            cell[0] = value
        return result[0]

    def _finish_any(self, result: tuple[Any, ...]) -> Any:
        """The same for results that take more than setting values, and for the first results."""
        out, news, changes = self.program.unpack(result)
        variables = [self.leaves[i] for i in changes.changed]
        if not changes.plain:
            out, news = changes.output(out, news)
        elif changes.metadata is None and changes is self.program.traces[0]:
            self._targets = [variable._cell for variable in variables]
        write(variables, news, changes.metadata or [None] * len(variables))
        return out


class _Record:
    """How a node looked, without keeping it or other nodes alive.

    Attributes:
        node: a weak reference to it.
        layout: which attributes it had.
        data: the identities of its children. The plan keeps Variables and arrays alive, and nodes have records of
            their own, so the identity says which object it is. Containers are compared by their content.
        static: its static attributes.
        containers: whether some of its children are plain containers.
        n_variables: how many of its children are Variables.
    """

    __slots__ = ("containers", "data", "layout", "n_variables", "node", "static")

    def __init__(self, node: Any):
        self.node = weakref.ref(node)
        self.layout, data, self.static = node._structure()
        kinds = [KIND.get(type(x)) for x in data]
        self.n_variables = kinds.count(VARIABLE)
        self.containers = CONTAINER in kinds and any(k == CONTAINER and x is not None for k, x in zip(kinds, data))
        self.data = tuple([None if k == CONTAINER and x is not None else id(x) for k, x in zip(kinds, data)])

    def renamed(self, identities: dict[int, int]) -> _Record:
        """The record with other children."""
        if identities.keys().isdisjoint(self.data):
            return self
        new = object.__new__(_Record)
        new.node, new.layout, new.static = self.node, self.layout, self.static
        new.n_variables, new.containers = self.n_variables, self.containers
        new.data = tuple(identities.get(x, x) for x in self.data)  # type: ignore[arg-type]
        return new


def _contents(node: Pytree) -> tuple[list[Any], list[Any]]:
    """What the plain containers of a node hold: their classes and keys, and their elements, nodes by weak reference."""
    frames: list[Any] = []
    elements: list[Any] = []
    todo = [value for value in node._structure()[1] if kind_of(value) == CONTAINER]
    while todo:
        value = todo.pop()
        kind = kind_of(value)
        if kind == CONTAINER and value is not None:
            keys, children, _ = flatten_once(value)
            frames.append((type(value), keys))
            todo += children
        else:
            elements.append(weakref.ref(value) if kind == NODE else value)
    return frames, elements


def _same_contents(now: tuple[list[Any], list[Any]], before: tuple[list[Any], list[Any]]) -> bool:
    return now[0] == before[0] and all(_target(a) is _target(b) for a, b in zip(now[1], before[1]))


def _target(x: Any) -> Any:
    return x() if type(x) is weakref.ref else x


class Recent(Generic[V]):
    """A bounded cache: what was not used for longest goes first."""

    def __init__(self, size: int):
        self._size = size
        self._entries: OrderedDict[Any, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The entry, made if need be."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found
        made = make()
        with self._lock:
            found = self._entries.setdefault(key, made)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return found
