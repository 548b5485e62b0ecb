"""Every consumer of sites under every transform: one small program, against what plain JAX and NumPy say it computes.

A program computes `x * x` once or per iteration of a loop; a number is made of the result with fixed weights, so values
and gradients of the site are known without running anything of Sonde.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import sonde
from sonde import store
from sonde.report import examine
from sonde.tools import (
    ablate,
    attribute,
    compare,
    extract,
    first_nonfinite,
    monitor,
    site_gradients,
    statistics,
    steer,
    summarize,
)

SCALES = np.array([0.5, -1.5, 2.0])
Site = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Transform:
    """A program around a site.

    Attributes:
        around: The program, given what computes and marks a value.
        loops: Whether the site is in a loop over `SCALES`.
        examples_first: Whether the result has the axis of examples in front of that of the loop.
        magnitude: What the input is multiplied with; in doubles if it is no float32.
        runs: Whether the site runs.
        sharded: Whether each of two devices has half of the examples.
    """

    around: Callable[[Site], Callable[[Any], Any]]
    loops: bool = False
    examples_first: bool = False
    magnitude: float = 1.0
    runs: bool = True
    sharded: bool = False

    @property
    def is_double(self) -> bool:
        return self.magnitude > 1e38

    def x(self) -> np.ndarray:
        x = np.linspace(0.5, 2.0, 12).reshape(4, 3) * self.magnitude
        return x if self.is_double else x.astype(np.float32)

    def values(self, x: np.ndarray) -> list[np.ndarray]:
        """The values at the site, one per iteration."""
        if not self.runs:
            return []
        return [(x * s) ** 2 for s in SCALES.astype(x.dtype)] if self.loops else [x**2]

    def result(self, values: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        """What the program returns, from the values."""
        if not self.runs:
            return x
        return np.stack(values, int(self.examples_first)) if self.loops else values[0]

    def gradients(self, x: np.ndarray) -> list[np.ndarray]:
        """The gradients of `number` at the site, one per iteration."""
        weights = weights_of(self.result(self.values(x), x).shape)
        return list(np.moveaxis(weights, int(self.examples_first), 0)) if self.loops else [weights]

    def program(self, site: Site) -> Callable[[Any], Any]:
        return self.around(site)


def weights_of(shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


def number(result: Any) -> Any:
    return (result * weights_of(result.shape).astype(result.dtype)).sum()


def marked(x: Any) -> Any:
    return sonde.sow(x * x, "h")


def looped(body: Site) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda c, s: (c, body(c * s)), x, jnp.asarray(SCALES, x.dtype))[1]


def over_devices(site: Site) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(site, mesh=mesh, in_specs=P("d"), out_specs=P("d")))


def chosen(site: Site, sign: int) -> Callable[[Any], Any]:
    return lambda x: lax.cond(sign * x.sum() > 0, site, lambda x: x, x)


TRANSFORMS = {
    "eager": Transform(lambda site: lambda x: site(x)),
    "jit": Transform(jax.jit),
    "vmap": Transform(jax.vmap),
    "scan": Transform(looped, loops=True),
    "vmap in scan": Transform(lambda site: looped(jax.vmap(site)), loops=True),
    "scan in vmap": Transform(lambda site: jax.vmap(looped(site)), loops=True, examples_first=True),
    "cond": Transform(lambda site: chosen(site, 1)),
    "cond that takes the other branch": Transform(lambda site: chosen(site, -1), runs=False),
    "vmap of cond": Transform(lambda site: jax.vmap(chosen(site, 1))),
    "remat": Transform(jax.checkpoint),
    "shard_map": Transform(over_devices, sharded=True),
    "doubles": Transform(jax.jit, magnitude=1e150),
    "doubles in scan": Transform(looped, loops=True, magnitude=1e140),
}
CONSUMERS: dict[str, Callable[..., None]] = {}


def consumer(check: Callable[..., None]) -> Callable[..., None]:
    CONSUMERS[check.__name__.replace("_", " ")] = check
    return check


def close(found: Any, expected: Any) -> None:
    """Equal up to rounding, in shape and type too."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-12 if found.dtype == np.float64 else 2e-6)


def stacked(rows: list[np.ndarray], case: Transform) -> np.ndarray:
    """All iterations, as a record has them; values of a sharded site have an axis of devices in front."""
    if case.loops:
        return np.stack(rows)
    return rows[0].reshape(2, -1, *rows[0].shape[1:]) if case.sharded else rows[0]


@consumer
def values_and_gradients(case, f, x, folder):
    records = sonde.capture(jax.grad(lambda x: number(f(x))), grads=True)(x)[1]
    if not case.runs:
        assert not any(np.any(taken) for taken in records["h"].taken)
        return
    close(records["h"].value, stacked(case.values(x), case))
    close(records["h"].grad, stacked(case.gradients(x), case).astype(x.dtype))


@consumer
def site_gradient(case, f, x, folder):
    found, records = site_gradients(f, metric=number)(x)
    close(found, number(case.result(case.values(x), x)))
    if case.runs:
        close(records["h"].grad, stacked(case.gradients(x), case).astype(x.dtype))


@consumer
def attribution(case, f, x, folder):
    found = attribute(f, metric=number)(x)
    if case.runs:
        expected = [value * gradient for value, gradient in zip(case.values(x), case.gradients(x))]
        close(found["h"][0], stacked(expected, case).astype(x.dtype))


@consumer
def extraction(case, f, x, folder):
    if case.runs:
        close(extract(f, {"h": "name"})(x)["name"], stacked(case.values(x), case))


@consumer
def an_edit_and_its_derivative(case, f, x, folder):
    change = lambda v: 3 * v + 1
    by_hand = case.program(lambda x: change(x * x))
    close(sonde.edit(f, {"h": change})(x), by_hand(x))
    close(jax.grad(lambda x: number(sonde.edit(f, {"h": change})(x)))(x), jax.grad(lambda x: number(by_hand(x)))(x))


@consumer
def ablation(case, f, x, folder):
    close(ablate(f, "h")(x), case.result([0 * value for value in case.values(x)], x))


@consumer
def steering(case, f, x, folder):
    direction = np.array([1.0, -2.0, 0.5], x.dtype) * np.asarray(case.magnitude, x.dtype)
    close(steer(f, {"h": direction}, scale=2.0)(x), case.result([v + 2 * direction for v in case.values(x)], x))


@consumer
def a_store(case, f, x, folder):
    if not case.runs:
        return
    batches = [x, x / 2]
    kept = store.harvest(f, batches, folder, progress=False)
    streamed = list(store.stream(f, batches, 2))
    for i, rows in enumerate(zip(*map(case.values, batches))):
        name = f"h[{i}]" if case.loops else "h"
        expected = np.concatenate([row.reshape(2, 2, 3) if case.sharded else row for row in rows])
        close(kept[name][:], expected)
        close(np.concatenate([batch[name] for batch in streamed]), expected)
    assert store.check(folder) == []


def figures(value: np.ndarray) -> list[float]:
    scale = np.abs(value).max()
    return [value.mean(), value.min(), value.max(), scale * np.linalg.norm(value / scale)]


@consumer
def a_summary(case, f, x, folder):
    rows = summarize(jax.grad(lambda x: number(f(x))), grads=True)(x)
    for found, expected in ((rows.values, case.values(x)), (rows.gradients, case.gradients(x))):
        expected = expected if case.runs else []
        assert [row.iteration for row in found] == (
            [(i,) for i in range(len(expected))] if case.loops else [()] * len(expected)
        )
        for row, numbers in zip(found, expected):
            s = row.statistics
            assert (s.size, s.nonfinite) == (12, 0)
            np.testing.assert_allclose([s.mean, s.min, s.max, s.norm], figures(numbers), rtol=2e-5)


@consumer
def a_report(case, f, x, folder):
    report = examine(jax.grad(lambda x: number(f(x))), grads=True)(x)
    (site,) = report.sites
    for steps, expected in ((site.values, case.values(x)), (site.gradients, case.gradients(x))):
        expected = expected if case.runs else []
        assert len(steps) == len(expected)
        for step, numbers in zip(steps, expected):
            s = step.statistics
            np.testing.assert_allclose([s.mean, s.min, s.max, s.norm], figures(numbers), rtol=2e-5)
            assert step.trait("nan") == step.trait("plus_inf") == 0
    assert not [finding for finding in report.findings if finding.severity == "problem"]


@consumer
def a_monitor(case, f, x, folder):
    step = monitor(jax.grad(lambda x: number(f(x))), {"h": ["mean", "max", "grad_max"]}, every=1)
    step(x)
    found = step.flush()
    for i, (value, gradient) in enumerate(zip(case.values(x), case.gradients(x))):
        name = f"h@{i}" if case.loops else "h"
        expected = {"mean": value.mean(), "max": value.max(), "grad_max": gradient.max()}
        for statistic, numbers in expected.items():
            np.testing.assert_allclose(found[f"{name}/{statistic}"], numbers, rtol=2e-5)


@consumer
def the_first_number_that_is_not_finite(case, f, x, folder):
    assert first_nonfinite(f)(x) is None
    small = np.ones_like(x)
    small[2, 1] = np.finfo(x.dtype).max  # is finite, and its square is not
    found = first_nonfinite(f)(jnp.asarray(small))
    if not case.runs:
        assert found is None
    else:
        assert (found.nans, found.infs) == (0, 1)
        assert __file__ in found.source


@consumer
def a_comparison(case, f, x, folder):
    assert compare(f, case.program(marked))(x).first is None
    if case.runs:
        other = case.program(lambda x: sonde.sow(x * x * 1.01, "h"))
        found = compare(f, other)(x).first
        assert found is not None and found.path == "h"


@consumer
def statistics_of_a_data_set(case, f, x, folder):
    if case.runs:
        found = statistics(f, [x, x / 2])
        for i, rows in enumerate(zip(case.values(x), case.values(x / 2))):
            name = f"h[{i}]" if case.loops else "h"
            np.testing.assert_allclose(found[name].mean, np.concatenate(rows).mean(0), rtol=2e-5)


@pytest.mark.every(7)
@pytest.mark.parametrize("what", CONSUMERS)
@pytest.mark.parametrize("how", TRANSFORMS)
def test_what_plain_jax_computes(how: str, what: str, tmp_path: Any) -> None:
    case = TRANSFORMS[how]
    with jax.enable_x64(case.is_double):
        f = case.program(marked)
        close(f(case.x()), case.result(case.values(case.x()), case.x()))
        CONSUMERS[what](case, f, case.x(), tmp_path)


def test_no_consumer_is_left_out() -> None:
    """A tool that is new has to say here how it is compared, or why not."""
    mine = {"ablate", "attribute", "compare", "extract", "first_nonfinite", "monitor", "site_gradients", "statistics"}
    mine |= {"steer", "summarize"}
    others = {
        "assert_same_program": "compare",
        "compare_parameters": "takes no program",
        "compare_training": "runs several steps, and hands its options to compare",
        "saved_residuals": "reads equations, not sites",
        "attention_heads": "takes attention weights, whose axes it knows by their order",
        "attribute_edges": "takes a graph of several sites",
        "example_grad_norms": "reads no sites",
        "logit_attribution": "takes the sites of a language model",
        "logit_lens": "takes the sites of a language model",
        "patch_paths": "takes a sender and a receiver",
        "patch_sweep": "takes two inputs: tests/tools/intervention/test_patch_sweep.py",
        "probe": "takes arrays",
        "torch_records": "takes a module of PyTorch",
        "trace_back": "reads equations, not sites",
        "interchange": "takes two inputs",
        "jacobian_lens": "takes the streams of texts",
        "logit_effects": "takes arrays",
        "map_parameters": "takes no program",
        "qk_attribution": "takes the sites of a language model",
        "top_examples": "takes batches of texts",
        "tuned_lens": "takes the streams of texts",
    }
    functions = {name for name in sonde.tools.__all__ if name[0].islower()}
    assert functions == mine | set(others)
