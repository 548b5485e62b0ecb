"""However an edit and a differentiation nest, the result is that of the program with the edit written in by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sonde
from sonde import Edit, edit, sow
from sonde.core import Supplied, put_by_rule
from sonde.tools import ablate, attribute, patch_paths, patch_sweep
from sonde.tools.intervention.patch_values import SELECTED

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
@pytest.mark.every(13)
def test_functions(program, derivative, new):
    if program == "custom" and derivative == "hessian":
        new = "square"
    check(program, "eager", derivative, EDITS[new])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.every(17)
def test_wrapped_programs(program, wrapper, derivative):
    check(program, wrapper, derivative, EDITS["square"])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.every(9)
def test_what_is_added_inside_and_outside(program, derivative):
    """A perturbation is a constant of every differentiation of the program."""
    delta = {"h": jnp.full(2 if program == "mapped" else 4, 0.3)}
    transform = DERIVATIVES[derivative]
    marked, hand = (lambda x: PROGRAMS[program](x, sow)), (lambda x: PROGRAMS[program](x, lambda h, _: h + 0.3))
    expected = transform(hand)(X)
    same(sonde.with_perturbations(transform(marked))(delta, X), expected)
    same(transform(functools.partial(sonde.with_perturbations(marked), delta))(X), expected)


def _rule_by_iteration(values, where):
    """Puts 0.2 in the place of the first element, in the second iteration if there is a loop."""
    masks = [jnp.broadcast_to(jnp.arange(np.shape(x)[-1]) == 0, np.shape(x)) for x in values]
    applies = where.iteration[-1] == 1 if where.iteration else None
    return Supplied([[jnp.full_like(x, 0.2) for x in values], masks], applies)


LOOPS = ("scanned", "counted", "invariant")
PATCHED = [(p, d) for d in DERIVATIVES for p in (*LOOPS, *["straight", "branched"] * (d != "grad in a scan"))]


@pytest.mark.parametrize(("program", "derivative"), PATCHED)
@pytest.mark.every(5)
def test_what_is_patched_inside_and_outside(program, derivative):
    """A value of another run is a constant; the elements that it does not replace keep their derivative."""

    def hand(x):
        return _unrolled(program, x) if program in LOOPS else PROGRAMS[program](x, lambda h, _: h.at[0].set(0.2))

    put = lambda f: put_by_rule(f, _rule_by_iteration, SELECTED)
    marked, transform = (lambda x: PROGRAMS[program](x, sow)), DERIVATIVES[derivative]
    expected = transform(hand)(X)
    same(put(transform(marked))(X), expected)
    same(transform(put(marked))(X), expected)


def _unrolled(program, x):
    """The loops of the programs above as Python loops, with the patch in the second iteration."""
    c, total = x, 0.0
    for i in range(3):
        h = {"scanned": jnp.sin(c * W[i]), "counted": jnp.sin(c) * x, "invariant": jnp.sin(x)}[program]
        h = h.at[0].set(0.2) if i == 1 else h
        if program == "scanned":
            c, total = h * x, total + h.sum() ** 2
        elif program == "counted":
            c = h
        else:
            c = c * h + W[i]
    return c.sum() + total


def test_values_of_other_runs_in_a_program_that_differentiates():
    """`patch_sweep` and `patch_paths`: a gradient inside the program is that of the program with the value in it."""
    energy = lambda x: (sow(jnp.sin(x), "h") ** 3).sum()
    f = lambda x: jax.grad(lambda x: energy(x) + x @ x)(x)
    clean, corrupt = X, X * 0.5
    sweep = patch_sweep(f, "h", metric=lambda g: g @ g, axis=-1)(clean, corrupt)
    for i in range(4):
        fixed = jnp.sin(clean)[i]
        hand = jax.grad(lambda x, i=i, fixed=fixed: (jnp.sin(x).at[i].set(fixed) ** 3).sum() + x @ x)(corrupt)
        np.testing.assert_allclose(sweep.scores["h"][i], hand @ hand, rtol=1e-5)

    def two(x):
        return jax.grad(lambda x: (sow(sow(jnp.sin(x), "a") * x, "b") ** 2).sum())(x)

    paths = patch_paths(two, "a", "b", metric=lambda g: g @ g)(clean, corrupt)
    b = jnp.sin(clean) * corrupt
    hand = jax.grad(lambda x: (b**2).sum())(corrupt)
    np.testing.assert_allclose(paths.scores["a", "b"], hand @ hand, atol=1e-6)


def test_the_gradient_along_a_line_of_a_program_that_differentiates():
    """The value that `attribute` interpolates is a constant of the gradient inside the program."""

    def f(x):
        return jax.grad(lambda x: (sow(jnp.sin(x), "h") ** 2 * x).sum())(x).sum()

    attribution = attribute(f, "h", baseline=0.0, method="integrated", steps=4)(X)
    # With h fixed, the gradient inside is h ** 2, and its own gradient 2 h: over the line, h ** 2 in the mean.
    np.testing.assert_allclose(attribution["h"][0], jnp.sin(X) ** 2, rtol=1e-5)


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


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_what_a_rule_supplies_in_one_branch_on_a_mesh(wrap):
    """The mask is the same on all devices, and the site's value is not."""

    def gradient(x, mark):
        branch = lambda y: jnp.sin(y) * mark(y * 2, "h")
        return jax.grad(lambda y: lax.cond(y.sum() > 1, branch, lambda y: y, y).sum())(x)

    def on_mesh(mark):
        mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
        return jax.shard_map(lambda x: gradient(x, mark), mesh=mesh, in_specs=P("d"), out_specs=P("d"))

    mask = np.array([True, False])
    rule = lambda arrays, where: Supplied([[jnp.full_like(arrays[0], 0.3)], [jnp.asarray(mask)]])
    by_hand = on_mesh(lambda h, _: jnp.where(mask, 0.3, h))
    same(put_by_rule(wrap(on_mesh(sow)), rule, SELECTED)(X), by_hand(X))


@pytest.mark.parametrize(
    "new, expected", [(lambda v: v, lambda h, v: v), (lambda v: lambda h: h * v, lambda h, v: h * v)]
)
def test_a_traced_value_in_a_function_with_its_own_derivative(new, expected):
    """JAX traces the rule when the call has been traced, and the edit still has its value."""

    @jax.custom_jvp
    def f(x):
        return sow(x * 0.9, "h") * x

    f.defjvp(lambda primals, tangents: (f(*primals), jnp.cos(primals[0]) * f(*primals) * tangents[0]))

    def second(wrap):
        total = lambda x, v: edit(wrap(f), {"h": new(v)})(x).sum()
        return jax.jvp(lambda x: jax.grad(total)(x, W[1] * X), (X,), (jnp.ones_like(X),))

    same(second(jax.jit)[0], jnp.cos(X) * expected(X * 0.9, W[1] * X) * X)
    same(second(jax.jit), second(lambda f: f))


def looped(x):
    """A loop that JAX computes again for the derivative."""
    start = lax.stop_gradient(x)
    return x * lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sow(jnp.sin(s[1]), "h")), (0, start))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_call_in_a_loop_that_is_computed_again(wrap):
    twice = lambda f: lambda x: (f(x) + f(2 * x)).sum()
    # Two programs: two calls of one function would share what JAX traced.
    again = lambda x: (jax.checkpoint(looped)(x) + jax.checkpoint(lambda x: looped(2 * x))(x)).sum()
    for call in (0, 1, None):
        new = {"h": Edit(jnp.square, calls=call)}
        expected = jax.grad(edit(twice(looped), new))(X)
        same(edit(wrap(jax.grad(again)), new)(X), expected)
        same(edit(wrap(lambda x: jax.value_and_grad(again)(x)[1]), new)(X), expected)
    block = jax.checkpoint(looped)
    shared = jax.grad(lambda x: block(block(x)).sum())
    with pytest.raises(sonde.errors.EditError, match="of a function that is called several times; edit all calls"):
        edit(wrap(shared), {"h": Edit(jnp.square, calls=0)})(X)
    linear = lambda x: jax.linearize(lambda x: looped(x) + lax.fori_loop(0, x.size, lambda _, c: c * x, x), x)[1](x)
    for call in (0, None):
        new = {"h": Edit(jnp.square, calls=call)}
        same(edit(wrap(linear), new)(X), linear_by_hand(X))


def linear_by_hand(x):
    h = jnp.sin(x) ** 2
    for _ in range(2):
        h = jnp.sin(h) ** 2
    return x * h + 5 * x**5


@pytest.mark.parametrize("jitted", [False, True])
def test_an_edit_of_a_function_that_is_transposed_as_it_is(jitted):
    matrix, x = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.ones(2)

    def f(x, mark=sonde.sow):
        x = lax.scan(lambda c, m: (mark(c * m, "s"), None), x, jnp.arange(1.0, 4.0))[0]
        return mark(matrix @ jax.vmap(lambda row: mark(row * 2, "v"))(x), "o").sum()

    marks = {"v": lambda v: v * 5, "o": lambda o: o * 7, "s": lambda s: s}
    by_hand = jax.linear_transpose(lambda x: 3 * f(x, lambda value, name: marks[name](value)), x)(1.0)[0]
    edits = {"s": sonde.Edit(lambda s: s * 3, iterations=1), "v": marks["v"], "o": sonde.Edit(grad=marks["o"])}
    g = jax.jit(f) if jitted else f
    np.testing.assert_allclose(sonde.edit(lambda ct: jax.linear_transpose(g, x)(ct)[0], edits)(1.0), by_hand)
    np.testing.assert_allclose(jax.linear_transpose(sonde.edit(g, edits), x)(1.0)[0], by_hand)
