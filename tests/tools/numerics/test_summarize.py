"""Statistics of sites, against numbers worked out by hand."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.tools.models import X, every_face, forward

from sonde import sow
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.tools import summarize
from sonde.tools.numerics.array_statistics import EDGES, described, moments


@every_face
def test_every_face(face):
    (row,) = summarize(forward(face))(X)
    s = row.statistics
    assert (row.path, row.shape, row.dtype, row.call, row.iteration) == ("hidden", (2, 3), "float32", 0, ())
    assert (s.size, s.zeros, s.units, s.dead, s.nonfinite, s.min, s.max) == (6, 3, 3, 1, 0, 0.0, 5.0)
    np.testing.assert_allclose([s.mean, s.std, s.norm], [10 / 6, np.sqrt(38 / 6 - (10 / 6) ** 2), np.sqrt(38)], 1e-6)
    counts = dict(zip(EDGES, s.histogram))
    assert (counts[2.0], counts[4.0], s.histogram.sum()) == (2, 1, 6)
    assert s.histogram[len(s.histogram) // 2] == 3  # the zeros


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_and_loops_per_iteration(around):
    def loss(x):
        x = lax.scan(lambda c, _: (sow(c * 2, "c"), None), x, length=3)[0]
        return jnp.sum(x)

    summary = summarize(around(jax.grad(loss)), grads=True)(jnp.array([1.0, 3.0]))
    assert [(r.gradient, r.iteration, r.statistics.mean) for r in summary] == [
        (False, (0,), 4.0),
        (False, (1,), 8.0),
        (False, (2,), 16.0),
        (True, (0,), 4.0),
        (True, (1,), 2.0),
        (True, (2,), 1.0),
    ]
    assert len(summary.values) == len(summary.gradients) == 3
    assert len(summary.at("c")) == 6


def test_examples_of_vmap_are_put_together():
    x = jax.random.normal(jax.random.key(0), (4, 5, 3)).at[..., 1].set(0)
    whole = summarize(lambda x: sow(x, "h"))(x)[0].statistics
    mapped = summarize(jax.vmap(jax.vmap(lambda x: sow(x, "h"))))(x)[0].statistics
    for name in ("size", "mean", "std", "min", "max", "norm", "zeros", "units", "dead", "nonfinite"):
        np.testing.assert_allclose(getattr(mapped, name), getattr(whole, name), rtol=1e-5, atol=1e-7)
    assert (mapped.histogram == whole.histogram).all()
    assert mapped.dead == 1


def test_finite_elements_are_described_and_others_counted():
    s = summarize(lambda x: sow(x, "h"))(jnp.array([jnp.nan, 1.0, jnp.inf, 3.0]))[0].statistics
    assert (s.mean, s.min, s.max, s.nonfinite) == (2.0, 1.0, 3.0, 2)
    np.testing.assert_allclose(s.std, 1.0, rtol=1e-6)
    s = summarize(lambda x: sow(x, "h"))(jnp.array([jnp.nan]))[0].statistics
    assert np.isnan([s.mean, s.std, s.min, s.max]).all()


def test_large_numbers_do_not_overflow():
    s = summarize(lambda x: sow(x, "h"))(jnp.array([3e38, 3e38, -3e38, -3e38]))[0].statistics
    np.testing.assert_allclose([s.mean, s.std, s.norm], [0, 3e38, 6e38], rtol=1e-6)
    s = summarize(lambda x: sow(x, "h"))(jnp.array([3e-30, -3e-30]))[0].statistics
    np.testing.assert_allclose([s.mean, s.std, s.norm], [0, 3e-30, 3e-30 * np.sqrt(2)], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "bool", "complex64"])
def test_dtypes(dtype):
    (row,) = summarize(lambda x: sow(x, "h"))(jnp.array([0, 1, 1, 0]).astype(dtype))
    assert (row.dtype, row.statistics.mean, row.statistics.std) == (dtype, 0.5, 0.5)


def test_histogram_against_numpy():
    x = jnp.concatenate([jax.random.normal(jax.random.key(1), (500,)) * 100, jnp.array([1.0, -3e7, 3e7, 1e-9, 0.0])])
    s = described(jax.device_get(moments(x)))
    assert (s.histogram == np.histogram(x, bins=np.nan_to_num(EDGES, posinf=1e30, neginf=-1e30))[0]).all()


def test_parts_calls_branches_and_while_loops():
    def f(p, x):
        for _ in range(2):
            x = sow({"a": x, "key": jax.random.key(0), "n": 3}, "tree")["a"] + 1
        x = lax.cond(p, lambda x: sow(x, "yes"), lambda x: sow(-x, "no"), x)
        return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, sow(c[1] + 1, "w")), (0, x))

    rows = summarize(jax.jit(f))(True, jnp.zeros(2))
    found = [(r.path, r.part, r.call, r.iteration, r.statistics.mean) for r in rows]
    assert found == [
        ("tree", "a", 0, (), 0.0),
        ("tree", "a", 1, (), 1.0),
        ("yes", "", 0, (), 2.0),
        ("w", "", 0, (3,), 6.0),
    ]
    assert rows[1].name == "tree.a[1]"
    mapped = summarize(jax.vmap(f))(jnp.array([True, False, True]), jnp.zeros((3, 2)))
    assert [(r.statistics.mean, r.statistics.size) for r in mapped if r.path in ("yes", "no")] == [(-2.0, 2), (2.0, 4)]


def test_plain_data_and_table():
    from rich.console import Console

    def f(x):
        return lax.scan(lambda c, _: (sow(c, "[c]"), None), x, length=20)[0]

    summary = summarize(f)(jnp.ones(2))
    assert json.loads(json.dumps(summary.data))[19]["iteration"] == [19]
    shown = io.StringIO()
    Console(file=shown, width=120).print(summary)
    assert "1 site" in shown.getvalue() and "[c]" in shown.getvalue()
    assert shown.getvalue().count("[c]") == 6  # three at each end
    assert "kind" not in shown.getvalue()
    assert repr(summary).splitlines()[2].split() == "[c] 0 float32[2] 1 0 1 1 1.41 0 0 0".split()


DOUBLES = {
    "large": np.array([[1e200, -3e200, 0.0], [5e200, 1e-200, 0.0]]),
    "small": np.array([[1e-200, -3e-200, 0.0], [5e-200, 1e-210, 0.0]]),
    "near one another": 1 + 1e-12 * np.arange(6.0).reshape(2, 3),
    "with an infinity": np.array([[1e200, -3e200, np.inf], [5e200, np.nan, 0.0]]),
}


@pytest.mark.parametrize("numbers", DOUBLES.values(), ids=list(DOUBLES))
@pytest.mark.parametrize("where", ["host", "device", "mapped", "loop"])
def test_doubles_beyond_single_precision(numbers, where, monkeypatch):
    if where != "host":
        monkeypatch.setattr("sonde.tools.execution.deferred_reduce.SMALL_IN_LOOPS", 0)
    f = lambda x: sow(x, "h")
    program = {"mapped": jax.vmap(f), "loop": lambda x: lax.scan(lambda c, x: (c, f(x)), 0, x)[1]}.get(where, f)
    with jax.enable_x64(True):
        rows = summarize(jax.jit(program))(jnp.asarray(numbers))
    parts = list(numbers) if where == "loop" else [numbers]
    assert [row.dtype for row in rows] == ["float64"] * len(parts)
    for row, part in zip(rows, parts):
        s, finite = row.statistics, part[np.isfinite(part)]
        scale = max(abs(finite).max(), np.finfo(float).tiny)  # squares of these leave even the range of doubles
        expected = [finite.mean(), finite.min(), finite.max(), scale * np.linalg.norm(finite / scale)]
        np.testing.assert_allclose([s.mean, s.min, s.max, s.norm], expected, rtol=1e-12, atol=0)
        np.testing.assert_allclose(s.std, scale * (finite / scale).std(), rtol=1e-2, atol=0)
        assert (s.zeros, s.nonfinite) == ((part == 0).sum(), part.size - finite.size)
        assert s.histogram.sum() == finite.size and s.histogram[len(EDGES) // 2 - 1] == (abs(finite) < 2.0**-20).sum()


def test_arrays_whose_types_say_how_they_are_sharded():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(8.0).reshape(4, 2), NamedSharding(mesh, PartitionSpec("d")))
        rows = summarize(jax.jit(jax.grad(lambda x: jnp.sum(sow(x * 2, "h") ** 2))), grads=True)(x)
    assert [(r.gradient, r.statistics.max) for r in rows] == [(False, 14.0), (True, 28.0)]
    assert [r.statistics.histogram.sum() for r in rows] == [8, 8]


def test_errors():
    f = lambda x: sow(x, "h")
    with pytest.raises(NoSuchSiteError, match="pattern 'g' matches none"):
        summarize(f, "g")(1.0)
    with pytest.raises(CaptureError, match="summarize must run on numbers, but its values are being traced"):
        jax.jit(lambda x: len(summarize(f)(x)))(1.0)
    with pytest.raises(TypeError, match="summarize takes a callable, got 3"):
        summarize(3)
