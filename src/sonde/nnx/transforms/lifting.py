"""The one lifting behind all transforms, `nnx.jit` included.

A transform of JAX wants a pure function of arrays; a user has a function of Modules. All transforms here work the same
way, whatever they do in the middle:

    taken = take("vmap", mode, args, kwargs)          # walk the arguments once; in tree mode, refuse aliases

    def pure(values):                                 # a function of a flat list of arrays: `taken.pure(fn)`
        entered = taken.enter(values)                 # copies of the arguments that belong to the inner trace
        out = fn(*entered.args, **entered.kwargs)
        return entered.leave(out)                     # the output, and only what changed; see `outcome`

    return taken.settle(jax.vmap(pure)(taken.values)) # write to the caller's objects, build the output

The caller's objects are not touched before `settle`: a call that fails changes nothing, and other threads never see a
tracer. Values and metadata of Variables come back; with graph updates, so do changes of structure (see `edits`), and
objects of the arguments may be returned. Without graph updates, changes of structure happen to the copies only and are
lost, and returning a Variable of the arguments is an error.

Only `take` differs for `nnx.jit`: it remembers what a walk found (`sonde.nnx.transforms.jit.memory`), because a walk
costs more than a call of a compiled function. `enter`, `leave` and `Outcome` are the same.

Captures: `enter` is the only function that makes copies of the caller's Modules, and it tells `module_sites.mark_copy`
which copy stands for which original.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax

from sonde._jax import trace_level
from sonde.core import capture_state
from sonde.nnx.modules import module_sites
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.build import build
from sonde.nnx.structure.definitions import REFERENCE, Definition, NamedValues, Path, children_of, unflatten_once
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, VARIABLE
from sonde.nnx.structure.walk import Walk, walk
from sonde.nnx.transforms.options import Mode, as_indices, named_after
from sonde.nnx.transforms.outcome import Outcome, PureResult, settle, write
from sonde.nnx.transforms.structure_changes import Before
from sonde.nnx.variable.array_references import is_reference, load
from sonde.nnx.variable.variable import Variable


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


def walk_call(names: tuple[str, ...], values: Sequence[Any], *, verb: str, graph: bool) -> Walk:
    """Walks named values."""
    return walk(NamedValues(names, values), graph=graph, verb=verb, numbers=True)


class Structure:
    """The structure of arguments, without their values: equal for calls that may share a trace.

    Attributes:
        definition: How to build them, see `sonde.nnx.structure.definitions`.
        paths: The paths of the leaves.
        kinds: For each leaf that is a Variable its class and metadata, else None.
        n_args: How many of the arguments are positional; the others are keywords.
        names: The names of all arguments in messages.
        keywords: The names of the keyword arguments.
    """

    __slots__ = ("_indices", "definition", "graphdef", "keywords", "kinds", "n_args", "names", "paths")

    def __init__(self, walked: Walk, names: tuple[str, ...], n_args: int, keywords: tuple[str, ...]):
        self.definition = walked.definition
        self.graphdef = GraphDef(walked.definition)
        self.paths = tuple(walked.paths)
        self.kinds = [(type(x), x._metadata) if isinstance(x, Variable) else None for x in walked.leaves]
        self.names = names
        self.n_args = n_args
        self.keywords = keywords
        self._indices: tuple[list[Any], list[Any]] | None = None

    def objects(self, leaves: Sequence[Any], nodes: Sequence[Any]) -> dict[int, Any]:
        """Variables and nodes by index.

        Args:
            leaves: The leaves, in the order of the walk.
            nodes: The nodes, in the order of the walk.
        """
        if self._indices is None:
            self._indices = ([], [])
            _gather_indices(self.definition, *self._indices)
        of_leaves, of_nodes = self._indices
        objects_by_index = {index: leaf for index, leaf in zip(of_leaves, leaves) if index is not None}
        objects_by_index.update(zip(of_nodes, nodes))
        return objects_by_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.keywords == other.keywords and self.graphdef == other.graphdef

    def __hash__(self) -> int:
        return hash(self.graphdef)


def _gather_indices(d: Definition, of_leaves: list[Any], of_nodes: list[Any]) -> None:
    """The indices of leaves and of nodes, in the order in which a walk visits them."""
    if d[0] == VARIABLE:
        of_leaves.append(d[2])
    elif d[0] == ARRAY:
        of_leaves.append(d[1] if len(d) == 2 else None)
    elif d[0] in (NODE, CONTAINER):
        for child in children_of(d)[1]:
            _gather_indices(child, of_leaves, of_nodes)
        if d[0] == NODE:
            of_nodes.append(d[2])


class Taken:
    """The arguments of a transform: their structure and their leaves.

    Attributes:
        verb: The transform, for messages.
        mode: The mode it runs in.
        structure: The structure of the arguments.
        leaves: The caller's Variables and arrays, each once.
        nodes: Pairs of path and node of the caller.
        values: What they hold.
    """

    __slots__ = ("leaves", "mode", "nodes", "structure", "values", "verb")

    def __init__(self, verb: str, mode: Mode, walked: Walk, structure: Structure):
        self.verb = verb
        self.mode = mode
        self.structure = structure
        self.leaves = walked.leaves
        self.values = [raw(x) for x in walked.leaves]
        self.nodes = walked.nodes

    def enter(self, values: Sequence[Any]) -> Entered:
        """Copies of the arguments at the current trace level, holding `values`."""
        return enter(self.structure, values, verb=self.verb, mode=self.mode, originals=self.nodes)

    def pure(
        self,
        f: Callable[..., Any],
        *,
        placement: Placement | None = None,
        always: Iterable[int] = (),
        output_only: bool = False,
    ) -> Callable[[Sequence[Any]], PureResult]:
        """A pure function from the values of the leaves: `f` runs on copies of the arguments. See `Entered.leave`."""

        def pure(values: Sequence[Any]) -> PureResult:
            entered = self.enter(values)
            output = f(*entered.args, **entered.kwargs)
            return entered.leave(output, placement=placement or ONE_LIST, always=always, output_only=output_only)

        return named_after(f, pure)

    def objects(self) -> dict[int, Any]:
        """The caller's Variables and nodes by index."""
        return self.structure.objects(self.leaves, [node for _, node in self.nodes])

    def settle(self, result: PureResult) -> Any:
        """Does to the caller's objects what the function did to their copies, and returns the output."""
        return settle(result, self.leaves, self.objects)

    def output(self, result: PureResult) -> Any:
        """The output, without changing the caller's objects."""
        return settle(result, self.leaves, self.objects, output_only=True)

    def renewed(self, new: Mapping[int, Any]) -> tuple[Any, ...]:
        """Gives leaves new values and returns the arguments, made of the caller's Variables.

        With graph updates they also reuse the caller's nodes; arrays among their attributes are replaced.
        """
        leaves = list(self.leaves)
        changed = [i for i in new if isinstance(leaves[i], Variable)]
        write([leaves[i] for i in changed], [new[i] for i in changed])
        for i, value in new.items():
            if not isinstance(leaves[i], Variable):
                leaves[i] = value
        if not self.mode.updates:
            return self.rebuild(leaves)
        # With graph updates the caller expects the same nodes back, as if the function had run on them.
        objects, stream = self.objects(), iter(leaves)
        return tuple(_same_objects(child, stream, objects) for child in self.structure.definition[4])

    def rebuild(self, leaves: Iterable[Any], **options: Any) -> tuple[Any, ...]:
        """The arguments with other leaves: a tuple in the order of `structure.names`."""
        return tuple(build(self.structure.definition, leaves, **options).values)


def _same_objects(d: Definition, leaves: Iterator[Any], objects: Mapping[int, Any]) -> Any:
    """Rebuilds a definition from the caller's objects; bare arrays in them are replaced by other leaves."""
    if d[0] in (VARIABLE, ARRAY):
        return next(leaves)
    if d[0] == REFERENCE:
        return objects[d[1]]
    if d[0] == CONTAINER:
        return unflatten_once(d[1], d[2], d[3], [_same_objects(child, leaves, objects) for child in d[4]])
    if d[0] != NODE:
        return d[1]
    node = objects[d[2]]
    for name, child, before in zip(d[3].data, d[5], node._structure()[1]):
        value = _same_objects(child, leaves, objects)
        if value is not before and child[0] in (ARRAY, CONTAINER):
            node._set_child(name, value)
    return node


class Placement(Protocol):
    """Which list each array goes to when it leaves a pure function."""

    n_lists: int

    def of_output(self, walked: Walk) -> Sequence[int]:
        """The list of each leaf of the output."""
        ...

    def of_edit(self, walked: Walk) -> Sequence[int]:
        """The list of each new leaf of a node of the arguments."""
        ...

    def of_change(self, i: int) -> int:
        """The list of the new value of a leaf of the arguments."""
        ...


class _OneList:
    """All arrays leave in one list."""

    n_lists = 1

    def of_output(self, walked: Walk) -> Sequence[int]:
        return [0] * len(walked.leaves)

    of_edit = of_output

    def of_change(self, i: int) -> int:
        return 0


ONE_LIST: Placement = _OneList()

#: Transforms whose functions run at their own trace level.
_NEW_LEVEL = ("jit", "vmap", "pmap", "scan", "shard_map")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Entered:
    """Copies of the arguments inside a trace.

    Attributes:
        args: The positional arguments.
        kwargs: The keyword arguments.
        leaves: The Variables and arrays of the copies.
        values: What the leaves were given.
        known: The Variables and nodes of the copies by index.
        structure: The structure of the arguments.
        verb: The transform, for messages.
        mode: The mode it runs in.
    """

    structure: Structure
    call: dataclasses.InitVar[NamedValues]
    leaves: list[Any]
    values: Sequence[Any]
    verb: str
    mode: Mode
    known: dict[int, Any]
    args: tuple[Any, ...] = dataclasses.field(init=False)
    kwargs: dict[str, Any] = dataclasses.field(init=False)
    _before: Before | None = dataclasses.field(init=False)
    _contents: dict[int, list[Any]] = dataclasses.field(init=False)
    _left: Any = dataclasses.field(init=False)

    def __post_init__(self, call: NamedValues) -> None:
        structure = self.structure
        self._before = Before(self.known) if self.mode.updates else None
        # a dict inside a Variable can be changed in place, so its content is compared
        self._contents = {i: jax.tree.leaves(v) for i, v in enumerate(self.values) if not hasattr(v, "dtype")}
        arguments = [x.value if type(x) is Fixed else x for x in call.values]
        self.args = tuple(arguments[: structure.n_args])
        self.kwargs = dict(zip(structure.keywords, arguments[structure.n_args :]))

    def changed(self) -> list[int]:
        """The Variables whose value or metadata differs from what they were given."""
        out = []
        for i, (leaf, value, kind) in enumerate(zip(self.leaves, self.values, self.structure.kinds)):
            if kind is None:
                continue
            # Arrays are never changed in place, so another value is another object.
            same = leaf._raw_value is value and (leaf._metadata is kind[1] or leaf._metadata == kind[1])
            if same and i in self._contents:
                leaves_now = jax.tree.leaves(value)
                same = len(leaves_now) == len(self._contents[i]) and all(
                    a is b for a, b in zip(leaves_now, self._contents[i])
                )
            if not same:
                out.append(i)
        return out

    def put_back(self, carried: Iterable[int]) -> None:
        """With graph updates: undoes the replacement of leaves by new Variables, but keeps the values; see `edits`."""
        if self._before is not None:
            self._before.put_back({id(self.leaves[i]) for i in carried})

    def put_back_arrays(self, chosen: Iterable[int]) -> dict[int, Any]:
        """With graph updates: new arrays in the places of some leaves, which are bare arrays, by their numbers.

        The leaves return to their places, so that they are no change of structure.
        """
        return {} if self._before is None else self._before.put_back_arrays({id(self.leaves[i]): i for i in chosen})

    def _new_metadata(self, changed: Sequence[int]) -> tuple[Any, ...]:
        """For each of some leaves its metadata, or None if it is unchanged."""
        kinds: Any = self.structure.kinds
        return tuple(None if self.leaves[i]._metadata == kinds[i][1] else self.leaves[i]._metadata for i in changed)

    def leave(
        self,
        out: Any,
        *,
        name: str = "out",
        placement: Placement = ONE_LIST,
        always: Iterable[int] = (),
        skip: Container[int] = (),
        separately: bool = False,
        output_only: bool = False,
    ) -> PureResult:
        """The arrays that leave the trace, and a description of them.

        Args:
            out: What the function returned.
            name: Its name in messages.
            placement: Which list each array goes to.
            always: Leaves whose values are returned even if they did not change.
            skip: Indices of nodes whose arrays are returned by other means.
            separately: Whether the output is plain and is returned separately.
            output_only: Whether to drop all changes that the function makes; objects of the arguments that it returns
                become new ones.
        """
        # Edits come first: the output may refer to objects that they make.
        edits, indices = ([], {}) if self._before is None or output_only else self._before.edits(self.verb)
        lists: tuple[list[Any], ...] = tuple([] for _ in range(placement.n_lists))
        of_leaves: list[int] = []
        references: list[int] = []

        def put(leaves: Sequence[Any], into: Sequence[int]) -> None:
            for leaf, n in zip(leaves, into):
                value = raw(leaf)
                if any(map(is_reference, jax.tree.leaves(value))):  # JAX's functions do not return references
                    references.append(len(of_leaves))
                    value = load(value)
                of_leaves.append(n)
                lists[n].append(value)

        walked: Walk | None = None
        edits = [edit for edit in edits if not (edit.leaves and edit.definition[2] in skip)]
        for edit in edits:
            put(edit.leaves, placement.of_edit(edit))
        definition = None
        if not separately:
            walked = walk(
                NamedValues((name,), (out,)), graph=self.mode.graph, verb=self.verb, numbers=True, seen=indices
            )
            if not self.mode.updates:
                self.check_output(walked)
            # A captured Variable cannot be told from a new one after the trace has ended, so it is refused here.
            if self.verb in _NEW_LEVEL or not (self.mode.updates or self.verb == "eval_shape"):
                self.check_captured(walked)
            put(walked.leaves, placement.of_output(walked))
            definition = GraphDef(walked.definition)
        changed = () if output_only else self.changed()
        changed = tuple(sorted({*changed, *always}) if always else changed)
        of_changes = tuple(map(placement.of_change, changed))
        for i, n in zip(changed, of_changes):
            lists[n].append(load(raw(self.leaves[i])))
        # Kept for `path_in_list`, which is asked only if JAX refuses a result.
        self._left = edits, walked, changed, (*of_leaves, *of_changes)
        new_definitions = tuple(GraphDef(edit.definition) for edit in edits)
        metadata = self._new_metadata(changed)
        return lists, Outcome(
            definition, new_definitions, tuple(of_leaves), changed, of_changes, metadata, tuple(references)
        )

    def path_in_list(self, number: int, position: int) -> str:
        """The path of an array that left the trace, for messages: where it is in a list that `leave` returned."""
        edits, output_walk, changed, list_numbers = self._left
        call = NamedValues(self.structure.names, (*self.args, *self.kwargs.values()))
        node_paths = {id(node): path for path, node in walk(call, graph=True, verb=self.verb).nodes}
        paths = [
            (*node_paths.get(id(self.known[edit.definition[2]]), ()), *path) for edit in edits for path in edit.paths
        ]
        paths += [] if output_walk is None else output_walk.paths
        paths += [self.structure.paths[i] for i in changed]
        return show_path([path for path, n in zip(paths, list_numbers) if n == number][position])

    def check_output(self, walked: Walk) -> None:
        """Refuses an output that holds Variables of the arguments: their new values reach the caller anyway."""
        came_in = {id(x): i for i, x in enumerate(self.leaves) if isinstance(x, Variable)}
        for path, leaf in walked.flat():
            i = came_in.get(id(leaf)) if isinstance(leaf, Variable) else None
            if i is not None:
                first, second = show_path(self.structure.paths[i]), show_path(path)
                raise ValueError(
                    f"Duplicate {type(leaf).__name__} found at paths:\n\n  - {first}\n  - {second}\n\nThe function "
                    f"under nnx.{self.verb} returns a Variable of its arguments. Its new value reaches the caller's "
                    f"Variable by itself: leave it out of the output, or return a copy, nnx.clone(...). "
                    f"(graph_updates=True allows it.)"
                )

    def check_captured(self, walked: Walk) -> None:
        """Refuses an output that holds Variables from outside that are not arguments: it would hold copies of them."""
        level, came_in = trace_level(), {id(x) for x in self.leaves}
        for path, leaf in walked.flat():
            if isinstance(leaf, Variable) and leaf._level is not level and id(leaf) not in came_in:
                raise ValueError(
                    f"The function under nnx.{self.verb} returns a captured {type(leaf).__name__} at "
                    f"{show_path(path)}: it was made outside the function, and is not among its arguments. Pass the "
                    f"object that holds it as an argument, or return a copy, nnx.clone(...)."
                )


def raw(leaf: object) -> Any:
    """What a Variable holds; other leaves as they are."""
    return leaf._raw_value if isinstance(leaf, Variable) else leaf


def take(
    verb: str,
    mode: Mode,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    label: str = "args",
    names: tuple[str, ...] | None = None,
    static: int | Sequence[int] = (),
) -> Taken:
    """Walks the arguments once and takes them apart.

    Args:
        verb: The transform, for messages.
        mode: The mode it runs in.
        args: Positional arguments.
        kwargs: Keyword arguments.
        label: The name of the positional arguments in messages.
        names: A name for each of them, instead.
        static: Positions of arguments that are not traced.

    Raises:
        ValueError: The mode demands trees, and a Variable occurs twice.
    """
    keywords = tuple(sorted(kwargs)) if kwargs else ()
    for i in as_indices(static, len(args)) if static != () else ():
        args = (*args[:i], Fixed(args[i]), *args[i + 1 :])
    if names is None:
        names = tuple(f"{label}[{i}]" for i in range(len(args)))
    if kwargs:
        names += tuple(f"kwargs[{name!r}]" for name in keywords)
        args = (*args, *(kwargs[name] for name in keywords))
    walked = walk_call(names, args, verb=verb, graph=mode.graph)
    return Taken(verb, mode, walked, Structure(walked, names, len(args) - len(keywords), keywords))


def enter(
    structure: Structure,
    values: Sequence[Any],
    *,
    verb: str,
    mode: Mode,
    originals: Sequence[tuple[Path, Any]] | None = None,
) -> Entered:
    """Copies of arguments at the current trace level, holding `values`. No other function makes such copies.

    Args:
        structure: The structure of the arguments.
        values: What their leaves hold.
        verb: The transform, for messages.
        mode: The mode it runs in.
        originals: Pairs of path and node of the caller, for captures.
    """
    # `_make` skips hooks and checks: the value was checked when the caller's Variable got it.
    leaves = [value if kind is None else kind[0]._make(value, kind[1]) for value, kind in zip(values, structure.kinds)]
    objects_by_index: dict[int, Any] = {}
    call = build(structure.definition, leaves, known=objects_by_index)
    # Captures name a Module by its path in the caller's model, so each copy must be known to stand for an original.
    if originals and capture_state() is not None:
        if mode.graph:
            for index, node in structure.objects((), [node for _, node in originals]).items():
                module_sites.mark_copy(node, objects_by_index[index])
        else:
            module_sites.mark_copied_nodes(originals, call)
    return Entered(structure, call, leaves, values, verb, mode, objects_by_index)
