"""However an edit and a differentiation nest, the result is that of the program with the edit written in by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import Edit, edit, sow
from sonde.tools import ablate

X = jnp.linspace(-0.7, 1.1, 4)
W = jnp.linspace(0.5, 1.5, 3)


def straight(x, mark):
    h = mark(jnp.sin(x) * 1.5, "h")
    return (h**3 + x * h).sum()


def scanned(x, mark):
    def body(c, w):
        c = mark(jnp.sin(c * w), "h")
        return c * x, c.sum()

    c, ys = lax.scan(body, x, W)
    return c.sum() + (ys**2).sum()


def invariant(x, mark):
    """A loop body whose site does not depend on the carry."""

    def body(c, w):
        return c * mark(jnp.sin(x), "h") + w, None

    return lax.scan(body, x, W)[0].sum()


def branched(x, mark):
    return lax.cond(x.sum() > 0, lambda x: mark(x**2, "h"), lambda x: mark(jnp.cos(x), "h"), x).sum()


def mapped(x, mark):
    return jax.vmap(lambda a: mark(jnp.stack([jnp.sin(a), a**2]), "h").prod())(x).sum()


def counted(x, mark):
    return lax.fori_loop(0, 3, lambda i, c: mark(jnp.sin(c) * x, "h"), x).sum()


def custom(x, mark):
    @jax.custom_jvp
    def f(x):
        return mark(jnp.sin(x), "h")

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), jnp.cos(primals[0]) * tangents[0] * 3

    return (f(x) ** 2 + mark(x**2, "h")).sum()


PROGRAMS = {f.__name__: f for f in (straight, scanned, invariant, branched, mapped, counted, custom)}
WRAPPERS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "remat of jit": lambda f: jax.checkpoint(jax.jit(f)),
    "jit in python": lambda f: functools.partial(lambda g, x: g(x) * 1.0, jax.jit(f)),
}
EDITS = {
    "scale": lambda h: h * 2.5,
    "square": lambda h: h**2,
    "clip": lambda h: jnp.clip(h, -0.3, 0.4),
    "stop": lax.stop_gradient,
    "zeros": jnp.zeros_like,
    "mix": lambda h: h - h.mean() + jnp.flip(h),
}
DERIVATIVES = {
    "grad": jax.grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),)),
    "hessian": jax.hessian,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.ones_like(x)),
    "jitted grad": lambda f: jax.jit(jax.grad(f)),
    "grad in python": lambda f: lambda x: jax.jit(jax.grad(f))(x) * 1.0,
    "vmapped grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, x * 0.5])),
    "grad of vmap": lambda f: lambda x: jax.grad(lambda xs: jax.vmap(f)(xs).sum())(jnp.stack([x, x * 0.5])),
    "grad in a scan": lambda f: lambda x: lax.scan(lambda c, _: (c - 0.1 * jax.grad(f)(c), None), x, length=2)[0],
}


def same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def check(program, wrapper, derivative, new, by_hand=None):
    marked = WRAPPERS[wrapper](lambda x: PROGRAMS[program](x, sow))
    hand = WRAPPERS[wrapper](lambda x: PROGRAMS[program](x, lambda h, name: (by_hand or new)(h)))
    transform = DERIVATIVES[derivative]
    expected = transform(hand)(X)
    same(edit(transform(marked), {"h": new})(X), expected)
    same(transform(edit(marked, {"h": new}))(X), expected)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("new", EDITS)
@pytest.mark.every(7)
def test_functions(program, derivative, new):
    if program == "custom" and derivative == "hessian":
        new = "square"
    check(program, "eager", derivative, EDITS[new])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.every(9)
def test_wrapped_programs(program, wrapper, derivative):
    check(program, wrapper, derivative, EDITS["square"])


def test_the_first_example_of_all():
    f = lambda x: (sow(x * 3, "h") ** 2).sum()
    np.testing.assert_allclose(
        edit(jax.grad(f), {"h": lambda h: h * 2})(X), jax.grad(lambda x: ((x * 6) ** 2).sum())(X)
    )
    np.testing.assert_array_equal(ablate(jax.grad(f), "h")(X), jnp.zeros(4))


def test_arrays_and_records_have_no_derivative():
    fixed = jnp.arange(4.0)
    check("straight", "eager", "grad", fixed, lambda h: fixed)
    check("straight", "jit in python", "hessian", fixed, lambda h: fixed)
    rows = jnp.arange(12.0).reshape(3, 4)
    _, records = sonde.capture(lambda x: scanned(x, sow))(X * 0.3)
    for new, values in ((rows, rows), (records["h"], records["h"].value)):

        def by_hand(x):
            c, total = x, 0.0
            for i in range(3):
                c, total = values[i] * x, total + values[i].sum() ** 2
            return c.sum() + total

        for transform in (DERIVATIVES["grad"], DERIVATIVES["hessian"], DERIVATIVES["jitted grad"]):
            same(edit(transform(lambda x: scanned(x, sow)), {"h": new})(X), transform(by_hand)(X))


def test_chosen_iterations_calls_and_positions():
    new = Edit(lambda h: h**2, iterations=1)

    def by_hand(x):
        c, total = x, 0.0
        for i in range(3):
            c = jnp.sin(c * W[i])
            c = c**2 if i == 1 else c
            c, total = c * x, total + c.sum() ** 2
        return c.sum() + total

    for name in ("grad", "hessian", "jitted grad", "grad in python", "grad in a scan", "vmapped grad"):
        if name == "grad in a scan":
            continue  # there the innermost loop is another one: see below
        same(edit(DERIVATIVES[name](lambda x: scanned(x, sow)), {"h": new})(X), DERIVATIVES[name](by_hand)(X))
    g = jax.jit(lambda x: sow(jnp.sin(x), "h") * x)
    twice = lambda x: g(g(x)).sum()
    hand = lambda x: (lambda y: jnp.sin(y) ** 2 * y)(jnp.sin(x) * x).sum()
    same(edit(jax.grad(twice), {"h": Edit(lambda h: h**2, calls=1)})(X), jax.grad(hand)(X))
    at = Edit(lambda h: h * 0, positions=[1, -1], position_axis=-1)
    hand = lambda x: straight(x, lambda h, _: h.at[1].set(0).at[-1].set(0))
    same(edit(jax.grad(lambda x: straight(x, sow)), {"h": at})(X), jax.grad(hand)(X))


def test_iterations_of_a_training_loop():
    """The site is inside a gradient inside a loop; the iteration is the step of the loop."""

    def train(x, mark):
        step = lambda c, i: (c - 0.1 * jax.grad(lambda c: straight(c, functools.partial(mark, i=i)))(c), None)
        return lax.scan(step, x, jnp.arange(3))[0]

    hand = train(X, lambda h, _, i: jnp.where(i == 1, h**2, h))
    same(edit(lambda x: train(x, lambda h, name, i: sow(h, name)), {"h": Edit(jnp.square, iterations=1)})(X), hand)


def test_an_unselected_iteration_has_a_finite_gradient():
    """The function of an edit is not differentiated where it does not apply."""
    f = lambda x: lax.scan(lambda c, w: (sow(c * w, "h"), None), x, jnp.array([0.0, 1.0]))[0].sum()
    safe = Edit(lambda h: jnp.log(h + 1), iterations=1)
    assert np.isfinite(edit(jax.grad(f), {"h": safe})(X * 0 - 1)).all()


def test_traced_arrays_in_an_edit():
    """The arrays that a function closes over may be traced, also where the program is jitted inside."""
    for wrapper in WRAPPERS.values():
        marked = wrapper(lambda x: straight(x, sow))
        total = lambda s: edit(jax.grad(marked), {"h": lambda h: h * s})(X).sum()
        hand = lambda s: jax.grad(lambda x: straight(x, lambda h, _: h * s))(X).sum()
        for transform in (jax.grad, jax.jit, lambda f: lambda s: jax.vmap(f)(jnp.stack([s, s + 1]))):
            same(transform(total)(jnp.float32(1.5)), transform(hand)(jnp.float32(1.5)))


def test_two_edits_and_captures_around_and_inside():
    inner, outer = {"h": lambda h: h**2}, {"h": lambda h: h + jnp.sin(h)}
    hand = lambda x: straight(x, lambda h, _: h**2 + jnp.sin(h**2))
    f = lambda x: straight(x, sow)
    same(edit(edit(jax.grad(f), inner), outer)(X), jax.grad(hand)(X))
    same(edit(jax.grad(edit(f, inner)), outer)(X), jax.grad(hand)(X))
    grad, records = sonde.capture(edit(jax.grad(f), inner), grads=True)(X)
    h = (jnp.sin(X) * 1.5) ** 2
    same(
        (grad, records["h"].value, records["h"].grad),
        (jax.grad(lambda x: straight(x, lambda h, _: h**2))(X), h, 3 * h**2 + X),
    )
    (grad, records) = edit(sonde.capture(jax.grad(f), grads=True), inner)(X)
    same((records["h"].value, records["h"].grad), (h, 3 * h**2 + X))
