"""Edits of the gradient at a site, against the same change written in by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.test_edit_in_gradients import DERIVATIVES, PROGRAMS, WRAPPERS, X, same, scanned, straight

import sonde
from sonde import Edit, edit, sow


@pytest.mark.parametrize("program", ["straight", "scanned", "mapped", "branched", "counted"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.every(5)
def test_gradients_are_edited(program, wrapper):
    """Against the same function of the gradient written in by hand as a custom_vjp."""
    change = lambda g: jnp.clip(g, -0.5, 0.3) * 2

    @jax.custom_vjp
    def changed(h):
        return h

    changed.defvjp(lambda h: (h, None), lambda _, g: (change(g),))
    marked = WRAPPERS[wrapper](lambda x: PROGRAMS[program](x, sow))
    hand = WRAPPERS[wrapper](lambda x: PROGRAMS[program](x, lambda h, name: changed(h)))
    for name in ("grad", "vjp", "jitted grad", "grad in python", "vmapped grad", "grad of vmap", "grad in a scan"):
        expected = DERIVATIVES[name](hand)(X)
        same(edit(DERIVATIVES[name](marked), {"h": Edit(grad=change)})(X), expected)
        same(DERIVATIVES[name](edit(marked, {"h": Edit(grad=change)}))(X), expected)


def test_gradients_with_new_values_positions_and_traced_arrays():
    f = lambda x: straight(x, sow)
    h, dh = jnp.sin(X) * 1.5, lambda h: 3 * h**2 + X
    zeroed = edit(jax.grad(f), {"h": Edit(grad=jnp.zeros_like, positions=[0, 2], position_axis=-1)})(X)
    kept = jnp.array([0, 1.0, 0, 1])
    same(zeroed, dh(h) * kept * 1.5 * jnp.cos(X) + h)
    both = edit(jax.grad(f), {"h": Edit(lambda h: h * 2, grad=lambda g: -g)})(X)
    same(both, -dh(2 * h) * 2 * 1.5 * jnp.cos(X) + 2 * h)
    scaled = lambda s: edit(jax.grad(f), {"h": Edit(grad=lambda g: g * s)})(X)
    by_hand = lambda s: dh(h) * s * 1.5 * jnp.cos(X) + h
    same(jax.vmap(scaled)(jnp.array([0.5, 2.0])), jax.vmap(by_hand)(jnp.array([0.5, 2.0])))
    same(jax.jacobian(scaled)(jnp.float32(2)), jax.jacobian(by_hand)(jnp.float32(2)))
    _, records = sonde.capture(edit(jax.grad(f), {"h": Edit(grad=lambda g: g * 0 + 7)}), grads=True)(X)
    same(records["h"].grad, jnp.full(4, 7.0))  # captures see the new gradient
    same(edit(DERIVATIVES["jvp"](f), {"h": Edit(grad=jnp.zeros_like)})(X), DERIVATIVES["jvp"](f)(X))
    chosen = edit(jax.grad(lambda x: scanned(x, sow)), {"h": Edit(grad=jnp.zeros_like, iterations=[0, 1, 2])})(X)
    stopped = jax.grad(lambda x: scanned(x, lambda h, _: lax.stop_gradient(h)))(X)
    same(chosen, stopped)


def test_bad_edits_of_gradients():
    with pytest.raises(TypeError, match="a function of the gradient, got 3"):
        Edit(grad=3)
    with pytest.raises(TypeError, match="a new value, a function of the gradient"):
        Edit()
    with pytest.raises(
        sonde.errors.EditError, match=r"edit of the gradient of 'h' .*expected float32\[4\], got float32\[2\]"
    ):
        edit(jax.grad(lambda x: straight(x, sow)), {"h": Edit(grad=lambda g: g[:2])})(X)


def test_what_examples_share_has_the_sum_of_their_gradients():
    """A function of the gradient that is not linear tells the sum of all examples from a sum of changed parts."""
    change = lambda g: jnp.clip(g, -0.3, 0.4)

    @jax.custom_vjp
    def changed(h):
        return h

    changed.defvjp(lambda h: (changed(h), None), lambda _, g: (change(g),))
    weights = jnp.array([1.0, -0.6, 0.3])
    edits = {"h": Edit(grad=change)}

    def closed_over(x, mark):
        return jax.vmap(lambda w: (mark(jnp.sin(x), "h") * w).sum() ** 2)(weights).sum()

    def argument(x, mark):
        one = jax.jit(lambda w, x: (mark(jnp.sin(x), "h") * w).sum() ** 2)
        return jax.vmap(one, (0, None))(weights, x).sum()

    for f in (closed_over, argument):
        marked, hand = (lambda x, f=f: f(x, sow)), (lambda x, f=f: f(x, lambda h, _: changed(h)))
        expected = jax.grad(hand)(X)
        same(edit(jax.grad(marked), edits)(X), expected)
        same(jax.grad(edit(marked, edits))(X), expected)
        same(sonde.capture(edit(jax.grad(marked), edits), grads=True)(X)[0], expected)

    def shared_in_part(x, mark):
        return jax.vmap(lambda w: mark((jnp.sin(x), w * x), "h")[0].sum() * w)(weights).sum()

    # Of a tuple, the function sees one example, with and without a capture that records gradients.
    each = sum(change(w) for w in weights) * jnp.cos(X)
    pair = {"h": Edit(grad=lambda g: (change(g[0]), g[1]))}
    got = edit(jax.grad(lambda x: shared_in_part(x, sow)), pair)
    same(got(X), each)
    same(sonde.capture(got, grads=True)(X)[0], each)
