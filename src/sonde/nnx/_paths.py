"""Where a Module stands in the model that is looked at.

While a capture runs, the Modules of its model are known by identity. Transforms run the user's function on copies of
Modules, in which everything else is new too; a copy stands where its original does. Copies that JAX makes (a Module is
a pytree) carry the place in the structure of the pytree, so that a function which is jitted once and called with two
Modules of one class is traced for each of them; copies that our own transforms make are told by `carry`.

Nothing is stored in Modules, and none is kept alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from sonde.core.context import ScopeName, looking
from sonde.nnx._epoch import EPOCH
from sonde.nnx._kinds import NODE, kind_of
from sonde.nnx._walk import walk
from sonde.nnx.pytree import Places

Path = tuple[Any, ...]
Place = tuple[Path | None, ...]  # one path for every capture that runs, the outermost first

_serials = itertools.count(1)


class Table:
    """The places of the Modules of some models, by identity.

    Attributes:
        serial: A number that is the same as long as all Modules are where they were: what is traced depends on it.
    """

    def __init__(self, roots: Sequence[tuple[Path, Any]]) -> None:
        self._roots = [(prefix, weakref.ref(root)) for prefix, root in roots]
        self._known: dict[int, tuple[weakref.ref[Any], Path]] = {}
        self._originals: dict[int, Path] = {}
        self._epoch = self._searched = -1
        self.serial = 0
        self.look_again()

    def look_again(self) -> None:
        """Walks the models, if anything has changed since the last time."""
        if self._epoch == EPOCH.value:
            return
        self._epoch = EPOCH.value
        found: dict[int, Path] = {}
        for prefix, ref in self._roots:
            self._add(ref(), prefix, found)
        if found != self._originals:
            self._originals = found
            self.serial = next(_serials)

    def _add(self, root: Any, prefix: Path, found: dict[int, Path]) -> None:
        if root is None:
            return
        for path, node in walk(root, graph=True, who="capture").nodes:
            if id(node) not in found:
                found[id(node)] = prefix + path
                self.put(node, prefix + path)

    def put(self, module: Any, path: Path) -> None:
        """Says where a Module stands."""
        known = self._known
        key = id(module)
        known[key] = (weakref.ref(module, lambda _: known.pop(key, None)), path)

    def find(self, module: Any) -> Path | None:
        """Where a Module stands; None if that is nowhere in these models."""
        entry = self._known.get(id(module))
        if entry is None and self._epoch != EPOCH.value:  # it may have been added since
            self.look_again()
            entry = self._known.get(id(module)) or self._find_below_copies(module)
        return None if entry is None or entry[0]() is not module else entry[1]

    def _find_below_copies(self, module: Any) -> tuple[weakref.ref[Any], Path] | None:
        """Looks below the copies that were changed since the last time."""
        since, self._searched = self._searched, EPOCH.value
        for ref, path in sorted(self._known.values(), key=lambda entry: len(entry[1])):
            copy = ref()
            if copy is not None and copy._stamp > since:
                for below, node in walk(copy, graph=True, who="capture").nodes:
                    if node is module:
                        self.put(module, path + below)
                        return self._known[id(module)]
        return None


_tables: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], Table]] = {}


def table_of(roots: Sequence[tuple[Path, Any]]) -> Table:
    """The table of some models: the same one every time, so that what was traced for it is found again."""
    key = tuple(id(root) for _, root in roots)
    entry = _tables.get(key)
    if entry is None or any(ref() is not root for ref, (_, root) in zip(entry[0], roots)):
        refs = [weakref.ref(root, lambda _: _tables.pop(key, None)) for _, root in roots]
        entry = _tables[key] = (refs, Table(roots))
    entry[1].look_again()
    return entry[1]


# ---------------------------------------------------------------------------------------------------------------------
# The captures that run in this thread
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a capture of Modules wants.

    Attributes:
        root: The Module that paths count from; None: found among the arguments.
        types: The types of Variable that are recorded; None: everything.
        given: The types of Variable that values were given for.
        outputs: The type as which the outputs of methods are recorded, if they are.
    """

    root: Any = None
    types: frozenset[type] | None = None
    given: frozenset[type] = frozenset()
    outputs: type | None = None

    def wants(self, variable_type: type) -> bool:
        """Whether a value of that type is recorded or added to."""
        return self.types is None or variable_type in self.types or variable_type in self.given


class _Running(threading.local):
    def __init__(self) -> None:
        self.captures: list[tuple[Table, Request]] = []
        self.methods: list[tuple[Any, str, Any]] = []  # Module, name and function of the methods that run


running = _Running()


@contextlib.contextmanager
def known_places(f: Any, args: Any, kwargs: Any, request: Request | None) -> Iterator[Hashable]:
    """Around every run of the engine: finds the Modules, and says what traced functions depend on."""
    request = request or Request()
    roots = [((), request.root)] if request.root is not None else find_roots(f, args, kwargs)
    running.captures.append((table_of(roots), request))
    try:
        yield tuple((table.serial, r.types, r.given, r.outputs) for table, r in running.captures)
    finally:
        running.captures.pop()


def find_roots(f: Any, args: Any, kwargs: Any) -> list[tuple[Path, Any]]:
    """The Modules that a call is about: in its arguments, or else what the function belongs to or refers to.

    Paths count from the first; the names of further arguments stand in front of the paths in them.
    """
    named = [*((str(i), x) for i, x in enumerate(args)), *kwargs.items()]
    found = [(name, x) for name, x in _around(f) if kind_of(x) == NODE]
    found += [(name, x) for name, x in named if kind_of(x) == NODE]
    if not found:
        found = [(name, x) for name, x in _referred_to(f) if kind_of(x) == NODE]
    unique = list({id(x): (name, x) for name, x in reversed(found)}.values())[::-1]
    return [((), x) if i == 0 else ((name,), x) for i, (name, x) in enumerate(unique)]


def _around(f: Any) -> Iterator[tuple[str, Any]]:
    while f is not None:
        yield "self", f
        if (owner := getattr(f, "__self__", None)) is not None:
            yield "self", owner
        for i, x in enumerate(getattr(f, "args", None) or ()):
            yield str(i), x
        f = getattr(f, "func", None) or getattr(f, "__wrapped__", None)


def _referred_to(f: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    while f is not None and id(f) not in seen:
        seen.add(id(f))
        code = getattr(f, "__code__", None)
        if code is not None:
            for name, cell in zip(code.co_freevars, f.__closure__ or ()):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    yield name, cell.cell_contents
            for name in code.co_names:
                yield name, f.__globals__.get(name)
        f = getattr(f, "__wrapped__", None) or getattr(f, "func", None)


# ---------------------------------------------------------------------------------------------------------------------
# Places
# ---------------------------------------------------------------------------------------------------------------------


def place_of(module: Any) -> Place:
    """Where a Module stands, for every capture that runs. One that stands nowhere is named after its class."""
    place = tuple(table.find(module) for table, _ in running.captures)
    if any(path is not None for path in place) or not running.methods:
        return place
    caller = running.methods[-1][0]
    if caller is not module:
        above = place_of(caller)
        place = tuple(None if path is None else (*path, type(module).__name__) for path in above)
        set_place(module, place)
    return place


def carry(original: Any, copy: Any) -> None:
    """Says that a transform made `copy` to stand for `original` inside a trace; called only while a capture runs."""
    set_place(copy, place_of(original))


def set_place(module: Any, place: Place) -> None:
    """Says where a Module stands, for every capture that runs."""
    for (table, _), path in zip(running.captures, place):
        if path is not None:
            table.put(module, path)


class PlaceTag:
    """A Module's place in the structure of a pytree, which makes JAX trace a function anew for another place.

    For everything but JAX's caches two Modules of one class have one structure wherever they stand: `jax.tree.map` over
    both must work. Caches and `jax.tree.map` compare in the same way, so the tag looks at who asks.
    """

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlaceTag) and other.place == self.place:
            return True
        if other is not None and not isinstance(other, PlaceTag):
            return False
        return sys._getframe(1).f_code.co_qualname.partition(".")[0] in _ASK_FOR_SHAPE

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"PlaceTag({self.place})"


# Functions of JAX that compare structures to see whether two trees fit together.
_ASK_FOR_SHAPE = frozenset(
    {
        "tree_map",
        "tree_map_with_path",
        "_check_branch_outputs",
        "_check_carry_type",
        "_check_tree_and_avals",
        "_capitalize_carry",
        "tree_transpose",
        "flatten_axes",
        "broadcast_prefix",
        "equality_errors_pytreedef",
    }
)


def tag_of(module: Any) -> PlaceTag | None:
    """What goes into the structure of a Module as a pytree: None when nobody looks."""
    if looking() is None or not running.captures:
        return None
    place = place_of(module)
    return PlaceTag(place) if any(path is not None for path in place) else None


def _put_back(module: Any, tag: PlaceTag) -> None:
    set_place(module, tag.place)


def _put_back_all(root: Any, tag: PlaceTag) -> None:
    for path, node in walk(root, graph=True, who="capture").nodes:
        set_place(node, tuple(None if above is None else above + path for above in tag.place))


Places.tag_of = staticmethod(tag_of)
Places.put_back_all = staticmethod(_put_back_all)
Places.put_back = staticmethod(_put_back)


class ModuleScope(ScopeName):
    """A method of a Module as a scope: what is inside stands at the Module's path, whoever called it."""

    places: tuple[str | None, ...] = ()

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def at(place: Place) -> ModuleScope:
        """The scope of the methods of a Module."""
        texts = tuple(None if path is None else "/".join(map(str, path)) for path in place)
        new = ModuleScope(next((text for text in texts if text), "") or "module")
        new.places = texts
        return new

    def path(self, before: str, depth: int) -> str:
        """The Module's own path, if the capture that asks knows it."""
        text = self.places[depth - 1] if depth <= len(self.places) else None
        if text is None:
            return before
        return f"{text}/" if text else ""
