"""Where arrays come from: what counts as a change of an array, in traced programs and outside."""

import weakref

import jax
import jax.numpy as jnp
import pytest
from flax.linen.fp8_ops import fp32_max_grad

import sonde
from sonde import _jax
from sonde.inside.lineage import Changed, Sources, changed_inputs

W, V = jnp.ones((2, 3)), jnp.zeros((2, 3))
CHANGES = {
    "cast": lambda w, v: w.astype(jnp.float16),
    "a step of an optimizer": lambda w, v: jax.jit(lambda w, g: w - 0.1 * g)(w, v @ jnp.ones((3, 3))),
    "carried by a loop": lambda w, v: jax.lax.fori_loop(0, 2, lambda i, w: w * 2, w),
    "carried by a while loop": lambda w, v: jax.lax.while_loop(lambda w: w.sum() < 9, lambda w: w * 2, w),
    "in a branch": lambda w, v: jax.lax.cond(v.sum() > 0, lambda w: w, lambda w: -w, w),
    "mapped": lambda w, v: jax.vmap(lambda w: w + 1)(w),
    "stacked": lambda w, v: jnp.stack([w, w]),
    "rows set": lambda w, v: w.at[0].set(0.0),
}
NEW = {
    "a product": lambda w, v: w @ jnp.ones((3, 3)),
    "of its shape": lambda w, v: jnp.ones_like(w),
    "scaled by its norm": lambda w, v: v * jnp.sum(w**2),
    "random": lambda w, v: jax.random.normal(jax.random.key(0), w.shape),
}


def ends_in_jit(f):
    found = []

    @jax.jit
    def run(w, v):
        sources = Sources(Changed())  # made here, so that the arguments of `run` are values like others
        made, w_end = sources.of(f(w, v)).ends, sources.of(w).ends
        found.append(bool(made & w_end))
        return 0

    run(W, V)
    return found[0]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_an_array_comes_from_it(name):
    assert ends_in_jit(CHANGES[name])


@pytest.mark.parametrize("name", NEW)
def test_what_is_computed_in_another_way_is_new(name):
    assert not ends_in_jit(NEW[name])


def test_outputs_of_a_program_are_followed_one_by_one():
    jaxpr = jax.make_jaxpr(lambda a, b: jax.jit(lambda a, b: (b * 2, a @ b.T, a + b))(a, b))(W, V)
    (call,) = jaxpr.eqns
    assert call.primitive is _jax.jit_p
    assert [list(changed_inputs(call.primitive, call.params, i, 2)) for i in range(3)] == [[1], [], [0, 1]]


def test_arrays_outside_of_programs_are_noted():
    weight = jnp.arange(6.0).reshape(2, 3)
    changed = Changed([weight])
    assert changed.ends(weight) == {id(weight)} and not changed.ends(W)
    other = weight + 1
    changed.note(jax.lax.add_p, {}, [weight, W], other)
    assert changed.ends(other) == {id(weight)}
    rows = jnp.ones((4, 2, 3)) + weight  # a layer's result has another shape than its bias, and is no bias
    changed.note(jax.lax.add_p, {}, [weight, rows], rows)
    assert not changed.ends(rows)
    flat = weight.reshape(6)
    changed.note(jax.lax.reshape_p, {}, [weight], flat)
    half = flat / 2
    changed.note(jax.lax.div_p, {}, [flat, jnp.float32(2)], half)
    assert changed.ends(flat) == changed.ends(half) == {id(weight)}
    programs = [jax.make_jaxpr(f)(weight) for f in (lambda w: w * 2, lambda w: w[0][None], lambda w: w @ w.T)]
    assert [changed.can_be_change({"jaxpr": jaxpr}) for jaxpr in programs] == [True, True, False]
    # `debug.print` is an equation without results.
    printing = jax.make_jaxpr(lambda w: (jax.debug.print("{}", w[0, 0]), w[0])[1])(weight)
    assert changed.can_be_change({"jaxpr": printing})
    del other, flat, half
    assert len(changed._ends.entries) == 1


def test_arrays_of_extended_types_have_no_weak_references_and_are_captured():
    def scaled(x, scale):
        extended = jax.lax.convert_element_type(scale, fp32_max_grad)
        back = lambda: jax.lax.convert_element_type(extended, jnp.float32)
        x = jax.jit(lambda e, x: x * jax.lax.convert_element_type(e, jnp.float32))(extended, x)
        return jax.lax.scan(lambda c, _: (sonde.sow(c * back(), "c"), None), x, length=2)[0].sum()

    x, scale = jnp.ones(3), jnp.full(3, 2.0)
    with pytest.raises(TypeError, match="weak reference"):  # else there is nothing to test
        weakref.ref(jax.lax.convert_element_type(scale, fp32_max_grad))
    grad, records = sonde.capture(jax.grad(scaled), grads=True)(x, scale)
    assert grad.tolist() == [8.0] * 3
    assert records["c"].value.tolist() == [[4.0] * 3, [8.0] * 3] and records["c"].grad.tolist() == [
        [2.0] * 3,
        [1.0] * 3,
    ]
