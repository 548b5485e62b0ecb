"""Sites whose results are not used, in loops in rematerialized functions, under reverse mode."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow


def looked_at(v: Any) -> Any:
    sonde.sow(jnp.log(v), "log")
    sonde.sow(v, "value")
    sonde.sow(jnp.float32(2), "constant")
    return v * 2


LOOPS = {
    "map": lambda z: jnp.sum(lax.map(looked_at, jnp.stack([z, z + 1]))),
    "scan": lambda z: lax.scan(lambda a, v: (a + looked_at(v), None), 0.0, jnp.stack([z, z + 1]))[0],
    "fori_loop": lambda z: lax.fori_loop(0, 2, lambda i, a: looked_at(a), z),
    "while_loop": lambda z: lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, looked_at(s[1])), (0, z))[1],
    "jit": jax.jit(looked_at),
    "cond": lambda z: lax.cond(z > 0, looked_at, lambda z: z, z),
    "vmap": lambda z: jnp.sum(jax.vmap(lambda q: jnp.sum(lax.map(looked_at, jnp.stack([z, z + q]))))(jnp.ones(2))),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_value_that_is_only_looked_at_is_not_lost(loop: Any, used: bool) -> None:
    def body(c: Any, _: Any) -> Any:
        y = loop(c) + loop(jnp.float32(1))
        y = lax.stop_gradient(y) if loop is LOOPS["while_loop"] else y
        return c * 0.5 + (y * 0.1 if used else 0), None

    def loss(x: Any) -> Any:
        return lax.scan(jax.checkpoint(body), x, None, length=3)[0]

    if used and loop is LOOPS["while_loop"]:  # JAX does not differentiate it
        return
    _, expected = sonde.capture(loss)(1.0)  # without differentiation nothing is split or removed
    gradient, records = sonde.capture(jax.grad(loss))(1.0)
    np.testing.assert_allclose(gradient, jax.grad(loss)(1.0))
    assert set(records) == set(expected)
    for path, record in expected.items():
        mine = sorted(map(np.asarray, records[path].values), key=np.sum)
        wanted = sorted(map(np.asarray, record.values), key=np.sum)
        jax.tree.map(np.testing.assert_allclose, mine, wanted)


def test_the_first_nan_is_found_there() -> None:
    def loss(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            logs = lax.map(lambda v: sonde.sow(jnp.log(v), "log"), jnp.stack([c, c + 1]))
            return c * 0.5 * logs.sum(), None

        return lax.scan(jax.checkpoint(body), x, None, length=3)[0]

    found = sonde.first_nonfinite(jax.grad(loss))(-1.0)
    assert found is not None
    assert found.path == "log"


X = jnp.array([0.5, -1.0, 2.0])


def test_remat_records_once_though_computed_twice():
    f = jax.checkpoint(lambda x: jnp.sin(sow(jnp.sin(x), "h")).sum())
    gradient, records = capture(jax.grad(f), grads=True)(X)
    equal(gradient, jnp.cos(jnp.sin(X)) * jnp.cos(X))
    equal(records["h"].values, (jnp.sin(X),))
    equal(records["h"].grads, (jnp.cos(jnp.sin(X)),))


def test_second_order_gradients_through_remat():
    plain = lambda x: jnp.sin(sow(x * 2, "h"))
    for f in (plain, jax.checkpoint(plain)):
        record = capture(jax.grad(lambda x: jax.grad(f)(x) + f(x)), grads=True)(0.3)[1]["h"]
        first, second = (record.gradients(order) for order in (1, 2))
        equal((record.values, first), ((0.6, 0.6), (jnp.cos(0.6), jnp.cos(0.6))))
        equal(second[0], -2 * jnp.sin(0.6))


def checkpointed(x, w):
    @jax.checkpoint
    def block(x):
        h = sow(jnp.sin(x * w), "h")
        return jnp.cos(h) * sow(h * 2, "g")

    return lax.scan(lambda c, _: (block(c), None), block(block(x)), length=2)[0].sum()


def by_hand(x, w):
    """The same without `jax.checkpoint`."""

    def block(x):
        h = sow(jnp.sin(x * w), "h")
        return jnp.cos(h) * sow(h * 2, "g")

    return lax.scan(lambda c, _: (block(c), None), block(block(x)), length=2)[0].sum()


TRANSFORMS = {
    "values": lambda f: f,
    "gradient": lambda f: jax.grad(f, (0, 1)),
    "mapped": lambda f: jax.vmap(jax.grad(f), (0, None)),
    "second": lambda f: lambda x, w: jax.grad(lambda x: jax.grad(f)(x, w).sum())(x),
}
UPGRADES = [name for name in ("jax_remat3",) if hasattr(jax.config, name)]


@pytest.mark.every(5)
@pytest.mark.parametrize("upgrade", [None, *UPGRADES])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, lambda f: lambda *args: jax.jit(f)(*args)])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_checkpoints_record_what_the_program_without_them_does(upgrade, jit, transform):
    args = jnp.arange(3.0) + 0.5, jnp.float32(1.3)
    if upgrade is not None:
        jax.config.update(upgrade, True)
    try:
        f, plain = (jit(TRANSFORMS[transform](g)) for g in (checkpointed, by_hand))
        result, records = sonde.capture(f, grads=True)(*args)
        wanted_result, wanted = sonde.capture(plain, grads=True)(*args)
    finally:
        if upgrade is not None:
            jax.config.update(upgrade, False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), result, wanted_result)
    for path, record in wanted.items():
        for order in (1, 2):
            got, expected = records[path].gradients(order), record.gradients(order)
            assert len(got) == len(expected)
            for a, b in zip(got, expected):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert len(records[path].values) == len(record.values) == 3
        for a, b in zip(records[path].values, record.values):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_what_a_checkpoint_would_record_twice_is_an_error(upgrade):
    def block(x):
        return x * lax.while_loop(lambda c: c < 3, lambda c: sow(c * 2, "w"), lax.stop_gradient(x))

    jax.config.update(upgrade, True)
    try:
        with pytest.raises(sonde.errors.CaptureError, match="site 'w' .* under jax.checkpoint with jax_remat3"):
            sonde.capture(jax.grad(jax.checkpoint(block)), grads=True)(2.0)
    finally:
        jax.config.update(upgrade, False)
