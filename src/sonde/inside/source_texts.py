"""Where the source of code is, by the way that it was compiled.

Files, cells of notebooks, doctests and text that a program registered are in `linecache` under the name of their file.
Some code shares such a name with other code, `<string>` or `<timed exec>`, and its text is elsewhere: `other_texts` has
those that may be it. Which one it is, if any, is decided by comparing the code.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, cast

_MAGIC = "run_cell_magic("


def lines_named(filename: str, loaded_by: dict[str, Any] | None) -> list[str]:
    """The lines of a file; none if they are not known. `loaded_by` has the loader of files that are in an archive."""
    if loaded_by is not None:
        linecache.lazycache(filename, loaded_by)
    linecache.checkcache(filename)  # a file may be edited and loaded again
    return linecache.getlines(filename)


def other_texts(code: CodeType) -> Iterator[str]:
    """Other texts than that of its file that code may come from."""
    if not code.co_filename.startswith("<"):
        yield from _cell_of_marimo(code)
        return
    typed = cast("Callable[[CodeType], list[str]] | None", getattr(linecache, "_getlines_from_code", None))
    if typed is not None and (lines := typed(code)):  # at the prompt of Python 3.13 and later
        yield "".join(lines)
    yield from (text for text in [*_after_c(), *_bodies_of_magics()] if _may_have(text, code))


def _cell_of_marimo(code: CodeType) -> Iterator[str]:
    """The cell of marimo that code is in: its scripts have cells as functions, and run their bodies as modules."""
    lines = linecache.getlines(code.co_filename)
    if "marimo" not in sys.modules or not any("import marimo" in line for line in lines):
        return
    for cell in ast.parse("".join(lines)).body:
        if not isinstance(cell, ast.FunctionDef | ast.AsyncFunctionDef) or not cell.decorator_list:
            continue
        if not cell.lineno <= code.co_firstlineno <= (cell.end_lineno or 0):
            continue
        body = [statement for statement in cell.body if not isinstance(statement, ast.Return)]
        if body:
            # Decorators of the first statement stand above its line.
            first = min(n.lineno for n in [body[0], *getattr(body[0], "decorator_list", [])])
            text = textwrap.dedent("".join(lines[first - 1 : body[-1].end_lineno]))
            yield "\n" * (first - 1) + text  # each line keeps its number


def _may_have(text: str, code: CodeType) -> bool:
    return code.co_name.startswith("<") or code.co_name in text


def _after_c() -> Iterator[str]:
    """The text of `python -c text`."""
    for option, text in zip(sys.orig_argv, sys.orig_argv[1:]):
        if re.fullmatch(r"-[a-zA-Z]*c", option):
            yield text


def _bodies_of_magics() -> Iterator[str]:
    """The cells below `%%time` and the like, the newest first: IPython gives such a cell to the magic, as a string."""
    shell = _shell()
    for entry in reversed(list(linecache.cache.values())):
        text = "".join(entry[2]) if len(entry) == 4 else ""
        if _MAGIC not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == _MAGIC[:-1] and len(node.args) == 3:
                body = node.args[2]
                if isinstance(body, ast.Constant) and isinstance(body.value, str):
                    yield body.value if shell is None else shell.transform_cell(body.value)


def _shell() -> Any:
    """IPython's shell, if this process is one."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def no_source(filename: str) -> str:
    """The reason that code without source cannot be looked into, and what to do."""
    if filename in ("<stdin>", "<console>"):
        how = "what is typed at this prompt is not kept: write the function in a file, or use IPython or Python 3.13"
    elif filename.startswith("<"):
        how = (
            "it was made of text by exec or eval: write it in a file, or compile the text under a name of its own and "
            "register it, linecache.cache[name] = (len(text), None, text.splitlines(True), name)"
        )
    else:
        how = f"there is no readable file {filename}: install the package with its .py files, or copy the function"
    return f"there is no source; {how}"
