"""Whether code was made from a source.

The same source becomes different instructions, depending on what is compiled with it. A function that is compiled
alone, as IPython and the prompts of Python do, calls `jnp.tanh` as a method; compiled in a file that imports `jnp`, as
a function. `shape` is what all these have in common. It has no lines: IPython's autoreload compiles functions from text
that it made of their syntax tree, and an edit further up moves a function and leaves it as it is.

`is_made_from` is for tools that change the syntax tree on import. pytest rewrites `assert` statements. Other tools
decorate every function, or check the values of annotated variables. All else must be the same: the same instructions at
the same lines and columns. Otherwise the file is not the one that was imported, and its marked code would compute
something else.
"""

from __future__ import annotations

import ast
import bisect
import dis
import inspect
import re
from types import CodeType
from typing import Any, NamedTuple

_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_CONDITION = re.compile(r"IF_(TRUE|FALSE|NONE|NOT_NONE)")
# Which of these there are, and how often, depends on the statements around.
_PASSED_OVER = frozenset(
    ("RESUME", "NOP", "EXTENDED_ARG", "CACHE", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "RETURN_VALUE")
    + ("RETURN_CONST", "POP_TOP")
)
# A call has or lacks these if what is called is an attribute of a name; the same is computed.
_OF_CALLS = frozenset(("PUSH_NULL", "PRECALL"))
_NOTHING = frozenset(("NOP", "EXTENDED_ARG", "CACHE")) | _OF_CALLS
_ALIKE = {"LOAD_FAST_CHECK": "LOAD_FAST", "LOAD_FAST_BORROW": "LOAD_FAST", "LOAD_METHOD": "LOAD_ATTR"}
_FAST = re.compile(r"(?:LOAD|STORE)_FAST(?:_CHECK|_BORROW)?")


def shape(code: CodeType) -> tuple[Any, ...]:
    """What a function computes, whatever it was compiled with and wherever it is: equal shapes compute the same."""
    instructions = [i for i in dis.Bytecode(code, show_caches=False) if i.opname not in _NOTHING]
    offsets = [i.offset for i in instructions]
    body: list[tuple[str, Any]] = []
    for i in instructions:
        value = bisect.bisect_left(offsets, i.argval) if i.opcode in _JUMPS else _constant(i.argval)
        # Python joins two of these into one instruction if they are on one line.
        parts = _FAST.findall(i.opname) if isinstance(i.argval, tuple) else []
        if len(parts) == 2:
            body += [(_ALIKE.get(str(name), str(name)), _constant(each)) for name, each in zip(parts, i.argval)]
        else:
            body.append((_ALIKE.get(i.opname, i.opname), value))
    handlers = [
        tuple(bisect.bisect_left(offsets, at) for at in (entry.start, entry.end, entry.target)) + (entry.depth,)
        for entry in dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    ]
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    arguments += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (*counts, code.co_varnames[:arguments], code.co_freevars, tuple(body), tuple(handlers))


def _constant(value: Any) -> Any:
    """A constant in a form that is compared with its type and sign."""
    return shape(value) if isinstance(value, CodeType) else (type(value).__name__, repr(value))


class OpenLines(NamedTuple):
    """Lines of a file that tools may change: those that they rewrite, and those that they only add to."""

    rewritten: frozenset[int]
    extended: frozenset[int]


def open_lines(tree: ast.Module) -> OpenLines:
    """The lines of `assert` statements; those of definitions and annotated assignments."""
    rewritten: set[int] = set()
    extended: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            rewritten.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.AnnAssign):
            extended.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            extended.update((node.lineno, *(d.lineno for d in node.decorator_list)))
    return OpenLines(frozenset(rewritten), frozenset(extended))


def is_made_from(plain: CodeType, code: CodeType, lines: OpenLines) -> bool:
    """Whether code differs from the code of its source only where tools change it."""
    n = plain.co_argcount + plain.co_kwonlyargcount
    if not (
        plain.co_varnames[:n] == code.co_varnames[:n]
        and (plain.co_argcount, plain.co_posonlyargcount, plain.co_kwonlyargcount)
        == (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        and plain.co_freevars == code.co_freevars
        and set(plain.co_varnames) <= set(code.co_varnames)
    ):
        return False
    plain_instructions, code_instructions = _instructions(plain, lines), _instructions(code, lines)
    if not plain_instructions <= code_instructions or (
        plain_instructions and not any(place.has_column for place, *_ in plain_instructions)
    ):
        return False
    # What a tool adds has the place of the statement, or one that nothing written in the function has.
    first = plain.co_firstlineno
    more = [place for place, *_ in code_instructions - plain_instructions if place.has_column and place.line >= first]
    if any(place.line not in lines.extended for place in more):
        return False
    made = [c for c in code.co_consts if isinstance(c, CodeType)]
    return all(
        any(_key(inner) == _key(c) and is_made_from(inner, c, lines) for c in made)
        for inner in plain.co_consts
        if isinstance(inner, CodeType) and inner.co_firstlineno not in lines.rewritten
    )


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


class _Place(NamedTuple):
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None

    @property
    def has_column(self) -> bool:
        """Not if Python was told to keep none."""
        return self.column is not None


def _instructions(code: CodeType, lines: OpenLines) -> set[tuple[_Place, str, str, str]]:
    """The instructions of a function, each with its place."""
    instructions: set[tuple[_Place, str, str, str]] = set()
    for instruction in dis.get_instructions(code):
        place = instruction.positions
        if place is None or place.lineno is None or place.lineno in lines.rewritten:
            continue
        name, value = instruction.opname, instruction.argval
        if name in _PASSED_OVER or name in _OF_CALLS or (name == "LOAD_CONST" and value is None):
            continue
        if instruction.opcode in _JUMPS:
            condition = _CONDITION.search(name)
            if condition is None and name.startswith("JUMP"):
                continue
            name, value = condition[0] if condition is not None else name, None
        if isinstance(value, CodeType):
            value = _key(value)
        at = _Place(place.lineno, place.end_lineno, place.col_offset, place.end_col_offset)
        instructions.add((at, _ALIKE.get(name, name), type(value).__name__, repr(value)))
    return instructions
