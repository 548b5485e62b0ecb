"""Marked functions among code that is not marked, and that relies on what is the same object, mapped, or solved."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Trace, Tracer
from jax.experimental import sparse
from jax.extend.core import set_current_trace, take_current_trace

import sonde
from sonde.errors import CaptureError

X = jnp.arange(6.0).reshape(3, 2)
WEIGHT = jnp.array([1.0, 2.0])


# -- an array is what it was -------------------------------------------------------------------------------------------


class Pair(eqx.Module):
    left: jax.Array
    right: jax.Array


def left_of(pair):
    found = [pair.left]
    return found


def doubled(x):
    pair = eqx.tree_at(left_of, Pair(x * 2, x * 3), replace_fn=lambda leaf: leaf * 2)
    return (pair.left * pair.right).sum()


def test_a_marked_function_selects_a_leaf_for_code_without_marks():
    """`equinox.tree_at` compares what the function selects with the leaves of the tree."""
    own = eqx.tree_at.__code__
    result, records = sonde.capture(jax.grad(doubled), inside=left_of, grads=True)(WEIGHT)
    np.testing.assert_array_equal(result, jax.grad(doubled)(WEIGHT))
    assert "left_of/return" in records
    assert eqx.tree_at.__code__ is own


# -- what vmap does not map stays so -----------------------------------------------------------------------------------


def parts(x, weight):
    scaled = weight * 2.0
    pair = (x * scaled, scaled)
    return pair


@pytest.mark.parametrize("function", [parts, jax.jit(parts)], ids=["", "jit"])
def test_arrays_that_examples_share_stay_shared_at_the_site_of_a_tuple(function):
    def loss(x, weight):  # an error if the second output is mapped
        mapped, shared = jax.vmap(function, in_axes=(0, None), out_axes=(0, None))(x, weight)
        return (mapped * shared).sum()

    run = jax.grad(loss, argnums=(0, 1))
    result, records = sonde.capture(run, inside=parts, grads=True)(X, WEIGHT)
    jax.tree.map(np.testing.assert_array_equal, result, run(X, WEIGHT))
    mapped, shared = records["parts/pair"].value
    np.testing.assert_array_equal(mapped, X * WEIGHT * 2)
    np.testing.assert_array_equal(shared, np.broadcast_to(WEIGHT * 2, X.shape))
    gradient, of_shared = records["parts/pair"].grad
    np.testing.assert_array_equal(gradient, np.broadcast_to(WEIGHT * 2, X.shape))
    np.testing.assert_array_equal(of_shared, (X * WEIGHT * 2).sum(0))  # one for all examples
    np.testing.assert_array_equal(records["parts/scaled"].grad, 2 * (X * WEIGHT * 2).sum(0))  # as of a variable
    for crossed in (jax.tree.map(lambda x: x, records), jax.jit(lambda r: r)(records)):
        jax.tree.map(np.testing.assert_array_equal, crossed["parts/pair"].grad, (gradient, of_shared))

    # Differentiated inside the map, every example has its own gradient of what all share.
    run = jax.vmap(jax.grad(lambda x, w: jnp.prod(jnp.stack(function(x, w)), 0).sum(), (0, 1)), (0, None))
    result, records = sonde.capture(run, inside=parts, grads=True)(X, WEIGHT)
    jax.tree.map(np.testing.assert_array_equal, result, run(X, WEIGHT))
    np.testing.assert_array_equal(records["parts/pair"].grad[1], X * WEIGHT * 2)


def shared_first(x, weight):
    scaled = weight * 2.0
    pair = (scaled, x * scaled)
    return pair


@jax.jit
def weighted(x, weight):
    shared, mapped = jax.vmap(shared_first, in_axes=(0, None), out_axes=(None, 0))(x, weight)
    return (mapped * shared).sum()


def test_what_the_examples_share_keeps_its_gradient_in_other_maps_and_loops():
    _, records = sonde.capture(jax.grad(weighted), inside=shared_first, grads=True)(X, WEIGHT)
    none, gradient = records["shared_first/pair"].grad
    assert none is None  # it does not depend on what is differentiated
    np.testing.assert_array_equal(gradient, np.broadcast_to(WEIGHT * 2, X.shape))

    factors = jnp.array([1.0, 2.0, 5.0])
    run = lambda k: jax.grad(lambda w: weighted(X * k, w))(WEIGHT)
    by_hand = np.stack([(X * k * WEIGHT * 2).sum(0) for k in factors])
    for around in (jax.vmap(run), lambda k: jax.lax.map(run, k)):
        _, records = sonde.capture(around, inside=shared_first, grads=True)(factors)
        np.testing.assert_allclose(records["shared_first/pair"].grad[0], by_hand, rtol=1e-6)
        assert records["shared_first/pair"].grad[1].shape == (3, *X.shape)

    # Here the gradient does not vary over the outer map, and the value does.
    added = lambda x, w: sum(map(jnp.sum, jax.vmap(shared_first, in_axes=(0, None), out_axes=(None, 0))(x, w)))
    run = jax.vmap(lambda k: jax.grad(added, 1)(X * k, WEIGHT))
    _, records = sonde.capture(run, inside=shared_first, grads=True)(factors)
    of_shared, of_mapped = records["shared_first/pair"].grad
    np.testing.assert_array_equal(of_shared, np.ones((3, X.shape[1])))
    np.testing.assert_array_equal(of_mapped, np.ones((3, *X.shape)))


def test_a_reduced_gradient_has_all_its_parts_or_none():
    total = lambda tree: sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))
    run = jax.grad(lambda x: jax.vmap(parts, (0, None))(x, WEIGHT)[0].sum())
    _, records = sonde.capture(run, inside=parts, grads=True, reduce=total)(X)
    assert not records["parts/pair"].grads
    np.testing.assert_array_equal(records["parts/x"].grad, np.full(3, (WEIGHT * 2).sum()))


@jax.custom_jvp
def squared(x):
    return x**2


@squared.defjvp
@jax.jit
def squared_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return x**2, 2 * x * t


def test_a_rule_that_returns_value_and_tangent_under_jacfwd():
    """It maps the tangent alone, and refuses a mapped value."""
    run = jax.jacfwd(squared)
    result, records = sonde.capture(run, inside=[squared, squared_rule], grads=True)(WEIGHT)
    np.testing.assert_array_equal(result, run(WEIGHT))
    value, tangent = records["squared_rule/return"].value
    np.testing.assert_array_equal(value, np.broadcast_to(WEIGHT**2, (2, 2)))
    np.testing.assert_array_equal(tangent, np.diag(2 * WEIGHT))


def cubed(x):
    square = x**2
    return square * x


def test_backward_passes_that_cannot_be_added_are_apart():
    def run(x):
        _, pull = jax.vjp(cubed, x)
        return jax.vmap(pull)(jnp.array([1.0, 2.0])), jax.vmap(pull)(jnp.array([3.0, 4.0, 5.0]))

    result, records = sonde.capture(run, inside=cubed, grads=True)(2.0)
    jax.tree.map(np.testing.assert_array_equal, result, run(2.0))
    first, second = records["cubed/square"].grads
    np.testing.assert_array_equal(first, [2, 4])
    np.testing.assert_array_equal(second, [6, 8, 10])


def test_the_operators_of_jax_numpy_may_be_marked():
    run = lambda x: jnp.std(jax.jit(jnp.mean)(x) * x)
    result, records = sonde.capture(jax.grad(run), grads=True, inside="jax.numpy")(WEIGHT)
    np.testing.assert_array_equal(result, jax.grad(run)(WEIGHT))
    assert any(path.startswith("std/") for path in records)


def test_what_the_engine_computes_is_not_marked():
    branch = lambda x: jax.lax.cond(x > 1, jnp.sin, jnp.cos, x)
    loop = lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: jnp.exp(c), x)
    _, records = sonde.capture(jax.vmap(lambda x: branch(x) + loop(x)), inside="jax.numpy")(WEIGHT)
    operators = {"_forward_operator_to_aval.op", "_operator_add"}
    assert {path.partition("/")[0] for path in records} - operators == {"sin", "cos", "exp"}


# -- primitives without a rule -----------------------------------------------------------------------------------------


class Hidden:
    """As a package would have it."""

    @staticmethod
    @jax.custom_batching.custom_vmap
    def halved(x):
        half = x / 2
        return half


Hidden.halved.def_vmap(lambda size, is_mapped, x: (x / 2, is_mapped[0]))


@pytest.mark.parametrize("grads", [False, True])
def test_what_came_with_a_class_is_left_out_where_no_rule_lets_it_out(grads):
    run = jax.jit(lambda x: Hidden.halved(x * 2) + parts(x, x)[0])
    result, records = sonde.capture(run, inside=[Hidden, parts], grads=grads)(WEIGHT)
    np.testing.assert_array_equal(result, run(WEIGHT))
    assert "parts/pair" in records and not any("halved" in path for path in records)
    captured = sonde.capture(run, inside=[Hidden.halved, parts], grads=grads)
    np.testing.assert_array_equal(captured(WEIGHT)[1]["Hidden.halved/half"].value, WEIGHT)
    with pytest.raises(CaptureError, match="custom_vmap_call.*is mapped around the capture by a rule of its own"):
        jax.vmap(captured)(jnp.stack([WEIGHT, WEIGHT]))


class Scaling:
    """As a package would have it."""

    @staticmethod
    def twice(x):
        result = jax.lax.mul(x, 2.0)
        return result


def doubled_up_to_ten(x):
    """What a program that interprets others makes of a loop that `vmap` has mapped: its predicate has an axis."""
    test, body = jax.make_jaxpr(lambda x: x < 10)(x), jax.make_jaxpr(Scaling.twice)(x)
    (x,) = jax.lax.while_p.bind(x, cond_nconsts=0, cond_jaxpr=test, body_nconsts=0, body_jaxpr=body)
    return x


@pytest.mark.parametrize("grads", [False, True])
def test_what_came_with_a_class_is_left_out_of_a_loop_that_was_mapped_before(grads):
    run = lambda x: doubled_up_to_ten(x) + Scaling.twice(x)
    for function in (run, jax.jit(run)):
        result, records = sonde.capture(function, inside=Scaling, grads=grads)(WEIGHT)
        np.testing.assert_array_equal(result, [18, 20])
        assert len(records["Scaling.twice/result"].values) == 1
        with pytest.raises(CaptureError, match="'while', which was mapped before it had sites"):
            sonde.capture(function, inside=Scaling.twice, grads=grads)(WEIGHT)


# -- values that only another library's trace knows --------------------------------------------------------------------


class Length(Tracer):
    """A number with a unit. It is no array."""

    def __init__(self, trace, metres):
        super().__init__(trace, jax.typeof(metres))
        self.metres = metres

    def full_lower(self):
        return self


class Lengths(Trace):
    """Multiplies lengths by numbers, and refuses all else, as Quax does with primitives that it has no rule for."""

    def __init__(self, parent):
        super().__init__()
        self.parent = parent

    def process_primitive(self, primitive, tracers, params, /):
        if primitive is not jax.lax.mul_p:
            raise TypeError(f"{primitive} of a length")
        with set_current_trace(self.parent):
            return Length(self, primitive.bind(*[getattr(x, "metres", x) for x in tracers], **params))


def of_length(function, metres):
    """The function of a length, in metres."""
    with take_current_trace() as parent:
        trace = Lengths(parent)
        with set_current_trace(trace):
            return function(Length(trace, metres)).metres


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("again", [False, True], ids=["", "from its jaxpr"])
def test_what_came_with_a_class_is_left_out_where_values_are_no_arrays(grads, again):
    def run(x):
        twice = jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(Scaling.twice)(x)) if again else Scaling.twice
        return of_length(lambda y: jax.tree.leaves(twice(y))[0], x) + Scaling.twice(x)

    result, records = sonde.capture(run, inside=Scaling, grads=grads)(WEIGHT)
    np.testing.assert_array_equal(result, run(WEIGHT))
    assert len(records["Scaling.twice/result"].values) == 1
    with pytest.raises(TypeError, match="sonde_site of a length"):
        sonde.capture(run, inside=Scaling.twice, grads=grads)(WEIGHT)


class Sums:
    @staticmethod
    def doubled(matrix, x):
        twice = matrix * 2
        return twice @ x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grads", [False, True])
def test_sparse_arrays_pass_marks_that_came_with_a_class(grads):
    matrix = sparse.BCOO.fromdense(jnp.eye(2) * 3)
    run = sparse.sparsify(lambda m, x: Sums.doubled(m, x) + parts(x, x)[0])
    result, records = sonde.capture(run, inside=[Sums, parts], grads=grads)(matrix, WEIGHT)
    np.testing.assert_array_equal(result, run(matrix, WEIGHT))
    names = {path.rpartition("/")[2] for path in records}  # `sparsify` drops the scopes
    assert "pair" in names and "twice" not in names
    with pytest.raises(CaptureError, match="'matrix'.*its value is sparse"):
        sonde.capture(run, inside=Sums.doubled, grads=grads)(matrix, WEIGHT)


# -- arrays that JAX does not have -------------------------------------------------------------------------------------


def measured(x):
    exact = np.array([0.1, 0.2], np.longdouble)
    both = [exact, x * 2]
    return both[1] * float(exact[0])


def test_long_floats_of_numpy_pass_untouched():
    result, records = sonde.capture(measured, inside=measured)(WEIGHT)
    np.testing.assert_array_equal(result, measured(WEIGHT))
    assert "measured/exact" not in records
    np.testing.assert_array_equal(records["measured/both"].value[1], WEIGHT * 2)
