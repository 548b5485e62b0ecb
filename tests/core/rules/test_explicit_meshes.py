"""On a mesh with explicit axes, where a sharding is part of a type: the same records as without a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import sonde

N, X = jnp.arange(1, 5), jnp.arange(4.0) + 1


def branches(n: Any, x: Any) -> Any:
    return lax.cond(n > 2, lambda x: sonde.sow(jnp.sin(x) * 2, "a"), lambda x: sonde.sow(x * 3, "a"), x)


def loop(n: Any, x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sonde.sow(s[1] * 2 + n, "a")), (0, x))[1]


PROGRAMS = {
    "vmap(cond)": jax.vmap(branches),
    "grad(vmap(cond))": lambda n, x: jax.grad(lambda x: jnp.sum(jax.vmap(branches)(n, x)))(x),
    "vmap(grad(cond))": jax.vmap(jax.grad(branches, 1)),
    "scan(vmap(cond))": lambda n, x: lax.scan(lambda c, _: (jax.vmap(branches)(n, c), None), x, None, length=2)[0],
    "while": loop,
    "vmap(while)": jax.vmap(loop),
}
VERBS = {
    "capture": sonde.capture,
    "last": lambda f: sonde.capture(f, last=2),
    "grads": lambda f: sonde.capture(f, grads=True),
    "reduce": lambda f: sonde.capture(f, reduce=lambda x: x * 2),
    "edit": lambda f: sonde.edit(f, {"a": lambda x: x + 1}),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_explicit_meshes(program: Callable, verb: Callable) -> None:
    expected = verb(program)(N, X)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        n, x = (jax.device_put(v, jax.NamedSharding(mesh, jax.P("i"))) for v in (N, X))
        for run in (verb(program), jax.jit(verb(program))):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), run(n, x), expected)
