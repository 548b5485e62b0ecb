"""Replacing values at sites, against programs in which the replacement is written out."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import Edit, edit, sow
from sonde.errors import EditError, NoSuchSiteError

X = jnp.arange(4.0) + 0.5


def chain(x):
    h = sow(jnp.sin(x), "h")
    k = sow(h * 3, "k")
    return k + h


def looped(x, reverse=False):
    def body(c, t):
        c = sow(c * 2 + t, "c")
        return c, c

    return lax.scan(body, x, jnp.arange(3.0), reverse=reverse)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_function_and_array(around):
    np.testing.assert_allclose(edit(around(chain), {"h": lambda h: h + 1})(X), (jnp.sin(X) + 1) * 4, rtol=1e-6)
    np.testing.assert_allclose(edit(around(chain), {"k": jnp.ones(4)})(X), 1 + jnp.sin(X), rtol=1e-6)


def test_several_patterns_apply_in_order():
    out = edit(chain, {"*": lambda v: v + 1, "k": lambda v: v * 0})(X)
    np.testing.assert_allclose(out, jnp.sin(X) + 1, rtol=1e-6)


def test_captures_see_the_new_value_on_both_sides():
    zero = {"h": jnp.zeros_like}
    out, records = sonde.capture(edit(chain, zero))(X)
    np.testing.assert_array_equal(records["h"].value, jnp.zeros(4))
    np.testing.assert_array_equal(out, jnp.zeros(4))
    (out, inner), outer = sonde.capture(edit(sonde.capture(chain), zero))(X)
    np.testing.assert_array_equal(inner["h"].value, jnp.zeros(4))
    np.testing.assert_array_equal(outer["h"].value, jnp.zeros(4))


@pytest.mark.parametrize("reverse", [False, True])
def test_chosen_iterations(reverse):
    def by_hand(x):
        order = [2.0, 1.0, 0.0] if reverse else [0.0, 1.0, 2.0]
        seen = []
        for i, t in enumerate(order):
            x = x * 2 + t
            x = -x if i == 1 else x
            seen.append(x)
        return x, seen

    negate = {"c": Edit(lambda c: -c, iterations=1)}
    (out, _), records = sonde.capture(edit(lambda x: looped(x, reverse), negate))(X)
    want, seen = by_hand(X)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    np.testing.assert_allclose(records["c"].value, jnp.stack(seen), rtol=1e-6)


def test_iterations_by_function_of_all_loops():
    def f(x):
        def inner(c, _):
            return sow(c + 1, "c"), None

        def outer(c, _):
            return lax.scan(inner, c, length=3)[0], None

        return lax.scan(outer, x, length=2)[0]

    once = Edit(lambda c: c + 100, iterations=lambda i, j: (i == 1) & (j == 2))
    assert edit(f, {"c": once})(0) == 106
    assert edit(f, {"c": Edit(lambda c: c + 100, iterations=[0, 2])})(0) == 6 + 400


def test_a_while_loop_has_not_the_length_of_the_scan_before_it():
    def f(x):
        x, _ = lax.scan(lambda c, _: (sow(c + 1, "s"), None), x, length=3)
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, sow(s[1] * 2, "w")), (0, x))[1]

    rows = jnp.array([10.0, 20.0, 30.0])
    assert edit(f, {"s": rows})(1.0) == 30 * 2**5
    with pytest.raises(EditError, match=r"edit of 'w' .*: expected float32\[\], got float32\[3\]"):
        edit(f, {"w": rows})(1.0)


def test_iterations_of_a_while_loop():
    def f(x):
        return lax.while_loop(lambda c: c < 10, lambda c: sow(c + 1, "c"), x)

    assert edit(f, {"c": Edit(lambda c: c + 5, iterations=0)})(0) == 10
    _, records = sonde.capture(edit(f, {"c": Edit(lambda c: c + 5, iterations=0)}))(0)
    assert records["c"].counts[0] == 5


def test_chosen_calls():
    g = jax.jit(lambda x: sow(x + 1, "c"))

    def f(x):
        return g(g(g(x)))

    assert edit(f, {"c": Edit(lambda c: c * 10, calls=1)})(0) == 21
    assert edit(f, {"c": Edit(lambda c: c * 10, calls=(0, 2))})(0) == 120


def test_calls_are_counted_per_branch():
    def f(p, x):
        x = lax.cond(p, lambda x: sow(sow(x + 1, "c") + 1, "c"), lambda x: sow(x + 5, "c"), x)
        return sow(x, "c")

    third = {"c": Edit(lambda c: c * 10, calls=2)}
    assert edit(f, third)(True, 0) == 20
    assert edit(f, third)(False, 0) == 50


def test_in_vmap_a_function_sees_one_example():
    def f(x, w):
        return sow({"x": x * 2, "w": w}, "p")

    def mean(p):
        assert p["x"].shape == (4,)
        return {"x": p["x"] - p["x"].mean(), "w": p["w"] + p["x"].sum()}

    xs = jnp.stack([X, X * 2])
    out = edit(jax.vmap(f, in_axes=(0, None)), {"p": mean})(xs, 1.0 * jnp.ones(()))
    np.testing.assert_allclose(out["x"], 2 * xs - (2 * xs).mean(1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(out["w"], 1 + (2 * xs).sum(1), rtol=1e-6)


def test_array_for_one_example_or_for_all():
    f = jax.vmap(lambda x: sow(x * 2, "h"))
    xs = jnp.stack([X, X])
    np.testing.assert_array_equal(edit(f, {"h": jnp.ones(4)})(xs), jnp.ones((2, 4)))
    np.testing.assert_array_equal(edit(f, {"h": jnp.arange(8.0).reshape(2, 4)})(xs), jnp.arange(8.0).reshape(2, 4))


def test_gradients_go_through_the_edit():
    got = jax.grad(lambda x: edit(chain, {"h": lambda h: h**2})(x).sum())(X)
    np.testing.assert_allclose(got, 8 * jnp.sin(X) * jnp.cos(X), rtol=1e-5)
    scale = jnp.float32(3.0)
    got = jax.grad(lambda s: edit(jax.jit(chain), {"h": lambda h: h * s})(X).sum())(scale)
    np.testing.assert_allclose(got, 4 * jnp.sin(X).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    "around",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: lax.cond(True, f, lambda x: x, x),
        lambda f: lambda x: lax.map(f, x[None])[0],
        lambda f: lambda x: jax.vmap(f)(x[None])[0],
        lambda f: jax.jit(lambda x: lax.scan(lambda c, _: (f(c), None), x, length=1)[0]),
    ],
    ids=["jit", "remat", "cond", "map", "vmap", "scan"],
)
def test_in_every_transform(around):
    for outer in (lambda f: f, jax.jit):
        edited = outer(edit(around(chain), {"h": lambda h: h * 0 + 2}))
        np.testing.assert_allclose(edited(X), 8 * jnp.ones(4), rtol=1e-6)


def test_custom_derivatives_survive_an_edit():
    @jax.custom_vjp
    def f(x):
        return sow(x * 2, "h") + 1

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g * 100,))
    edited = edit(f, {"h": lambda h: h * 0})
    np.testing.assert_array_equal(edited(X), jnp.ones(4))
    np.testing.assert_array_equal(jax.grad(lambda x: jax.jit(edited)(x).sum())(X), 100 * jnp.ones(4))


def test_python_numbers_take_on_the_dtype():
    assert edit(lambda x: sow(x, "h"), {"h": 3})(jnp.float32(1)).dtype == jnp.float32


@pytest.mark.parametrize("new", [jnp.ones(3), lambda h: h[:2], jnp.ones(4, jnp.bfloat16), lambda h: {"a": h}])
def test_what_does_not_fit_is_refused(new):
    with pytest.raises(EditError, match=r"edit of 'h' \(.*test_edit.py:\d+\): expected .*, got "):
        edit(chain, {"h": new})(X)


def test_wrong_dtype_names_both():
    with pytest.raises(EditError, match=r"expected float32\[4\], got int32\[4\]"):
        edit(chain, {"h": lambda h: h.astype(jnp.int32)})(X)


def test_no_such_site():
    with pytest.raises(NoSuchSiteError, match="'kk' matches none of the program's 2 sites; nearest: 'k'"):
        edit(chain, {"kk": jnp.zeros_like})(X)


def test_iterations_without_a_loop():
    with pytest.raises(EditError, match="iterations= is given, but the site is in no loop"):
        edit(chain, {"h": Edit(jnp.zeros_like, iterations=1)})(X)


def test_bad_arguments():
    with pytest.raises(TypeError, match="edit takes a callable, got 3"):
        edit(3, {})
    with pytest.raises(TypeError, match="mapping from patterns to new values"):
        edit(chain, [("h", 1)])
    with pytest.raises(TypeError, match="a glob over paths or a predicate"):
        edit(chain, {3: 1})


@pytest.mark.parametrize("form", ["eager", "jit inside", "jit outside", "loop", "vmap"])
def test_a_site_inside_an_edit_is_a_site(form):
    """Its value and gradient are those of the edited program, written by hand."""
    x = jnp.linspace(-1.0, 2.0, 3)

    def rule(h):
        return sonde.sow(jax.nn.relu(h), "features") * 2

    def one(x):
        with sonde.scope("b"):
            return (sonde.sow(jnp.sin(x), "h") ** 2).sum()

    def loop(x):
        return jax.lax.scan(lambda c, w: (sonde.sow(c * w, "b/h"), None), x, jnp.arange(1.0, 3.0))[0].sum()

    edits = {"b/h": rule}
    step = {
        "eager": jax.grad(sonde.edit(one, edits)),
        "jit inside": jax.grad(sonde.edit(jax.jit(one), edits)),
        "jit outside": jax.jit(jax.grad(sonde.edit(one, edits))),
        "loop": jax.grad(sonde.edit(loop, edits)),
        "vmap": lambda x: jax.vmap(jax.grad(sonde.edit(one, edits)))(x),
    }[form]
    _, records = sonde.capture(step, "b/h/features", grads=True)(x)
    record = records["b/h/features"]
    if form == "loop":
        first = jax.nn.relu(x)
        expected = jnp.stack([first, jax.nn.relu(2 * first * 2)])
        slope = jnp.stack([2 * 2 * (first > 0) * 2.0, jnp.full(3, 2.0)])
    else:
        expected = jax.nn.relu(jnp.sin(x))
        slope = 2 * (expected * 2) * 2
    np.testing.assert_allclose(record.value, expected, rtol=1e-6)
    np.testing.assert_allclose(record.grad, slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"positions": "last"}, "Edit(positions=...) takes numbers, one or several, got 'last'"),
        ({"positions": [1.5]}, "Edit(positions=...) takes numbers, one or several, got [1.5]"),
        ({"calls": -1}, "Edit(calls=...) takes numbers counted from 0, one or several, got -1"),
        ({"iterations": "all"}, "Edit(iterations=...) takes numbers counted from 0, one or several, got 'all'"),
    ],
)
def test_where_an_edit_cannot_be(options, words):
    with pytest.raises(TypeError) as caught:
        Edit(0.0, **options)
    assert str(caught.value) == words


def test_an_array_at_some_positions():
    f = lambda x: sow(x * 2, "h")
    x = jnp.arange(6.0).reshape(3, 2)
    changed = edit(f, {"h": Edit(jnp.zeros((3, 2)), positions=[0, -1])})(x)
    np.testing.assert_array_equal(changed, [[0, 0], [4, 6], [0, 0]])
    of_columns = edit(f, {"h": Edit(lambda v: v + 1, positions=1, position_axis=-1)})(x)
    np.testing.assert_array_equal(of_columns, x * 2 + jnp.array([0, 1]))


def rows_of_scan(x):
    return lax.scan(lambda c, w: (sow(jnp.sin(c * w) + c.mean(0), "h"), None), x, jnp.array([0.5, 1.0, 1.5]))[0].sum()


def several_calls(x):
    return sum(sow(jnp.sin(x) * k, "h").sum() for k in range(1, 4))


TABLE = jnp.linspace(-1, 1, 6).reshape(3, 2)
MADE: dict[str, Callable[[Any], Edit]] = {
    "positions": lambda i: Edit(lambda h: h * 2, positions=i),
    "positions of a value": lambda i: Edit(jnp.zeros((3, 2)), positions=i),
    "positions of a gradient": lambda i: Edit(grad=lambda g: g * 2, positions=i),
    "positions from the end": lambda i: Edit(lambda h: h * 2, positions=-1 - i),
    "iterations": lambda i: Edit(lambda h: h * 2, iterations=i),
    "calls": lambda i: Edit(lambda h: h * 2, calls=i),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, lambda f: lambda x: jax.jit(f)(x) * 1.0])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.every(5)
def test_where_an_edit_applies_may_be_mapped(made, wrap):
    f = several_calls if made == "calls" else rows_of_scan
    program = jax.grad(wrap(f)) if "gradient" in made else wrap(f)
    expected = jnp.stack([edit(program, {"h": MADE[made](i)})(TABLE) for i in range(3)])
    one = lambda i: edit(program, {"h": MADE[made](i)})(TABLE)
    np.testing.assert_allclose(jax.vmap(one)(jnp.arange(3)), expected, rtol=1e-5)
    assert not np.allclose(expected[0], expected[1])


def test_edits_at_mapped_positions_are_one_program():
    traces = []

    def f(x):
        traces.append(x)
        return sow(jnp.sin(x), "h").sum()

    jitted = jax.jit(f)
    for first in range(3):
        one = lambda i, d: edit(jitted, {"h": Edit(lambda h: h + d, positions=i)})(TABLE)
        jax.vmap(one)(jnp.arange(3) + first, jnp.arange(3.0) * first)
    assert len(traces) == 1


def test_a_traced_position_beyond_the_axis_is_nowhere():
    f = lambda i: edit(lambda x: sow(x, "h"), {"h": Edit(jnp.zeros_like, positions=i, position_axis=0)})(jnp.ones(2))
    np.testing.assert_array_equal(jax.vmap(f)(jnp.array([1, 2, -2, -3])), [[1, 0], [1, 1], [0, 1], [1, 1]])


DECIDING = {
    "if": lambda s: lambda h: h * s if s > 1 else h,
    "mask": lambda s: lambda h, mask=jnp.arange(3) < s: h * 0 + h[mask].sum(),
    "math": lambda s: lambda h: h * math.sqrt(s),
}


@pytest.mark.parametrize("name", DECIDING)
def test_functions_may_decide_by_their_numbers(name):
    """Arrays and floats are arguments of the compiled program, unless the function must know them."""
    make, x = DECIDING[name], jnp.array([1.0, -2.0, 3.0])
    jitted = jax.jit(lambda x: sow(x * 3, "h") + 1)
    for s in (2.0, 0.5, 3.0):
        np.testing.assert_allclose(edit(jitted, {"h": make(s)})(x), make(s)(x * 3) + 1)
        np.testing.assert_allclose(jax.jit(edit(jitted, {"h": make(s)}))(x), make(s)(x * 3) + 1)
        np.testing.assert_allclose(edit(jitted, {"h": make(s)}).lower(x).compile()(x), make(s)(x * 3) + 1)
    if name == "if":
        grad = lambda s: sonde.Edit(grad=make(s))
        step = jax.jit(jax.grad(lambda x: sow(x * 3, "h").sum()))
        for s in (2.0, 0.5):
            np.testing.assert_allclose(edit(step, {"h": grad(s)})(x), jnp.full(3, 3 * (s if s > 1 else 1)))
    with pytest.raises(EditError, match=r"needs the number of an array while the program is traced"):
        edit(lambda x: jitted(x) * 2, {"h": make(2.0)})(x)
    with pytest.raises((jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError)):
        jax.jit(lambda s: edit(jitted, {"h": make(s)})(x))(2.0)  # as by hand


jitted_chain = jax.jit(chain)
FORMS = {"eager": chain, "jit": jitted_chain, "python": lambda x: jitted_chain(x) * 1.0}
STRENGTH = [1.0]


class Settings:
    strength = 1.0

    def __init__(self):
        self.array = jnp.ones(4)

    def shifted(self, h):
        return self._added(h) + self.array

    def _added(self, h):
        return h + self.strength * STRENGTH[0]


def settings_of(place):
    """A function of a value, what it adds to it, and what makes that another."""
    if place == "variable":
        number = jnp.ones(4)

        def change():
            nonlocal number
            number = number * 7

        return lambda h: h + number, lambda: number, change
    if place == "dict":
        table = {"deep": [{"number": jnp.ones(4)}]}
        return (
            lambda h: h + table["deep"][0]["number"],
            lambda: table["deep"][0]["number"],
            lambda: table["deep"][0].update(number=jnp.ones(4) * 7),
        )
    if place == "NumPy":
        numbers = np.zeros(5000, np.int32)
        return lambda h: h + numbers[4000], lambda: numbers[4000], lambda: numbers.fill(7)
    if place == "class":
        Settings.strength = 1.0
        change = lambda: setattr(Settings, "strength", 7.0)
        return lambda h: h + Settings.strength, lambda: Settings.strength, change
    STRENGTH[0], Settings.strength = 1.0, 1.0
    change = lambda: STRENGTH.__setitem__(0, 7.0)
    if place == "global of a mapped function":
        return jax.vmap(lambda h: h + STRENGTH[0]), lambda: STRENGTH[0], change
    settings = Settings()
    if place == "object":
        return settings.shifted, lambda: settings.array + 1, lambda: setattr(settings, "array", jnp.ones(4) * 7)
    assert place == "global of a method"
    return lambda h: settings.shifted(h), lambda: STRENGTH[0] + 1, change


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "place", ["variable", "dict", "NumPy", "class", "global of a mapped function", "object", "global of a method"]
)
def test_what_functions_read_is_that_of_the_call(place, form):
    """Also where an equal function, whose variables have changed meanwhile, was edited before."""
    for _ in range(2):
        function, number, change = settings_of(place)
        edited = edit(FORMS[form], {"h": function})
        for step in (lambda: None, change):
            step()
            expected = (jnp.sin(X) + number()) * 4
            np.testing.assert_allclose(edited(X), expected, rtol=1e-6)
            np.testing.assert_allclose(edit(FORMS[form], {"h": function})(X), expected, rtol=1e-6)


def test_what_an_inner_edit_reads_is_that_of_the_call():
    number = jnp.ones(4)
    inner = edit(jax.jit(lambda h: sow(h, "inner")), {"inner": lambda h: h + number})
    edited = edit(jitted_chain, {"h": lambda h: inner(h)})
    for _ in range(2):
        np.testing.assert_allclose(edited(X), (jnp.sin(X) + number) * 4, rtol=1e-6)
        number = number * 3


def test_functions_that_log_find_their_lists():
    log, shift = [], jnp.ones(4)
    edited = edit(chain, {"h": lambda h: (log.append(h), h + shift)[1]})
    for _ in range(3):
        np.testing.assert_allclose(edited(X), (jnp.sin(X) + 1) * 4, rtol=1e-6)
    assert len(log) == 3


def test_equal_functions_change_what_is_their_own():
    def logging(log):
        return lambda h: (log.append(1), h)[1]

    def counting():
        n = 0

        def count(h):
            nonlocal n
            n += 1
            return h

        return count, lambda: n

    first, second = [], []
    edit(chain, {"h": logging(first), "k": logging(second)})(X)
    assert first == second == [1]
    edit(edit(chain, {"h": logging(first)}), {"k": logging(second)})(X)
    assert first == second == [1, 1]
    (one, of_one), (other, of_other) = counting(), counting()
    edit(chain, {"h": one, "k": other})(X)
    assert (of_one(), of_other()) == (1, 1)
