"""Names that are bound in unusual ways, and the names of calls and operators."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde.errors import EditError

X = jnp.linspace(0.1, 1.0, 4)


def values(function, *args, **options):
    """What was recorded of each variable of a function, without its name."""
    result, records = sonde.capture(function, inside=sonde.Inside(function, **options))(*args)
    np.testing.assert_array_equal(result, function(*args))
    return {path.rpartition("/")[2]: record.values for path, record in records.items()}


def same(got, *expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def lines(function, *args):
    """The line of each site, counted from the first of the function."""
    first = function.__code__.co_firstlineno
    infos = sonde.sites(function, inside=function)(*args)
    return [(i.path.rpartition("/")[2], int(i.source.rpartition(":")[2]) - first) for i in infos]


def test_a_name_that_one_statement_binds_twice_has_one_value():
    def f(x):
        _, _ = x, x * 2
        for y, (y, *_) in [(x, (x + 1, x))]:  # noqa: B007
            pass
        return y

    seen = values(f, X)
    same(seen["y"], X + 1)
    same([jax.tree.leaves(v)[0] for v in seen["_"]], X * 2, X)


def test_patterns():
    def f(x):
        match (x, "name"):
            case (str(), v) | (
                v,
                str(),
            ):
                v = v * 1
        match [x, x + 1]:
            case [first, *rest] if not rest:
                v = first
            case [_, second]:
                v = v * second
        return v

    seen = values(f, X)
    same(seen["v"], X, X, X * (X + 1))
    same(seen["first"], X)  # bound, although the guard is false
    assert lines(f, X)[1:7] == [("v", 3), ("v", 6), ("v", 11), ("first", 8), ("rest", 8), ("second", 10)]


def test_a_guard_sees_what_an_edit_bound():
    def f(x):
        match [x]:
            case [v] if v.sum() < 0:
                return v
        return x

    np.testing.assert_array_equal(sonde.edit(f, {"**/v": lambda v: v - 100}, inside=f)(X), X - 100)


def test_the_next_item_of_a_with_statement_uses_the_name():
    def f(x):
        with contextlib.nullcontext(x + 1) as a, contextlib.nullcontext(a * 2) as b:
            c = a + b
        return c

    same(values(f, X)["b"], (X + 1) * 2)
    np.testing.assert_array_equal(sonde.edit(f, {"**/a": lambda a: a * 0}, inside=f)(X), X * 0)


def test_self_is_an_argument_of_a_function_that_is_no_method():
    def f(self, cls):
        return self * cls

    assert list(values(f, X, X)) == ["self", "cls", "return"]


def test_defaults_and_decorators_of_inner_functions_belong_to_the_outer_one():
    def f(x):
        def g(a=(w := jnp.sqrt(x)), *, b=lambda v: v + 1):  # noqa: F841
            return b(a)

        @(lambda cls: cls)
        class C:
            size = (lambda v: v * 2)(x)

        return g() + C.size

    seen = values(f, X, expressions=True)
    same(seen["w"], jnp.sqrt(X))
    same(seen["sqrt"], jnp.sqrt(X))
    paths = [path.partition(".f/")[2] for path in sonde.capture(f, inside=f)(X)[1]]
    assert [path for path in paths if path.endswith("lambda/return")] == ["C.lambda/return", "g/lambda/return"]


@pytest.mark.parametrize("name", ["first", "second"])
def test_lambdas_in_defaults_and_iterables_are_found(name):
    def first(x, act=lambda v: v * 3):
        return act(x)

    def second(x):
        return sum([y + 0 for y in map(lambda v: v * 3, [x])])  # noqa: C417

    f = {"first": first, "second": second}[name]
    _, records = sonde.capture(f, inside=f)(X)
    (path,) = [path for path in records if path.endswith("lambda/return")]
    np.testing.assert_array_equal(records[path].value, X * 3)


def test_lambdas_in_comprehensions():
    def f(x):
        both = [(lambda v: v * 2)(y) for y in (x, x + 1)]
        total = sum((lambda self: self + y)(y) for y in both)
        return {k: [(lambda w: w - 1)(total) for _ in k] for k in "a"}["a"][0]

    _, records = sonde.capture(f, inside=f)(X)
    seen = {path.partition(".f/")[2]: record.values for path, record in records.items()}
    same(seen["lambda/v"], X, X + 1)
    same(seen["lambda/self"], X * 2, X * 2 + 2)
    same(seen["lambda/return"][-1:], seen["lambda/w"][0] - 1)


def test_numbers_of_calls_count_what_can_be_an_array():
    def f(x, k=-1):
        match k:
            case -1:
                y: jax.Array | None = -x * -1
        return y | 1, f"{-x} {x | 2}"

    assert list(sonde.capture(f, inside=sonde.Inside(f, expressions=True))(jnp.arange(3))[1])[1:-1] == [
        f"test_numbers_of_calls_count_what_can_be_an_array.f/{name}" for name in ("neg", "mul", "y", "or")
    ]


def test_calls_never_have_the_name_of_a_variable():
    def f(mean):
        sqrt = jnp.sqrt(mean)
        mean_0 = mean.mean() + sqrt.mean()
        return mean_0

    seen = values(f, X, expressions=True)
    assert list(seen) == ["mean", "sqrt_0", "sqrt", "mean_1", "mean_2", "add", "mean_0", "return"]
    inside = sonde.Inside(f, expressions=True)
    once = sonde.edit(f, {"**/sqrt": lambda v: v + 1}, inside=inside)(X)
    np.testing.assert_allclose(once, f(X) + 1, rtol=1e-6)


def test_a_numpy_array_that_the_program_writes_into():
    def f(x):
        table = np.zeros(4, np.float32)
        table[0] = 3
        alias = table
        alias += 1
        return (x * table).sum()

    for wrap in (lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))):
        for grads in (False, True):
            result, records = sonde.capture(wrap(f), inside=f, grads=grads)(X)
            np.testing.assert_array_equal(result, wrap(f)(X))
            found = {path.rpartition("/")[2]: record.values for path, record in records.items()}
            np.testing.assert_array_equal(found["table"], [[0, 0, 0, 0]])
            np.testing.assert_array_equal(found["alias"], [[3, 0, 0, 0], [4, 1, 1, 1]])

    nested = lambda x: jax.jit(f)(x)
    np.testing.assert_allclose(sonde.edit(nested, {"**/x": lambda x: x * 2}, inside=f)(X), f(X * 2), rtol=1e-6)
    with pytest.raises(EditError, match="continues with the value itself"):
        sonde.edit(nested, {"**/table": lambda t: t * 2}, inside=f)(X)
