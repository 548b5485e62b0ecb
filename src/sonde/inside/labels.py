"""Names for the calls and operators of a function: `softmax`, `matmul`, with a number where there are several."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator

# Operators, by the names that Python's own `operator` module gives them.
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitOr: "or",
    ast.BitAnd: "and",
    ast.BitXor: "xor",
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


def part_labels(own: Iterable[ast.AST], arguments: set[str]) -> dict[int, str]:
    """A name for every call and operator of a function, after what is called; numbered where there are several.

    Variables count too: if one has the name, the calls are numbered, with numbers that are not in use. What never has
    an array, such as `-1`, an annotation or the pattern of a `case`, has no name.
    """
    own = list(own)
    never = {id(n) for node in own for part in _without_values(node) for n in ast.walk(part)}
    taken = {n.id for n in own if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | arguments
    named = [(node, name) for node in own if id(node) not in never and (name := _part_name(node)) is not None]
    named.sort(key=lambda pair: (pair[0].end_lineno, pair[0].end_col_offset))  # pyright: ignore
    counts: dict[str, int] = {}
    for _, name in named:
        counts[name] = counts.get(name, 0) + 1
    alone = {name for name, n in counts.items() if n == 1 and name not in taken}
    taken |= alone
    numbers: dict[str, Iterator[int]] = {name: itertools.count() for name in counts}
    labels: dict[int, str] = {}
    for node, name in named:
        free = (f"{name}_{n}" for n in numbers[name] if f"{name}_{n}" not in taken)
        labels[id(node)] = name if name in alone else next(free)
    return labels


def _without_values(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that are not marked."""
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        return [node] if _is_constant(node) else []
    if isinstance(node, ast.JoinedStr):
        return [] if has_marks(node) else [node]
    if isinstance(node, ast.AnnAssign):
        return [node.annotation]
    return [node] if isinstance(node, ast.pattern) else []


def _is_constant(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.BinOp) and _is_constant(node.right) and _is_constant(node.left)
    )


def has_marks(node: ast.JoinedStr) -> bool:
    """Whether an f-string binds a name. If not it is left alone: before Python 3.12 its parts have no line numbers."""
    return any(isinstance(n, ast.NamedExpr) for n in ast.walk(node))


def _part_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        called = node.func
        while isinstance(called, (ast.Call, ast.Subscript)):  # jax.vmap(f)(x), layers[0](x)
            called = called.func if isinstance(called, ast.Call) else called.value
        if isinstance(called, ast.Attribute):
            return called.attr
        return called.id if isinstance(called, ast.Name) else "call"
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return _OPERATORS.get(type(node.op))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _OPERATORS.get(type(node.ops[0]))
    return None
