"""One function of a file, and what its marked body calls while it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from sonde._array_text import short_place
from sonde.core import SESSIONS, capture_state, scope_of_function
from sonde.inside.functions import Function
from sonde.inside.same_object import is_same
from sonde.inside.value_sites import NEVER, marked

if TYPE_CHECKING:
    from sonde.inside.active_requests import Run


class Depths(NamedTuple):
    """Which of the nested captures see the variables of a function, and the values of its calls and operators."""

    names: frozenset[int]
    parts: frozenset[int]


def current_run() -> Run:
    """What the innermost session of this thread, in which a capture looks inside functions, has changed."""
    session: Any = SESSIONS.current()
    return session.inside


# From Python 3.12 on, comprehensions are no functions, and not part of names.
_COMPREHENSION = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr)>\.")


def _scope_name(qualname: str) -> str:
    return _COMPREHENSION.sub("", qualname).replace("<", "").replace(">", "")


class FunctionMarks:
    """A function, as it is written in a file.

    The objects that its marked code calls are methods of this one. They do nothing in threads that capture nothing: the
    code of a function is replaced for all threads, and only the thread that captures must notice.

    Attributes:
        function: Its description from the syntax tree.
        filename: The file.
        parent: The function that it is defined in, if any.
        inner: The functions that are defined in it, directly or not.
        plain: Its unmarked code.
        reason: Why it cannot be marked; None if it can.
    """

    __slots__ = ("_alone", "_codes", "_compile", "_name", "filename", "function", "inner", "parent", "plain", "reason")

    def __init__(
        self,
        function: Function,
        filename: str,
        parent: FunctionMarks | None,
        compile: Callable[[FunctionMarks, bool], CodeType | None],
    ) -> None:
        self.function = function
        self.filename = filename
        self.parent = parent
        self.inner: list[FunctionMarks] = []
        self.plain: CodeType | None = None
        self.reason: str | None = function.reason
        self._compile = compile
        self._codes: dict[bool, CodeType | None] = {}
        self._alone = _scope_name(function.qualname.replace(".<locals>", ""))
        self._name = _scope_name(function.qualname.rpartition("<locals>.")[2])

    @property
    def qualname(self) -> str:
        """Its qualified name."""
        return self.function.qualname

    @property
    def outer(self) -> Iterator[FunctionMarks]:
        """The functions that it is defined in, the innermost first."""
        outer = self.parent
        while outer is not None:
            yield outer
            outer = outer.parent

    @property
    def place(self) -> str:
        """File and line."""
        return short_place(f"{self.filename}:{self.function.line}")

    def code(self, parts: bool) -> CodeType | None:
        """Its marked code, with the values of calls and operators if `parts`; None if there is none."""
        if parts not in self._codes:
            self._codes[parts] = self._compile(self, parts)
        return self._codes[parts]

    def is_read(self, parts: bool) -> bool:
        """Whether its marked code is known, or that it has none."""
        return parts in self._codes

    def set_code(self, parts: bool, code: CodeType | None) -> None:
        """Its marked code, which was compiled with that of its file."""
        self._codes[parts] = code

    def has_code(self, code: CodeType) -> bool:
        """Whether a code object is marked code of this function."""
        return any(code is own_code for own_code in self._codes.values())

    def __repr__(self) -> str:
        return f"<{self.qualname} at {self.place}>"

    # -- called by marked code -----------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Whether to run the marked body."""
        state = capture_state()
        return state is not None and state.inside is not None and state.inside.depths_of(self) is not None

    def __enter__(self) -> None:
        open_functions = current_run().open_functions
        within = self.parent is not None and any(function is self.parent for function, _ in open_functions)
        name = self._name if within else self._alone
        state: Any = capture_state()
        opened = scope_of_function(name, state.inside.depths_of(self).names)
        opened.__enter__()
        open_functions.append((self, opened))

    def __exit__(self, *error: Any) -> None:
        _, opened = current_run().open_functions.pop()
        opened.__exit__(*error)

    def mark(self, value: Any, name: str) -> Any:
        """A variable."""
        if type(value) in NEVER:
            return value
        state = capture_state()
        if state is None or state.inside is None or (depths := state.inside.depths_of(self)) is None:
            return value
        references = sys.getrefcount(value)
        return marked(value, name, sys._getframe(1), state, depths.names, references=references)

    def part(self, value: Any, name: str) -> Any:
        """Marks the value of a call or operator."""
        if type(value) in NEVER:
            return value
        state = capture_state()
        if state is None or state.inside is None or (depths := state.inside.depths_of(self)) is None:
            return value
        if not depths.parts:
            return value
        references = sys.getrefcount(value)
        return marked(value, name, sys._getframe(1), state, depths.parts, references=references)

    def get(self, body: Callable[..., Any], names: str, *args: Any) -> Any:
        """Runs the body of a lambda that selects a part of something, such as `lambda model: model.weight`.

        Its result stays the same object, because callers of such lambdas rely on that.
        """
        return self._run(body, names, args, is_kept=True)

    def call(self, body: Callable[..., Any], names: str, *args: Any) -> Any:
        """Runs the body of any other lambda."""
        return self._run(body, names, args, is_kept=False)

    def _run(self, body: Callable[..., Any], names: str, args: tuple[Any, ...], *, is_kept: bool) -> Any:
        state: Any = capture_state()
        depths = state.inside.depths_of(self).names
        frame = sys._getframe(2)
        marks = names.split()
        start = len(args) - len(marks)
        with self:
            marked_args = [marked(x, name, frame, state, depths) for x, name in zip(args[start:], marks)]
            return marked(body(*args[:start], *marked_args), "return", frame, state, depths, is_kept=is_kept)

    def same(self, a: Any, b: Any) -> bool:
        """`a is b`."""
        return is_same(a, b)

    def made(self, function: FunctionType) -> FunctionType:
        """Registers a function object that marked code has just made."""
        state = capture_state()
        if state is not None and state.inside is not None:
            current_run().adopt(self, function)
        elif self.plain is not None:  # a thread that captures nothing has made it
            function.__code__ = self.plain
        return function
