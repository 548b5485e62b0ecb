"""A file's syntax tree with a second, marked body in every function.

    def f(x):                def f(x):
        y = x + 1                if ENTER():
        return y                     with SCOPE:
                                         x = MARK(x, "x")
                     becomes             y = MARK(x + 1, "y")
                                         return MARK(y, "return")
                                     return None
                                 y = x + 1
                                 return y

Both bodies use the same names, so the new code has the arguments, the closure and the line numbers of the old one. The
words in capitals are not names but constants of the new code, so that nothing is added to a module's globals: here they
are strings that no program contains, which `sonde.inside.source` replaces by objects. A call of a constant is written
as the call of a conditional expression, because Python warns about calls of constants.

Names that are not local are not marked. `functions` says which functions are.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from sonde.inside.functions import INDEX, SCOPES, Definition, Function, functions_in, own_nodes
from sonde.inside.labels import has_marks, part_labels

Role = Literal["enter", "scope", "mark", "part", "call", "get", "made", "same"]
_PREFIX = "\0sonde:"


def word(role: Role, index: int) -> str:
    """The string that stands for an object of a function."""
    return f"{_PREFIX}{role}:{index}"


def read_word(constant: Any) -> tuple[str, int] | None:
    """Role and function of a string made by `word`; None for all other constants."""
    if type(constant) is not str or not constant.startswith(_PREFIX):
        return None
    role, _, index = constant[len(_PREFIX) :].partition(":")
    return role, int(index)


def marked_tree(source: str, filename: str, *, parts: bool) -> ast.Module:
    """The tree of a file with marked bodies in it; with the values of calls and operators too, if `parts`."""
    # Parsing a second time is the fastest way to copy the tree, for the unmarked bodies.
    tree, plain = ast.parse(source, filename), _Same().visit(ast.parse(source, filename))
    functions = [function for _, function in functions_in(tree)]
    bodies = [node.body for node, _ in functions_in(plain)]
    return _Outside(_File(functions, bodies, parts)).visit(tree)


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    """The functions of a file, their bodies as they are, and whether to mark calls and operators."""

    known: list[Function]
    bodies: list[Any]
    parts: bool


_N = TypeVar("_N", bound=ast.AST)


def _at(new: _N, old: Any) -> _N:
    """Puts a new node at the position of an old one: on its first line."""
    new.lineno = new.end_lineno = old.lineno  # pyright: ignore[reportAttributeAccessIssue]
    new.col_offset = new.end_col_offset = old.col_offset  # pyright: ignore[reportAttributeAccessIssue]
    return new


def _object(role: Role, index: int, place: Any) -> ast.expr:
    yes, no = _at(ast.Constant(True), place), _at(ast.Constant(0), place)
    return _at(ast.IfExp(yes, _at(ast.Constant(word(role, index)), place), no), place)


def _call(role: Role, index: int, arguments: list[ast.expr], place: Any) -> ast.Call:
    return _at(ast.Call(_object(role, index, place), arguments, []), place)


def _names(target: ast.expr) -> list[ast.Name]:
    """The names that an assignment to a target binds."""
    if isinstance(target, ast.Name):
        return [target]
    if isinstance(target, ast.Starred):
        return _names(target.value)
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for element in target.elts for name in _names(element)]
    return []


def _dotted(target: ast.expr) -> str:
    """The name that an assignment sets, such as `x`, or `self.x` for an attribute; empty for all other targets."""
    if isinstance(target, ast.Attribute):
        owner = _dotted(target.value)
        return f"{owner}.{target.attr}" if owner else ""
    return target.id if isinstance(target, ast.Name) else ""


def _arguments(node: Definition) -> list[ast.arg]:
    a = node.args
    return [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]


class _Outside(ast.NodeTransformer):
    """Everything outside marked bodies: modules, classes, and unmarked bodies."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._unmarked(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._function(node)

    def _unmarked(self, node: Any) -> Any:
        """Visits a function whose own body is not marked; functions that it makes may be."""
        if not isinstance(node, ast.Lambda) and _makes(node.body):
            n = _docstring(node.body)
            test = _at(ast.If(_call("enter", getattr(node, INDEX), [], node), [_at(ast.Pass(), node)], []), node)
            node.body = [*node.body[:n], test, *_visited(_Unmarked(self.file), node.body[n:])]
        self._surroundings(node)
        return node

    def _surroundings(self, node: Any) -> None:
        """Visits defaults, decorators and so on, which are evaluated in the enclosing scope."""
        node.args = self.visit(node.args)
        if not isinstance(node, ast.Lambda):
            node.decorator_list = [self.visit(d) for d in node.decorator_list]

    def _function(self, node: Any) -> Any:
        function = self.file.known[getattr(node, INDEX)]
        if function.reason:
            return self._unmarked(node)
        plain = self.file.bodies[function.index]
        inside = _Inside(self.file, node, function)
        new: Any = inside.lambda_body if isinstance(node, ast.Lambda) else inside.function_body
        node.body = new(node, plain)
        self._surroundings(node)
        return node


def _visited(transformer: ast.NodeTransformer, body: list[ast.stmt]) -> list[ast.stmt]:
    visited: list[ast.stmt] = []
    for statement in body:
        result = transformer.visit(statement)
        visited += result if isinstance(result, list) else [] if result is None else [result]
    return visited


def _docstring(body: list[ast.stmt]) -> int:
    """The number of statements that must stay first: 1 if there is a docstring."""
    return int(isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))


def _makes(body: Iterable[ast.AST]) -> bool:
    """Whether functions or classes are defined in a body."""
    return any(isinstance(n, SCOPES) for n in own_nodes(body))


class _Making(ast.NodeTransformer):
    """The second, unmarked body of a function: the functions that it makes are registered, and may then be marked."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._made(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._made(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._made(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def _made(self, node: Any) -> Any:
        node.args = self.visit(node.args)
        if not isinstance(node, ast.Lambda):
            node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return _made(node)


class _Unmarked(_Outside):
    """The body of a function that has no marked one: the functions that it makes have."""

    def _function(self, node: Any) -> Any:
        return _made(super()._function(node))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node


def _made(node: Any) -> Any:
    """A definition whose function is registered when it is made."""
    if isinstance(node, ast.Lambda):
        return _call("made", getattr(node, INDEX), [node], node)
    node.decorator_list.append(_object("made", getattr(node, INDEX), node))
    return node


class _Inside(_Outside):
    """The marked body of one function."""

    def __init__(self, file: _File, node: Definition, function: Function) -> None:
        super().__init__(file)
        self.index = function.index
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        own = list(own_nodes(body))
        every = _arguments(node)
        is_self = bool(every) and every[0].arg in ("self", "cls") and function.is_method
        self.arguments = every[1:] if is_self else every
        self.foreign = {name for n in own if isinstance(n, ast.Global) for name in n.names}
        self.labels = part_labels(own, {a.arg for a in every}) if file.parts else {}

    # -- bodies --------------------------------------------------------------------------------------------------------

    def function_body(self, node: ast.FunctionDef, plain: list[ast.stmt]) -> list[ast.stmt]:
        n = _docstring(plain)
        head, plain, body = plain[:n], plain[n:], node.body[n:]
        # Declarations of global and nonlocal names must come before their first use.
        said = [n for n in own_nodes(plain) if isinstance(n, (ast.Global, ast.Nonlocal))]
        if said or _makes(plain):
            plain = copy.deepcopy(plain)  # the body of the enclosing function has the same statements
            plain = _visited(_Making(), [_NoDeclarations().visit(n) for n in plain])
            body = [_NoDeclarations().visit(n) for n in body]
        marked = [*(self._again(a, a.arg) for a in self.arguments), *_visited(self, body)]
        scope = _object("scope", self.index, node)
        block = _at(ast.With([ast.withitem(scope, None)], marked or [_at(ast.Pass(), node)]), node)
        test = _call("enter", self.index, [], node)
        return [*head, *said, _at(ast.If(test, [block, _at(ast.Return(None), node)], []), node), *plain]

    def lambda_body(self, node: ast.Lambda, plain: ast.expr) -> ast.expr:
        # An expression cannot open a block: the marked body is a function of the same arguments, which CALL runs.
        place = node.body
        every = _arguments(node)
        inner = ast.arguments([], [_at(ast.arg(x.arg), place) for x in every], None, [], [], None, [])
        names = _at(ast.Constant(" ".join(x.arg for x in self.arguments)), place)
        arguments = [_at(ast.Name(x.arg, ast.Load()), place) for x in every]
        body = _at(ast.Lambda(inner, self.visit(node.body)), place)
        run = _call("get" if _only_gets(plain) else "call", self.index, [body, names, *arguments], place)
        if _makes([plain]):
            plain = _Making().visit(copy.deepcopy(plain))
        return _at(ast.IfExp(_call("enter", self.index, [], place), run, plain), place)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _mark(self, role: Role, value: ast.expr, name: str, place: Any) -> ast.expr:
        return _call(role, self.index, [value, _at(ast.Constant(name), place)], place)

    def _marked(self, value: ast.expr, name: str, place: Any) -> ast.expr:
        return value if name in self.foreign else self._mark("mark", value, name, place)

    def _again(self, place: Any, name: str) -> ast.stmt:
        """`x = MARK(x, "x")`, for names that were bound in other ways."""
        value = self._mark("mark", _at(ast.Name(name, ast.Load()), place), name, place)
        return _at(ast.Assign([_at(ast.Name(name, ast.Store()), place)], value), place)

    def _again_in_place(self, place: Any, name: str) -> ast.expr:
        """`(x := MARK(x, "x"))`, where only an expression can stand."""
        value = self._mark("mark", _at(ast.Name(name, ast.Load()), place), name, place)
        return _at(ast.NamedExpr(_at(ast.Name(name, ast.Store()), place), value), place)

    def _all_again(self, targets: Iterable[ast.expr]) -> list[ast.stmt]:
        last = {n.id: n for target in targets for n in _names(target)}  # a name that is bound twice has one value
        return [self._again(n, n.id) for n in last.values() if n.id not in self.foreign]

    # -- functions defined here ----------------------------------------------------------------------------------------

    def _function(self, node: Any) -> Any:
        return _made(super()._function(node))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for field in (node.decorator_list, node.bases, node.keywords):
            field[:] = [self.visit(x) for x in field]
        node.body = _visited(_InsideClass(self), node.body)
        return node

    # -- statements ----------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        node.targets = [self.visit(t) for t in node.targets]
        if len(node.targets) == 1 and (name := _dotted(node.targets[0])):
            node.value = self._marked(node.value, name, node.targets[0])
            return node
        return [node, *self._all_again(node.targets)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            value = self.visit(node.value)
            name = _dotted(node.target)
            node.value = self._marked(value, name, node.target) if name else value
        node.target = self.visit(node.target)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        node.value = self.visit(node.value)
        node.target = self.visit(node.target)
        return [node, *self._all_again([node.target])]

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        node.value = self._marked(self.visit(node.value), node.target.id, node.target)
        return node

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        node.target = self.visit(node.target)
        node.body = [*self._all_again([node.target]), *_visited(self, node.body)]
        node.orelse = _visited(self, node.orelse)
        return node

    def visit_With(self, node: ast.With) -> Any:
        body = _visited(self, node.body)
        for item in reversed(node.items):  # one block each: the next item may use the name that this one binds
            item.context_expr = self.visit(item.context_expr)
            marks = [] if item.optional_vars is None else self._all_again([item.optional_vars])
            body = [_at(ast.With([item], [*marks, *body]), node)]
        return body[0]

    def visit_match_case(self, node: ast.match_case) -> Any:
        bound = {
            name: n
            for n in ast.walk(node.pattern)
            for name in (getattr(n, "name", None), getattr(n, "rest", None))
            if name and name not in self.foreign and isinstance(n, (ast.MatchAs, ast.MatchStar, ast.MatchMapping))
        }
        body = _visited(self, node.body)
        if node.guard is None:
            node.body = [*(self._again(n, name) for name, n in bound.items()), *body]
        else:  # names are bound before the guard: `(x := MARK(x), guard)[-1]`
            guard: ast.expr = self.visit(node.guard)
            marks = [self._again_in_place(n, name) for name, n in bound.items()]
            both = _at(ast.Tuple([*marks, guard], ast.Load()), guard)
            last = _at(ast.UnaryOp(ast.USub(), _at(ast.Constant(1), guard)), guard)
            node.guard, node.body = _at(ast.Subscript(both, last, ast.Load()), guard), body
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is not None:
            node.value = self._mark("mark", self.visit(node.value), "return", node)
        return node

    # -- calls and operators -------------------------------------------------------------------------------------------

    def _part(self, node: Any) -> Any:
        label = self.labels.get(id(node))
        node = self.generic_visit(node)
        return node if label is None else self._mark("part", node, label, node)

    visit_Call = visit_BinOp = visit_UnaryOp = _part

    def visit_Compare(self, node: ast.Compare) -> Any:
        return _same(self.generic_visit(node)) if _asks_identity(node) else self._part(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return self.generic_visit(node) if has_marks(node) else node


class _Same(ast.NodeTransformer):
    """Unmarked bodies: `a is b` of arrays has the answer that it has without marks elsewhere."""

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        return _same(node) if _asks_identity(node) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return node  # see `_Inside`


def _asks_identity(node: ast.Compare) -> bool:
    """Whether a comparison is `a is b` or `a is not b`, and not with a constant such as None."""
    if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return False
    return not any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))


def _same(node: Any) -> ast.expr:
    same = _call("same", 0, [node.left, *node.comparators], node)  # no matter of which function
    return same if isinstance(node.ops[0], ast.Is) else _at(ast.UnaryOp(ast.Not(), same), node)


def _only_gets(node: ast.expr) -> bool:
    """Whether an expression computes nothing and only selects attributes or elements."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return bool(node.elts) and all(map(_only_gets, node.elts))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) == 2
    return isinstance(node, ast.Attribute) and (isinstance(node.value, ast.Name) or _only_gets(node.value))


class _InsideClass(_Outside):
    """The body of a class that is defined in a marked function: its methods are made here."""

    def __init__(self, inside: _Inside) -> None:
        super().__init__(inside.file)
        self._made = inside

    def _function(self, node: Any) -> Any:
        return _Inside._function(self._made, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = _visited(self, node.body)
        return node


class _NoDeclarations(ast.NodeTransformer):
    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def _stop(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _stop
