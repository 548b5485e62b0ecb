"""The one lifting behind all transforms.

A transform of JAX wants a pure function of arrays; a user has a function of Modules. Every transform here goes the same
way, whatever it does in the middle:

    taken = take("vmap", graph, args=args, kwargs=kwargs)   # walk the arguments once; in tree mode, refuse aliases

    def pure(values):                                       # a function of a flat list of arrays
        entered = taken.enter(values)                       # copies of the arguments that belong to the inner trace
        out = fn(*entered.args, **entered.kwargs)
        return entered.leave(out)                           # the output, and only the Variables that changed

    return taken.settle(jax.vmap(pure)(taken.values))       # write to the caller's Variables, build the output

The caller's objects are not touched before `settle`: a call that fails changes nothing, and other threads never see a
tracer. What the function does to the *structure* of its arguments (new attributes, other static values) happens to the
copies and is forgotten, as in Flax with `graph_updates=False`; values and metadata of Variables come back.

What leaves the pure function is a pair: a tuple of lists of arrays, and an `Outcome`, a pytree node without leaves that
says what the arrays are. There is one list for every kind of treatment that a transform was asked for (`out_axes`,
`out_specs`), so that the transform can be told about each by a tuple, without knowing the output beforehand.

Captures: `Taken.enter` is the only place where copies of the caller's Modules are made (`nnx.jit` included), and
`module_sites.carry` is told there which copy stands for which original.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from sonde.core.context import looking
from sonde.nnx import _epoch, module_sites
from sonde.nnx._kinds import NODE, VARIABLE, kind_of
from sonde.nnx._walk import Path, Walk, build, show_path, walk
from sonde.nnx.graph import GraphDef
from sonde.nnx.variable import Variable, _set_metadata, _set_value

Assign = Callable[[Any, Sequence[Path], Sequence[Any]], Sequence[int]]


@jax.tree_util.register_pytree_with_keys_class
class Call:
    """Named arguments as one object to walk; the names are the first parts of the paths in messages."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...], values: Sequence[Any]):
        self.names = names
        self.values = values

    def tree_flatten_with_keys(self) -> Any:
        """The values are the children, the names their keys."""
        return [(jax.tree_util.DictKey(n), v) for n, v in zip(self.names, self.values)], self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Any) -> Call:
        """The inverse."""
        return cls(names, tuple(values))


@jax.tree_util.register_static
class Fixed:
    """An argument that is part of the structure: compared and hashed, never traced."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Fixed({self.value!r})"


def walked(names: tuple[str, ...], values: Sequence[Any], *, who: str, graph: bool) -> Walk:
    """What a walk finds in named values.

    The functions inside `walk` call each other, so they wait for a garbage collection, and until then hold what they
    walked and what they found. A model must not live on for that: they are left with empty things.
    """
    call = Call(names, values)
    try:
        found = walk(call, graph=graph, who=who, numbers=True)
    finally:
        call.values = ()
    kept = Walk()
    kept.epoch, kept.definition, kept.paths = found.epoch, found.definition, found.paths
    for name in ("leaves", "nodes", "loose"):
        met = getattr(found, name)
        setattr(kept, name, met.copy())
        met.clear()
    return kept


class Structure:
    """What arguments are, without their values: equal for calls that may share a trace.

    Attributes:
        definition: how to build them, see `sonde.nnx._walk`.
        paths: the paths of the leaves.
        kinds: for each leaf that is a Variable its class and metadata, else None.
        n_args: how many of the arguments are positional; the others are keywords.
        names: all arguments as messages call them.
        keywords: the names of the keyword arguments.
    """

    __slots__ = ("definition", "graphdef", "keywords", "kinds", "n_args", "names", "paths")

    def __init__(self, found: Any, names: tuple[str, ...], n_args: int, keywords: tuple[str, ...]):
        self.definition = found.definition
        self.graphdef = GraphDef(found.definition)
        self.paths = tuple(found.paths)
        self.kinds = [(type(x), x._metadata) if isinstance(x, Variable) else None for x in found.leaves]
        self.names = names
        self.n_args = n_args
        self.keywords = keywords

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.keywords == other.keywords and self.graphdef == other.graphdef

    def __hash__(self) -> int:
        return hash(self.graphdef)


@jax.tree_util.register_static
class Outcome:
    """What the arrays are that left a pure function.

    Attributes:
        definition: how to build the output.
        places: for each leaf of the output, which list it is in.
        changed: the leaves of the arguments that were given a new value or new metadata.
        change_places: for each of them, which list it is in.
        metadata: for each of them, the new metadata, or None if it stayed.
    """

    __slots__ = ("change_places", "changed", "definition", "metadata", "places")

    def __init__(
        self,
        definition: GraphDef[Any],
        places: tuple[int, ...],
        changed: tuple[int, ...],
        change_places: tuple[int, ...],
        metadata: tuple[Any, ...],
    ):
        self.definition = definition
        self.places = places
        self.changed = changed
        self.change_places = change_places
        self.metadata = metadata

    def _key(self) -> Hashable:
        return self.definition, self.places, self.changed, self.change_places, self.metadata

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.definition, self.changed, self.places))

    def __repr__(self) -> str:
        return f"Outcome({self.definition!r}, changed={self.changed})"


Left = tuple[tuple[list[Any], ...], Outcome]


class Taken:
    """Arguments of a transform, taken apart.

    Attributes:
        who: the transform, for messages.
        graph: whether objects may be shared.
        structure: what the arguments are.
        leaves: the caller's Variables and arrays, each once.
        values: what they hold.
    """

    __slots__ = ("_nodes", "graph", "leaves", "structure", "values", "who")

    def __init__(self, who: str, graph: bool, found: Any, structure: Structure):
        self.who = who
        self.graph = graph
        self.structure = structure
        self.leaves = found.leaves
        self.values = [x._raw_value if isinstance(x, Variable) else x for x in found.leaves]
        self._nodes = found.nodes

    def enter(self, values: Sequence[Any]) -> Entered:
        """Copies of the arguments at the current trace level, holding `values`."""
        return enter(self.structure, values, who=self.who, graph=self.graph, originals=self._nodes)

    def settle(self, left: Left) -> Any:
        """Writes new values to the caller's Variables, and returns the output."""
        outcome = left[1]
        out, news = output(left)
        write([self.leaves[i] for i in outcome.changed], news, outcome.metadata)
        return out

    def rebuild(self, leaves: Iterable[Any], **options: Any) -> tuple[Any, ...]:
        """The arguments with other leaves: a tuple in the order of `structure.names`."""
        return tuple(build(self.structure.definition, leaves, **options).values)


def output(left: Left) -> tuple[Any, list[Any]]:
    """What a pure function returned, and the new values of Variables."""
    lists, outcome = left
    streams = [iter(one) for one in lists]
    outs = [next(streams[place]) for place in outcome.places]
    news = [next(streams[place]) for place in outcome.change_places]
    return build(outcome.definition.definition, outs).values[0], news


def write(variables: Sequence[Variable[Any]], values: Sequence[Any], metadata: Sequence[Any]) -> None:
    """Gives Variables new values and metadata; none of them, if one of them may not be changed here."""
    for variable in variables:
        variable._check_level()
    for variable, value, new in zip(variables, values, metadata):
        _set_value(variable, value)
        if new is not None:
            _set_metadata(variable, new)
            _epoch.bump()


class Entered:
    """Copies of the arguments inside a trace.

    Attributes:
        args: the positional arguments.
        kwargs: the keyword arguments.
        leaves: the Variables and arrays of the copies.
    """

    __slots__ = ("_contents", "_graph", "_structure", "_values", "_who", "args", "kwargs", "leaves")

    def __init__(
        self, structure: Structure, call: Call, leaves: list[Any], values: Sequence[Any], who: str, graph: bool
    ):
        self._structure = structure
        self._who = who
        self._graph = graph
        self._values = values
        # a dict inside a Variable can be changed in place, so its content is what counts
        self._contents = {i: jax.tree.leaves(v) for i, v in enumerate(values) if not hasattr(v, "dtype")}
        self.leaves = leaves
        values = [x.value if type(x) is Fixed else x for x in call.values]
        self.args = tuple(values[: structure.n_args])
        self.kwargs = dict(zip(structure.keywords, values[structure.n_args :]))

    def changed(self) -> list[int]:
        """The leaves that hold another value, or have other metadata, than they came with."""
        out = []
        for i, (leaf, value, kind) in enumerate(zip(self.leaves, self._values, self._structure.kinds)):
            if kind is None:
                continue
            same = leaf._raw_value is value and (leaf._metadata is kind[1] or leaf._metadata == kind[1])
            if same and i in self._contents:
                now = jax.tree.leaves(value)
                same = len(now) == len(self._contents[i]) and all(a is b for a, b in zip(now, self._contents[i]))
            if not same:
                out.append(i)
        return out

    def new_metadata(self, changed: Sequence[int]) -> tuple[Any, ...]:
        """For each of some leaves its metadata, or None if it is as it came."""
        kinds: Any = self._structure.kinds
        return tuple(None if self.leaves[i]._metadata == kinds[i][1] else self.leaves[i]._metadata for i in changed)

    def leave(
        self,
        out: Any,
        *,
        name: str = "out",
        assign: Assign | None = None,
        change_places: Sequence[int] | None = None,
        n_lists: int = 1,
        changed: Sequence[int] | None = None,
        always: Iterable[int] = (),
    ) -> Left:
        """The arrays that go out, and what they are.

        Args:
            out: what the function returned.
            name: how messages call it.
            assign: which list each leaf of the output goes to, from its definition, paths and leaves; else the first.
            change_places: for each leaf of the arguments the list that its new value goes to; else the first.
            n_lists: how many lists there are.
            changed: the leaves whose values go out; else those that changed.
            always: leaves whose values go out even if they did not change.
        """
        found = walk(Call((name,), (out,)), graph=self._graph, who=self._who, numbers=True)
        self.check_output(found)
        if changed is None:
            changed = self.changed()
            changed = sorted({*changed, *always}) if always else changed
        places = [0] * len(found.leaves) if assign is None else assign(found.definition, found.paths, found.leaves)
        lists: tuple[list[Any], ...] = tuple([] for _ in range(n_lists))
        for leaf, place in zip(found.leaves, places):
            lists[place].append(raw(leaf))
        new_places = tuple(0 if change_places is None else change_places[i] for i in changed)
        for i, place in zip(changed, new_places):
            lists[place].append(raw(self.leaves[i]))
        outcome = Outcome(
            GraphDef(found.definition), tuple(places), tuple(changed), new_places, self.new_metadata(changed)
        )
        return lists, outcome

    def check_output(self, found: Any) -> None:
        """Refuses an output that holds Variables of the arguments: they are already on their way to the caller."""
        came_in = {id(x): i for i, x in enumerate(self.leaves) if isinstance(x, Variable)}
        for path, leaf in found.flat():
            i = came_in.get(id(leaf)) if isinstance(leaf, Variable) else None
            if i is not None:
                first, second = show_path(self._structure.paths[i]), show_path(path)
                raise ValueError(
                    f"Duplicate {type(leaf).__name__} found at paths:\n\n  - {first}\n  - {second}\n\nThe function "
                    f"under nnx.{self._who} returns a Variable of its arguments. Its new value reaches the caller's "
                    f"Variable by itself: leave it out of the output, or return a copy, nnx.clone(...). (graph=True "
                    f"allows shared references within the arguments and within the output, not between the two.)"
                )


def raw(leaf: Any) -> Any:
    """What a Variable holds; other leaves as they are."""
    return leaf._raw_value if isinstance(leaf, Variable) else leaf


def is_object(value: Any) -> bool:
    """Whether a value is a node or a Variable."""
    return kind_of(value) in (NODE, VARIABLE)


def take(
    who: str,
    graph: bool,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    label: str = "args",
    names: tuple[str, ...] | None = None,
) -> Taken:
    """Walks arguments once.

    Args:
        who: the transform, for messages.
        graph: whether objects may be shared.
        args: positional arguments.
        kwargs: keyword arguments.
        label: what messages call the positional arguments.
        names: what messages call each of them, instead.

    Raises:
        ValueError: `graph` is False and a Variable is met twice.
    """
    keywords = tuple(sorted(kwargs)) if kwargs else ()
    if names is None:
        names = tuple(f"{label}[{i}]" for i in range(len(args)))
    if kwargs:
        names += tuple(f"kwargs[{name!r}]" for name in keywords)
        args = (*args, *(kwargs[name] for name in keywords))
    found = walked(names, args, who=who, graph=graph)
    return Taken(who, graph, found, Structure(found, names, len(args) - len(keywords), keywords))


def enter(structure: Structure, values: Sequence[Any], *, who: str, graph: bool, originals: Any = None) -> Entered:
    """Copies of arguments at the current trace level, holding `values`. Nothing else makes such copies.

    Args:
        structure: what the arguments are.
        values: what their leaves hold.
        who: the transform, for messages.
        graph: whether objects may be shared.
        originals: pairs of path and node of the caller, for captures.
    """
    leaves = [value if kind is None else kind[0]._make(value, kind[1]) for value, kind in zip(values, structure.kinds)]
    finish = None
    if originals and looking() is not None:
        finish = _carrier(dict(originals))
    return Entered(structure, build(structure.definition, leaves, finish=finish), leaves, values, who, graph)


def _carrier(originals: Mapping[Path, Any]) -> Callable[[Path, Any], Any]:
    def carry(path: Path, copy: Any) -> Any:
        original = originals.get(path)
        if original is not None:
            module_sites.carry(original, copy)
        return copy

    return carry
