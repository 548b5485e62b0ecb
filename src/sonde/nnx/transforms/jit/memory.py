"""What `nnx.jit` remembers, so that calling a jitted function costs no more than with `jax.jit`.

Taking Modules apart costs far more than calling a compiled function, so it is done once per set of objects. A `Plan`
belongs to certain roots: it lists their Variables, so that a call only has to read their values into a list. It holds
until the structure epoch moves; then the plan checks whether each node was changed since. It keeps nodes by weak
references and is dropped with the first root that dies, so it keeps no model alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from sonde._jax import trace_level
from sonde.nnx.modules.pytree import Pytree, attributes
from sonde.nnx.structure.epoch import EPOCH, EXPOSED
from sonde.nnx.structure.value_kinds import CONTAINER, KIND, NODE, VARIABLE, kind_of
from sonde.nnx.structure.walk import Walk
from sonde.nnx.transforms.bounded_cache import PROGRAMS
from sonde.nnx.transforms.jit.program import Program
from sonde.nnx.transforms.outcome import Outcome, PureResult, settle
from sonde.nnx.transforms.structure_changes import Contents, contents, same_contents
from sonde.nnx.variable.cell import Cell
from sonde.nnx.variable.variable import Variable

#: How many structures of one set of objects are remembered: training, evaluating and a few more.
KNOWN_STRUCTURES = 4


class Plan:
    """What is needed to call a program with certain roots.

    Attributes:
        epoch: The structure epoch up to which the plan is known to hold.
        program: What to call.
        leaves: All Variables and bare arrays of the roots, in the order of the walk.
        cells: The cells of the Variables, if the program takes one list of values, all of them of Variables, else None.
        loose: Whether something may change without bumping the epoch: lists and dicts among the data of nodes, and
            nodes whose attributes were handed out by `vars`.
        run: The program's jitted function.
    """

    __slots__ = (
        "_contents",
        "_earlier",
        "_level",
        "_lists",
        "_metadata",
        "_numbers",
        "_shared",
        "_targets",
        "cells",
        "epoch",
        "leaves",
        "loose",
        "program",
        "run",
    )

    def __init__(self, walked: Walk, program: Program):
        self.epoch = walked.epoch
        # Nodes by weak references: a plan must not keep a model alive.
        self._earlier = [_Earlier(node) for _, node in walked.nodes]
        self._contents = [
            (r, _weak(held))
            for r, (_, node) in zip(self._earlier, walked.nodes)
            if r.containers and (held := contents(node)) is not None
        ]
        self.loose = bool(walked.loose) or any(id(node) in EXPOSED for _, node in walked.nodes if EXPOSED)
        self.program = program
        self.run = program.run
        self.leaves = leaves = walked.leaves
        self._metadata = [getattr(x, "_metadata", None) for x in leaves]
        self._numbers = {id(x): i for i, x in enumerate(leaves)}
        self._lists = program.lists(leaves)
        first = 1 if program.arrays else 0
        self._lists[first:] = [[v._cell for v in variables] for variables in self._lists[first:]]
        self.cells = self._lists[0] if len(self._lists) == 1 and not program.arrays else None
        # If all Variables belong to one trace level, one comparison per call is enough.
        levels = {id(x._level): x._level for x in leaves if isinstance(x, Variable)}
        self._level = next(iter(levels.values())) if len(levels) == 1 else None
        # for outcomes that only give Variables new values, by identity: the outcome, and the cells of the Variables
        self._targets: dict[int, tuple[Outcome, list[Cell]]] = {}
        # A Variable at several paths, or in a plain container, cannot be followed when it is replaced at one of them.
        n_variables = sum(earlier.n_variables for earlier in self._earlier)
        self._shared = bool(self._contents) or n_variables > sum(x is not None for x in self._metadata)

    def matches(self) -> bool:
        """Whether the plan holds now; Variables that were replaced in the model are replaced in the plan first."""
        epoch_now = EPOCH.value
        if epoch_now == self.epoch and not self.loose:
            return True
        epoch = self.epoch
        swapped: dict[int, Variable[Any]] = {}
        renewed: list[int] = []
        # An unrelated change costs one comparison per node: only nodes that changed have a greater stamp.
        for k, earlier in enumerate(self._earlier):
            node = earlier.node()
            if node is None:
                return False
            exposed = EXPOSED and id(node) in EXPOSED
            if exposed:
                self.loose = True
            if exposed or node._stamp > epoch:
                # The stamp is greater, but each attribute is the same object as before.
                if node._layout is earlier.layout and tuple(map(id, attributes(node).values())) == earlier.own:
                    continue
                before = len(swapped)
                if not self._same(earlier, node, swapped):
                    return False
                if len(swapped) > before:
                    renewed.append(k)
        for leaf, metadata in zip(self.leaves, self._metadata):
            # Metadata are part of the compiled program (shardings, hooks), so other metadata need another plan.
            if metadata is not None and leaf._metadata is not metadata and leaf._metadata != metadata:
                return False
        for earlier, before in self._contents:
            node = earlier.node()
            if node is None or not same_contents(contents(node), _strong(before)):
                return False
        if swapped and not self._swap(swapped, renewed):
            return False
        self.epoch = epoch_now
        return True

    def _same(self, earlier: _Earlier, node: Pytree, swapped: dict[int, Variable[Any]]) -> bool:
        """Whether a node is as it was, except for Variables that were replaced by others of the same kind."""
        layout, data, static = node._structure()
        if layout is not earlier.layout or (static is not earlier.static and static != earlier.static):
            return False
        for x, before in zip(data, earlier.data):
            if id(x) == before:
                continue
            i = None if before is None else self._numbers.get(before)
            if i is None or self._shared or id(x) in self._numbers:
                return False
            known_leaf = self.leaves[i]
            if (
                not isinstance(known_leaf, Variable)
                or type(x) is not type(known_leaf)
                or x._metadata != self._metadata[i]
            ):
                return False
            swapped[i] = x
        return True

    def _swap(self, swapped: dict[int, Variable[Any]], renewed: list[int]) -> bool:
        """Replaces Variables of the plan as they were replaced in the model; False if that is ambiguous.

        The lists are replaced, not changed, so that a call in another thread continues with its own.
        """
        if len({id(x) for x in swapped.values()}) < len(swapped):
            return False  # one Variable is now at two paths
        leaves, metadata, numbers = list(self.leaves), list(self._metadata), dict(self._numbers)
        lists, nodes_before = [*map(list, self._lists)], list(self._earlier)
        for i, x in swapped.items():
            del numbers[id(leaves[i])]
            numbers[id(x)] = i
            leaves[i], metadata[i] = x, x._metadata
            k, position = self.program.positions[i]
            lists[k][position] = x._cell
            if x._level is not self._level:
                self._level = None
        for k in renewed:
            node = nodes_before[k].node()
            if node is None:
                return False
            nodes_before[k] = _Earlier(node)
        self.leaves, self._metadata, self._numbers, self._earlier = leaves, metadata, numbers, nodes_before
        self._lists = lists
        self._targets = {}
        if self.cells is not None:
            self.cells = lists[0]
        return True

    def read(self) -> list[list[Any]]:
        """The values of leaves, as the program takes them."""
        first = 1 if self.program.arrays else 0
        return [*self._lists[:first], *([cell.value for cell in cells] for cells in self._lists[first:])]

    def finish(self, result: Any) -> Any:
        """Applies the outcome of a call to the objects, and returns the output."""
        if type(result) is not tuple:
            return result
        out, leaving = result
        outcome = leaving[1]
        target_cells = self._targets.get(id(outcome))
        if target_cells is None or self._level is not trace_level():
            return self._finish_any(out, leaving)
        # The usual outcome: new values of known Variables, and nothing else.
        for cell, value in zip(target_cells[1], leaving[0][0]):
            cell.value = value
        return out

    def _finish_any(self, out: object, leaving: PureResult) -> Any:
        """The same for outcomes that change more than values, and for those visited for the first time."""
        lists, outcome = leaving
        built = settle(leaving, self.leaves, self._objects)
        plain = not any(self.leaves[i]._metadata.by_reference for i in outcome.changed)
        if outcome.values_only and len(lists) == 1 and plain:
            self._targets[id(outcome)] = (outcome, [self.leaves[i]._cell for i in outcome.changed])
        return out if outcome.definition is None else built

    def output(self, result: Any) -> Any:
        """The output of a call; nothing is changed."""
        if type(result) is not tuple:
            return result
        out, leaving = result
        if leaving[1].definition is None:
            return out
        return settle(leaving, self.leaves, self._objects, output_only=True)

    def _objects(self) -> dict[int, Any]:
        return self.program.structure.objects(self.leaves, [earlier.node() for earlier in self._earlier])


class _Earlier:
    """The earlier attributes of a node, without keeping it or other nodes alive.

    Attributes:
        node: A weak reference to it.
        layout: Which attributes it had.
        data: The identities of its children. The plan keeps Variables and arrays alive, and there is one of these for
            every node, so an identity always means the same object. Containers are compared by content.
        static: Its static attributes.
        own: The identities of all its attributes, in the order they were set: the quickest thing to compare. None if
            that is not all there is to compare.
        containers: Whether some of its children are plain containers.
        n_variables: How many of its children are Variables.
    """

    __slots__ = ("containers", "data", "layout", "n_variables", "node", "own", "static")

    def __init__(self, node: Pytree):
        self.node = weakref.ref(node)
        self.layout, data, self.static = node._structure()
        kinds = [KIND.get(type(x)) for x in data]
        self.n_variables = kinds.count(VARIABLE)
        self.containers = CONTAINER in kinds and any(k == CONTAINER and x is not None for k, x in zip(kinds, data))
        self.data = tuple([None if k == CONTAINER and x is not None else id(x) for k, x in zip(kinds, data)])
        whole = node._only_attributes and not self.containers
        self.own = tuple(map(id, attributes(node).values())) if whole else None


def _weak(held: Contents) -> Any:
    """What containers hold, with weak references to nodes."""
    return held[0], [weakref.ref(x) if kind_of(x) == NODE else x for x in held[1]]


def _strong(held: Contents) -> Any:
    return held[0], [x() if type(x) is weakref.ref else x for x in held[1]]


class LastCall:
    """The last call, in a form that is quick to compare with.

    Attributes:
        plan: Its plan.
        n_args: The number of its positional arguments.
        keywords: The names of those that were given by keyword.
        n_front: How many objects there are, if they are the first positional arguments and all else is plain; or 0.
        roots: Positions of, and weak references to, the arguments that are objects.
        plain: The positions of plain arguments.
        static: Positions and values of static arguments.
        run: The jitted function.
    """

    __slots__ = ("keywords", "n_args", "n_front", "plain", "plan", "roots", "run", "static")

    def __init__(
        self,
        plan: Plan,
        n_args: int,
        keywords: list[str],
        at: dict[int, Any],
        plain: list[int],
        static: list[tuple[int, Any]],
    ):
        self.plan = plan
        self.run = plan.run
        self.n_args = n_args
        self.keywords = keywords
        self.roots = [(i, weakref.ref(root)) for i, root in at.items()]
        in_front = not static and [*at] == list(range(len(at))) and plain == list(range(len(at), len(at) + len(plain)))
        self.n_front = len(at) if in_front and len(at) <= n_args else 0
        self.plain = plain
        self.static = static

    def same_static(self, values: Sequence[Any]) -> bool:
        """Whether the static arguments are equal to those of the last call."""
        for i, value in self.static:
            x = values[i]
            if x is not value and (type(x) is not type(value) or x != value):
                return False
        return True


class Memory:
    """Plans by the identity of their roots, and the last call.

    Attributes:
        plans: By skeleton and identities: weak references to the roots, and plans for their recent structures.
        last: The last call; None if it cannot be recognized quickly.
    """

    __slots__ = ("__weakref__", "last", "plans")

    def __init__(self) -> None:
        self.plans: dict[Any, tuple[list[Any], list[Plan]]] = {}
        self.last: LastCall | None = None

    def find(self, key: Hashable, roots: Sequence[Any], ruled_out: Plan | None) -> Plan | None:
        """The plan for these roots as they are now, if it is known; a plan that was ruled out is not checked again."""
        entry = self.plans.get(key)
        if entry is None:
            return None
        refs, plans = entry
        if not all(ref() is root for ref, root in zip(refs, roots)):
            return None
        for i, plan in enumerate(plans):
            if (plan is not ruled_out or plan.loose) and plan.matches():
                if i:  # the plan used last comes first
                    entry[1][:] = [plan, *plans[:i], *plans[i + 1 :]]
                return plan
        return None

    def is_current(self, key: Hashable, plan: Plan) -> bool:
        """Whether a plan is the one used last for its roots."""
        entry = self.plans.get(key)
        return entry is not None and entry[1][0] is plan

    def keep(self, key: Hashable, roots: Sequence[Any], plan: Plan) -> None:
        """Keeps a plan while all its roots live; not at all if a root has no weak references."""
        entry = self.plans.get(key)
        if entry is not None and all(ref() is root for ref, root in zip(entry[0], roots)):
            entry[1][:] = [plan, *entry[1][: KNOWN_STRUCTURES - 1]]
            return
        # Weak, or the callbacks of the roots would keep the jitted function alive.
        me = weakref.ref(self)

        def forget(_: weakref.ref[Any]) -> None:
            memory = me()
            if memory is None:
                return
            memory.plans.pop(key, None)
            last = memory.last
            if last is not None and any(root() is None for _, root in last.roots):
                memory.last = None

        try:
            self.plans[key] = ([weakref.ref(root, forget) for root in roots], [plan])
        except TypeError:
            return
        if len(self.plans) > PROGRAMS:  # for static arguments that are never used again
            self.plans.pop(next(iter(self.plans)), None)
