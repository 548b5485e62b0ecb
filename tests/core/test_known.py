"""Constants that a program passes through are known while it is traced; the user's own numbers are not touched."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde.core.known import Passed, is_token, new_token, passed_on


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
