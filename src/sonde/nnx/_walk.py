"""The one walk over models, and the one way back.

`walk` goes through an object (or any pytree of objects) once and returns its leaves with their paths, its nodes, and a
`definition`: nested tuples that say how to build it again. `split`, `state`, `clone`, `iter_graph`, `to_tree`, the
transforms: all of them read what this walk found; `build` is the way back from a definition and a list of leaves.

Two modes. With `graph=True` an object met twice is one object (the definition holds a reference), and numbers or
strings in plain containers are part of the structure. With `graph=False` the object is a tree, as JAX
sees it: everything among the data is a leaf, and meeting a Variable twice is an error that names both paths.

Definitions are tuples so that Python compares and hashes them in C:

    (VARIABLE, class, index, metadata)      a leaf that is a Variable; trees have no indices
    (ARRAY,)                                a leaf that is not
    (OTHER, value)                          part of the structure
    (REFERENCE, index)                      the object that was met before under that index
    (NODE, class, index, layout, static values, definitions of the data attributes, entries, leaves)
    (CONTAINER, class, keys, how to unflatten it, definitions of the children, entries, leaves)

where `leaves` is how many leaves there are below, and `entries` how many children have some: the entries that a state
has at this place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from sonde._jax import trace_level
from sonde.nnx import traversals
from sonde.nnx._epoch import EPOCH
from sonde.nnx._kinds import ARRAY, CONTAINER, KIND, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx.pytree import _set_dict, _set_layout, _set_level, _set_stamp
from sonde.nnx.states import FlatState, State
from sonde.nnx.variable import Variable

REFERENCE = 5
_OPENED = (list, tuple, dict)
_INNER = (NODE, CONTAINER)
Path = tuple[Any, ...]


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
    who: str,
    numbers: bool = False,
    seen: dict[int, int] | None = None,
    again: bool = False,
    everything: list[tuple[Path, Any]] | None = None,
) -> Walk:
    """Goes through `root` once.

    Args:
        root: a node, a Variable, an array, or a pytree of them.
        graph: whether an object may be met twice.
        who: the function that asks, for messages.
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
                    raise alias_error(root, value, who)
                return (REFERENCE, index)
            seen[id(value)] = index = len(seen)
            leaves.append(value)
            paths.append(path)
            result = (VARIABLE, type(value), index if graph else None, value._metadata)
        elif kind == NODE:
            if not (graph or value._is_pytree):
                raise not_a_tree(value, path, who)
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
                raise alias_error(root, value, who)
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
            raise alias_error(root, value, who)
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
        visit = visit_node = visit_data = visit_static = announce = visit_container = _released


def _entries(definitions: Iterable[Any]) -> int:
    """How many of some definitions have leaves."""
    n = 0
    for d in definitions:
        tag = d[0]
        if tag == VARIABLE or tag == ARRAY or ((tag == NODE or tag == CONTAINER) and d[-1]):  # noqa: SIM109
            n += 1
    return n


def flatten_once(value: Any) -> tuple[tuple[Any, ...], list[Any], Any]:
    """Keys and children of a container, and what `unflatten_once` needs beside its class and keys."""
    cls = type(value)
    if cls is list or cls is tuple:
        return tuple(range(len(value))), list(value), None
    if cls is dict:
        keys = tuple(traversals.sorted_keys(value))
        return keys, [value[key] for key in keys], tuple(value)
    if cls is State:
        mapping = value.raw_mapping
        keys = tuple(traversals.sorted_keys(mapping))
        return keys, [mapping[key] for key in keys], None
    with_paths, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    return tuple(_name(path[0]) for path, _ in with_paths), [child for _, child in with_paths], structure


def _name(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)


def unflatten_once(cls: type, keys: tuple[Any, ...], rebuild: Any, children: list[Any]) -> Any:
    """The inverse of `flatten_once`."""
    if cls is list:
        return children
    if cls is tuple:
        return tuple(children)
    if cls is dict:
        by_key = dict(zip(keys, children))
        return {key: by_key[key] for key in rebuild}  # in the order in which the dict had them
    if cls is State:
        return State(dict(zip(keys, children)), _copy=False)
    return jax.tree_util.tree_unflatten(rebuild, children)


def _released(*args: Any, **kwargs: Any) -> Any:
    """Takes the place of the functions that `walk` and `build` consist of, when these are done.

    Functions that refer to each other keep each other alive, and with them the model, until the garbage collector
    comes by. They are functions inside a function because that is the quickest way to share what they work on.
    """
    raise AssertionError("a walk goes on although it is over")


class _Misfit(Exception):
    """A state has not the entries that a definition says."""


def build(
    definition: Any,
    leaves: Iterable[Any] | None = None,
    *,
    state: Any = None,
    known: dict[Any, Any] | None = None,
    finish: Callable[[Path, Any], Any] | None = None,
    recreate: bool = True,
    prototypes: dict[int, dict[Any, Any]] | None = None,
    remember: bool = True,
) -> Any:
    """Builds the object that a definition describes.

    Args:
        definition: what `walk` made.
        leaves: in the order of the walk. A leaf that is a Variable becomes part of the object as it is; another value
            in the place of a Variable gets a Variable around it.
        state: instead of `leaves`, a State or nested mapping with the leaves.
        known: objects by index, for several definitions that share a numbering; it is added to.
        finish: called with path and value on everything that is built, children before parents; what it returns
            takes the place of the value. Only with `leaves`.
        recreate: False leaves values in the place of Variables bare.
        prototypes: attributes of nodes by the identity of their definition, kept from one call to the next by somebody
            who keeps the definition; copying a dict is cheaper than making one.
        remember: False if the definition has no references, and nobody asked for `known`.

    Raises:
        ValueError: the state lacks leaves, or has others than the definition.
    """
    known = {} if known is None else known
    level = trace_level()
    from_state = leaves is None
    next_leaf = iter(leaves or ()).__next__
    new_object = object.__new__

    def make(d: Any, source: Any) -> Any:
        tag = d[0]
        if tag == NODE:
            _, cls, index, layout, static, children, entries, n = d
            # `_blank` and `_fill` in place, because a model has many nodes: attributes are copied from a prototype
            direct = prototypes is not None and cls._only_attributes
            if prototypes is not None and direct:
                node = new_object(cls)
                _set_layout(node, layout)
                _set_level(node, level)
                _set_stamp(node, 0)
                values = prototypes.get(id(d))
                if values is None:
                    values = prototypes[id(d)] = dict.fromkeys(layout.data)
                    values.update(zip(layout.static, static))
                values = values.copy()
            else:
                node = cls._blank(layout, level)
                values = {}
            if remember:
                known[index] = node
            if from_state and n and (type(source) is not dict or len(source) != entries):
                source = _plain_mapping(source, entries)
            for name, child in zip(layout.data, children):
                tag = child[0]
                if tag == VARIABLE:  # what `make` does, without the call
                    value = source[name] if from_state else next_leaf()
                    if recreate and not isinstance(value, Variable):
                        value = child[1]._make(value, child[3])
                    values[name] = value
                    if remember:
                        known[child[2]] = value
                elif from_state and (tag == ARRAY or (tag in _INNER and child[-1])):
                    values[name] = make(child, source[name])
                else:
                    values[name] = make(child, None)
            if direct:
                _set_dict(node, values)
            else:
                node._fill(layout, values.values(), static)
            return node
        if tag == VARIABLE:
            value = source if from_state else next_leaf()
            if recreate and not isinstance(value, Variable):
                value = d[1]._make(value, d[3])
            known[d[2]] = value
            return value
        if tag == ARRAY:
            return source if from_state else next_leaf()
        if tag == OTHER:
            return d[1]
        if tag == REFERENCE:
            return known[d[1]]
        _, cls, keys, rebuild, children, entries, n = d
        if not (from_state and n):
            return unflatten_once(cls, keys, rebuild, [make(child, None) for child in children])
        source = _plain_mapping(source, entries)
        made = [make(child, source[key] if count_leaves(child) else None) for key, child in zip(keys, children)]
        return unflatten_once(cls, keys, rebuild, made)

    def make_and_finish(d: Any, path: Path, finish: Callable[[Path, Any], Any]) -> Any:
        tag = d[0]
        if tag == REFERENCE:
            return known[d[1]]
        if tag == NODE:
            _, cls, index, layout, static, children, _, _ = d
            known[index] = node = cls._blank(layout, level)
            data, others = [], []
            for name, is_data, i in layout.turns:
                if is_data:
                    data.append(make_and_finish(children[i], path + (name,), finish))
                else:  # a tree has no static parts to go through
                    others.append(static[i] if index is None else finish(path + (name,), static[i]))
            node._fill(layout, data, others)
            known[index] = node = finish(path, node)
            return node
        if tag == CONTAINER:
            _, cls, keys, rebuild, children, _, _ = d
            made = [make_and_finish(child, path + (key,), finish) for key, child in zip(keys, children)]
            return finish(path, unflatten_once(cls, keys, rebuild, made))
        value = finish(path, make(d, None))
        if tag == VARIABLE:
            known[d[2]] = value
        return value

    if isinstance(state, FlatState):
        state = traversals.unflatten_mapping(state)
    before = dict(known) if from_state else {}
    try:
        return make(definition, state) if finish is None else make_and_finish(definition, (), finish)
    except (KeyError, _Misfit):
        if not from_state:
            raise
        known.clear()
        known.update(before)
        return build(definition, collect(definition, state), known=known, recreate=recreate)
    finally:
        make = make_and_finish = _released


def _plain_mapping(state: Any, entries: int) -> Any:
    if type(state) is not dict:
        if isinstance(state, State):
            state = state.raw_mapping
        elif not isinstance(state, Mapping):
            raise _Misfit
    if len(state) != entries:
        raise _Misfit
    return state


def collect(definition: Any, state: Any) -> list[Any]:
    """The leaves of a state in the order in which `build` wants them.

    Raises:
        ValueError: the state lacks leaves, or has others than the definition.
    """
    tag = definition[0]
    if tag in (VARIABLE, ARRAY):
        return [state]
    if tag in (OTHER, REFERENCE):
        return []
    out: list[Any] = []
    missing: list[Path] = []
    surplus: list[Path] = []
    _gather(definition, state, (), out, missing, surplus)
    if missing or surplus:
        expected = definition[-1]
        parts = [f"missing: {_names(missing)}"] if missing else []
        parts += [f"not expected: {_names(surplus)}"] if surplus else []
        raise ValueError(
            f"the states do not fit the GraphDef, which has {expected} leaves ({'; '.join(parts)}). "
            f"Pass all states that nnx.split returned, each leaf once."
        )
    return out


def _gather(d: Any, mapping: Any, path: Path, out: list[Any], missing: list[Path], surplus: list[Path]) -> None:
    """Adds the leaves of a node or container to `out`, and the paths that are only on one side to the other two."""
    names, children = (d[3].data, d[5]) if d[0] == NODE else (d[2], d[4])
    if type(mapping) is not dict:
        if isinstance(mapping, State):
            mapping = mapping.raw_mapping
        elif not isinstance(mapping, Mapping):
            missing.append(path)
            surplus.append(path)
            return
    used = 0
    for name, child in zip(names, children):
        if not count_leaves(child):
            continue
        if name not in mapping:
            missing.append((*path, name))
            continue
        used += 1
        if child[0] in (VARIABLE, ARRAY):
            out.append(mapping[name])
        else:
            _gather(child, mapping[name], (*path, name), out, missing, surplus)
    if used != len(mapping):
        _surplus(d, mapping, path, surplus)


def _surplus(d: Any, mapping: Mapping[Any, Any], path: Path, surplus: list[Path]) -> None:
    names, children = (d[3].data, d[5]) if d[0] == NODE else (d[2], d[4])
    wanted = {
        name
        for name, child in zip(names, children)
        if child[0] in (VARIABLE, ARRAY) or (child[0] in (NODE, CONTAINER) and child[-1])
    }
    for name, value in mapping.items():
        if name not in wanted and not (isinstance(value, Mapping) and not traversals.flatten_mapping(value)):
            surplus.append((*path, name))


def _names(paths: list[Path]) -> str:
    shown = ", ".join("/".join(map(str, path)) or "(the root)" for path in paths[:8])
    return shown + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")


def count_leaves(definition: Any) -> int:
    """How many leaves a definition has."""
    tag = definition[0]
    if tag in (NODE, CONTAINER):
        return definition[-1]
    return 1 if tag in (VARIABLE, ARRAY) else 0


def has_references(definition: Any) -> bool:
    """Whether some object in a definition stands in several places."""
    tag = definition[0]
    if tag in _INNER:
        return any(map(has_references, definition[5 if tag == NODE else 4]))
    return tag == REFERENCE


def show_path(path: Path) -> str:
    """A path as messages show it."""
    return "/".join(map(str, path)) or "(the root)"


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


def not_a_tree(value: Any, path: Path, who: str) -> ValueError:
    """The error for an object that is no pytree, in tree mode."""
    return ValueError(
        f"nnx.{who} was asked to treat its input as a tree (graph=False), and {type(value).__name__} is declared with "
        f"pytree=False. Found at path: {show_path(path)}. Pass graph=True: nnx.{who}(..., graph=True)."
    )


def alias_error(root: Any, target: Any, who: str) -> ValueError:
    """The error for an object met twice in tree mode."""
    paths = paths_of(root, target)
    places = "\n".join(f"  - {show_path(path)}" for path in paths[:2])
    what = f"{type(target).__name__}"
    return ValueError(
        f"Duplicate {what} found at paths:\n\n{places}\n\nnnx.{who} was asked to treat its input as a tree "
        f"(graph=False), and a tree has no shared references. Either make the second one a copy, or pass graph=True: "
        f"nnx.{who}(..., graph=True)."
    )
