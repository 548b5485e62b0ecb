"""Patching, against runs that were edited one at a time."""

import functools
import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import X, every_face, forward

import sonde
from sonde import nnx, sow
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.tools import patch_sweep

CLEAN = jax.random.normal(jax.random.key(0), (4, 3))
CORRUPT = jax.random.normal(jax.random.key(1), (4, 3))


@every_face
def test_every_face(face):
    # The output is 5 - 2 and 3 - 0 (see models); with the rows of the input swapped, the second row comes first.
    sweep = patch_sweep(forward(face), "hidden", metric=lambda y: y[0] + 10 * y[1], axis=0)(X, X[::-1] * 2)
    assert (float(sweep.clean), float(sweep.corrupt)) == (33.0, 66.0)
    np.testing.assert_allclose(sweep.scores["hidden"], [63.0, 36.0])
    np.testing.assert_allclose(sweep.restored["hidden"], [3 / 33, 30 / 33])
    units = patch_sweep(forward(face), "hidden", metric=lambda y: y[0] + 10 * y[1], axis=-1)(X, X[::-1] * 2)
    # first units: 6, 10 become 5, 3; last units: 0, 4 become 2, 0
    np.testing.assert_allclose(units.scores["hidden"], [66 - 1 - 70, 66, 66 - 2 + 40])


def network(x):
    x = sow(jnp.cumsum(jnp.sin(x), 0), "first")
    for i in range(2):
        with sonde.scope(f"blocks/{i}"):
            x = x + sow(jnp.tanh(x[::-1]), "mix")
    x = sow(x, "twice")
    return sow(x * 2, "twice")


def by_hand(f, path, call, position, axis=0):
    value = sonde.capture(f)(CLEAN)[1][path].values[call]
    at = (slice(None),) * axis + (position,)
    put = sonde.Edit(lambda v: v.at[at].set(value[at]), calls=call)
    return metric(sonde.edit(f, {path: put})(CORRUPT))


def metric(y):
    return y[0].sum() + 2 * y[2, 1]


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("chunk", [None, 3])
def test_against_edits(around, chunk):
    sweep = patch_sweep(around(network), "first", "blocks/*/mix", "twice", metric=metric, chunk=chunk)(CLEAN, CORRUPT)
    assert list(sweep.scores) == ["first", "blocks/0/mix", "blocks/1/mix", "twice", "twice[1]"]
    for name, scores in sweep.scores.items():
        path, call = name.removesuffix("[1]"), int(name.endswith("[1]"))
        np.testing.assert_allclose(scores, [by_hand(network, path, call, p) for p in range(4)], rtol=1e-5)
    np.testing.assert_allclose(sweep.clean, metric(network(CLEAN)), rtol=1e-6)
    assert sweep.best(1)[0][2] == max(r.max() for r in sweep.restored.values())


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_have_a_point_per_iteration(reverse):
    weights = jnp.array([0.5, 1.0, 2.0])

    def f(x):
        def body(c, w):
            return sow(jnp.sin(c * w) + c, "c"), None

        return lax.scan(body, x, weights, reverse=reverse)[0]

    scores = patch_sweep(f, "c", metric=metric)(CLEAN, CORRUPT).scores["c"]
    values = sonde.capture(f)(CLEAN)[1]["c"].value
    for i in range(3):
        for p in range(4):
            put = sonde.Edit(lambda v: v.at[p].set(values[i, p]), iterations=i)
            np.testing.assert_allclose(scores[i, p], metric(sonde.edit(f, {"c": put})(CORRUPT)), rtol=1e-5)


def test_mapped_axes_pytrees_and_whole_values():
    def f(x, n):
        d = sow({"a": x * 2, "b": x.sum(0), "n": n, "python": 7}, "d")
        return d["a"].sum() + (d["b"] * d["n"])[0]

    g = jax.vmap(f, in_axes=(0, None))
    clean, corrupt = (CLEAN, jnp.array([3])), (CORRUPT, jnp.array([3]))
    sweep = patch_sweep(lambda x, n: g(x, n), "d", metric=lambda y: y.sum(), axis=None)(clean, corrupt)
    np.testing.assert_allclose(sweep.restored["d"], [1.0], rtol=1e-5)
    sweep = patch_sweep(jax.vmap(lambda x: sow(x, "h")), "h", metric=lambda y: y[0, 1], axis=0)(CLEAN, CORRUPT)
    np.testing.assert_allclose(sweep.restored["h"], [0, 1, 0], atol=1e-6)


def test_models_are_not_changed():
    class Counting(nnx.Module):
        def __init__(self):
            self.calls = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.calls[...] += 1
            return sow(x, "h")

    model = Counting()
    sweep = patch_sweep(model, "h", metric=lambda y: y[1, 1])(CLEAN, CORRUPT)
    np.testing.assert_allclose(sweep.restored["h"], [0, 1, 0, 0], atol=1e-6)
    assert model.calls[...] == 0


def test_one_compiled_call():
    traces = itertools.count()  # a list would be something that the function reads, and that changes

    def f(x):
        next(traces)
        return network(x)

    patch_sweep(f, "**/mix", metric=metric)(CLEAN, CORRUPT)
    assert next(traces) == 3  # clean, to see how much work it is, and once for all points and the corrupt run
    patch_sweep(f, "**/mix", metric=metric)(CLEAN * 2, CORRUPT)
    assert next(traces) == 4


def flops(f, sites, speed):
    """The cost of a sweep, in runs of the function."""
    from sonde.core.session import functionalize as pure
    from sonde.tools.intervention import patch_sweep as patching

    # A row of its own for every position: a product that is not batched is then one that is shared.
    x = jnp.ones((4, 64))
    rest, arrays = pure.static_and_arrays((f, (x,), (x,), None))
    sweep = patching._sweep, tuple(sites), jnp.sum, (0,), patching._Device(None, speed), None
    sweep = pure.JitByStaticPart(functools.partial(*sweep))
    cost = lambda compiled: compiled.cost_analysis()["flops"]
    return cost(sweep.at(rest).lower(arrays).compile()) / cost(jax.jit(f).lower(x).compile())


def test_what_comes_before_a_site_is_computed_once():
    weights = jax.random.normal(jax.random.key(0), (64, 64))

    def f(x):
        for i in range(8):
            x = sow(x @ weights, f"h{i}")
        return x

    sites = [f"h{i}" for i in range(8)]
    # A slow device, which wants many groups, and a quick one.
    alone, together = flops(f, sites, 1.0), flops(f, sites, 1e30)
    # 8 sites with 4 positions: after site i come 7 - i of the 8 products, and the clean and the corrupt run.
    assert alone == pytest.approx(4 * sum(range(8)) / 8 + 2, rel=0.1)
    assert together == pytest.approx(4 * 7 + 2, rel=0.1)


@pytest.mark.parametrize("chunk", [1, 5, 7, 100])
def test_chunks_of_any_size(chunk):
    whole = patch_sweep(network, "first", "**/mix", metric=metric)(CLEAN, CORRUPT)
    in_chunks = patch_sweep(network, "first", "**/mix", metric=metric, chunk=chunk)(CLEAN, CORRUPT)
    for name, scores in whole.scores.items():
        np.testing.assert_allclose(in_chunks.scores[name], scores, rtol=1e-5)


def test_many_sites_make_few_groups():
    def f(x):
        for i in range(40):
            x = sow(jnp.sin(x) + 0.1, f"h{i}")
        return x

    runs = []
    g = lambda x: (runs.append(1), f(x))[1]
    scores = patch_sweep(g, "*", metric=metric)(CLEAN, CORRUPT).scores
    assert len(scores) == 40 and len(runs) <= 12 + 2
    for i in (0, 17, 39):
        np.testing.assert_allclose(scores[f"h{i}"], [by_hand(f, f"h{i}", 0, p) for p in range(4)], rtol=1e-4)


def test_table_and_errors():
    from rich.console import Console

    shown = io.StringIO()
    Console(file=shown, width=100).print(patch_sweep(network, "first", metric=metric)(CLEAN, CORRUPT))
    assert "restored: 0 is" in shown.getvalue() and "first" in shown.getvalue()
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        patch_sweep(network, "no", metric=metric)(CLEAN, CORRUPT)
    with pytest.raises(ValueError, match=r"'first' \(.*\) has the shape \[4, 3\] and no axis 2"):
        patch_sweep(network, "first", metric=metric, axis=2)(CLEAN, CORRUPT)
    with pytest.raises(ValueError, match=r"the metric must be a number, got an array of shape \(4, 3\)"):
        patch_sweep(network, "first", metric=lambda y: y)(CLEAN, CORRUPT)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        patch_sweep(network, "first", metric=metric, chunk=0)(CLEAN, CORRUPT)
    with pytest.raises(ValueError, match=r"the clean one has float32\[4,3\], the corrupt one float32\[5,3\]"):
        patch_sweep(network, "first", metric=metric)(CLEAN, jnp.ones((5, 3)))
    with pytest.raises(ValueError, match=r"has the shape \[\] and no axis -2; axis=None patches whole values"):
        patch_sweep(lambda x: sow(x.sum(), "s"), "s", metric=lambda y: y)(CLEAN, CORRUPT)
    with pytest.raises(ValueError, match="patch_sweep needs at least one pattern"):
        patch_sweep(network, metric=metric)(CLEAN, CORRUPT)
    loop = lambda x: lax.while_loop(lambda c: c[0, 0] < 3, lambda c: sow(c + 1, "w"), x)
    with pytest.raises(CaptureError, match=r"cannot patch 'w' \(.*\): it is in a while_loop"):
        patch_sweep(loop, "w", metric=metric)(CLEAN, CORRUPT)


def test_nothing_was_lost():
    sweep = patch_sweep(network, "first", metric=metric)(CLEAN, CLEAN)
    assert np.isnan(sweep.restored["first"]).all()
    assert repr(sweep).splitlines()[-1].split() == ["first", "nan", "0"]
