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


@pytest.mark.parametrize("second", [AxisType.Auto, AxisType.Explicit])
def test_the_last_iterations_of_a_while_loop_on_a_mesh_of_several_kinds_of_axes(second):
    mesh = jax.make_mesh((2, 1), ("a", "b"), axis_types=(AxisType.Explicit, second))

    def f(x):
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, sonde.sow(s[1] * 2, "h")), (0, x))[1]

    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 4)), jax.NamedSharding(mesh, jax.P("a", None)))
        for g in (f, jax.jit(f)):
            value = sonde.capture(g, last=3)(x)[1]["h"].value
            np.testing.assert_array_equal(value, np.full((3, 4, 4), 1.0) * np.array([8, 16, 32])[:, None, None])
