"""Functions and classes of a random program."""

from __future__ import annotations

from collections.abc import Callable

from tests.inside.programs.expressions import Expressions, Known


class Definitions(Expressions):
    """Writes definitions."""

    def statements(self, n: int) -> None:
        """Writes statements."""
        raise NotImplementedError

    def function(
        self,
        name: str,
        arguments: list[str],
        n: int,
        head: str | None = None,
        decorators: tuple[str, ...] = (),
        marks: list[str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> bool:
        """Writes a function; returns whether it has no effect on anything else."""
        around = self.arrays, self.functions, self.foreign, self.pure
        own = [a for a in self.arrays if a not in arguments and a.isalnum() and a != "CONSTANT"]
        self.pure, self.foreign, self.functions = True, [], list(self.functions)
        for d in decorators:
            self.put(d)
        self.put(f"def {name}({head if head is not None else ', '.join(arguments)}):")
        line = len(self.texts[0])
        self.scopes.append(name)
        self.depths = [d + 1 for d in self.depths]
        is_inner = len(self.scopes) > 1 and not self.scopes[-2].endswith(":")
        if self.random.random() < 0.3:
            self.put("'''Says what it does.'''")
        if self.random.random() < 0.2:
            self.foreign.append("GLOBAL")
            self.put("global GLOBAL")
        if is_inner and own and self.random.random() < 0.3:
            outer = self.random.choice(own)
            self.foreign.append(outer)
            self.put(f"nonlocal {outer}")
        # Names of the function around that this one may set itself are not used: they would be unbound.
        self.arrays = [*arguments, *(a for a in own if a not in "abcd" or a in self.foreign)]
        self.put(None, f"with FN('{self.qualname}'):")
        self.depths[1] += 1
        self.put(None, *(f"{a} = S({a}, '{a}')" for a in (marks if marks is not None else arguments)), at=line)
        if before is not None:
            before()
        self.statements(n)
        value = self.array(1)
        self.both((f"return {value[0]}", f"return S({value[1]}, 'return')"))
        self.depths = [self.depths[0] - 1, self.depths[1] - 2]
        self.scopes.pop()
        pure = self.pure
        self.arrays, self.functions, self.foreign, self.pure = around
        return pure

    def definition(self, n: int = 2) -> None:
        kinds = [self.plain_function, self.signature, self.recursive, self.decorated, self.a_class, self.partial]
        self.left -= 2
        self.random.choice(kinds)(n)

    def plain_function(self, n: int) -> None:
        name, p, q = self.new("f"), self.new("p"), self.new("p")
        pure = self.function(name, [p, q], n)
        self.functions.append(Known(lambda a: tuple(f"{name}({x}, {y})" for x, y in zip(*a)), 2, pure))

    def signature(self, n: int) -> None:
        name, ps = self.new("f"), [self.new("p") for _ in range(5)]
        default = self.random.choice(self.arrays) if self.arrays else "CONSTANT"
        head = f"{ps[0]}, /, {ps[1]}={default}, *{ps[2]}, {ps[3]}, **{ps[4]}"

        def before() -> None:
            self.bound(f"{ps[2]}[0]", f"{ps[4]}['other']")

        pure = self.function(name, [ps[0], ps[1], ps[3]], n, head, marks=ps, before=before)
        calls = ("{n}({a}, {b}, {a}, {k}={b}, other={a})", "{n}(*[{a}, {b}, {b}], **dict({k}={a}, other={b}))")
        call = self.random.choice(calls)
        self.functions.append(
            Known(lambda v: tuple(call.format(n=name, a=x, b=y, k=ps[3]) for x, y in zip(*v)), 2, pure)
        )

    def recursive(self, n: int) -> None:
        name, p, k = self.new("r"), self.new("p"), self.new("n")

        def before() -> None:
            with self.block((f"if {k} > 0:",) * 2):
                inner = self.new()
                self.both(
                    (f"{inner} = {name}({p} * 0.5, {k} - 1)", f"{inner} = S({name}({p} * 0.5, {k} - 1), '{inner}')")
                )
                self.both((f"return {inner} + {p}", f"return S({inner} + {p}, 'return')"))

        pure = self.function(name, [p], n, f"{p}, {k}=2", marks=[p, k], before=before)
        self.functions.append(Known(lambda a: tuple(f"{name}({x})" for x in a[0]), 1, pure))

    def decorated(self, n: int) -> None:
        deco, f, wrapper = self.new("deco"), self.new("fn"), self.new("wrapper")
        self.put(f"def {deco}({f}):")
        self.scopes.append(deco)
        self.depths = [d + 1 for d in self.depths]
        self.put(None, f"with FN('{self.qualname}'):")
        self.depths[1] += 1
        around, self.arrays, self.functions = (self.arrays, self.functions), [], []
        self.functions = []
        p = self.new("p")
        known = Known(lambda a: tuple(f"{f}({x})" for x in a[0]), 1, True)
        pure = self.function(
            wrapper, [p], 1, decorators=(f"@functools.wraps({f})",), before=lambda: self.functions.append(known)
        )
        self.put(f"return {wrapper}")
        self.scopes.pop()
        self.depths = [self.depths[0] - 1, self.depths[1] - 2]
        self.arrays, self.functions = around
        name, q = self.new("f"), self.new("p")
        pure = self.function(name, [q], n, decorators=(f"@{deco}",)) and pure
        self.functions.append(Known(lambda a: tuple(f"{name}({x})" for x in a[0]), 1, pure))

    def partial(self, n: int) -> None:
        name, p, q, made = self.new("f"), self.new("p"), self.new("p"), self.new("f")
        pure = self.function(name, [p, q], n)
        value = self.array(0) if self.arrays else ("CONSTANT", "CONSTANT")
        self.put(f"{made} = functools.partial({name}, {q}={value[0]})")
        self.functions.append(Known(lambda a: tuple(f"{made}({x})" for x in a[0]), 1, pure))

    def a_class(self, n: int) -> None:
        base, derived = self.new("Base"), self.new("Derived")
        p, q = self.new("p"), self.new("p")
        pure = True
        for name, parent in ((base, "Slots"), (derived, base)):
            self.put(f"class {name}({parent}):")
            self.scopes.append(f"{name}:")
            self.depths = [d + 1 for d in self.depths]
            functions = self.functions

            def before(name: str = name) -> None:
                self.bound("self.kept")
                if name == derived:
                    self.functions = [Known(lambda a: tuple(f"super().step({x})" for x in a[0]), 1, True)]

            pure = self.method("step", [p], n, before) and pure
            if name == base:
                pure = self.method("half", [], 1, lambda: self.bound("self.kept"), decorators=("@property",)) and pure
                pure = self.method("made", [q], 1, None, "cls", decorators=("@classmethod",)) and pure
                pure = self.function("plain", [q], 1, decorators=("@staticmethod",)) and pure
            self.functions = functions
            self.depths = [d - 1 for d in self.depths]
            self.scopes.pop()
        forms = ("{d}({x}).step({x})", "{d}({x}).half", "{d}.made({x})", "{d}({x}).plain({x})")
        for form in self.random.sample(forms, 2):
            self.functions.append(Known(lambda a, f=form: tuple(f.format(d=derived, x=x) for x in a[0]), 1, pure))

    def method(
        self,
        name: str,
        arguments: list[str],
        n: int,
        before: Callable[[], None] | None,
        first: str = "self",
        decorators: tuple[str, ...] = (),
    ) -> bool:
        arrays = self.arrays
        self.arrays = self.arrays or ["CONSTANT"]
        pure = self.function(name, arguments, n, ", ".join([first, *arguments]), decorators, before=before)
        self.arrays = arrays
        return pure
