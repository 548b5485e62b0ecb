"""The changes: one at a time, in one function, such as a comparison turned round or half of a condition left out."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed function.

    Attributes:
        file: The file, from the root of the source.
        function: The name of the function, with those around it.
        line: The line on which the function begins, decorators included.
        before: The expression.
        after: What it is changed to.
        source: The whole file with the change.
    """

    file: str
    function: str
    line: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        """What the list of accepted survivors calls it: no line, so that it lasts."""
        return f"{self.file} {self.function}: {self.before} -> {self.after}"


def mutants_of(root: Path, file: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for function, outer in _functions(tree, ()):
        line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        for node in _own_nodes(function):
            for changed in _changes(node):
                before, after = ast.unparse(node), ast.unparse(changed)
                if before == after:
                    continue
                text = _replaced(source, node, after)
                yield Mutant(file.relative_to(root).as_posix(), ".".join(outer), line, before, after, text)


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[ast.FunctionDef, tuple[str, ...]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, (*outer, child.name)
        name = (child.name,) if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else ()
        yield from _functions(child, (*outer, *name))


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The expressions of a function's body, without those of functions in it, annotations, messages and f-strings."""
    open_nodes: list[ast.AST] = list(function.body)
    while open_nodes:
        node = open_nodes.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)):
            continue
        if isinstance(node, ast.AnnAssign):
            open_nodes += [node.value] if node.value is not None else []
            continue
        if isinstance(node, ast.expr):
            yield node
        open_nodes += ast.iter_child_nodes(node)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = copy.deepcopy(node)
        changed.ops = [_OPPOSITE[type(node.ops[0])]()]
        yield changed
    elif isinstance(node, ast.BoolOp):
        for left_out in range(len(node.values)):  # each half of a guard
            values = [value for i, value in enumerate(node.values) if i != left_out]
            yield values[0] if len(values) == 1 else ast.BoolOp(node.op, values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node):
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        for number, generator in enumerate(node.generators):
            if generator.ifs:  # a filter that lets everything pass
                changed = copy.deepcopy(node)
                changed.generators[number].ifs = []
                yield changed
    elif isinstance(node, ast.Call):
        for number, keyword in enumerate(node.keywords):  # an option that is not passed on
            if keyword.arg is not None:
                changed = copy.deepcopy(node)
                del changed.keywords[number]
                yield changed


def _is_text(node: ast.BinOp) -> bool:
    texts = (ast.Constant, ast.JoinedStr)
    return any(
        isinstance(x, texts) and not isinstance(getattr(x, "value", None), (int, float))
        for x in (node.left, node.right)
    )


def _replaced(source: str, node: ast.expr, text: str) -> str:
    """The source with one expression replaced; everything else stays, so that lines keep their numbers."""
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None and node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [head + f"({text})".encode() + b"\\\n" * (last - first) + tail]
    return b"".join(lines).decode()
