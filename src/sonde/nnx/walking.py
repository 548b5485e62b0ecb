"""The one walk over models.

`walk` goes through an object (or any pytree of objects) once and returns its leaves with their paths, its nodes, and
its definition (see `definitions`). `split`, `state`, `clone`, `iter_graph`, `to_tree`, the transforms: all of them read
what this walk found.

Two modes. With `graph=True` an object met twice is one object (the definition holds a reference), and numbers or
strings in plain containers are part of the structure. With `graph=False` the object is a tree, as JAX
sees it: everything among the data is a leaf, and meeting a Variable twice is an error that names both paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sonde.nnx._epoch import EPOCH
from sonde.nnx._kinds import ARRAY, CONTAINER, KIND, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx.definitions import REFERENCE, Path, flatten_once, show_path
from sonde.nnx.states import State

_OPENED = (list, tuple, dict)


class Walk:
    """What a walk found.

    Attributes:
        epoch: the structure epoch from before the walk.
        definition: how to build the object again.
        leaves: Variables and other leaves, each once, in the order of states.
        paths: their paths.
        nodes: pairs of path and node (Pytrees and Modules), each once, children before parents.
        loose: lists and dicts whose changes do not move the epoch.
    """

    __slots__ = ("definition", "epoch", "leaves", "loose", "nodes", "paths")

    def __init__(self) -> None:
        self.epoch = EPOCH.value
        self.definition: Any = None
        self.leaves: list[Any] = []
        self.paths: list[Path] = []
        self.nodes: list[tuple[Path, Any]] = []
        self.loose: list[Any] = []

    def flat(self) -> Iterator[tuple[Path, Any]]:
        """Pairs of path and leaf."""
        return zip(self.paths, self.leaves)


def walk(
    root: Any,
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
        root: a node, a Variable, an array, or a pytree of them.
        graph: whether an object may be met twice.
        verb: the function that asks, for messages.
        numbers: whether numbers and the like among the data are leaves with `graph=True` too, as JAX sees them.
        seen: indices of objects met in earlier walks, to number several roots as one; it is added to.
        again: whether to go through `root`, a node, although it was met in an earlier walk.
        everything: a list that gets pairs of path and value of every thing met, static attributes included (in graph
            mode), children before parents.

    Raises:
        ValueError: with `graph=False`, a Variable is met twice, or an object contains itself.
    """
    found = Walk()
    seen = {} if seen is None else seen
    leaves, paths, nodes = found.leaves, found.paths, found.nodes
    entered: set[int] = set()
    announced: set[int] = set()  # dicts inside of States, whose changes move the epoch

    def visit(value: Any, path: Path) -> Any:
        kind = KIND.get(type(value))
        if kind is None:
            kind = kind_of(value)
        if kind == VARIABLE:
            index = seen.get(id(value))
            if index is not None:
                if not graph:
                    raise alias_error(root, value, verb)
                return (REFERENCE, index)
            seen[id(value)] = index = len(seen)
            leaves.append(value)
            paths.append(path)
            result = (VARIABLE, type(value), index if graph else None, value._metadata)
        elif kind == NODE:
            if not (graph or value._is_pytree):
                raise not_a_tree(value, path, verb)
            result = visit_node(value, path)
            if result[0] == REFERENCE:
                return result
        elif kind == ARRAY or ((numbers or not graph) and kind != CONTAINER):
            leaves.append(value)
            paths.append(path)
            result = (ARRAY,)
        elif kind == CONTAINER and value is not None:
            result = visit_container(value, path)
        else:
            result = (OTHER, value)
        if everything is not None:
            everything.append((path, value))
        return result

    def visit_node(value: Any, path: Path, again: bool = False) -> Any:
        key = id(value)
        if graph:
            index = seen.get(key)
            if index is None:
                seen[key] = index = len(seen)
            elif not again:
                return (REFERENCE, index)
        else:
            index = None
            if key in entered:
                raise alias_error(root, value, verb)
            entered.add(key)
        start = len(leaves)
        layout, data, static = value._structure()
        visit_child = visit if graph and not value._is_pytree else visit_data
        children = []
        if everything is not None and graph:
            # static attributes take their turn in the order of names; what is found there is no leaf of the state
            for name, is_data, i in layout.turns:
                if is_data:
                    children.append(visit_child(data[i], path + (name,)))
                elif type(static[i]) in _OPENED:
                    visit_static(static[i], path + (name,))
                else:
                    everything.append((path + (name,), static[i]))
        else:
            for name, child in zip(layout.data, data):
                if KIND.get(type(child)) == VARIABLE and id(child) not in seen and everything is None:
                    # what `visit` does, without the call: most children are Variables met for the first time
                    seen[id(child)] = child_index = len(seen)
                    leaves.append(child)
                    paths.append(path + (name,))
                    children.append((VARIABLE, type(child), child_index if graph else None, child._metadata))
                else:
                    children.append(visit_child(child, path + (name,)))
        if not graph:
            entered.discard(key)
        nodes.append((path, value))
        n = len(leaves) - start
        return (NODE, type(value), index, layout, static, tuple(children), _entries(children), n)

    def visit_data(value: Any, path: Path) -> Any:
        """A data attribute: whatever it holds is a leaf, while a number in a container among the data is none."""
        result = visit(value, path)
        if result[0] == OTHER and value is not None:
            leaves.append(value)
            paths.append(path)
            return (ARRAY,)
        return result

    def visit_static(value: Any, path: Path) -> None:
        assert everything is not None
        if type(value) in _OPENED:
            for name, child in zip(*flatten_once(value)[:2]):
                visit_static(child, path + (name,))
        everything.append((path, value))

    def announce(mapping: dict[Any, Any]) -> None:
        announced.add(id(mapping))
        for inner in mapping.values():
            if type(inner) is dict:
                announce(inner)

    def visit_container(value: Any, path: Path) -> Any:
        start = len(leaves)
        key = id(value)
        if key in entered:
            raise alias_error(root, value, verb)
        entered.add(key)
        keys, children, rebuild = flatten_once(value)
        if type(value) is State:
            announce(value.raw_mapping)
        elif isinstance(value, list) or (isinstance(value, dict) and id(value) not in announced):
            found.loose.append(value)
        definitions = tuple([visit(child, path + (name,)) for name, child in zip(keys, children)])
        entered.discard(key)
        n = len(leaves) - start
        return (CONTAINER, type(value), keys, rebuild, definitions, _entries(definitions), n)

    try:
        found.definition = visit_node(root, (), again=True) if again else visit_data(root, ())
        return found
    finally:
        visit = visit_node = visit_data = visit_static = announce = visit_container = released


def _entries(definitions: Iterable[Any]) -> int:
    """How many of some definitions have leaves."""
    n = 0
    for d in definitions:
        tag = d[0]
        if tag == VARIABLE or tag == ARRAY or ((tag == NODE or tag == CONTAINER) and d[-1]):  # noqa: SIM109
            n += 1
    return n


def released(*args: Any, **kwargs: Any) -> Any:
    """Takes the place of the functions that `walk` consists of, when it is done.

    Functions that refer to each other keep each other alive, and with them the model, until the garbage collector
    comes by. They are functions inside a function because that is the quickest way to share what they work on.
    """
    raise AssertionError("a walk goes on although it is over")


def paths_of(root: Any, target: Any) -> list[Path]:
    """Every path at which an object is found, looking through it once; for messages."""
    found: list[Path] = []
    entered: set[int] = set()

    _look_for(target, root, (), found, entered)
    return found


def _look_for(target: Any, value: Any, path: Path, found: list[Path], entered: set[int]) -> None:
    if value is target:
        found.append(path)
        if len(found) > 1 or id(value) in entered:
            return
    kind = kind_of(value)
    if id(value) in entered or value is None:
        return
    if kind == NODE:
        layout, data, _ = value._structure()
        keys, children = layout.data, data
    elif kind == CONTAINER:
        keys, children, _ = flatten_once(value)
    else:
        return
    entered.add(id(value))
    for key, child in zip(keys, children):
        _look_for(target, child, (*path, key), found, entered)
    entered.discard(id(value))


def not_a_tree(value: Any, path: Path, verb: str) -> ValueError:
    """The error for an object that is no pytree, in tree mode."""
    return ValueError(
        f"nnx.{verb} was asked to treat its input as a tree (graph=False), and {type(value).__name__} is declared with "
        f"pytree=False. Found at path: {show_path(path)}. Pass graph=True: nnx.{verb}(..., graph=True)."
    )


def alias_error(root: Any, target: Any, verb: str) -> ValueError:
    """The error for an object met twice in tree mode."""
    paths = paths_of(root, target)
    places = "\n".join(f"  - {show_path(path)}" for path in paths[:2])
    what = f"{type(target).__name__}"
    return ValueError(
        f"Duplicate {what} found at paths:\n\n{places}\n\nnnx.{verb} was asked to treat its input as a tree "
        f"(graph=False), and a tree has no shared references. Either make the second one a copy, or pass graph=True: "
        f"nnx.{verb}(..., graph=True)."
    )
