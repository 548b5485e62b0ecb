"""The first NaN or Inf, in programs in which its place is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import X as MODEL_INPUT
from tests.tools.models import every_face, forward

import sonde
from sonde import first_nonfinite, sow
from sonde.errors import CaptureError

X = jnp.arange(1.0, 4.0)


def test_all_finite():
    assert first_nonfinite(lambda x: sow(x, "h"))(X) is None


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_forward(around):
    def f(x):
        x = sow(x * 2, "a")
        x = sow(jnp.log(x - 2), "b")
        return sow(x * 2, "c")

    found = first_nonfinite(around(f))(X)
    assert (found.path, found.gradient, found.call, found.iteration) == ("b", False, 0, ())
    assert (found.nans, found.infs, found.size) == (0, 1, 3)
    assert "test_nonfinite.py:" in found.source
    assert found.before[0].path == "a" and (found.before[0].low, found.before[0].high) == (2.0, 6.0)
    assert (found.operation, found.element, found.function, found.variable) == ("log", "log(0)", "f", "x")
    assert found.results == ("result",)
    first, second, *_ = str(found).splitlines()
    assert (
        first.startswith("f / x, ") and "the first Inf is made by log of float32[3], 0 to 4, 1 zero (log(0))" in first
    )
    assert second == "  0 NaN and 1 Inf of 3 elements, at 'b'"


def test_backward():
    def loss(x):
        h = sow(jnp.sqrt(x - 1), "h")
        return sow(jnp.sum(h), "sum")

    found = first_nonfinite(jax.jit(jax.grad(loss)))(X)
    assert (found.path, found.operation, found.element) == ("", "div", "0.5 / 0")  # x is no site
    found = first_nonfinite(jax.grad(lambda x: loss(sow(x, "x"))))(X)
    assert (found.path, found.gradient, found.infs) == ("x", True, 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_in_a_loop_by_iteration_first(reverse):
    def f(x):
        def body(c, t):
            a = sow(c + t, "a")  # infinite in iteration 3
            b = sow(jnp.where(a > 6, jnp.inf, a), "b")  # infinite in iteration 2
            return b, None

        return lax.scan(body, x, jnp.arange(5.0)[::-1] if reverse else jnp.arange(5.0), reverse=reverse)[0]

    found = first_nonfinite(jax.jit(f))(jnp.float32(4.0))
    assert (found.path, found.iteration) == ("b", (2,))
    assert [(r.path, r.iteration) for r in found.before] == [("a", (2,))]


def test_backward_in_a_loop_is_found_from_the_end():
    def loss(x):
        def body(c, t):
            c = sow(c * 2, "c")
            return jnp.where(t == 3, c * 1e30, c * jnp.where(t == 1, 1e30, 1.0)), None

        return lax.scan(body, x, jnp.arange(6))[0]

    # with a tiny x all values stay finite, and the gradient overflows going back
    found = first_nonfinite(jax.grad(loss))(jnp.float32(1e-30))
    assert (found.path, found.gradient, found.iteration) == ("c", True, (1,))


def test_while_loop_reports_the_first_iteration():
    def f(x):
        def body(c):
            i, x = c
            return i + 1, sow(jnp.where(i == 3, jnp.nan, x), "x")

        return lax.while_loop(lambda c: c[0] < 6, body, (0, x))

    found = first_nonfinite(jax.jit(f))(X)
    assert (found.path, found.iteration, found.nans) == ("x", (3,), 3)


def test_a_branch_not_taken_is_not_reported():
    def f(p, x):
        return lax.cond(p, lambda x: sow(x, "ok"), lambda x: sow(x / 0, "bad"), x)

    assert first_nonfinite(f)(True, X) is None
    assert first_nonfinite(f)(False, X).path == "bad"


def test_a_while_loop_whose_examples_end_at_different_iterations():
    def looped(x, n):
        def body(state):
            i, y = state
            return i + 1, sow(jnp.where(i == 1, jnp.log(-1 - y * y), jnp.sin(y) + 1.5), "h")

        return jax.lax.while_loop(lambda state: state[0] < n, body, (0, x))[1]

    args = jnp.arange(3.0), jnp.array([1, 3, 1])
    found = first_nonfinite(jax.vmap(looped))(*args)
    assert (found.operation, found.path, found.iteration, found.example) == ("log", "h", (1,), (1,))
    assert first_nonfinite(jax.vmap(looped))(args[0], jnp.ones(3, int)) is None


def test_vmap_counts_over_examples():
    found = first_nonfinite(jax.vmap(lambda x: sow(1 / x, "h")))(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    assert (found.infs, found.size) == (3, 4)


def test_under_a_transform_there_are_no_numbers():
    with pytest.raises(
        CaptureError, match="first_nonfinite must run on numbers, but it is called in a program that is being"
    ):
        jax.jit(lambda x: first_nonfinite(lambda x: sow(x, "h"))(x) is None)(X)


def test_second_call():
    g = jax.jit(lambda x: sow(1 / x, "h"))
    found = first_nonfinite(lambda x: g(g(x) - 1))(jnp.float32(1.0))
    assert (found.path, found.call) == ("h", 1)
    assert sonde.first_nonfinite(lambda x: g(x))(jnp.float32(1.0)) is None


@every_face
def test_every_face(face):
    # (1, 2) times 1e38: the first row is 5e38 and -5e38, which is too large; the second is cut off at zero afterwards.
    look_for = first_nonfinite(forward(face))
    assert look_for(MODEL_INPUT) is None
    found = look_for(MODEL_INPUT * 1e38)
    assert (found.path, found.infs, found.nans, found.size) == ("hidden", 2, 0, 6)
    assert "models.py:" in found.source


def test_a_negative_context():
    with pytest.raises(ValueError, match="context must not be negative, got -1"):
        first_nonfinite(lambda x: x, context=-1)


def test_no_sites():
    found = first_nonfinite(lambda x: x / 0)(X)
    assert (found.path, found.operation, found.infs) == ("", "div", 3)


def test_examples_reach_their_first_bad_iteration_at_different_times():
    def f(x):
        def body(s):
            i, x = s
            return i + 1, sow(x * x, "x")

        return lax.while_loop(lambda s: s[0] < 8, body, (0, x))

    found = first_nonfinite(jax.jit(jax.vmap(f)))(jnp.array([1.0, 1e3, 1e6, 1e10]))
    # squared once 1e6, 1e12, 1e20; twice 1e12, 1e24, 1e40
    assert (found.path, found.iteration, found.example, found.infs) == ("x", (1,), (3,), 1)
    assert "0 NaN and 1 Inf of 4 elements, at 'x', while iteration 1, example 3" in str(found)


def test_the_line_is_that_of_the_branch_that_ran():
    def f(which, x):
        return lax.switch(
            which,
            [
                lambda x: sow(x * 2, "h"),
                lambda x: sow(x / 0, "h"),
            ],
            x,
        )

    lines = [first_nonfinite(around(f))(1, X).source for around in (lambda f: f, jax.jit)]
    mapped = first_nonfinite(jax.vmap(f))(jnp.array([0, 1]), jnp.ones(2))
    sites = sonde.capture(f)(1, X)[1]["h"].sites
    assert lines == [mapped.source] * 2
    first_line = int(sites[0].source.rpartition(":")[2])
    assert int(mapped.source.rpartition(":")[2]) == first_line + 1
    assert (mapped.call, mapped.example) == (0, (1,))


def test_gradient_of_a_later_call_is_not_called_the_first():
    @jax.jit
    def g(x):
        return sow(x, "x") ** 2

    def loss(x):
        return jnp.sqrt(g(g(x) - 1) * 0.0) + x

    found = first_nonfinite(jax.grad(loss))(jnp.float32(3.0))
    assert (found.path, found.gradient, found.call) == ("x", True, 1)


def test_a_jitted_function_that_was_searched_before_has_iterations_in_a_loop():
    f = jax.jit(lambda x: sow(jnp.exp(x), "y"))
    once = lambda xs: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, xs)[1]
    twice = lambda xs: jax.lax.map(once, jnp.stack([0 * xs, xs]))
    xs = jnp.array([1.0, 1000.0, 2.0])
    assert first_nonfinite(f)(xs[0]) is None
    assert first_nonfinite(once)(xs).iteration == (1,)
    assert first_nonfinite(twice)(xs).iteration == (1, 1)
    assert first_nonfinite(lambda xs: (f(xs[2]), once(xs), f(xs[1])))(xs).iteration == (1,)


@pytest.mark.filterwarnings("ignore")
def test_an_inf_in_a_buffer_is_not_why_a_loop_failed():
    """The NaN is in the loop, which discards it; the buffer of Infs is another result of the same loop."""
    import equinox as eqx

    def f(x):
        def body(carry):
            i, x, buffer, ok = carry
            y = jnp.log(x - 2)
            good = jnp.isfinite(y).all()
            return i + 1, jnp.where(good, y, x), buffer, ok & good

        start = (0, x, jnp.full(3, jnp.inf), jnp.array(True))
        _, y, buffer, ok = jax.lax.while_loop(lambda carry: carry[0] < 3, body, start)
        return eqx.error_if(y, ~ok, "too many steps"), buffer

    found = first_nonfinite(eqx.filter_jit(f))(jnp.ones(2))
    assert found.operation == "log" and "loop may discard it" in found.doubt
    assert "too many steps" in str(found.error)


@pytest.mark.filterwarnings("ignore")
def test_a_check_behind_a_linear_solve():
    """The function of the host that raises is where it cannot be replaced: what went into the call is explained."""
    import equinox as eqx

    def solved(a, b):
        x = jax.lax.custom_linear_solve(lambda v: a @ v, b, lambda _, b: jnp.linalg.solve(a, b), symmetric=True)
        return eqx.error_if(x, ~jnp.isfinite(x).all(), "not finite")

    def f(a, b):
        a = jnp.log(a)
        return eqx.filter_jit(solved)(a, b)

    found = first_nonfinite(f)(-jnp.eye(2), jnp.ones(2))
    assert found.operation == "log" and "not finite" in str(found.error)


@pytest.mark.parametrize(
    "is_good",
    [jnp.isfinite, lambda x: ~jnp.isnan(x), lambda x: ~jnp.isnan(x).any(), lambda x: (x > -9) & (x < 9).all()],
    ids=["isfinite", "isnan", "any-isnan", "compared"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_the_program_replaced_by_an_inf_is_named(is_good, compiled):
    """A log density of -Inf in place of NaN, as samplers have it."""

    def density(x):
        value = jnp.log(x) * 2
        return jnp.where(is_good(value), value, -jnp.inf)

    found = first_nonfinite(jax.jit(density) if compiled else density)(-jnp.ones(2))
    assert (found.operation, found.variable) == ("log", "value")
    assert "puts an Inf in its place" in found.doubt


def test_a_nan_that_chose_an_inf_is_behind_the_nan_that_came_of_it():
    def f(x):
        y = jnp.log(x)
        in_support = (y > -9) & (y < 9)
        a = jnp.where(in_support, y, -jnp.inf)
        return a.sum() - a[0]  # -inf - -inf

    found = first_nonfinite(jax.jit(f))(-jnp.ones(2))
    assert (found.operation, found.variable) == ("log", "y") and "puts an Inf in its place" in found.doubt


def test_an_inf_chosen_by_another_test_is_the_answer():
    found = first_nonfinite(lambda x: jnp.where(x > 0, x, -jnp.inf))(jnp.array([1.0, -1.0]))
    assert found.operation == "constant" and not found.doubt


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)])
def test_a_nan_goes_through_a_factorization(rows):
    """The matrix that stands in for the bad one in the trial must have a factor itself."""

    def f(x):
        matrix = jnp.eye(3) * 2 + jnp.zeros((3, 3)).at[rows].set(jnp.log(x))
        return jnp.linalg.cholesky(matrix, symmetrize_input=False)

    found = first_nonfinite(f)(-jnp.ones(3))
    assert found.operation == "log" and not found.doubt
    born_there = first_nonfinite(jnp.linalg.cholesky)(-jnp.eye(3))
    assert born_there.operation == "cholesky"


class Tensor:
    """What other libraries return: an object that NumPy can read."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.numbers, dtype)


def test_a_nan_in_a_tensor_of_another_library():
    found = first_nonfinite(lambda x: Tensor([float(x[0]), np.nan]))(X)
    assert (found.nans, found.size, found.results) == (1, 2, ("result",))
    assert first_nonfinite(lambda x: Tensor([float(x[0]), 1.0]))(X) is None
