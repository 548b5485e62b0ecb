"""`mark_in_place`: a site whose result is not used has its value and its gradient, as one whose result is used does."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import sonde
import sonde.errors
from sonde.core import mark_in_place
from sonde.core.session.session import SESSIONS

X = jnp.linspace(0.1, 1, 4)


def in_place(w: Any, x: Any) -> Any:
    h = jnp.tanh(x * w)
    mark_in_place({"h": h, "twice": h, "name": "h"}, "h")
    mark_in_place(w, "w")
    return h * h + jnp.sin(w)


def passed_on(w: Any, x: Any) -> Any:
    h = jnp.tanh(x * w)
    h = sonde.sow({"h": h, "twice": h, "name": "h"}, "h")["twice"]
    w = sonde.sow(w, "w")
    return h * h + jnp.sin(w)


def custom(layer: Callable) -> Callable:
    @jax.custom_jvp
    def f(w: Any) -> Any:
        return layer(w, X).sum()

    f.defjvp(lambda primals, tangents: jax.jvp(lambda w: layer(w, X).sum(), primals, tangents))
    return f


def programs(layer: Callable) -> Iterator[tuple[str, Callable]]:
    def total(w: Any) -> Any:
        return layer(w, X).sum()

    def loop(w: Any) -> Any:
        return lax.scan(lambda c, v: (layer(c + w, v), None), 0.0, X)[0]

    def sharded(w: Any) -> Any:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = PartitionSpec("i")
        return jax.shard_map(layer, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=spec)(w, X).sum()

    yield "grad", jax.grad(total)
    yield "jit(grad)", jax.jit(jax.grad(total))
    yield "grad(jit)", jax.grad(jax.jit(total))
    yield "grad(remat)", jax.grad(jax.checkpoint(total))
    yield "grad(vmap)", jax.grad(lambda w: jax.vmap(lambda v: layer(w * v, v))(X).sum())
    yield "vmap(grad)", lambda w: jax.vmap(jax.grad(layer), (None, 0))(w, X)
    yield "grad(scan)", jax.grad(loop)
    yield (
        "grad(scan of remat)",
        jax.grad(lambda w: lax.scan(jax.checkpoint(lambda c, v: (layer(c + w, v), None)), 0.0, X)[0]),
    )
    yield "grad(jit(scan))", jax.grad(jax.jit(loop))
    yield "grad(cond)", jax.grad(lambda w: lax.cond(w > 0, total, lambda w: 0.0, w))
    yield "grad(custom_jvp)", jax.grad(custom(layer))
    yield "grad(shard_map)", jax.grad(sharded)
    yield "vjp", lambda w: jax.vjp(total, w)[1](1.0)
    yield "jvp(grad)", lambda w: jax.jvp(jax.grad(total), (w,), (1.0,))
    yield "grad(grad)", jax.grad(jax.grad(total))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("marked", "expected"),
    [pytest.param(a, b, id=name) for (name, a), (_, b) in zip(programs(in_place), programs(passed_on), strict=True)],
)
def test_what_is_marked_in_place_has_its_gradient(marked: Callable, expected: Callable) -> None:
    result, records = sonde.capture(marked, grads=True)(0.7)
    wanted_result, wanted = sonde.capture(expected, grads=True)(0.7)
    jax.tree.map(np.testing.assert_array_equal, result, wanted_result)
    for path in ("h", "w"):
        seen, other = records[path], wanted[path]
        jax.tree.map(np.testing.assert_array_equal, seen.values, other.values)
        # `h` was sown twice in one pytree, and later uses of it are uses of one of the two.
        total = [sum(x for x in jax.tree.leaves(r.grad) if not isinstance(x, str)) for r in (seen, other)]
        np.testing.assert_array_equal(total[0], total[1])
        assert np.any(total[0])
    jax.tree.map(lambda *xs: np.testing.assert_allclose(*xs, rtol=1e-6), marked(0.7), result)


def test_a_value_of_an_outer_transform_has_no_gradient_rather_than_a_wrong_one() -> None:
    def loss(w: Any) -> Any:
        h = jnp.sin(w)

        def body(c: Any, v: Any) -> Any:
            mark_in_place(h, "h")
            return c + h * v, None

        return lax.scan(body, 0.0, X)[0]

    gradient, records = sonde.capture(jax.grad(loss), grads=True)(0.7)
    np.testing.assert_allclose(gradient, jax.grad(loss)(0.7))
    np.testing.assert_allclose(records["h"].value, jnp.full(4, jnp.sin(0.7)))
    assert records["h"].grads == ()


def test_an_edit_of_a_value_marked_in_place_is_an_error() -> None:
    def f(x: Any) -> Any:
        mark_in_place(x, "x")
        return x

    with pytest.raises(sonde.errors.EditError, match=r"edit of 'x' .*continues with the value itself"):
        sonde.edit(f, {"x": 0.0})(1.0)


def test_without_a_capture_nothing_is_marked() -> None:
    def plain(w: Any, x: Any) -> Any:
        h = jnp.tanh(x * w)
        return h * h + jnp.sin(w)

    assert str(jax.make_jaxpr(in_place)(0.7, X)) == str(jax.make_jaxpr(plain)(0.7, X))


def test_the_count_of_lookers_is_pickled_by_name():
    """Classes of `__main__` are pickled with their methods, and those refer to it."""
    assert pickle.loads(pickle.dumps(SESSIONS)) is SESSIONS


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))])
@pytest.mark.parametrize("grads", [False, True])
def test_a_numpy_array_that_the_program_writes_into(wrap, grads):
    def f(x):
        table = sonde.sow(np.zeros(2, np.float32), "table")
        table[0] = 3
        table = sonde.sow(table, "table")
        table += 1
        return (x * table).sum()

    x = jnp.array([1.0, 2.0])
    result, records = sonde.capture(wrap(f), grads=grads)(x)
    np.testing.assert_array_equal(result, wrap(f)(x))
    np.testing.assert_array_equal(records["table"].values, [[0, 0], [3, 0]])


@pytest.mark.parametrize("verb", [sonde.sow, sonde.perturb])
def test_an_empty_name_is_an_error_without_a_capture_too(verb: Callable) -> None:
    with pytest.raises(sonde.errors.SiteNameError, match="must not be empty"):
        verb(X, "")
