"""The one walk over models.

`walk` goes through an object (or any pytree of objects) once and returns its leaves with their paths, its nodes, and
its definition (see `definitions`). `split`, `state`, `clone`, `iter_graph`, `to_tree` and the transforms all use its
result.

Two modes. With `graph=True` an object found twice is one object (the definition holds a reference), and numbers or
strings in plain containers are part of the structure. With `graph=False` the object is a tree, as JAX
sees it: everything among the data is a leaf, and meeting a Variable twice is an error that names both paths.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sonde.nnx.states import traversals
from sonde.nnx.states.state import State
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import REFERENCE, Path, flatten_once, values_below
from sonde.nnx.structure.epoch import EPOCH
from sonde.nnx.structure.layout import Layout
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, KIND, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx.variable.array_references import is_reference
from sonde.nnx.variable.variable import Variable


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Walk:
    """What a walk found.

    Attributes:
        epoch: The structure epoch from before the walk.
        definition: How to build the object again.
        leaves: Variables and other leaves, each once, in the order of states.
        paths: Their paths.
        nodes: Pairs of path and node (Pytrees and Modules), each once, children before parents.
        loose: Lists and dicts whose changes do not bump the epoch.
    """

    epoch: int = dataclasses.field(default_factory=lambda: EPOCH.value)
    definition: Any = None
    leaves: list[Any] = dataclasses.field(default_factory=list)
    paths: list[Path] = dataclasses.field(default_factory=list)
    nodes: list[tuple[Path, Any]] = dataclasses.field(default_factory=list)
    loose: list[Any] = dataclasses.field(default_factory=list)

    def flat(self) -> Iterator[tuple[Path, Any]]:
        """Pairs of path and leaf."""
        return zip(self.paths, self.leaves)

    def state(self) -> Any:
        """The leaves as a State; of a lone Variable or array, the leaf itself."""
        if self.paths == [()]:
            return self.leaves[0]
        return State(traversals.unflatten_mapping(self.flat()), _copy=False)


def walk(
    root: object,
    *,
    graph: bool,
    verb: str,
    numbers: bool = False,
    seen: dict[int, int] | None = None,
    again: bool = False,
    everything: list[tuple[Path, Any]] | None = None,
) -> Walk:
    """Goes through `root` once.

    Args:
        root: A node, a Variable, an array, or a pytree of them.
        graph: Whether an object may be found twice.
        verb: The name of the calling function, for messages.
        numbers: Whether numbers and other plain values among the data are leaves even with `graph=True`, as for JAX.
        seen: Indices of objects visited in earlier walks, to number several roots as one; new objects are added to it.
        again: Whether to visit `root`, a node, even if an earlier walk visited it.
        everything: A list that gets pairs of path and value of everything visited, static attributes included (in graph
            mode), children before parents.

    Raises:
        ValueError: With `graph=False`, a Variable occurs twice, or an object contains itself.
    """
    walker = _Walker(root, graph, verb, numbers, {} if seen is None else seen, everything)
    walker.found.definition = walker.visit_node(root, (), again=True) if again else walker.visit_data(root, ())
    return walker.found


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Walker:
    """A walk in progress: the arguments of `walk`, and what was visited so far."""

    root: object
    graph: bool
    verb: str
    numbers: bool
    seen: dict[int, int]
    everything: list[tuple[Path, Any]] | None
    found: Walk = dataclasses.field(default_factory=Walk)
    leaves: list[Any] = dataclasses.field(init=False)  # those of `found`, without a lookup for each
    paths: list[Path] = dataclasses.field(init=False)
    entered: set[int] = dataclasses.field(default_factory=set)
    announced: set[int] = dataclasses.field(default_factory=set)  # dicts inside States, whose changes bump the epoch

    def __post_init__(self) -> None:
        self.leaves, self.paths = self.found.leaves, self.found.paths

    def visit(self, value: Any, path: Path) -> Any:
        """The definition of any value."""
        # A lookup first: most types are known, and a model has thousands of values.
        kind = KIND.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind == VARIABLE:
            result = self.visit_variable(value, path)
        elif kind == NODE:
            if not (self.graph or value._is_pytree):
                raise not_a_tree(value, path, self.verb)
            result = self.visit_node(value, path)
        elif kind == ARRAY or ((self.numbers or not self.graph) and kind != CONTAINER):
            result = self.leaf(value, path)
        elif kind == CONTAINER and value is not None:
            result = self.visit_container(value, path)
        else:
            result = (OTHER, value)
        if self.everything is not None and result[0] != REFERENCE:
            self.everything.append((path, value))
        return result

    def leaf(self, value: Any, path: Path) -> Any:
        """Adds an array, or a value treated as one, to the leaves; an array reference only when it is first visited."""
        index = None
        # References are leaves with an identity; arrays have none, so equal arrays are separate leaves.
        if is_reference(value):
            if (before := self.seen.get(id(value))) is not None:
                if not self.graph:
                    raise alias_error(self.root, value, self.verb)
                return (REFERENCE, before)
            self.seen[id(value)] = index = len(self.seen)
        self.leaves.append(value)
        self.paths.append(path)
        return (ARRAY,) if index is None else (ARRAY, index if self.graph else None)

    def visit_variable(self, value: Variable[Any], path: Path) -> Any:
        """A Variable: a leaf when it is first visited."""
        seen, graph = self.seen, self.graph
        index = seen.get(id(value))
        if index is not None:
            if not graph:
                raise alias_error(self.root, value, self.verb)
            return (REFERENCE, index)
        # Numbered by identity: the root keeps all of them alive, so no id is used twice during the walk.
        seen[id(value)] = index = len(seen)
        self.leaves.append(value)
        self.paths.append(path)
        return (VARIABLE, type(value), index if graph else None, value._metadata)

    def visit_data(self, value: Any, path: Path) -> Any:
        """A data attribute: a number in it is a leaf, but a number in a container among the data is not."""
        result = self.visit(value, path)
        return self.leaf(value, path) if result[0] == OTHER and value is not None else result

    def visit_node(self, value: Any, path: Path, again: bool = False) -> Any:
        """A Pytree or Module, with all that is below it; with `again`, even if it was visited before."""
        key, index = id(value), None
        if self.graph:
            index = self.seen.get(key)
            if index is None:
                self.seen[key] = index = len(self.seen)
            elif not again:
                return (REFERENCE, index)
        else:
            self.enter(value)
        start = len(self.leaves)
        layout, data, static = value._structure()
        # JAX takes every number among the data of a pytree class for a leaf, but never looks into other classes.
        visit = self.visit if self.graph and not value._is_pytree else self.visit_data
        if self.everything is not None and self.graph:
            children = self.children_and_statics(layout, data, static, path, visit)
        else:
            children = []
            for name, child in zip(layout.data, data):
                # Most children are Variables: visit them directly, without `visit`.
                is_variable = KIND.get(type(child)) == VARIABLE and self.everything is None
                children.append((self.visit_variable if is_variable else visit)(child, (*path, name)))
        if not self.graph:
            self.entered.discard(key)
        self.found.nodes.append((path, value))
        n = len(self.leaves) - start
        return (NODE, type(value), index, layout, static, tuple(children), _entries(children), n)

    def children_and_statics(
        self, layout: Layout, data: Sequence[Any], static: Sequence[Any], path: Path, visit: Callable[[Any, Path], Any]
    ) -> list[Any]:
        """The definitions of the data attributes. Visits the static attributes too, all in the order of their names."""
        children = []
        for name, is_data, i in layout.turns:
            if is_data:
                children.append(visit(data[i], (*path, name)))
            else:
                self.visit_static(static[i], (*path, name))
        return children

    def visit_static(self, value: Any, path: Path) -> None:
        """A static attribute, and what is in it."""
        assert self.everything is not None
        if kind_of(value) == CONTAINER and value is not None:
            for name, child in zip(*flatten_once(value)[:2]):
                self.visit_static(child, (*path, name))
        self.everything.append((path, value))

    def visit_container(self, value: Any, path: Path) -> Any:
        """A list, tuple, dict, State or another pytree of JAX."""
        start = len(self.leaves)
        self.enter(value)
        keys, children, rebuild = flatten_once(value)
        # Plain lists and dicts change without a new epoch: plans made from this walk must compare what they hold.
        if type(value) is State:
            self.announce(value.raw_mapping)
        elif isinstance(value, list) or (isinstance(value, dict) and id(value) not in self.announced):
            self.found.loose.append(value)
        definitions = tuple([self.visit(child, (*path, name)) for name, child in zip(keys, children)])
        self.entered.discard(id(value))
        n = len(self.leaves) - start
        return (CONTAINER, type(value), keys, rebuild, definitions, _entries(definitions), n)

    def enter(self, value: Any) -> None:
        """Notes that the walk is inside a value, which must not contain itself."""
        if id(value) in self.entered:
            raise alias_error(self.root, value, self.verb)
        self.entered.add(id(value))

    def announce(self, mapping: dict[Any, Any]) -> None:
        """Notes the dicts of a State, whose changes bump the epoch."""
        self.announced.add(id(mapping))
        for inner in mapping.values():
            if type(inner) is dict:
                self.announce(inner)


def _entries(definitions: Iterable[Any]) -> int:
    """How many of the definitions have leaves."""
    n = 0
    for d in definitions:
        tag = d[0]
        if tag == VARIABLE or tag == ARRAY or ((tag == NODE or tag == CONTAINER) and d[-1]):  # noqa: SIM109
            n += 1
    return n


def objects_of(walks: Iterable[Walk], seen: Mapping[int, int]) -> dict[int, Any]:
    """The nodes and Variables that walks visited, by number."""
    objects = [x for walked in walks for x in (*(node for _, node in walked.nodes), *walked.leaves)]
    return {seen[id(x)]: x for x in objects if id(x) in seen}


def _paths_to(target: object, value: object, path: Path, entered: set[int]) -> Iterator[Path]:
    """Every path of `target` in `value`; what is inside itself is not entered again."""
    if value is target:
        yield path
    if id(value) in entered:
        return
    entered.add(id(value))
    for key, child in zip(*values_below(value)):
        yield from _paths_to(target, child, (*path, key), entered)
    entered.discard(id(value))


def not_a_tree(value: object, path: Path, verb: str) -> ValueError:
    """The error for an object that is not a pytree, in tree mode."""
    return ValueError(
        f"nnx.{verb} was asked to treat its input as a tree (graph=False), but {type(value).__name__} is declared with "
        f"pytree=False. Found at path: {show_path(path)}. Pass graph=True: nnx.{verb}(..., graph=True)."
    )


def alias_error(root: object, target: object, verb: str) -> ValueError:
    """The error for an object found twice in tree mode."""
    paths = itertools.islice(_paths_to(target, root, (), set()), 2)
    places = "\n".join(f"  - {show_path(path)}" for path in paths)
    return ValueError(
        f"Duplicate {type(target).__name__} found at paths:\n\n{places}\n\nnnx.{verb} was asked to treat its input "
        f"as a tree (graph=False), but a tree has no shared references. Either make the second one a copy, or pass "
        f"graph=True: nnx.{verb}(..., graph=True)."
    )
