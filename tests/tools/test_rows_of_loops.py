"""Rows of named loops, also of loops in loops, against a network by hand: captured, edited, perturbed, patched."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.layered import (
    FORMS,
    GROUPS,
    LAYERS,
    PER_GROUP,
    SITES,
    WIDTH,
    W,
    X,
    Y,
    by_hand,
    layer,
    listed,
    metric,
    scanned,
)

import sonde
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.store import statistics
from sonde.tools import ablate, attribute, attribute_edges, compare, patch_paths, patch_sweep

CLEAN, OF_X = by_hand(X)
_, OF_Y = by_hand(Y)
FIRST_ROWS = ("blocks/0/out", "blocks/1/out")  # what comes first in a loop looks like all of it
NO_GRID = ("blocks/1/out", f"blocks/{PER_GROUP}/out")  # of a loop in a loop, not every combination


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=FORMS)
def form(request: Any) -> tuple[Callable, Callable[[str], str]]:
    return FORMS[request.param]


def test_all_forms_have_the_same_values_in_the_same_order(form: Any) -> None:
    f, name = form
    _, records = sonde.capture(f)(X)
    assert list(records) == list(map(name, OF_X))
    for path, value in OF_X.items():
        close(records[name(path)].value, value)
    found = compare(f, listed)(X)
    assert len(found.drifts) == len(SITES) * LAYERS and found.first is None


@pytest.mark.every(5)
@pytest.mark.parametrize("rows", [FIRST_ROWS, NO_GRID], ids=["first", "no grid"])
def test_records_of_some_rows_are_edits_of_these_rows(form: Any, rows: Any) -> None:
    f, name = form
    paths = [*map(name, rows)]
    expected = by_hand(Y, {p: lambda _, p=p: OF_X[p] for p in rows})[0]
    _, records = sonde.capture(f, *paths)(X)
    assert list(records) == paths
    close(sonde.edit(f, records)(Y), expected)
    close(sonde.edit(f, dict(records))(Y), expected)
    close(jax.jit(lambda r, y: sonde.edit(f, r)(y))(records, Y), expected)

    def both(x: Any, y: Any) -> Any:
        return sonde.edit(f, sonde.capture(f, *paths)(x)[1])(y)

    close(jax.jit(jax.vmap(both))(X, Y), expected)
    _, mapped = sonde.capture(jax.vmap(f), *paths)(X)
    close(sonde.edit(jax.vmap(f), mapped)(Y), expected)
    close(ablate(f, *paths, value=records)(Y), expected)


@pytest.mark.every(5)
@pytest.mark.parametrize("rows", [FIRST_ROWS, NO_GRID], ids=["first", "no grid"])
def test_tools_take_some_rows(form: Any, rows: Any) -> None:
    f, name = form
    paths = [*map(name, rows)]
    sweep = patch_sweep(f, *paths, metric=metric)(X, Y)
    assert list(sweep.scores) == paths
    for path in rows:
        by_edit = by_hand(Y, {path: lambda v, p=path: v.at[:, 2].set(OF_X[p][:, 2])})[0]
        close(sweep.scores[name(path)][2], metric(by_edit))
    found = attribute(f, *paths, metric=metric, baseline=(Y,), method="integrated", steps=3)(X)
    assert list(found) == paths
    for p in rows:
        gradient = jax.grad(lambda new, p=p: metric(by_hand(X, {p: lambda _: new})[0]))
        points = [OF_Y[p] + (k + 0.5) / 3 * (OF_X[p] - OF_Y[p]) for k in range(3)]
        close(found[name(p)][0], sum(map(gradient, points)) / 3 * (OF_X[p] - OF_Y[p]))
    paths_of = patch_paths(f, paths, name("blocks/5/in"), metric=metric)(X, Y)
    edges = attribute_edges(f, paths, [name("blocks/1/read"), name("blocks/4/read")], metric=metric, baseline=(Y,))(X)
    kept = edges[:1]
    for p in rows:
        between = {q: lambda _, q=q: OF_X[q] if q == p else OF_Y[q] for q in rows}
        arrived = by_hand(Y, between)[1]["blocks/5/in"]
        expected = metric(by_hand(Y, {"blocks/5/in": lambda _, a=arrived: a})[0])
        close(paths_of.scores[name(p), name("blocks/5/in")], expected)
    close(kept.measured(), _measured({(e.sender, e.receiver) for e in kept}, rows, name))


def _measured(kept: set[Any], senders: Any, name: Callable[[str], str]) -> Any:
    """The share of the metric that is left if only some edges are kept, by hand."""
    written: dict[str, Any] = {}

    def send(path: str) -> Callable[[Any], Any]:
        return lambda value: written.setdefault(path, value)

    def receive(path: str) -> Callable[[Any], Any]:
        def cut(value: Any) -> Any:
            off = [written[s] - OF_Y[s] for s in written if (name(s), name(path)) not in kept]
            return value - sum(off)

        return cut

    edits = {p: send(p) for p in senders} | {p: receive(p) for p in ("blocks/1/read", "blocks/4/read")}
    ends = metric(by_hand(X)[0]), metric(by_hand(Y)[0])
    return (metric(by_hand(X, edits)[0]) - ends[1]) / (ends[0] - ends[1])


@pytest.mark.every(5)
@pytest.mark.parametrize("rows", [FIRST_ROWS, NO_GRID], ids=["first", "no grid"])
def test_some_rows_are_perturbed(form: Any, rows: Any) -> None:
    f, name = form
    paths = [*map(name, rows)]
    zeros = sonde.zero_perturbations(f, *paths)(X)
    assert list(zeros) == paths
    found = jax.grad(lambda d: metric(sonde.with_perturbations(f)(d, X)))(zeros)
    for p in rows:
        by = jax.grad(lambda d, p=p: metric(by_hand(X, {p: lambda v: v + d})[0]))(jnp.zeros_like(X))
        close(found[name(p)], by)
    with pytest.raises(NoSuchSiteError, match=r"blocks/77/out"):
        sonde.with_perturbations(f)({"blocks/77/out": X}, X)


def test_all_rows_of_loops_in_loops_are_perturbed_together() -> None:
    f, name = FORMS["nested"]
    zeros = sonde.zero_perturbations(f, "groups/*/blocks/*/out")(X)
    assert {path: x.shape for path, x in zeros.items()} == {"groups/*/blocks/*/out": (GROUPS, PER_GROUP, *X.shape)}
    found = jax.grad(lambda d: metric(sonde.with_perturbations(f)(d, X)))(zeros)["groups/*/blocks/*/out"]
    by = jax.grad(lambda d: metric(by_hand(X, {"blocks/3/out": lambda v: v + d})[0]))(jnp.zeros_like(X))
    close(found[1, 0], by)
    assert name("blocks/3/out") == "groups/1/blocks/0/out"


def test_rows_in_a_loop_without_a_name_are_perturbed() -> None:
    def twice(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (scanned(c), None), x, length=2)[0]

    zeros = sonde.zero_perturbations(twice, "blocks/2/out")(X)
    assert {path: x.shape for path, x in zeros.items()} == {"blocks/2/out": (2, *X.shape)}
    found = jax.grad(lambda d: metric(sonde.with_perturbations(twice)(d, X)))(zeros)["blocks/2/out"]
    edit: Any = lambda d: {"blocks/2/out": lambda v: v + d}
    by = jax.grad(lambda d: metric(by_hand(by_hand(X, edit(d[0]))[0], edit(d[1]))[0]))(jnp.zeros((2, *X.shape)))
    close(found, by)


def test_a_site_in_an_edit_of_one_row_is_in_that_row(form: Any) -> None:
    f, name = form
    matrix = jax.random.normal(jax.random.key(7), (WIDTH, 9))
    path = name("blocks/4/resid")

    def spliced(x: Any) -> Any:
        return sonde.sow(jax.nn.relu(x @ matrix), "features") @ matrix.T / 9

    edited = sonde.edit(f, {path: spliced})
    result, records = sonde.capture(edited)(X)
    close(result, by_hand(X, {"blocks/4/resid": lambda x: jax.nn.relu(x @ matrix) @ matrix.T / 9})[0])
    assert [p for p in records if "features" in p] == [f"{path}/features"]
    features = jax.nn.relu(OF_X["blocks/4/resid"] @ matrix)
    close(records[f"{path}/features"].value, features)
    _, several = sonde.capture(sonde.edit(f, {path: jax.jit(spliced), name("blocks/2/resid"): spliced}), "**/features")(
        X
    )
    assert list(several) == [name("blocks/2/resid") + "/features", f"{path}/features"]
    with pytest.raises(NoSuchSiteError):
        sonde.capture(edited, name("blocks/2/resid") + "/features")(X)
    again = sonde.edit(edited, {f"{path}/features": lambda a: a.at[..., 3].set(0)})(X)
    expected = by_hand(X, {"blocks/4/resid": lambda x: jax.nn.relu(x @ matrix).at[..., 3].set(0) @ matrix.T / 9})[0]
    close(again, expected)
    _, records = sonde.capture(jax.grad(lambda x: metric(edited(x))), "**/features", grads=True)(X)
    after = by_hand(X, {"blocks/4/resid": lambda _: features @ matrix.T / 9})
    close(after[0], result)
    gradient = jax.grad(lambda a: metric(by_hand(X, {"blocks/4/resid": lambda _: a @ matrix.T / 9})[0]))(features)
    close(records[f"{path}/features"].grad, gradient)


def test_a_site_in_an_edit_of_one_iteration_is_taken_there() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (sonde.sow(c + 1, "c"), None), x, length=4)[0]

    doubled = sonde.Edit(lambda c: sonde.sow(c * 2, "double"), iterations=2)
    result, records = sonde.capture(sonde.edit(loop, {"c": doubled}))(0.0)
    assert float(result) == 7.0
    np.testing.assert_array_equal(records["c/double"].taken[0], [False, False, True, False])
    np.testing.assert_array_equal(records["c/double"].value, [0, 0, 6, 0])


def test_a_row_that_was_read_in_a_transform_can_be_read_again() -> None:
    _, records = sonde.capture(scanned)(X)
    row = records["blocks/3/out"]
    close(jax.jit(lambda: row.value)(), OF_X["blocks/3/out"])
    jax.lax.scan(lambda c, _: (c + row.value.sum(), None), 0.0, length=2)
    close(row.value, OF_X["blocks/3/out"])

    def both(records: Any) -> Any:
        row = records["blocks/3/out"]
        return jax.lax.scan(lambda c, _: (c + row.value.sum(), None), 0.0, length=2)[0] + row.value.sum()

    close(jax.jit(both)(records), 3 * OF_X["blocks/3/out"].sum())
    close(pickle.loads(pickle.dumps(row)).value, OF_X["blocks/3/out"])


def test_paths_in_a_loop_without_a_name() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda c, w: (layer(c, w, sonde.sow), None), x, W)[0])

    for senders, receivers in (("out", "read"), ("start", "read"), ("out", "end")):
        g = lambda x: sonde.sow(f(sonde.sow(x, "start")), "end")
        with pytest.raises(CaptureError, match=r"patch_paths: '(out|read)' .*is in a loop that has no name"):
            patch_paths(g, senders, receivers, metric=lambda y: y)(X, Y)


def test_nothing_is_held_on_the_way() -> None:
    found = patch_paths(listed, "blocks/2/out", "blocks/5/in", metric=metric, frozen=())(X, Y)
    arrived = by_hand(Y, {"blocks/2/out": lambda _: OF_X["blocks/2/out"]})[1]["blocks/5/in"]
    close(found.scores["blocks/2/out", "blocks/5/in"], metric(by_hand(Y, {"blocks/5/in": lambda _: arrived})[0]))
    with pytest.raises(ValueError, match="needs senders and receivers"):
        patch_paths(listed, (), "blocks/5/in", metric=metric)(X, Y)


def test_heads_need_means_of_heads() -> None:
    heads = lambda x: sonde.sow(x, "heads")
    x = jnp.arange(24.0).reshape(1, 3, 2, 4)
    with pytest.raises(ValueError, match=r"them with statistics\(..., row_axes=2\)"):
        ablate(heads, "heads", value=statistics(heads, [x]), units=1, unit_axis=-2)(x)
    means = statistics(heads, [x], row_axes=2)
    np.testing.assert_allclose(
        ablate(heads, "heads", value=means, units=1, unit_axis=-2)(x), x.at[:, :, 1].set(x.mean((0, 1))[1])
    )
