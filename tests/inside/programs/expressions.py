"""The text of a random program, and its expressions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from random import Random

Both = tuple[str, ...]  # a piece of code, plain and by hand


@dataclasses.dataclass(frozen=True)
class Texts:
    """A program in both forms, and for each line of the form by hand the line that it stands for."""

    plain: str
    by_hand: str
    lines: list[int]


@dataclasses.dataclass(frozen=True)
class Known:
    """A function that can be called in the text: how, and whether it may be transformed."""

    call: Callable[[list[Both]], Both]
    arity: int
    pure: bool


class Expressions:
    """Writes the text of a program: lines and expressions."""

    def __init__(self, seed: int, *, transforms: bool) -> None:
        self.random = Random(seed)
        self.transforms = transforms
        self.texts: tuple[list[str], list[str]] = ([], [])
        self.lines: list[int] = []
        self.depths = [0, 0]
        self.arrays: list[str] = []
        self.functions: list[Known] = []
        self.scopes: list[str] = []
        self.pure = True
        self.count = 0
        self.left = 60  # statements
        self.foreign: list[str] = []

    # -- text ----------------------------------------------------------------------------------------------------------

    def put(self, plain: str | None, *by_hand: str, at: int | None = None) -> None:
        """Writes a line of the plain text, and those that stand for it, or for the line `at`, in the other."""
        lines = [plain] if plain is not None and not by_hand else list(by_hand)
        for text, new, depth in zip(self.texts, ([plain] if plain is not None else [], lines), self.depths):
            text.extend("    " * depth + line for line in new)
        self.lines += [len(self.texts[0]) if at is None else at] * len(lines)

    def both(self, line: Both, *more: str) -> None:
        """Writes a line in both forms; the form by hand has more lines after it."""
        self.put(line[0], line[1], *more)

    @contextlib.contextmanager
    def block(self, line: Both, *more: str, ends: str | None = "pass") -> Iterator[None]:
        """A block. Names that are bound in it are forgotten after it."""
        self.both(line)
        arrays, functions = list(self.arrays), list(self.functions)
        self.depths = [d + 1 for d in self.depths]
        self.put(None, *more)
        yield
        if ends is not None:
            self.put(ends)
        self.depths = [d - 1 for d in self.depths]
        self.arrays, self.functions = arrays, functions

    def new(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def name(self) -> str:
        """A name to assign to: often one that exists."""
        mine = [a for a in "abcd" if a not in self.foreign]
        return self.random.choice(mine) if mine and self.random.random() < 0.6 else self.new()

    def bound(self, *names: str) -> None:
        self.arrays += [n for n in names if n not in self.arrays]

    # -- expressions ---------------------------------------------------------------------------------------------------

    def array(self, depth: int = 2) -> Both:
        """An expression whose value is an array."""
        pick = self.random.choice
        if depth == 0 or self.random.random() < 0.25:
            name = pick(self.arrays)
            return name, name
        kind = pick(["op", "op", "call", "neg", "if", "walrus", "lambda", "list", "genexp", "function", "function"])
        before, self.no_walrus = (
            self.no_walrus,
            self.no_walrus or kind in ("list", "genexp"),
        )  # Python allows none there
        a, b = self.array(depth - 1), self.array(depth - 1)
        self.no_walrus = before
        if kind == "op":
            op = pick("+-*")
            return tuple(f"({x} {op} {y})" for x, y in zip(a, b))
        if kind == "call":
            f = pick(["jnp.tanh({})", "jnp.sin({})", "({}).astype(jnp.float32)", "jnp.minimum({}, 2.0)"])
            return tuple(f.format(x) for x in a)
        if kind == "neg":
            return tuple(f"(-{x})" for x in a)
        if kind == "if":
            test = pick(["len('ab') == 2", "not FALSE"])
            return tuple(f"({x} if {test} else {y})" for x, y in zip(a, b))
        if kind == "walrus" and not self.no_walrus:
            w = self.new("w")
            return f"(({w} := {a[0]}) * {w})", f"(({w} := S({a[1]}, '{w}')) * {w})"
        if kind == "lambda":
            return self.applied_lambda(a)
        if kind == "list":
            c = self.new("c")
            drawn = self.random.random()
            if drawn < 0.3 and not self.no_walrus:
                w = self.new("w")
                inner = f"({w} := {c} * 0.5)", f"({w} := S({c} * 0.5, '{w}'))"
            elif drawn < 0.6:
                inner = self.applied_lambda((c, c))
            else:
                inner = f"jnp.cos({c})", f"jnp.cos({c})"
            return tuple(f"sum([{i} for {c} in ({x}, {y})])" for i, x, y in zip(inner, a, b))
        if kind == "genexp":
            c = self.new("c")
            return tuple(f"sum({c} * 0.5 for {c} in [{x}, {y}])" for x, y in zip(a, b))
        if kind == "function" and self.functions:
            f = pick(self.functions)
            self.pure = self.pure and f.pure
            return f.call([self.array(depth - 1) for _ in range(f.arity)])
        return a

    no_walrus = False

    def applied_lambda(self, argument: Both) -> Both:
        p = self.new("p")
        around = self.arrays, self.functions
        self.arrays, self.functions = [*self.arrays, p], []
        self.scopes.append("<lambda>")
        body = self.array(1)
        name = self.qualname
        self.scopes.pop()
        self.arrays, self.functions = around
        plain = f"(lambda {p}, *rest, k=2.0: {body[0]} * k)({argument[0]})"
        marked = f"LAMBDA('{name}', '{p} rest k', lambda {p}, rest, k: {body[1]} * k)({argument[1]}, (), 2.0)"
        return plain, marked

    @property
    def qualname(self) -> str:
        return ".<locals>.".join(self.scopes).replace(":.<locals>", "")
