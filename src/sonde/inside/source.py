"""Files whose functions can be marked: from a code object to its function, and from there to marked code.

A file is parsed and compiled whole, so that names in classes, closures and `super()` keep their meaning. The unmarked
result is compared with the code that runs: if they differ, the function was made from another source, and nothing is
marked. Code may have been compiled in other ways, statement by statement as in a notebook, and tools may have changed
the syntax tree on import (as pytest does with `assert`): `comparing` allows for both.
"""

from __future__ import annotations
import __future__

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeVar

from sonde._jax import InterruptibleLock
from sonde.inside.functions import Function, functions_in
from sonde.inside.instrumented import FunctionMarks
from sonde.inside.same_code import OpenLines, is_made_from, open_lines, shape
from sonde.inside.source_texts import lines_named, no_source, other_texts
from sonde.inside.syntax import marked_tree, read_word
from sonde.inside.value_sites import called_from_c

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

CHANGED = (
    "its source has changed since it was loaded, or a tool changed it when it was loaded; load it again (in a "
    "notebook, run its cell again), without the tool"
)
RENAMED = "marimo renames variables that begin with an underscore; write it without such variables"
NOT_ALONE = "it cannot be told apart from others on its line; write it on a line of its own"


class SourceFile:
    """A file, or a cell of a notebook.

    Attributes:
        functions: All functions that are written in it, each after the one that it is defined in.
    """

    def __init__(self, filename: str, source: str, flags: int) -> None:
        self.filename = filename
        self._source = source
        self._flags = flags
        self._marked: dict[bool, dict[int, CodeType]] = {}
        self.functions: list[FunctionMarks] = []
        for function in _deep_enough(self._read):
            parent = None if function.parent is None else self.functions[function.parent]
            self.functions.append(FunctionMarks(function, filename, parent, self._marked_code))
            for outer in self.functions[-1].outer:
                outer.inner.append(self.functions[-1])
        self._by_code: dict[CodeType, FunctionMarks] = {}
        self._by_place: dict[tuple[str, int], list[FunctionMarks]] = {}
        for function in self.functions:
            self._by_place.setdefault((function.qualname, function.function.line), []).append(function)
        whole = _deep_enough(lambda: compile_whole(ast.parse(source, filename), filename, flags))
        codes = codes_of([function.function for function in self.functions], whole)
        for index, code in codes.items():
            self.functions[index].plain = code
            self._by_code[code] = self.functions[index]
        # Codes that are in the file and are no functions. One is that of the file itself: Python runs it as a function.
        self._others = {(code.co_qualname, code) for code in (whole, *_codes_in(whole)) if code not in self._by_code}
        self._made: dict[int, CodeType] = {}
        for function in self.functions:
            if function.plain is None and function.reason is None:
                others = self._by_place[function.qualname, function.function.line]
                function.reason = NOT_ALONE if len(others) > 1 else "Python makes no code for it"

    def _read(self) -> list[Function]:
        return [function for _, function in functions_in(ast.parse(self._source, self.filename))]

    def find(self, code: CodeType, qualname: str | None = None) -> FunctionMarks | None:
        """The function that has this code; None if the source is not what the code was made from.

        Args:
            code: The code.
            qualname: The name of the function object that has the code now: tools replace codes by those of others.
        """
        exact = self._by_code.get(code)
        if exact is not None and exact.qualname == code.co_qualname:  # which Python does not compare
            return exact
        copied = next((f for f in self.functions if f.has_code(code)), None)
        if copied is not None:  # the program made a function of it while a capture ran
            return copied
        at_place = self._by_place.get((code.co_qualname, code.co_firstlineno), [])
        plain = at_place[0].plain if len(at_place) == 1 else None
        if plain is not None and is_made_from(plain, code, self._open_lines):
            return at_place[0]
        return self._find_alike(code, qualname or code.co_qualname)

    def _find_alike(self, code: CodeType, qualname: str) -> FunctionMarks | None:
        """The function that computes what a code does, if only one has its name, or only one has its name and line."""
        named = [f for f in self.functions if f.qualname in (code.co_qualname, qualname)]
        if not named:
            return None
        shape_of_code = shape(code)
        alike = [f for f in named if f.plain is not None and shape(f.plain) == shape_of_code]
        alike = alike or [f for f in named if self._shapes_anew.get(f.function.index) == shape_of_code]
        for key, own in ((lambda f: f.function.line, code.co_firstlineno), (lambda f: f.function.start, _start(code))):
            same = [f for f in alike if key(f) == own]
            alike = same or alike
        return alike[0] if len(alike) == 1 else None

    def has_part(self, code: CodeType) -> bool:
        """Whether a code is in it, but not that of a function: a comprehension, or what marked code is made of."""
        return (code.co_qualname, code) in self._others or id(code) in self._made

    def has_several(self, code: CodeType) -> bool:
        """Whether several functions in it have the name and line of a code."""
        return len(self._by_place.get((code.co_qualname, code.co_firstlineno), [])) > 1

    @functools.cached_property
    def _open_lines(self) -> OpenLines:
        return open_lines(ast.parse(self._source, self.filename))

    @functools.cached_property
    def _shapes_anew(self) -> dict[int, tuple[Any, ...]]:
        """The shapes of the functions as autoreload compiles them: from text made of the tree, with other lines."""
        tree = ast.parse(ast.unparse(ast.parse(self._source, self.filename)), self.filename)
        functions = [function for _, function in functions_in(tree)]
        codes = codes_of(functions, compile_whole(tree, self.filename, self._flags))
        return {index: shape(code) for index, code in codes.items()}

    def _marked_code(self, function: FunctionMarks, parts: bool) -> CodeType | None:
        def codes() -> dict[int, CodeType]:
            if parts not in self._marked:
                codes_made: dict[int, CodeType] = {}
                self._with_objects(_deep_enough(lambda: self._compiled(parts)), codes_made)
                self._marked[parts] = codes_made
                for each in self.functions:
                    each.set_code(parts, codes_made.get(each.function.index))
            return self._marked[parts]

        return _FILES.lock.run(codes).get(function.function.index)

    def _compiled(self, parts: bool) -> CodeType:
        tree = marked_tree(self._source, self.filename, parts=parts)
        return compile_whole(tree, self.filename, self._flags)

    def _with_objects(self, code: CodeType, found: dict[int, CodeType]) -> CodeType:
        """The code with the placeholder words among its constants replaced by their objects."""
        # A syntax tree cannot hold objects: a marked one has words in their place, which no other constant equals.
        constants: list[Any] = []
        own_index: int | None = None
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                constant = self._with_objects(constant, found)
            elif (spoken := read_word(constant)) is not None:
                role, index = spoken
                function = self.functions[index]
                constant = function if role == "scope" else called_from_c(getattr(FunctionMarks, role), function)
                own_index = index if role == "enter" else own_index
            constants.append(constant)
        replaced = code.replace(co_consts=tuple(constants))
        if own_index is not None:
            found[own_index] = replaced
        else:
            self._made[id(replaced)] = replaced
        return replaced


_T = TypeVar("_T")
_DEEPER = 20_000


def _deep_enough(walk: Callable[[], _T]) -> _T:
    """Walks over a syntax tree. A sum of a thousand terms is a thousand deep, more than calls may usually be."""
    try:
        return walk()
    except RecursionError:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + _DEEPER)
        try:
            return walk()
        finally:
            sys.setrecursionlimit(before)


def compile_whole(tree: ast.Module, filename: str, flags: int) -> CodeType:
    """Compiles a tree as notebooks do, which allow `await` outside of functions, and future imports in any line."""
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(tree, filename, "exec", flags, dont_inherit=True)
    except SyntaxError:
        statements: list[ast.stmt] = []
        for statement in tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                flags |= compile(ast.Module([statement], []), filename, "exec", dont_inherit=True).co_flags & _FUTURE
            else:
                statements.append(statement)
        return compile(ast.Module(statements, []), filename, "exec", flags, dont_inherit=True)


def codes_of(functions: Sequence[Function], whole: CodeType) -> dict[int, CodeType]:
    """The codes of functions, by their numbers, in the code of the file."""
    by_place: dict[tuple[str, int], list[Function]] = {}
    for function in functions:
        by_place.setdefault((function.qualname, function.line), []).append(function)
    codes: dict[int, CodeType] = {}
    for code in _codes_in(whole):
        at_place = by_place.get((code.co_qualname, code.co_firstlineno), [])
        if len(at_place) > 1:
            at_place = [f for f in at_place if f.start == _start(code)]
        if len(at_place) == 1:
            codes.setdefault(at_place[0].index, code)
    return codes


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _start(code: CodeType) -> tuple[int, int] | None:
    """Line and column of the first expression in a code."""
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    return min(places, default=None)


class _Files:
    """The files that were read, for the life of the process: reading one takes as long as importing it.

    Attributes:
        lock: For reading and compiling.
        by_name: By name and inherited future imports, with the lines that were read. A file that has changed is read
            again.
        by_text: Texts that a loader shows for the code of a file, which has others.
    """

    def __init__(self) -> None:
        self.lock = InterruptibleLock()
        self.by_name: dict[tuple[str, int], tuple[list[str], SourceFile | None]] = {}
        self.by_text: dict[tuple[str, int, str], SourceFile | None] = {}


_FILES = _Files()


def file_named(filename: str, flags: int = 0, *, loaded_by: dict[str, Any] | None = None) -> SourceFile | None:
    """The file of a name; None if there is no source.

    Args:
        filename: The name.
        flags: The future imports that it inherits.
        loaded_by: The globals of its module, with the loader of files that are in an archive.
    """
    key = (filename, flags)

    def file_now() -> SourceFile | None:
        lines = lines_named(filename, loaded_by)
        entry = _FILES.by_name.get(key)
        if entry is not None and (entry[0] is lines or entry[0] == lines):
            return entry[1]
        file = _read_file(filename, "".join(lines), flags) if lines else None
        _FILES.by_name[key] = (lines, file)
        return file

    return _FILES.lock.run(file_now)


def _read_file(filename: str, text: str, flags: int) -> SourceFile | None:
    try:
        return SourceFile(filename, text, flags)
    except (SyntaxError, ValueError, RecursionError):  # a page or a template, not Python; or data, too deep for it
        return None


def _read_text(key: tuple[str, int, str]) -> None:
    filename, flags, text = key
    _FILES.by_text.setdefault(key, _read_file(filename, text, flags))


def _files_of(code: CodeType, loaded_by: dict[str, Any] | None) -> Iterator[SourceFile]:
    """The files that a code may come from."""
    # A cell of a notebook inherits the future imports of earlier ones.
    for flags in dict.fromkeys((0, code.co_flags & _FUTURE)):
        file = file_named(code.co_filename, flags, loaded_by=loaded_by)
        if file is not None:
            yield file
    for text in other_texts(code):
        for flags in dict.fromkeys((0, code.co_flags & _FUTURE)):
            key = (code.co_filename, flags, text)
            if key not in _FILES.by_text:
                _FILES.lock.run(functools.partial(_read_text, key))
            if (file := _FILES.by_text[key]) is not None:
                yield file


def function_of(
    code: CodeType, loaded_by: dict[str, Any] | None = None, qualname: str | None = None
) -> FunctionMarks | str:
    """The function that a code was made from, or why it is not known.

    Args:
        code: The code.
        loaded_by: The globals of its module.
        qualname: The name of the function object that has the code.
    """
    reason = no_source(code.co_filename)
    for file in _files_of(code, loaded_by):
        function = file.find(code, qualname)
        if function is not None:
            return function
        if file_named(code.co_filename) is not None:
            is_renamed = any(name.startswith("_cell_") for name in code.co_names)
            reason = NOT_ALONE if file.has_several(code) else RENAMED if is_renamed else CHANGED
    return reason
