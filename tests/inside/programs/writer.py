"""The statements of a random program, with transforms of JAX."""

from __future__ import annotations

from tests.inside.programs.definitions import Definitions
from tests.inside.programs.expressions import Texts


class Writer(Definitions):
    """Writes one program."""

    def whole(self) -> Texts:
        """The program, a function `program(x, y)`."""
        for _ in range(self.random.randint(1, 3)):
            self.definition(3)
        self.function("program", ["x", "y"], 6)
        return Texts("\n".join(self.texts[0]) + "\n", "\n".join(self.texts[1]) + "\n", self.lines)

    def statements(self, n: int) -> None:
        for _ in range(n):
            self.left -= 1
            kinds = [self.assign] * 3 + [self.several, self.annotated, self.augmented, self.chained, self.held]
            if self.left > 0:
                kinds += [self.loop, self.managed, self.tried, self.matched, self.chosen, self.definition, self.shared]
                kinds += [self.deleted, self.definition, self.while_loop]
                if self.transforms:
                    kinds += [self.transformed] * 4
            self.random.choice(kinds)()

    def assign(self) -> None:
        value, n = self.array(), self.name()
        self.both((f"{n} = {value[0]}", f"{n} = S({value[1]}, '{n}')"))
        self.bound(n)

    def annotated(self) -> None:
        value, n = self.array(), self.name()
        self.both((f"{n}: jax.Array = {value[0]}", f"{n}: jax.Array = S({value[1]}, '{n}')"))
        self.bound(n)

    def several(self) -> None:
        n, m, k, star = self.new(), self.name(), self.new(), self.new()
        a, b, c = (self.array(1) for _ in range(3))
        forms = [
            ("{n}, {m} = {a}, {b}", (n, m), ()),
            ("{n}, ({m}, *{s}) = {a}, [{b}, {c}, {a}]", (n, m), (star,)),
            ("[{n}, {k}], {m} = ({a}, {b}), {c}", (n, k, m), ()),
            ("*{s}, {n} = {a}, {b}, {c}", (n,), (star,)),
            ("{s} = {a}, *[{b}, {c}]", (), (star,)),
        ]
        form, names, stars = self.random.choice(forms)
        texts = [form.format(n=n, m=m, k=k, s=star, a=a[i], b=b[i], c=c[i]) for i in (0, 1)]
        again = [f"{x} = S({x}, '{x}')" for x in (*names, *stars)]
        self.put(texts[0], texts[1], *again)
        self.bound(*names, *(f"{s}[0]" for s in stars))

    def chained(self) -> None:
        n, m, value = self.new(), self.name(), self.array()
        self.both((f"{n} = {m} = {value[0]}", f"{n} = {m} = {value[1]}"), *(f"{x} = S({x}, '{x}')" for x in (n, m)))
        self.bound(n, m)

    def augmented(self) -> None:
        own = [a for a in self.arrays if a.isalnum() and a not in (*self.foreign, "CONSTANT")]
        value, op = self.array(1), self.random.choice("+-*")
        if not own:
            return self.assign()
        n = self.random.choice(own)
        self.both((f"{n} {op}= {value[0]}", f"{n} {op}= {value[1]}"), f"{n} = S({n}, '{n}')")
        return None

    def held(self) -> None:
        """Attributes and items are no variables."""
        a, b, h, n = self.array(1), self.array(1), self.new("held"), self.new()
        make = self.random.choice(["SimpleNamespace(z={})", "{{'z': {}}}", "[{}]"])
        get = {"S": f"{h}.z", "{": f"{h}['z']", "[": f"{h}[0]"}[make[0]]
        self.both(tuple(f"{h} = {s}{make.format(x)}{t}" for x, s, t in zip(a, ("", "S("), ("", f", '{h}')"))))
        self.both((f"{get} += {b[0]}", f"{get} += {b[1]}"))
        self.both((f"{n}, {get} = {get}, {b[0]}", f"{n}, {get} = {get}, {b[1]}"), f"{n} = S({n}, '{n}')")
        self.bound(n, get)

    def loop(self) -> None:
        i, n, m = self.new("i"), self.name(), self.new()
        a, b = self.array(1), self.array(1)
        heads = [f"for {i}, ({n}, {m}) in enumerate([({x}, {y}), ({y}, {x})]):" for x, y in zip(a, b)]
        with self.block((heads[0], heads[1]), *(f"{x} = S({x}, '{x}')" for x in (n, m))):
            self.bound(n, m)
            if self.random.random() < 0.3:
                with self.block((f"if {i} == 1:",) * 2):
                    self.put(self.random.choice(["break", "continue"]))
            self.statements(2)
        if self.random.random() < 0.3:
            with self.block(("else:", "else:")):
                self.statements(1)

    def while_loop(self) -> None:
        i, w, a = self.new("i"), self.new("w"), self.array(1)
        self.put(f"{i} = 2")
        with self.block(
            tuple(f"while ({w} := {x}) is not None and ({i} := {i} - 1) >= 0:" for x in (a[0], f"S({a[1]}, '{w}')"))
        ):
            self.bound(w)
            self.statements(1)

    def managed(self) -> None:
        a, n, m = self.array(1), self.name(), self.new()
        head = "with nullcontext({}) as {n}, Held({n} * 0.5) as ({m}, _):"
        by_hand = [f"with nullcontext({a[1]}) as {n}:", f"    {n} = S({n}, '{n}')"]
        by_hand += [f"    with Held({n} * 0.5) as ({m}, _):", f"        {m} = S({m}, '{m}')", "        _ = S(_, '_')"]
        arrays, functions = list(self.arrays), list(self.functions)
        self.put(head.format(a[0], n=n, m=m), *by_hand)
        self.depths = [self.depths[0] + 1, self.depths[1] + 2]
        self.bound(n, m, "_")
        self.statements(2)
        self.put("pass")
        self.depths = [self.depths[0] - 1, self.depths[1] - 2]
        self.arrays, self.functions = arrays, functions

    def tried(self) -> None:
        n = self.new("t")
        with self.block(("try:", "try:")):
            self.statements(1)
            value = self.array(1)
            self.both((f"{n} = {value[0]}", f"{n} = S({value[1]}, '{n}')"))
            if self.random.random() < 0.5:
                self.put(f"raise ValueError({n})")
        with self.block(("except ValueError as error:", "except ValueError as error:")):
            self.put("kept = error.args[0]", "kept = S(error.args[0], 'kept')")
            self.bound("kept")
            self.statements(1)
        if self.random.random() < 0.5:
            with self.block(("else:", "else:")):
                self.statements(1)
        if self.random.random() < 0.5:
            with self.block(("finally:", "finally:")):
                self.statements(1)
        self.bound(n)

    def matched(self) -> None:
        a, b, n, rest = self.array(1), self.array(1), self.name(), self.new()
        forms = [
            ("[{a}, 'no', {b}]", "[{n}, str(), *{rest}]"),
            ("{{'key': {a}, 'other': {b}}}", "{{'key': {n}, **{rest}}}"),
            ("SimpleNamespace(u={a}, v=({b},))", "SimpleNamespace(u={n}, v=(*{rest},))"),
            ("({a}, {b})", "(int(), {n}) | ({n}, _) as {rest}"),
        ]
        subject, pattern = self.random.choice(forms)
        with self.block(
            (f"match {subject.format(a=a[0], b=b[0])}:", f"match {subject.format(a=a[1], b=b[1])}:"), ends=None
        ):
            with self.block(("case int():", "case int():")):
                self.put("raise AssertionError")
            marks = [f"{x} = S({x}, '{x}')" for x in (n, rest)]
            with self.block((f"case {pattern.format(n=n, rest=rest)}:",) * 2, *marks):
                self.bound(n)
                self.statements(2)

    def chosen(self) -> None:
        w, a = self.new("w"), self.array(1)
        with self.block(
            (f"if ({w} := {a[0]}).dtype == jnp.float32:", f"if ({w} := S({a[1]}, '{w}')).dtype == jnp.float32:")
        ):
            self.bound(w)
            self.statements(2)
            if self.random.random() < 0.2 and self.scopes:
                b = self.array(1)
                self.both((f"return {b[0]}", f"return S({b[1]}, 'return')"))
        with self.block(("else:", "else:")):
            self.statements(1)

    def deleted(self) -> None:
        n, a, m = self.new(), self.array(1), self.new()
        self.both((f"{n} = {a[0]}", f"{n} = S({a[1]}, '{n}')"))
        self.both((f"{m} = {n} * 1", f"{m} = S({n} * 1, '{m}')"))
        self.put(f"del {n}")
        self.bound(m)

    def shared(self) -> None:
        """A name of the module, or of the function around, which this function sets."""
        if self.foreign:
            g = self.random.choice(self.foreign)
            value = self.array(1)
            is_global = g == "GLOBAL"
            self.both((f"{g} = {value[0]}", f"{g} = {value[1]}" if is_global else f"{g} = S({value[1]}, '{g}')"))
            self.pure = False

    def transformed(self) -> None:
        """A call of a function in a transform of JAX."""
        pure = [f for f in self.functions if f.pure]
        if not pure:
            return self.definition()
        f, a, b, n = self.random.choice(pure), self.array(1), self.array(1), self.new()
        p, q, k = self.new("p"), self.new("p"), self.new("k")
        self.scopes.append(k)
        body = f.call([(p, p)] * f.arity)
        self.scopes.pop()
        # The function is called from a function with a name of its own, which is marked too.
        self.put(f"def {k}({p}, {q}=None):")
        self.depths = [d + 1 for d in self.depths]
        self.put(None, f"with FN('{'.<locals>.'.join([self.qualname, k])}'):")
        self.depths[1] += 1
        self.put(None, f"{p} = S({p}, '{p}')", f"{q} = S({q}, '{q}')")
        self.both((f"return {body[0]}", f"return S({body[1]}, 'return')"))
        self.depths = [self.depths[0] - 1, self.depths[1] - 2]
        forms = [
            "jax.jit({k})({a}, {b})",
            "mapped({k})({a}, {b})",
            "jax.checkpoint({k})({a}, {b})",
            "jax.lax.fori_loop(0, 2, lambda i, c: {k}(c), {a})",
            "jax.lax.scan(lambda c, z: ({k}(c), {k}(z)), {a}, jnp.stack([{b}, {a}]))[1][0]",
            "jax.lax.cond(({a}).sum() > 0, {k}, lambda c: c * 2, {b})",
            "jax.grad(lambda c: {k}(c).sum())({a})",
            "jax.jvp({k}, ({a},), ({b},))[1]",
            "jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, {k}(c[1])), (0, {a}))[1]",
            "jax.lax.map({k}, jnp.stack([{a}, {b}]))[1]",
            "in_custom_jvp({k})({a})",
            "in_custom_vjp({k})({a})",
        ]
        form = self.random.choice(forms)
        plain = form.format(k=k, a=a[0], b=b[0])
        by_hand = form.format(k=k, a=a[1], b=b[1])
        for lam, names in (
            ("lambda i, c: ", "i c"),
            ("lambda c, z: ", "c z"),
            ("lambda c: ", "c"),
        ):
            by_hand = _with_marked_lambdas(by_hand, lam, names, f"{self.qualname}.<locals>.<lambda>")
        self.both((f"{n} = {plain}", f"{n} = S({by_hand}, '{n}')"))
        self.bound(n)
        return None


def _with_marked_lambdas(text: str, start: str, names: str, qualname: str) -> str:
    """`lambda c: e` as `LAMBDA(name, "c", lambda c: e)`, up to the comma or bracket that ends the lambda."""
    done = ""
    while True:
        before, found, after = text.partition(start)
        if not found:
            return done + text
        depth = end = 0
        for end, c in enumerate(after):  # noqa: B007 (used after the loop)
            depth += (c in "([") - (c in ")]")
            if depth < 0 or (depth == 0 and c == ","):
                break
        done += f"{before}LAMBDA('{qualname}', '{names}', {start}{after[:end]})"
        text = after[end:]
