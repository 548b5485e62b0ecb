"""What is known of tokens while a program is traced: which number each is, or which numbers it may be."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde.core.interpret.call_tokens import Passed, is_token, new_token, passed_on, possible_numbers
from sonde.core.marks.batch_like import along


def jaxpr_of(f: Any, *args: Any) -> Any:
    return jax.make_jaxpr(f)(*args)


def test_what_a_program_passes_on() -> None:
    n, rows = jnp.int32(3), jnp.arange(4, dtype=jnp.int32)

    def f(n: Any, rows: Any, x: Any) -> Any:
        inner = jax.jit(lambda n, x: (n + 2, n, x * 2, n * 2))
        a, b, _, product = inner(n, x)
        _, (repeated, sliced, added) = lax.scan(lambda c, r: (c, (n, r, r + 1)), x, rows)
        return a + 1, b, product, repeated, sliced, added, x

    assert passed_on(jaxpr_of(f, n, rows, 1.0)) == [
        Passed(0, 3),
        Passed(0),
        None,
        Passed(0, 0, (4,)),
        Passed(1),
        Passed(1, 1),
        None,
    ]


def test_only_our_own_numbers_are_known() -> None:
    token = new_token(5)
    assert is_token(token)
    assert not is_token(np.asarray(5, np.int32))
    assert Passed(0, 2, (3,)).of([np.asarray(5, np.int32)], ours=False) is None
    known = Passed(0, 2, (3,)).of([token], ours=False)
    assert is_token(known)
    np.testing.assert_array_equal(known, [7, 7, 7])


def test_tokens_are_many_and_keep_their_numbers() -> None:
    made = [new_token(i) for i in range(10_000)]
    assert [int(token) for token in made] == list(range(10_000))
    assert not gc.is_tracked(made[0])  # or a long run would spend its time in the garbage collector
    view = made[7][...]
    assert not is_token(view) and not is_token(made[7] + 1)


A, B = np.array(3, np.int32), np.array(8, np.int32)


def numbers_in(f, *args):
    """What may be in what `f` returns, asked while it is traced with tokens that are known."""
    found = []

    def run(x):
        found.append(possible_numbers(f(x)))
        return x

    jax.make_jaxpr(run)(*args or (1.5,))
    return found[0]


PROGRAMS = {
    "a branch": (lambda x: lax.cond(x > 0, lambda: A, lambda: B), {3, 8}),
    "a branch of branches": (
        lambda x: lax.cond(x > 0, lambda: lax.cond(x > 1, lambda: A, lambda: np.int32(5)), lambda: B),
        {3, 5, 8},
    ),
    "a branch of operands": (lambda x: lax.cond(x > 0, lambda a, b: a, lambda a, b: b, A, B), {3, 8}),
    "a select": (lambda x: jnp.where(x > 0, A, B), {3, 8}),
    "a sum": (lambda x: lax.cond(x > 0, lambda: A, lambda: B) + 10, {13, 18}),
    "a jitted function": (lambda x: jax.jit(lambda t: jnp.where(x > 0, t, B))(A), {3, 8}),
    "repeated": (lambda x: jnp.broadcast_to(jnp.where(x > 0, A, B), (4, 2))[1:], {3, 8}),
    "carried by a loop": (
        lambda x: lax.scan(lambda t, i: (jnp.where(x > i, t, B), None), A, jnp.arange(3))[0],
        {3, 8},
    ),
    "rows of a loop": (lambda x: lax.scan(lambda c, i: (c, jnp.where(x > i, A, B)), 0, jnp.arange(3))[1], {3, 8}),
    "carried by a while": (
        lambda x: lax.while_loop(lambda s: s[0] < x, lambda s: (s[0] + 1, jnp.where(s[0] > 1, s[1], B)), (0.0, A))[1],
        {3, 8},
    ),
    "mapped along with others": (lambda x: along([x, jnp.where(x > 0, A, B)], [x])[1], {3, 8}),
    "a product": (lambda x: jnp.where(x > 0, A, B) * 2, None),
    "counted up in a loop": (lambda x: lax.scan(lambda t, _: (t + 1, None), A, length=1000)[0], None),
    "of the program's own": (lambda x: x.astype(jnp.int32), None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_makes_of_tokens(name):
    f, expected = PROGRAMS[name]
    found = numbers_in(f)
    assert found == (None if expected is None else frozenset(expected))


def test_arrays_that_are_there():
    assert possible_numbers(np.array([4, 2, 4], np.int32)) == {2, 4}
    assert possible_numbers(jnp.int32(6)) == {6}
    assert possible_numbers(np.zeros((0,), np.int32)) == frozenset()
    assert possible_numbers(np.arange(64)) == frozenset(range(64))
    assert possible_numbers(np.arange(65)) is None  # too many to be told apart
    assert possible_numbers(np.zeros(2**17, np.int32)) is None  # too large to be looked at


def test_complex_numbers_that_a_program_adds_are_no_tokens() -> None:
    run = jax.jit(jax.grad(lambda x: jnp.abs(sonde.sow(x * 2 + (1 + 2j), "h")) ** 2))
    gradient, records = sonde.capture(run, grads=True)(3.0)
    np.testing.assert_allclose(gradient, 28.0, rtol=1e-6)
    np.testing.assert_allclose(records["h"].value, 7 + 2j)
