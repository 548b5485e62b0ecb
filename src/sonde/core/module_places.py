"""Where modules stand, and the calls of modules that are open.

A `Place` is the path of a module. A `Stretch` is the part of a program between two boundaries, the start of a capture
or of tracing a function: which modules are known in it, and which of their calls are open, each a `Frame`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sonde import _jax
from sonde.core.module_index import path_between
from sonde.core.scopes import ScopeName, path_under
from sonde.core.strangers import InnerStranger, Strangers


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a module stands.

    Attributes:
        text: Its path.
        absolute: Whether the path counts from the capture, and not from where the current stretch starts.
        known: Whether it belongs to the model that the capture looks at.
        here: Whether it is wherever the program is: the outermost call of a module that nothing is known about.
    """

    text: str
    absolute: bool = False
    known: bool = True
    here: bool = False

    def below(self, text: str) -> Place:
        """A place further down."""
        if not text:
            return self
        return Place(f"{self.text}/{text}" if self.text else text, self.absolute, self.known)


def join(*texts: str) -> str:
    """A path of parts, some of which may be empty."""
    return "/".join(text for text in texts if text)


def depth_of(text: str) -> int:
    """How many names a path has."""
    return text.count("/") + 1 if text else 0


class Move(NamedTuple):
    """How a scope gets from the path around it to its own: up some names (None: to the start), then down."""

    up: int | None
    down: str


@dataclasses.dataclass(slots=True)
class Frame:
    """A call of a module that is open.

    Attributes:
        place: Where the module stands.
        module: The module.
        method: The name of the method, and its function.
        scope: The scope of the call.
        names: The names that are open with it.
        level: The trace that it began under.
        strangers: The modules that it has called and that are nowhere.
    """

    place: Place
    module: Any
    method: tuple[str, Any]
    scope: ScopeName
    names: Any
    level: Any
    strangers: Strangers = dataclasses.field(default_factory=Strangers)


class Stretch:
    """The calls that are open between two boundaries: the start of a capture, or of tracing a function.

    Attributes:
        given: Modules whose places are known, though their calls are not open.
        frames: The open calls of modules, the outermost first.
        n_names: How many names were open at the start.
        names_around: The names that are open around it, in the stretch outside.
        used: What was asked of the enclosing stretches: places of modules (by identity, or as a `Copy`), `"setting"`,
            `"start"` and `"scopes"`.
        notes: What the library of the modules keeps until the outermost call ends.
        description: Of the call that it began with, at a boundary: that of the trace, if there is one.
        strangers: The modules that were called in it, outside of other calls, and that are nowhere.
        inner_strangers: The modules of the enclosing program that correspond to them, by name.
    """

    __slots__ = (
        "description",
        "frames",
        "given",
        "inner_strangers",
        "n_names",
        "names_around",
        "notes",
        "strangers",
        "used",
    )

    def __init__(
        self, given: Iterable[tuple[Place, Any]], n_names: int, names_around: Any, description: Any = None
    ) -> None:
        self.description = description
        self.given = list(given)
        self.names_around = names_around
        self.frames: list[Frame] = []
        self.n_names = n_names
        self.used: dict[Any, tuple[Any, Any]] = {}
        self.notes: list[Any] = []
        self.strangers = Strangers()
        self.inner_strangers: dict[str, InnerStranger] = {}

    def find(self, module: Any) -> Place | None:
        """Where a module stands, by identity."""
        for place, root in self.given:
            if (path := path_between(root, module)) is not None:
                return place.below("/".join(map(str, path)))
        for frame in self.frames:
            if (path := path_between(frame.module, module)) is not None:
                return frame.place.below("/".join(map(str, path)))
        return None

    def roots(self) -> Iterator[tuple[Place, Any]]:
        """The modules whose places are known, with those: the outermost first."""
        yield from self.given
        yield from ((frame.place, frame.module) for frame in self.frames)

    @property
    def innermost(self) -> Place:
        """Where the innermost call stands; where the stretch starts, if there is none."""
        return self.frames[-1].place if self.frames else Place("")

    def here(self, depth: int, stack: Any = None) -> str:
        """The path of what is recorded now, or was under some names, scopes included, counted as `innermost` is."""
        stack = _jax.open_names() if stack is None else stack
        if self.frames and stack is self.frames[-1].names:  # no scope was opened since
            return self.frames[-1].place.text
        names = _jax.names_in(stack)
        start = self.n_names
        if self.frames:
            frame = self.frames[-1]
            n = _jax.count_names(frame.names)
            start = n if n <= len(names) and (n == 0 or names[n - 1] is frame.scope) else 0
        before = self.innermost.text
        return path_under(names[start:] if start <= len(names) else names, before and before + "/", depth).rstrip("/")
