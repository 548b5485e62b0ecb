"""Values followed back through equations, by a question that asks which inputs they are made from."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sonde.core.interpret.dataflow import Dataflow


class Inputs(Dataflow[frozenset[int]]):
    """The inputs that a value was made from by additions alone."""

    joins = True

    def of_number(self, value: Any) -> frozenset[int]:
        return frozenset()

    def either(self, answers: Any) -> frozenset[int] | None:
        found = list(answers)
        return None if None in found else frozenset().union(*found)

    def of_equation(self, made: Any, read: Any) -> frozenset[int] | None:
        return self.either(map(read, range(len(made.inputs)))) if made.primitive.name == "add" else None


class WithoutJoining(Inputs):
    joins = False


def inputs_of(f: Any, *args: Any, question: type[Inputs] = Inputs) -> frozenset[int] | None:
    return question().inside(jax.make_jaxpr(f)(*args), lambda i: frozenset({i}))(0)


def test_into_programs_inside() -> None:
    assert inputs_of(lambda a, b, c: jax.jit(lambda x, y: x + y)(a, c), 1.0, 2.0, 3.0) == {0, 2}
    assert inputs_of(lambda a, b: jax.checkpoint(lambda x: x + a)(b + 1.0), 1.0, 2.0) == {0, 1}
    assert inputs_of(lambda a, b: a * b, 1.0, 2.0) is None


def test_branches_and_loops_join_what_can_be_joined() -> None:
    def branch(a: Any, b: Any, c: Any) -> Any:
        return lax.cond(c > 0, lambda: a, lambda: b)

    def loop(a: Any, b: Any, c: Any) -> Any:
        # After two iterations `b` has come to `a`: one round would not find it.
        return lax.fori_loop(0, 3, lambda _, s: (s[0] + s[1], s[2], s[2]), (a, c, b))[0]

    def test_of_a_loop(a: Any, b: Any, c: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < c, lambda s: (s[0] + b, s[1]), (a, a))[0]

    for f, expected in ((branch, {0, 1}), (loop, {0, 1, 2}), (test_of_a_loop, {0, 1})):
        assert inputs_of(f, 1.0, 2.0, 3.0) == expected
        assert inputs_of(f, 1.0, 2.0, 3.0, question=WithoutJoining) is None


def test_rows_of_a_loop() -> None:
    def f(a: Any, rows: Any) -> Any:
        return lax.scan(lambda c, x: (c, x + a), 0.0, rows)[1]

    assert inputs_of(f, jnp.float32(1), jnp.ones(3)) == {0, 1}
    assert inputs_of(f, jnp.float32(1), jnp.ones(3), question=WithoutJoining) == {0, 1}


def test_a_long_way_is_not_followed_to_its_end() -> None:
    def f(a: Any) -> Any:
        for _ in range(2000):
            a = a + 1.0
        return a

    assert inputs_of(f, 1.0) is None
