"""The functions of a file, as its syntax tree has them.

Not marked are generators and coroutines, whose bodies run after the call, and the methods that begin and end a `with`
block.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

INDEX = "sonde_index"  # the attribute of a node that has the number of its function
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = {ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>"}


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function in a file, as it is written.

    Attributes:
        index: Its number in the file.
        qualname: Its qualified name.
        line: The line of the definition or of its first decorator.
        end: Its last line.
        start: Line and column at which the body of a lambda starts; tells lambdas on one line apart.
        parent: The number of the function that it is defined in, if any.
        reason: Why its body is not marked; None if it is.
    """

    index: int
    qualname: str
    line: int
    end: int
    start: tuple[int, int] | None
    parent: int | None
    reason: str | None

    @property
    def is_method(self) -> bool:
        """Whether it is written in the body of a class."""
        around = self.qualname.rpartition(".")[0]
        return bool(around) and not around.endswith(">")  # such as <locals> and <listcomp>


def functions_in(tree: ast.Module) -> list[tuple[Definition, Function]]:
    """All functions of a file, each after the one that it is defined in."""
    functions: list[tuple[Definition, Function]] = []
    _collect(tree, "", None, functions)
    return functions


def _collect(node: ast.AST, prefix: str, parent: int | None, found: list[tuple[Definition, Function]]) -> None:
    for child in ast.iter_child_nodes(node):
        _collect_from(child, prefix, parent, found)


def _collect_from(node: Any, prefix: str, parent: int | None, found: list[tuple[Definition, Function]]) -> None:
    if isinstance(node, SCOPES):
        is_lambda = isinstance(node, ast.Lambda)
        name = "<lambda>" if is_lambda else node.name
        inner = f"{prefix}{name}." if isinstance(node, ast.ClassDef) else f"{prefix}{name}.<locals>."
        if not isinstance(node, ast.ClassDef):
            decorators = [] if is_lambda else node.decorator_list
            line = min([node.lineno, *(d.lineno for d in decorators)])
            start = (node.body.lineno, node.body.col_offset) if is_lambda else None
            function = Function(len(found), prefix + name, line, node.end_lineno or line, start, parent, _reason(node))
            parent = function.index
            setattr(node, INDEX, parent)  # copies of the tree have it too
            found.append((node, function))
        for part in _around(node):
            _collect_from(part, prefix, parent, found)
        for part in [node.body] if is_lambda else node.body:
            _collect_from(part, inner, parent, found)
        return
    if isinstance(node, ast.JoinedStr):  # before Python 3.12, code in strings has no places
        start = len(found)
        _collect(node, prefix, parent, found)
        found[start:] = [(n, dataclasses.replace(f, reason="it is part of a string")) for n, f in found[start:]]
        return
    name = "<genexpr>" if isinstance(node, ast.GeneratorExp) else _COMPREHENSIONS.get(type(node))
    if name is None or (name != "<genexpr>" and sys.version_info >= (3, 12)):
        _collect(node, prefix, parent, found)
        return
    first = node.generators[0].iter  # evaluated in the enclosing scope
    for part in ast.iter_child_nodes(node):
        for inner in ast.iter_child_nodes(part) if part is node.generators[0] else [part]:
            below = prefix if inner is first else f"{prefix}{name}."
            _collect_from(inner, below, parent, found)


def _around(node: Any) -> list[ast.AST]:
    """The parts of a function or class that are evaluated in the enclosing scope: defaults, decorators, bases."""
    if isinstance(node, ast.Lambda):
        return [node.args]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    return [*node.decorator_list, node.args, *([node.returns] if node.returns is not None else [])]


def _reason(node: Definition) -> str | None:
    if isinstance(node, ast.AsyncFunctionDef):
        return "it is a coroutine function, whose body runs after the call"
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own_nodes(body)):
        return "it is a generator function, whose body runs after the call"
    if isinstance(node, ast.FunctionDef) and node.name in ("__enter__", "__exit__"):
        return "it begins or ends a `with` block, which may open scopes that outlive the call"
    if not isinstance(node, ast.Lambda) and _nesting(node.body) >= _MOST_NESTED:
        return "its blocks are nested as deeply as Python allows, and marks need one more"
    return None


# How many blocks Python nests in one function.
_MOST_NESTED = 20


def _nesting(body: Iterable[ast.AST]) -> int:
    """How many blocks are nested in statements, as Python counts them."""
    return max(map(_nesting_of, body), default=0)


def _nesting_of(node: ast.AST) -> int:
    if isinstance(node, (ast.For, ast.While)):
        return max(1 + _nesting(node.body), _nesting(node.orelse))
    if isinstance(node, ast.With):
        return len(node.items) + _nesting(node.body)
    # Python counts a block for `finally`, one for the handlers, and one more inside each of them, for its cleanup.
    if isinstance(node, (ast.Try, ast.TryStar)):
        final = int(bool(node.finalbody))
        handled = [final + 2 + _nesting(handler.body) for handler in node.handlers]
        inner = [
            final + bool(handled) + _nesting(node.body),
            final + _nesting(node.orelse),
            1 + _nesting(node.finalbody),
        ]
        return max(inner + handled)
    if isinstance(node, (ast.If, ast.Match, ast.match_case)):
        return _nesting(ast.iter_child_nodes(node))
    return 0


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These nodes and all below that belong to the same scope."""
    waiting = [iter(nodes)]  # not by calls: each node would pass through as many generators as it is deep
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        waiting.append(iter(_around(node) if isinstance(node, SCOPES) else ast.iter_child_nodes(node)))
