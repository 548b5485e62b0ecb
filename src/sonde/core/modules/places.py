"""The places of modules, and the open calls of modules.

A `Place` is the path of a module. A `Segment` is the part of a program between two boundaries, the start of a capture
or of tracing a function: which modules are known in it, and which of their calls are open, each a `Frame`. Modules that
are not in the model are `UnregisteredModules`, and are named after their classes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax

from sonde import _jax
from sonde.core.marks.scopes import ScopeName, path_under
from sonde.core.modules.copies import CopyKey
from sonde.core.modules.index import everything_in, module_kind, text_between

_SONDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


class Place(NamedTuple):
    """The place of a module.

    Attributes:
        text: Its path.
        absolute: Whether the path counts from the capture, and not from where the current segment starts.
        known: Whether it belongs to the model that the capture looks at.
        is_current_path: Whether it is the current path of the program: for the outermost call of an unknown module.
    """

    text: str
    absolute: bool = False
    known: bool = True
    is_current_path: bool = False

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


class UnregisteredModules:
    """Modules that are not in the model, named after their classes: `Linear`, `Linear_1`.

    A module that replaces a deleted one, as in a loop that makes a module and calls it, gets its name.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[tuple[Any, Any, str]] = []

    def name(self, module: Any) -> str:
        """The name of a module."""
        return self._name(module, type(module).__name__, weakref.ref(module), _where(4))

    def name_of(self, inner: UnregisteredInside) -> str:
        """The name of a module that a traced function makes: the same each time the function is called."""
        return self._name(inner, inner.cls, lambda: inner, None)

    def _name(self, module: Any, cls: str, ref: Callable[[], Any], caller: Any) -> str:
        n = 0
        for i, (module_ref, where, name) in enumerate(self._known):
            if module_ref() is module:
                return name
            if name == cls or name.startswith(f"{cls}_"):
                n += 1
                if module_ref() is None and where == caller:
                    self._known[i] = ref, caller, name
                    return name
        name = f"{cls}_{n}" if n else cls
        self._known.append((ref, caller, name))
        return name

    def copy(self) -> UnregisteredModules:
        """A copy of the table, to which other names can be added."""
        copied = UnregisteredModules()
        copied._known = list(self._known)
        return copied

    def forget(self, inner: UnregisteredInside) -> None:
        """Takes a name back."""
        self._known = [entry for entry in self._known if entry[0]() is not inner]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class UnregisteredInside:
    """Stands for a module outside the model, in all calls of a traced function that makes it.

    Attributes:
        cls: The name of its class.
    """

    cls: str


def _where(n: int) -> tuple[tuple[Any, int], ...]:
    """Where the program is: the code of the innermost functions outside of Sonde and JAX, each with its instruction.

    Some of them belong to the library of the module.
    """
    callers: list[tuple[Any, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(callers) < n:
        if not frame.f_code.co_filename.startswith((_SONDE, _JAX)):
            callers.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(callers)


class Setting(NamedTuple):
    """What is around a segment.

    Attributes:
        n_scopes: How many scopes are open around it in the innermost call of a module.
        is_in_call: Whether there is such a call.
        is_known: Whether what is there belongs to the model that the capture looks at.
    """

    n_scopes: int
    is_in_call: bool
    is_known: bool


# What a traced function can ask of the program around: the place of a module (by identity), or of a copy; the name of a
# module that the function makes; the setting of its segment, where that starts, and the scopes around it.
Question = int | CopyKey | UnregisteredInside | Literal["setting", "start", "scopes"]


class Used(NamedTuple):
    """What a traced function was answered. Its trace can be used where the answers are the same.

    Attributes:
        answer: The answer.
        module: A reference to the module that was asked for, if one was.
    """

    answer: Any
    module: weakref.ref[Any] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the module no longer exists: nothing can ask for it again."""
        return self.module is not None and self.module() is None


@dataclasses.dataclass(slots=True)
class Frame:
    """A call of a module that is open.

    Attributes:
        place: The place of the module.
        module: The module.
        method: The name of the method, and its function.
        scope: The scope of the call.
        names: The names that are open with it.
        level: The trace that it began under.
        unregistered: The modules that it called and that are not in the model.
    """

    place: Place
    module: Any
    method: tuple[str, Any]
    scope: ScopeName
    names: Any
    level: Any
    unregistered: UnregisteredModules = dataclasses.field(default_factory=UnregisteredModules)


@dataclasses.dataclass(slots=True, eq=False)
class Segment:
    """The calls that are open between two boundaries: the start of a capture, or of tracing a function.

    Attributes:
        known_modules: Modules whose places are known, though their calls are not open.
        n_names: How many names were open at the start.
        names_around: The names that are open around it, in the segment outside.
        description: Of the call that it began with, at a boundary: that of the trace, if there is one.
        frames: The open calls of modules, the outermost first.
        used: What was used of the enclosing segments.
        notes: Data that the library of the modules keeps until the outermost call ends.
        unregistered: The modules that were called in it, outside other calls, and that are not in the model.
        inner_unregistered: The modules of the enclosing program that correspond to them, by name.
        copies: The modules that were found to be copies, and those in them, by identity: references and places. What a
            copy is does not change when its arrays are replaced.
    """

    known_modules: list[tuple[Place, Any]]
    n_names: int
    names_around: Any
    description: Any = None
    frames: list[Frame] = dataclasses.field(default_factory=list)
    used: dict[Question, Used] = dataclasses.field(default_factory=dict)
    notes: list[Any] = dataclasses.field(default_factory=list)
    unregistered: UnregisteredModules = dataclasses.field(default_factory=UnregisteredModules)
    inner_unregistered: dict[str, UnregisteredInside] = dataclasses.field(default_factory=dict)
    copies: dict[int, tuple[weakref.ref[Any], Place]] = dataclasses.field(default_factory=dict)

    def copy(self, held: Callable[[Any], Any]) -> Segment:
        """A copy of the segment as it is now, with what `held` makes of each module."""
        return dataclasses.replace(
            self,
            known_modules=[(place, held(module)) for place, module in self.known_modules],
            frames=[
                dataclasses.replace(frame, module=held(frame.module), unregistered=frame.unregistered.copy())
                for frame in self.frames
            ],
            used={},
            notes=[],
            unregistered=self.unregistered.copy(),
            inner_unregistered=dict(self.inner_unregistered),
            copies=dict(self.copies),
        )

    def find(self, module: Any) -> Place | None:
        """The place of a module, by identity."""
        for place, root in self.roots():
            if (text := text_between(root, module)) is not None:
                return place.below(text)
        ref, place = self.copies.get(id(module), (None, None))
        return place if ref is not None and ref() is module else None

    def note(self, place: Place, copy: Any) -> None:
        """Notes the place of a copy."""
        for path, part in everything_in(copy):
            if module_kind(part) is not None:
                self.copies[id(part)] = weakref.ref(part), place.below("/".join(map(str, path)))

    def roots(self) -> Iterator[tuple[Place, Any]]:
        """The modules whose places are known, with their places: the outermost first."""
        yield from self.known_modules
        yield from ((frame.place, frame.module) for frame in self.frames)

    @property
    def unregistered_now(self) -> UnregisteredModules:
        """The unregistered modules of the innermost call, or of the segment, if no call is open."""
        return self.frames[-1].unregistered if self.frames else self.unregistered

    @property
    def innermost(self) -> Place:
        """The place of the innermost call; the start of the segment, if there is none."""
        return self.frames[-1].place if self.frames else Place("")

    def current_path(self, depth: int, stack: Any = None) -> str:
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
