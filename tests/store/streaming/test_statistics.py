"""Statistics over batches are those of all samples together, as NumPy computes them."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import sonde
from sonde import store
from sonde.errors import NoSuchSiteError, StoreError
from sonde.tools import ablate

RNG = np.random.default_rng(0)
XS = [(RNG.standard_normal((n, 5, 4)) * [1, 10, 0.1, 3] + [0, 100, 0, -1]).astype(np.float32) for n in (3, 7, 1, 20)]
ALL = np.concatenate(XS).reshape(-1, 4).astype(np.float64)


def program(x):
    return sonde.sow(x * 1, "h").sum()


@pytest.fixture(scope="module")
def found():
    return store.statistics(program, XS, covariance=True, histogram=True)["h"]


def test_moments_and_range(found):
    np.testing.assert_allclose(found.mean, ALL.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, ALL.var(0), rtol=1e-4)
    np.testing.assert_allclose(found.std, ALL.std(0), rtol=1e-4)
    np.testing.assert_array_equal(found.min, ALL.min(0))
    np.testing.assert_array_equal(found.max, ALL.max(0))
    assert found.count.tolist() == [len(ALL)] * 4 and found.nonfinite.tolist() == [0] * 4


def test_covariance_and_whitening(found):
    np.testing.assert_allclose(found.covariance, np.cov(ALL.T, bias=True), rtol=1e-3, atol=1e-4)
    white = (ALL - found.mean) @ found.whitening(0)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(4), atol=1e-2)


@pytest.mark.parametrize("q", [0, 0.01, 0.25, 0.5, 0.9, 1])
def test_quantiles(found, q):
    exact = np.quantile(ALL, q, axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found.quantile(q), exact, rtol=0.1, atol=0.1)


def test_a_mask_and_numbers_that_are_not_finite():
    tokens = [RNG.integers(0, 3, (4, 6)) for _ in range(3)]

    def f(t):
        return sonde.sow(jnp.stack([t * 1.0, jnp.where(t == 2, jnp.nan, t)], -1), "h")

    found = store.statistics(f, tokens, keep=lambda t: t != 0)["h"]
    kept = np.concatenate([t.reshape(-1) for t in tokens])
    kept = kept[kept != 0]
    assert found.count.tolist() == [len(kept), (kept == 1).sum()] and found.nonfinite.tolist() == [0, (kept == 2).sum()]
    np.testing.assert_allclose(found.mean, [kept.mean(), 1], rtol=1e-6)


def test_tables_say_what_is_wrong():
    batches = [jnp.array([[0.0, 1.0, jnp.nan], [0.0, 2.0, 3.0]])]
    found = store.statistics(lambda x: sonde.sow(x, "blocks/0/h"), batches)
    text = found._repr_html_()
    assert "1 not finite, 1 of 3 units dead" in text and ">not finite at 1<" in text and "0 to 3" in text
    console = Console(width=40, file=io.StringIO(), record=True)
    console.print(found)
    printed = console.export_text()
    assert "1 site over 1 batch" in printed and "\nblocks/0/h\n" in printed and "1 not finite" in printed


def test_units_of_several_axes_loops_and_gradients():
    def f(x):
        def loss(x):
            y, _ = jax.lax.scan(lambda c, w: (sonde.sow(c * w, "loop"), None), x, jnp.arange(1.0, 3.0))
            return (y**2).sum()

        return jax.grad(loss)(x)

    found = store.statistics(f, XS, row_axes=1)
    assert list(found) == ["loop[0]", "loop[1]"] and found["loop[1]"].mean.shape == (5, 4)
    np.testing.assert_allclose(found["loop[1]"].mean, 2 * np.concatenate(XS).mean(0), rtol=1e-4, atol=1e-5)
    grads = store.statistics(f, XS, row_axes=1, grads=True)
    np.testing.assert_allclose(grads["loop[1]"].mean, 4 * np.concatenate(XS).mean(0), rtol=1e-4, atol=1e-4)


def test_errors_say_what_to_ask_for():
    plain = store.statistics(program, XS)["h"]
    with pytest.raises(ValueError, match="pass histogram=True"):
        plain.quantile(0.5)
    with pytest.raises(ValueError, match="pass covariance=True"):
        plain.whitening()
    with pytest.raises(ValueError, match="there are no batches"):
        store.statistics(program, [])
    with pytest.raises(StoreError, match="does not have"):
        store.statistics(program, XS, keep=lambda x: x[0, :, 0] > 0)
    with pytest.raises(KeyError, match="the program.s 1 site; it is .h."):
        store.statistics(program, XS)["g"]


def test_the_mean_over_a_data_set_as_a_baseline():
    def f(x):
        return sonde.sow(x * 2, "a/h") + sonde.sow(x, "b")

    means = store.statistics(f, XS)
    got = ablate(f, "a/*", value=means)(XS[0])
    np.testing.assert_allclose(got, 2 * ALL.mean(0) + XS[0], rtol=1e-4, atol=1e-4)
    got = ablate(f, "a/h", value=means, units=[1])(XS[0])
    expected = 3 * XS[0].copy()
    expected[..., 1] = 2 * ALL.mean(0)[1] + XS[0][..., 1]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ablate(f, "b", value=XS[1][:1, :1])(XS[0]), 2 * XS[0] + XS[1][:1, :1], rtol=1e-5)
    with pytest.raises(NoSuchSiteError):
        ablate(f, "c", value=means)
    with pytest.raises(ValueError, match="does not broadcast"):
        ablate(f, "b", value=np.ones(3))(XS[0])


def test_means_of_layers_in_a_loop_and_of_calls():
    def f(x):
        y, _ = jax.lax.scan(lambda c, w: (sonde.sow(c + w, "loop"), None), x, jnp.arange(1.0, 4.0))
        return sonde.sow(y, "twice") + sonde.sow(-3 * y, "twice")

    found = store.statistics(f, XS)
    assert list(found) == ["loop[0]", "loop[1]", "loop[2]", "twice#0", "twice#1"]
    np.testing.assert_allclose(
        ablate(f, "loop", value=found)(XS[0]), np.broadcast_to(-2 * (ALL.mean(0) + 6), XS[0].shape), rtol=1e-4
    )
    np.testing.assert_allclose(
        ablate(f, "loop[0]", value=found)(XS[0]), np.broadcast_to(-2 * (ALL.mean(0) + 6), XS[0].shape), rtol=1e-4
    )
    np.testing.assert_allclose(
        ablate(f, "twice#1", value=found)(XS[0]), XS[0] + 6 - 3 * (ALL.mean(0) + 6), rtol=1e-4, atol=1e-3
    )


def test_samples_are_samples_of_the_data_set_and_can_stand_for_values():
    def f(x):
        return sonde.sow(x * 2, "a"), sonde.sow(x * 3, "b")

    found = store.statistics(f, XS, samples=8, seed=1)
    assert found["a"].samples.shape == (8, 4)
    rows = {row.tobytes() for row in ALL.astype(np.float32) * 2}
    assert all(row.tobytes() in rows for row in found["a"].samples)
    other = store.statistics(f, XS, samples=8, seed=2)
    assert not np.array_equal(found["a"].samples, other["a"].samples)
    assert len(store.statistics(f, XS, samples=1000)["a"].samples) == len(ALL)
    a, b = ablate(f, "*", value=found, resample=True, seed=0)(XS[0])
    drawn = {row.tobytes() for row in found["a"].samples}
    assert all(row.tobytes() in drawn for row in np.asarray(a).reshape(-1, 4))
    np.testing.assert_allclose(np.asarray(a) * 1.5, b, rtol=1e-5)  # what stood together stays together
    with pytest.raises(ValueError, match="make them with samples=n"):
        ablate(f, "a", value=store.statistics(f, XS), resample=True, seed=0)
    with pytest.raises(ValueError, match="needs statistics"):
        ablate(f, "a", resample=True, seed=0)


def test_samples_are_fair():
    sizes = np.array([300, 50, 150])
    starts = np.cumsum([0, *sizes[:-1]])
    batches = [np.arange(s, s + n, dtype=np.float32)[:, None] for s, n in zip(starts, sizes)]
    drawn = store.statistics(lambda x: sonde.sow(x, "h"), batches, samples=200)["h"].samples[:, 0]
    assert len(set(drawn)) == 200
    counts = np.histogram(drawn, [*starts, 500])[0]
    np.testing.assert_allclose(counts, 0.4 * sizes, atol=25)  # four standard deviations, or more


def test_statistics_inside_a_function_without_sites():
    def plain(x):
        doubled = x * 2
        return doubled.sum()

    (found,) = store.statistics(plain, XS, "**/doubled", inside=plain).values()
    np.testing.assert_allclose(found.mean, 2 * ALL.mean(0), rtol=1e-4, atol=1e-5)


# -- minibatches as a program runs ------------------------------------------------------------------------------------


def numbered(sizes):
    starts = np.cumsum([0, *sizes])
    return [np.arange(s, s + n, dtype=np.float32)[:, None] for s, n in zip(starts, sizes)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_has_every_row_once(shuffle):
    f = lambda x: (sonde.sow(x, "a"), sonde.sow(-x, "b"))
    batches = numbered([7] * 20)
    made = list(store.stream(f, batches, 10, shuffle=shuffle, seed=3, window=40))
    rows = np.concatenate([b["a"][:, 0] for b in made])
    assert all(len(b["a"]) == 10 for b in made) and len(rows) == 140 and sorted(rows) == list(range(140))
    np.testing.assert_array_equal(np.concatenate([b["b"][:, 0] for b in made]), -rows)
    assert (list(rows) == list(range(140))) == (not shuffle)
    if shuffle:
        again = store.stream(f, batches, 10, shuffle=shuffle, seed=3, window=40)
        np.testing.assert_array_equal(np.concatenate([b["a"][:, 0] for b in again]), rows)


def test_a_stream_of_positions_without_padding():
    tokens = [RNG.integers(0, 3, (4, 6)) for _ in range(5)]
    made = store.stream(lambda t: sonde.sow(t[..., None] * 1.0, "h"), tokens, 4, keep=lambda t: t != 0, dtype="float16")
    rows = np.concatenate([b["h"][:, 0] for b in made])
    kept = np.concatenate([t.reshape(-1) for t in tokens])
    kept = kept[kept != 0]
    assert rows.dtype == np.float16
    np.testing.assert_array_equal(rows, kept[: len(kept) // 4 * 4])


def test_a_stream_is_lazy_and_says_what_does_not_fit():
    endless = (np.ones((4, 2), np.float32) for _ in iter(int, 1))
    assert next(store.stream(lambda x: sonde.sow(x, "h"), endless, 3, shuffle=True))["h"].shape == (3, 2)
    f = lambda x: (sonde.sow(x, "a"), sonde.sow(x[:2], "b"))
    with pytest.raises(StoreError, match="do not have the same rows"):
        next(store.stream(f, [np.ones((4, 2))], 2))
    with pytest.raises(StoreError, match="do not fit float16"):
        next(store.stream(lambda x: sonde.sow(x * 1e5, "h"), [np.ones((4, 2))], 2, dtype="float16"))
    with pytest.raises(ValueError, match="at least 1"):
        store.stream(f, [], 0)
