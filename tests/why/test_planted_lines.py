"""Hand-written programs with a planted fault each: the operation, the line and the iteration that must be named.

The line is found by the comment `FAULT` on it, the iteration is worked out by hand; nothing comes from the search.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback
from jax.sharding import PartitionSpec as P

from sonde import NonFinite, first_nonfinite

X = jnp.array([1.0, 0.0, 4.0])
MESH = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def line_of(f: Callable) -> int:
    lines, first = inspect.getsourcelines(f)
    (at,) = [i for i, line in enumerate(lines) if "# FAULT" in line]
    return first + at


def found_in(f: Callable, *args: Any, run: Callable | None = None) -> NonFinite:
    found = first_nonfinite(f if run is None else run)(*args)
    assert found is not None
    assert found.source == f"{__file__}:{line_of(f)}", str(found)
    assert found.error is not None or found.results
    return found


def masked_softmax(x):
    scores = jnp.where(jnp.tri(3, dtype=bool), x[:, None] * x, -jnp.inf)
    weights = jax.nn.softmax(scores)
    out = weights @ jnp.zeros((3, 2))
    return out / jnp.linalg.norm(out)  # FAULT


def test_zero_by_zero_behind_a_mask():
    for run in (masked_softmax, jax.jit(masked_softmax)):
        found = found_in(masked_softmax, X, run=run)
        assert (found.operation, found.element, found.causes) == ("div", "0 / 0", ())
        assert found.operands == ("float32[3,2], all zeros", "float32[3,2], all zeros") or "0" in found.operands[1]


def nothing_left_to_attend_to(x):
    scores = jnp.where(x > 9, x, -jnp.inf)
    weights = jax.nn.softmax(scores)  # FAULT
    return weights.sum()


def test_a_row_that_is_masked_as_a_whole():
    found = found_in(nothing_left_to_attend_to, X)
    assert (found.operation, found.element) == ("sub", "-inf - -inf")
    assert any("constant" in cause and "-inf" in cause for cause in found.causes)


def root_behind_a_where(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()  # FAULT


def test_the_gradient_that_a_where_does_not_stop():
    for around in (lambda f: f, jax.jit):
        found = found_in(root_behind_a_where, X, run=around(jax.grad(root_behind_a_where)))
        assert (found.operation, found.element) == ("div", "0.5 / 0")
        assert "0 * inf" in found.reached[0] and found.results == ("result",)


def scanned(x):
    def body(c, t):
        sentinel = jnp.where(t > 99, c, jnp.inf)  # never used where it is Inf
        c = c * c * 10  # FAULT
        return c, jnp.where(jnp.isinf(sentinel), c, 0.0)

    return lax.scan(body, x, jnp.arange(8))[0].sum()


def test_the_iteration_of_a_scan():
    # 2, 40, 16e3, 2.56e9, 6.6e19; the next is beyond 3.4e38
    found = found_in(scanned, jnp.full(3, 2.0), run=jax.jit(scanned))
    assert (found.operation, found.iteration) == ("mul", (4,))


def reversed_scan(x):
    def body(c, t):
        return c / t, c  # FAULT

    return lax.scan(body, x, jnp.array([1.0, 2.0, 0.0, 3.0, 4.0]), reverse=True)[0]


def test_a_reversed_scan_counts_as_it_runs():
    assert found_in(reversed_scan, jnp.float32(1.0)).iteration == (2,)


def rows_of_a_scan(x):
    return lax.scan(lambda c, t: (c, jnp.log(t)), 0.0, x)[1]  # FAULT


def test_a_row_of_a_scan():
    assert found_in(rows_of_a_scan, jnp.array([1.0, 2.0, -1.0, -2.0])).iteration == (2,)


def while_loop(x):
    def body(s):
        i, x = s
        x = (x * 10) ** 2  # FAULT
        return i + 1, x

    return lax.while_loop(lambda s: s[0] < 8, body, (0, x))[1]


def test_the_iteration_of_a_while_loop():
    # 2, 4e2, 1.6e7, 2.56e16, 6.6e34; times 10 and squared is beyond
    assert found_in(while_loop, jnp.float32(2.0), run=jax.jit(while_loop)).iteration == (4,)


def fori_with_traced_bounds(x, n):
    def body(i, x):
        return x / (3.0 - i)  # FAULT

    return lax.fori_loop(0, n, body, x)


def test_the_iteration_of_a_fori_loop():
    assert found_in(fori_with_traced_bounds, X, 6, run=jax.jit(fori_with_traced_bounds)).iteration == (3,)
    assert first_nonfinite(fori_with_traced_bounds)(X, 3) is None


def through_a_buffer(x):
    def body(state, t):
        buffer, total = state
        value = jnp.log(t)  # FAULT
        buffer = jnp.roll(buffer, 1).at[0].set(value)
        return (buffer, total + buffer[3]), None

    return lax.scan(body, (jnp.zeros(4), 0.0), x)[0][1]


def test_a_value_that_travels_through_a_buffer():
    found = found_in(through_a_buffer, jnp.array([1.0, 2.0, -1.0, 3.0, 4.0, 5.0, 6.0]))
    assert (found.iteration, found.operation) == ((2,), "log")


def nested_loops(x):
    def outer(c, row):
        def inner(c, t):
            c = c + 1 / t  # FAULT
            return c, None

        return lax.scan(inner, c, row)

    return lax.scan(outer, x, jnp.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]))[0]


def test_loops_in_loops():
    assert found_in(nested_loops, jnp.float32(0.0), run=jax.jit(nested_loops)).iteration == (1, 1)


def gradient_of_a_scan(x):
    def body(c, t):
        c = c * jnp.where(t == 3, jnp.sqrt(c * 0.0) + 1.0, 1.0)  # FAULT
        return c, None

    return lax.scan(body, x, jnp.arange(6))[0]


def test_a_backward_pass_counts_as_the_loop_does():
    found = found_in(gradient_of_a_scan, jnp.float32(2.0), run=jax.jit(jax.grad(gradient_of_a_scan)))
    assert found.element == "0.5 / 0"
    assert found.iteration == (5,)  # the root is taken in each iteration, and the backward pass begins with the last


def branches(x):
    return lax.cond(x.sum() > 0, lambda x: jnp.log(-x), lambda x: x, x + 1)  # FAULT


def switched(i, x):
    return lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x / 0], x)  # FAULT


def test_the_branch_that_was_taken():
    found = found_in(branches, X)
    assert (found.operation, found.within) == ("log", "branch 1")
    assert found_in(switched, 2, X, run=jax.jit(switched)).within == "branch 2"
    assert first_nonfinite(switched)(1, X) is None


def one_example(x, t):
    y = x - t
    return jnp.log(y).sum()  # FAULT


def test_the_example_of_a_vmap():
    rows = jnp.ones((4, 3)).at[2, 1].set(-1.0)
    for run in (jax.vmap(one_example, (0, None)), jax.jit(jax.vmap(one_example, (0, None)))):
        assert found_in(one_example, rows, 0.5, run=run).example == (2,)
    columns = jax.jit(jax.vmap(one_example, (1, None)))
    assert found_in(one_example, rows.T, 0.5, run=columns).example == (2,)
    nested = jax.vmap(jax.vmap(one_example, (0, None)), (None, 0))
    assert found_in(one_example, jnp.ones((3, 3)), jnp.array([0.0, 0.5, 0.0, 1.5, 0.0]), run=nested).example == (3, 0)
    square = jax.vmap(jax.vmap(one_example, (0, None)), (1, None))  # both axes are equally long
    assert found_in(one_example, jnp.ones((3, 3, 2)).at[2, 1, 0].set(0.0), 0.5, run=square).example == (1, 2)
    backward = jax.jit(jax.grad(lambda x: jax.vmap(one_example, (0, None))(x, 1.0).mean()))
    assert found_in(one_example, 2 * rows.at[2, 1].set(0.5), run=backward).example == (2,)


def rematerialized(x):
    return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sqrt(x)))(x))  # FAULT


@jax.custom_vjp
def with_a_rule(x):
    return x * 1.0


with_a_rule.defvjp(lambda x: (x, x), lambda x, ct: (ct / x,))


def custom_rule(x):
    return with_a_rule(x).sum()  # FAULT


@jax.custom_jvp
def with_a_forward_rule(x):
    return jnp.log1p(x - 1)


with_a_forward_rule.defjvps(lambda t, ans, x: t / x)


def custom_forward_rule(x):
    return with_a_forward_rule(x + 1.0) + with_a_rule(1 / x)  # FAULT


def test_remat_and_custom_derivatives():
    assert found_in(rematerialized, X, run=jax.jit(jax.grad(rematerialized))).operation == "div"
    assert found_in(custom_rule, X, run=jax.jit(jax.grad(custom_rule))).element == "1 / 0"
    assert found_in(custom_forward_rule, X).element == "1 / 0"


def sharded(x):
    def on_shard(x):
        y = jnp.log(x)  # FAULT
        return lax.psum(y.sum(), "d")

    return jax.shard_map(on_shard, mesh=MESH, in_specs=P("d"), out_specs=P())(x)


def averaged(x):
    def on_shard(x):
        return lax.pmean(jnp.log(x).mean(), "d")  # FAULT

    return jax.shard_map(on_shard, mesh=MESH, in_specs=P("d"), out_specs=P())(x)


def scan_in_a_shard_map(x):
    def on_shard(x):
        def body(c, t):
            c = c * jnp.exp(t)  # FAULT
            return lax.ppermute(c, "d", [(0, 1), (1, 0)]), None

        return lax.scan(body, x, jnp.arange(5.0) * 20)[0]

    return jax.shard_map(on_shard, mesh=MESH, in_specs=P("d"), out_specs=P("d"))(x)


def shard_map_in_a_scan(x):
    def body(c, t):
        divide = lambda v: v / t  # FAULT
        return jax.shard_map(divide, mesh=MESH, in_specs=P("d"), out_specs=P("d"))(c), None

    return lax.scan(body, x, jnp.array([2.0, 1.0, 0.0, 1.0]))[0]


def test_the_shard():
    values = jnp.array([1.0, 2.0, 3.0, -1.0])
    for around in (lambda f: f, jax.jit):
        found = found_in(sharded, values, run=around(sharded))
        assert (found.operation, found.shard, found.within) == ("log", (("d", 1),), "shard d=1")
        assert found_in(averaged, values, run=around(averaged)).shard == (("d", 1),)
    # exp of 0, 20, 40, 60: 1e52 after iteration 3. It goes to the other shard after every iteration.
    found = found_in(scan_in_a_shard_map, jnp.array([0.0, 0.0, 0.0, 1.0]), run=jax.jit(scan_in_a_shard_map))
    assert (found.operation, found.iteration, found.shard) == ("mul", (3,), (("d", 0),))
    found = found_in(shard_map_in_a_scan, jnp.array([0.0, 1.0, 2.0, 3.0]), run=jax.jit(shard_map_in_a_scan))
    assert (found.operation, found.iteration) == ("div", (2,))


def called_back(x):
    host = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((3,), jnp.float32), x)
    return host / x  # FAULT


def from_the_host(x):
    return jax.pure_callback(lambda v: np.log(v), jax.ShapeDtypeStruct((3,), jnp.float32), x)  # FAULT


def test_functions_of_the_host():
    assert found_in(called_back, X, run=jax.jit(called_back)).element == "0 / 0"
    with np.errstate(all="ignore"):
        assert found_in(from_the_host, X, run=jax.jit(from_the_host)).operation == "pure_callback"


ANSWERS = [np.nan, 2.0]


def different_the_second_time(x):
    def on_host(v):
        return np.float32(ANSWERS.pop(0) if len(ANSWERS) > 1 else ANSWERS[0])

    return x + jax.pure_callback(on_host, jax.ShapeDtypeStruct((), jnp.float32), x[0])


def test_a_value_that_is_fine_when_it_is_computed_again_is_in_doubt():
    found = first_nonfinite(jax.jit(different_the_second_time))(X)
    assert found is not None and found.operation == "jit" and "run again" in found.doubt


CALLS: list[float] = []


def counting(x):
    def on_host(v):
        CALLS.append(float(v))
        return np.float32(len(CALLS))

    def body(c, t):
        number = io_callback(on_host, jax.ShapeDtypeStruct((), jnp.float32), t, ordered=True)
        c = c / (3.0 - number)  # FAULT
        return c, None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def test_side_effects_happen_once():
    CALLS.clear()
    assert found_in(counting, X, run=jax.jit(counting)).iteration == (2,)  # the third call returns 3
    assert CALLS == [0.0, 1.0, 2.0, 3.0]


def many_kinds(x):
    whole = jnp.arange(3)
    rotated = lax.complex(x, x) / lax.complex(x, jnp.zeros(3))  # FAULT
    return {"whole": whole, "truth": x > 0, "complex": rotated, "halves": x.astype(jnp.bfloat16)}


def test_whole_numbers_booleans_and_complex_numbers():
    found = found_in(many_kinds, X, run=jax.jit(many_kinds))
    assert found.operation == "div" and found.results == ("result['complex']",)


def overflow_of_halves(x):
    return (x.astype(jnp.float16) * 300).sum() * jnp.float16(300)  # FAULT


def test_other_types():
    found = found_in(overflow_of_halves, X)
    assert (found.operation, found.infs) == ("mul", 1)


def test_what_is_discarded_is_not_blamed():
    def f(x):
        safe = jnp.where(x > 0, jnp.log(x), 0.0)
        smallest = lax.fori_loop(0, 3, lambda i, best: jnp.minimum(best, x[i]), jnp.inf)
        return safe, smallest, jax.nn.logsumexp(jnp.where(x > 0, x, -jnp.inf)), jnp.isinf(1 / x)

    assert first_nonfinite(f)(X) is None
    assert first_nonfinite(jax.jit(f))(X) is None


def discarding(x):
    logs = jnp.log(x)  # FAULT
    return jnp.where(x > 0, logs, 0.0)


def discarding_in_a_loop(x):
    def body(c, t):
        logs = jnp.log(x * t)  # FAULT
        return c + jnp.where(x * t > 0, logs, 0.0), None

    return lax.scan(body, x, jnp.array([1.0, 2.0, 0.0, 1.0]))[0]


def test_a_note_on_what_is_discarded():
    for run in (discarding, jax.jit(discarding)):
        assert first_nonfinite(run)(X) is None
        found = first_nonfinite(run, discarded=True)(X)
        assert found.discarded and found.source == f"{__file__}:{line_of(discarding)}" and not found.results
        assert "in no result" in str(found)
        assert first_nonfinite(run, discarded=True)(X + 1) is None
    found = first_nonfinite(jax.jit(discarding_in_a_loop), discarded=True)(X + 1)
    assert (found.source, found.iteration) == (f"{__file__}:{line_of(discarding_in_a_loop)}", (2,))
    mask = lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf))
    assert first_nonfinite(mask, discarded=True)(X) is None  # written down, not computed


def two_suspects(x):
    intended = jnp.array([jnp.inf, 1.0, 1.0])
    grown = jnp.exp(x * 100)  # FAULT
    return (intended + grown)[1:]


def test_an_intended_inf_beside_the_fault():
    found = found_in(two_suspects, X, run=jax.jit(two_suspects))
    assert (found.operation, found.element) == ("exp", "exp(400)")


def test_the_argument_that_holds_it():
    found = first_nonfinite(lambda x, w: x @ w["a"])(X, {"a": X.at[1].set(jnp.nan)})
    assert found.operation == "argument" and "['a'][1]" in found.operands[0]


class Holder:
    """An object that JAX cannot take apart."""


def updating(holder, x):
    holder.state = jax.jit(lambda x: jnp.log(x - 2))(x)  # FAULT
    holder.discarded = None
    jnp.log(x - 3)
    return x


def test_what_is_put_into_objects_counts():
    holder = Holder()
    found = found_in(updating, holder, X)
    assert found.results == ("an array that the program keeps, float32[3]",) and np.isnan(holder.state).any()


def test_state_of_models_of_another_library():
    from flax import nnx

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model, x):
        model.kernel[...] = model.kernel[...] / x[1]
        return 0.0

    found = first_nonfinite(step)(model, X)
    assert (found.operation, found.function) == ("div", "step") and len(found.results) == 1
    fresh = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    assert first_nonfinite(step)(fresh, X + 1) is None


# -- programs that raise -----------------------------------------------------------------------------------------------


def checked_by_equinox(x):
    y = jnp.log(x - 2)  # FAULT
    y = eqx.error_if(y, jnp.isnan(y).any(), "my own check")
    return y * 2


def raising(x):
    z = jnp.sqrt(x - 2)  # FAULT
    if jnp.isnan(z).any():
        raise ValueError("not a number")
    return z


def asserting(x):
    z = jax.jit(lambda x: 1 / x)(x)  # FAULT
    assert np.isfinite(np.asarray(z)).all(), "not finite"
    return z


def checkified(x):
    def f(x):
        y = jnp.log(x - 2)  # FAULT
        checkify.check(~jnp.isnan(y).any(), "bad: {y}", y=y[0])
        return y

    error, y = checkify.checkify(jax.jit(f))(x)
    error.throw()
    return y


@pytest.mark.parametrize(
    ("f", "run", "message"),
    [
        (checked_by_equinox, jax.jit(checked_by_equinox), "my own check"),
        (checked_by_equinox, eqx.filter_jit(checked_by_equinox), "my own check"),
        (checked_by_equinox, checked_by_equinox, "my own check"),
        (raising, raising, "not a number"),
        (asserting, asserting, "not finite"),
        (checkified, checkified, "bad: nan"),
    ],
    ids=["equinox-jit", "equinox-filter_jit", "equinox", "raise", "assert", "checkify"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_program_that_raises(f, run, message):
    found = found_in(f, X, run=run)
    assert message in str(found.error)
    assert message in str(found) and str(found).index("made by") < str(found).index("The program raised")


def debugged(x):
    return jnp.log(x - 2) * 2  # FAULT


def test_jax_debug_nans():
    with jax.debug_nans(True), jax.debug_infs(True):
        assert found_in(debugged, X, run=jax.jit(debugged)).operation == "log"


def test_errors_that_are_about_something_else():
    def f(x):
        mask = jnp.where(x > 0, 0.0, -jnp.inf)
        return jnp.exp(mask) @ jnp.ones(4)

    with pytest.raises(TypeError, match="dot_general"):
        first_nonfinite(f)(X)

    def fails(x):
        if (jnp.exp(jnp.where(x > 0, 0.0, -jnp.inf)) < 9).all():
            raise ValueError("nothing to do with it")
        return x

    with pytest.raises(ValueError, match="nothing to do with it"):
        first_nonfinite(fails)(X)


def mixture(x):
    log_probs = jnp.log(x - 1.0) * 2 - 5.0  # FAULT
    return jnp.log(jnp.sum(jnp.exp(log_probs)))


def test_an_inf_that_becomes_a_zero_on_the_way():
    found = found_in(mixture, jnp.ones(2))
    assert (found.operation, found.element) == ("log", "log(0)")
    assert "become a zero" in found.doubt
    assert any("mixture" in line and "log(0)" in line for line in found.reached), found.reached


def masked_mixture(x):
    log_probs = jnp.where(x > 9, x, -jnp.inf)
    return jnp.log(jnp.sum(jnp.exp(log_probs)))  # FAULT


def test_a_mask_that_becomes_a_zero_is_no_cause():
    found = found_in(masked_mixture, jnp.ones(2))
    assert (found.operation, found.element, found.doubt) == ("log", "log(0)", "")


def test_a_line_that_runs_a_traced_program_is_in_doubt():
    traced = jax.make_jaxpr(jnp.log)(jnp.float32(1.0))

    def evaluate(x):
        (equation,) = traced.jaxpr.eqns
        return equation.primitive.bind(x, **equation.params)  # FAULT

    found = found_in(evaluate, jnp.float32(-1.0))
    assert found.operation == "log" and "is lost" in found.doubt


def too_many_steps(limit):
    """A loop in a branch in a loop, with a check of its own that fails."""

    def run(x):
        def outer(carry):
            i, y = carry
            halved = lambda y: lax.fori_loop(0, 2, lambda i, y: y * 0.5, y)
            return i + 1, limit(lax.cond(i > 1, halved, lambda y: y + 1.0, y))

        steps, y = lax.while_loop(lambda carry: carry[0] < 9, outer, x)
        return eqx.error_if(y, steps >= 9, "too many steps")

    return run


@pytest.mark.filterwarnings("ignore")
def test_a_check_that_fails_without_a_bad_number():
    start = jnp.int32(0), jnp.ones(2)
    with pytest.raises(Exception, match="too many steps"):
        first_nonfinite(jax.jit(too_many_steps(lambda y: y)))(start)
    # The same check, and a NaN in each iteration, which is dropped.
    found = first_nonfinite(jax.jit(too_many_steps(lambda y: jnp.where(y < 1e9, y, jnp.log(-jnp.abs(y) - 1.0)))))(start)
    assert found is not None and found.operation == "log" and found.doubt and "too many steps" in str(found.error)
