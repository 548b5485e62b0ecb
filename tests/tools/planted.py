"""Random programs with one defect each, whose place is known by construction.

A program is drawn from the inside out: a site, the defect beside it, and around it some of the ways in which code can
be nested in JAX, each with harmless code before and after. It is written down as Python text, so that every site has a
line of its own and a program that fails a test can be read, and run again from its seed.

The defect strikes once: in one call of a function, in one iteration of every loop around it, in one example of every
`vmap`. A variable called `now...` is true there and is handed from level to level. `armed` is what it is at the top:
where that is false, all values and gradients are finite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.tools.defects import BACKWARD, FORWARD, WITH_RULES, overflow

INPUT = np.array([0.3, 0.8, 0.5], np.float32)
WEIGHTS = np.array([0.7, 1.1, -0.4], np.float32)

# ---------------------------------------------------------------------------------------------------------------------
# Programs
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Planted:
    """A program and what must be found in it."""

    seed: int
    text: str
    mode: str
    trail: tuple[str, ...]
    defect: str
    kind: str
    path: str
    call: int
    iteration: tuple[int, ...]
    example: tuple[int, ...]
    gradient: bool
    line: int

    @property
    def file(self) -> str:
        return f"planted_{self.seed}.py"

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}"

    def make(self) -> Callable[[Any, Any], Any]:
        """The program, a function of an input and of `armed`."""
        names: dict[str, Any] = {f.__name__: f for f in (*FORWARD, *BACKWARD)}
        exec(compile(self.text, self.file, "exec"), names)
        program = names["program"]
        loss = lambda x, armed: jnp.sum(program(x, armed) * WEIGHTS)
        return {
            "eager": program,
            "jit": jax.jit(program),
            "grad": jax.value_and_grad(loss),
            "jit-grad": jax.jit(jax.value_and_grad(loss)),
            "donated": jax.jit(lambda x, armed: x - 0.1 * jax.grad(loss)(x, armed), donate_argnums=0),
        }[self.mode]

    def __str__(self) -> str:
        numbered = [f"{i:3} {line}" for i, line in enumerate(self.text.splitlines(), 1)]
        expected = (
            f"expected: {'gradient' if self.gradient else 'value'} of {self.path!r}, call {self.call}, iteration "
            f"{self.iteration}, example {self.example}, line {self.line} ({self.defect})"
        )
        return "\n".join([f"seed {self.seed}, run as {self.mode}", *numbered, expected])


@dataclasses.dataclass
class Place:
    """What is around the code that is being written.

    Attributes:
        now: The expression that is true where the defect strikes.
        numbers: Variables in scope that hold the number of an iteration or example, with their values at the defect.
        prefix: The scopes that are open.
        differentiated: Whether a backward pass goes through.
        forward_mode: Whether forward mode goes through, which knows no `custom_vjp`.
        repeats: Whether names may be used that other sites have too.
    """

    now: str
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    differentiated: bool = False
    forward_mode: bool = False
    repeats: bool = True

    def inside(self, **changes: Any) -> Place:
        return dataclasses.replace(self, **changes)


class Writer:
    """Draws a program and writes it down."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.functions: list[list[str]] = []
        self.lines: list[str] = []
        self.indent = 0
        self.n_names = 0
        self.calls: dict[str, int] = {}
        self.trail: list[str] = []
        self.iteration: list[int] = []
        self.example: list[int] = []
        self.found: dict[str, Any] = {}
        self.defect: Callable = overflow
        self.gradient = False

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def block(self, head: str, write_body: Callable[[], None], tail: str = "return x") -> None:
        self.write(head)
        self.indent += 1
        write_body()
        if tail:
            self.write(tail)
        self.indent -= 1

    def fresh(self) -> int:
        self.n_names += 1
        return self.n_names

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    # -- the whole -----------------------------------------------------------------------------------------------------

    def program(self, depth: int) -> Planted:
        self.gradient = self.seed % 2 == 1
        # Programs that are compiled operation by operation take longest.
        modes = ["jit-grad", "jit-grad", "donated", "grad"]
        mode = self.of(*modes) if self.gradient else self.of(*modes, "jit", "jit", "eager")
        differentiated = mode not in ("eager", "jit")
        if self.gradient and self.random.random() < 0.2:  # the backward pass is somewhere inside
            mode, differentiated = self.of("jit", "jit", "eager"), False
        self.lines = ["import jax, jax.numpy as jnp", "from jax import lax", "import sonde", ""]
        place = Place("armed", differentiated=differentiated)
        self.block("def program(x, armed):", lambda: self.levels(place, depth))
        table = BACKWARD if self.gradient else FORWARD
        return Planted(
            self.seed,
            "\n".join(self.lines) + "\n",
            mode,
            tuple(self.trail),
            self.defect.__name__,
            table[self.defect],
            iteration=tuple(self.iteration),
            example=tuple(self.example),
            gradient=self.gradient,
            **self.found,
        )

    def levels(self, place: Place, depth: int) -> None:
        """Code without defects around the next level."""
        self.harmless(place)
        if depth == 0:
            if self.gradient and not place.differentiated:
                self.grad(place, 0)
            else:
                self.target(place)
        else:
            self.level(place, depth - 1)
        self.harmless(place)

    def harmless(self, place: Place) -> None:
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            kind = self.random.random()
            if kind < 0.4:
                self.write(self.of("x = jnp.tanh(x) + 0.6", "x = 0.5 + 0.3 * jnp.sin(x[::-1])", "x = x * 0.8 + 0.1"))
            elif kind < 0.8:
                self.site(place)
            else:
                self.harmless_loop(place)

    def harmless_loop(self, place: Place) -> None:
        i = self.fresh()
        self.block(f"def b{i}(x, _):", lambda: self.site(place), "return 0.9 * x + 0.1, None")
        self.write(f"x = lax.scan(b{i}, x, length={self.random.randint(1, 3)})[0]")

    def name(self, place: Place) -> str:
        if place.repeats and self.random.random() < 0.3:
            return "again"
        return f"s{self.fresh()}"

    def count(self, place: Place, name: str) -> int:
        path = place.prefix + name
        self.calls[path] = self.calls.get(path, 0) + 1
        return self.calls[path] - 1

    def site(self, place: Place) -> None:
        name = self.name(place)
        self.count(place, name)
        forms = ['x = sonde.sow(x, "{}")', 'x = x + 0.1 * sonde.sow(jnp.sin(x), "{}")']
        if name != "again":
            forms += [
                'sonde.sow(2.0 * x, "{}")',
                'x = sonde.sow({{"x": x, "n": jnp.arange(2), "s": "text"}}, "{}")["x"]',
            ]
        self.write(self.of(*forms).format(name))

    def draw_defect(self, place: Place) -> None:
        table = BACKWARD if self.gradient else FORWARD
        self.defect = self.of(*[d for d in table if not (place.forward_mode and d in WITH_RULES)])

    def note(self, place: Place, name: str) -> None:
        """Notes that the search must find the next line."""
        self.found = {"path": place.prefix + name, "call": self.count(place, name), "line": len(self.lines) + 1}

    def target(self, place: Place) -> None:
        """The site that must be found, and the defect."""
        self.draw_defect(place)
        name = self.name(place)
        spoiled = f"{self.defect.__name__}(x, {place.now})"
        if self.gradient:
            self.note(place, name)
            self.write(f'x = sonde.sow(x, "{name}")')
            self.write(f"x = {spoiled}")
            return
        form = self.of("through", "unused", "tree") if name != "again" else "through"
        if form == "through":
            self.write(f"x = {spoiled}")
            self.note(place, name)
            self.write(f'x = sonde.sow(x, "{name}")')
        elif form == "unused":
            self.note(place, name)
            self.write(f'sonde.sow({spoiled}, "{name}")')
        else:
            self.write(f"x = {spoiled}")
            self.note(place, name)
            self.write(f'x = sonde.sow(("a", {{"x": x, "n": 3}}), "{name}")[1]["x"]')

    # -- levels --------------------------------------------------------------------------------------------------------

    def level(self, place: Place, depth: int) -> None:
        kinds = [self.jit, self.remat, self.scope, self.scan, self.scan, self.map, self.fori, self.while_loop]
        kinds += [self.traced_fori, self.cond, self.vmap, self.calls_of_function, self.custom_jvp, self.grad]
        if not self.gradient:
            kinds.append(self.while_test)
        if not place.forward_mode:
            kinds.append(self.custom_vjp)
        self.of(*kinds)(place, depth)

    def begin(self, kind: str) -> int:
        self.trail.append(kind)
        return self.fresh()

    def jit(self, place: Place, depth: int) -> None:
        i = self.begin("jit")
        inside = place.inside(now=f"now{i}")
        self.block(f"def b{i}(x, now{i}):", lambda: self.levels(inside, depth))
        self.write(f"x = jax.jit(b{i}{self.of('', ', inline=True')})(x, {place.now})")

    def remat(self, place: Place, depth: int) -> None:
        i = self.begin("remat")
        inside = place.inside(now=f"now{i}")
        self.block(f"def b{i}(x, now{i}):", lambda: self.levels(inside, depth))
        policy = self.of("", ", policy=jax.checkpoint_policies.everything_saveable")
        self.write(f"x = jax.checkpoint(b{i}{policy})(x, {place.now})")

    def scope(self, place: Place, depth: int) -> None:
        self.trail.append("scope")
        name = self.of("a", "b")
        inside = place.inside(prefix=f"{place.prefix}{name}/")
        self.block(f'with sonde.scope("{name}"):', lambda: self.levels(inside, depth), "")

    def iterating(self, place: Place, i: int, length: int, **changes: Any) -> tuple[Place, str]:
        """The place in a loop whose iterations are numbered by the variable `i...`; the line that goes first there."""
        when = self.random.randrange(length)
        self.iteration.append(when)
        inside = place.inside(now=f"now{i}", numbers={**place.numbers, f"i{i}": when}, **changes)
        return inside, f"now{i} = {place.now} & (i{i} == {when})"

    def loop_body(self, head: str, place: Place, depth: int, first: list[str], tail: str) -> None:
        def body() -> None:
            for line in first:
                self.write(line)
            self.levels(place, depth)

        self.block(head, body, tail)

    def scan(self, place: Place, depth: int) -> None:
        i, length = self.begin("scan"), self.random.randint(1, 4)
        inside, first = self.iterating(place, i, length)
        self.loop_body(f"def b{i}(x, i{i}):", inside, depth, [first], "return x, jnp.sum(x)")
        which = self.of(f"jnp.arange({length})", f"jnp.arange({length})[::-1], reverse=True")
        self.write(f"x, y{i} = lax.scan(b{i}, x, {which})")
        self.write(f"x = x + 0.1 * y{i}.mean()")

    def map(self, place: Place, depth: int) -> None:
        i, length = self.begin("map"), self.random.randint(1, 3)
        inside, first = self.iterating(place, i, length)
        self.loop_body(f"def b{i}(s):", inside, depth, [f"x, i{i} = s", first], "return x")
        self.write(f"rows{i} = jnp.stack([x * (1 + 0.1 * k) for k in range({length})])")
        self.write(f"x = lax.map(b{i}, (rows{i}, jnp.arange({length}))).mean(0)")

    def fori(self, place: Place, depth: int) -> None:
        i, length, low = self.begin("fori"), self.random.randint(1, 3), self.of(0, 2)
        inside, first = self.iterating(place, i, length)
        self.loop_body(f"def b{i}(j, x):", inside, depth, [f"i{i} = j - {low}", first], "return x")
        self.write(f"x = lax.fori_loop({low}, {low + length}, b{i}, x)")

    def trips(self, place: Place) -> tuple[str, int]:
        """The number of iterations of a loop, and of the loop that has the defect; it may vary over examples."""
        most = self.random.randint(2, 4)
        vary = [(name, value) for name, value in place.numbers.items() if self.random.random() < 0.7]
        return (f"{most} + {vary[0][0]} % 3", most + vary[0][1] % 3) if vary else (str(most), most)

    def traced_fori(self, place: Place, depth: int) -> None:
        i = self.begin("traced fori")
        n, length = self.trips(place)
        inside, first = self.iterating(place, i, length, differentiated=False)
        self.loop_body(f"def b{i}(i{i}, x):", inside, depth, [first], "return x")
        self.write(f"run{i} = jax.jit(lambda x, n: lax.fori_loop(0, n, b{i}, x))")
        self.write(f"x = 0.5 * x + 0.5 * run{i}(lax.stop_gradient(x), {n})")

    def while_loop(self, place: Place, depth: int, test: Callable[[int], str] | None = None) -> None:
        i = self.begin("while")
        n, length = self.trips(place)
        self.block(f"def t{i}(s):", lambda: None, f"return s[0] < {n}")
        inside, first = self.iterating(place, i, length, differentiated=False)
        self.loop_body(f"def b{i}(s):", inside, depth, [f"i{i}, x = s", first], f"return i{i} + 1, x")
        self.write(f"x = 0.5 * x + 0.5 * lax.while_loop(t{i}, b{i}, (0, lax.stop_gradient(x)))[1]")

    def while_test(self, place: Place, depth: int) -> None:
        """The defect is in the body, and shows in the test too; or it is in the test."""
        i = self.begin("while test")
        n, length = self.trips(place)
        name = f"s{self.fresh()}"
        if self.random.random() < 0.5:

            def look() -> None:
                self.count(place, name)
                self.write(f'sonde.sow(s[1] * 2.0, "{name}")')

            self.block(f"def t{i}(s):", look, f"return s[0] < {n}")
            inside, first = self.iterating(place, i, length, differentiated=False)
            self.loop_body(f"def b{i}(s):", inside, depth, [f"i{i}, x = s", first], f"return i{i} + 1, x")
        else:
            self.draw_defect(place)
            when = self.random.randrange(length + 1)
            self.iteration.append(when)

            def struck() -> None:
                self.note(place, name)
                self.write(
                    f'sonde.sow({self.defect.__name__}(s[1], {place.now} & (s[0] == {when})), "{name}")',
                )

            self.block(f"def t{i}(s):", struck, f"return s[0] < {n}")
            self.block(
                f"def b{i}(s):", lambda: self.write(f'x = sonde.sow(s[1], "s{self.fresh()}")'), "return s[0] + 1, x"
            )
        self.write(f"x = 0.5 * x + 0.5 * lax.while_loop(t{i}, b{i}, (0, lax.stop_gradient(x)))[1]")

    def cond(self, place: Place, depth: int) -> None:
        i = self.begin("cond")
        inside = place.inside(repeats=False)
        both = f"s{self.fresh()}" if self.random.random() < 0.5 else None

        def branch(rest: Callable[[], None]) -> Callable[[], None]:
            def write() -> None:
                if both is not None:
                    self.write(f'x = sonde.sow(x * 0.9, "{both}")')
                rest()

            return write

        def others() -> None:
            self.write(self.of("x = x * 0.7", f'x = sonde.sow(x * 0.5, "s{self.fresh()}")'))

        struck = lambda: self.levels(inside, depth)
        branches = [struck, others, others] if self.random.random() < 0.3 else [struck, others]
        self.random.shuffle(branches)
        for k, rest in enumerate(branches):
            self.block(f"def b{i}_{k}(x):", branch(rest))
        if both is not None:
            self.count(inside, both)
        mine, n = branches.index(struck), len(branches)
        which = f"jnp.where(jnp.sum(x) < 1e6, {mine}, {(mine + 1) % n})"
        if place.numbers and self.random.random() < 0.8:
            number, value = self.of(*place.numbers.items())
            which = f"({number} + {mine - value}) % {n}"
        self.write(f"x = lax.switch({which}, [{', '.join(f'b{i}_{k}' for k in range(n))}], x)")

    def vmap(self, place: Place, depth: int) -> None:
        i = self.begin("vmap")
        when = self.random.randrange(3)
        self.example.append(when)
        inside = place.inside(now=f"now{i}", numbers={**place.numbers, f"e{i}": when})
        first = f"now{i} = {place.now} & (e{i} == {when})"
        self.loop_body(f"def b{i}(x, e{i}):", inside, depth, [first], "return x")
        self.write(f"x = jax.vmap(b{i})(jnp.stack([x, 0.5 * x + 0.2, x + 0.1]), jnp.arange(3)).mean(0)")

    def calls_of_function(self, place: Place, depth: int) -> None:
        """A jitted function that is called several times. It is traced once, or once for every scope."""
        i = self.begin("function")
        before = dict(self.calls)
        inside = place.inside(now=f"now{i}")
        self.write("@jax.jit")
        self.block(f"def b{i}(x, now{i}):", lambda: self.levels(inside, depth))
        per_call = {path: n - before.get(path, 0) for path, n in self.calls.items()}
        times = self.random.randint(2, 3)
        which = self.random.randrange(times)
        for k in range(times):
            self.write(f"x = b{i}(0.9 * x, {place.now if k == which else 'False'})")
        self.found["call"] += which * per_call[self.found["path"]]
        for path, n in per_call.items():
            self.calls[path] += n * (times - 1)

    def custom_vjp(self, place: Place, depth: int) -> None:
        i = self.begin("custom_vjp")
        inside = place.inside(now=f"now{i}", numbers={})  # rules must not close over what is being traced
        self.block(f"def b{i}(x, now{i}):", lambda: self.levels(inside, depth))
        self.write(f"c{i} = jax.custom_vjp(b{i})")
        self.write(
            f"c{i}.defvjp(lambda x, now: jax.vjp(lambda x: b{i}(x, now), x), lambda pull, ct: (*pull(ct), None))"
        )
        self.write(f"x = c{i}(x, {place.now})")

    def custom_jvp(self, place: Place, depth: int) -> None:
        i = self.begin("custom_jvp")
        inside = place.inside(now=f"now{i}", numbers={}, forward_mode=True)
        self.block(f"def b{i}(x, now{i}):", lambda: self.levels(inside, depth))
        self.write(f"c{i} = jax.custom_jvp(b{i})")
        self.write(f"c{i}.defjvp(lambda p, t: jax.jvp(lambda x: b{i}(x, p[1]), p[:1], t[:1]))")
        self.write(f"x = c{i}(x, {place.now})")

    def grad(self, place: Place, depth: int) -> None:
        i = self.begin("grad")
        inside = place.inside(differentiated=True)
        self.block(f"def b{i}(x):", lambda: self.levels(inside, depth))
        self.write(f"x = x + 0.1 * jax.grad(lambda y: jnp.sum(jnp.sin(b{i}(y))))(x)")


def planted(seed: int) -> Planted:
    """The program of a seed: even ones have a forward defect, odd ones a backward defect."""
    return Writer(seed).program(1 + seed // 2 % 3)
