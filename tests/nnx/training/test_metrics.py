"""Metrics, moving averages and the train state against Flax."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.training.comparing import same

from sonde import nnx

RNG = np.random.default_rng(0)
VALUES = [jnp.asarray(RNG.normal(size=shape) + 5, jnp.float32) for shape in [(4,), (3, 2), (1,)]]
MASKS = [jnp.asarray(RNG.normal(size=v.shape) > -0.5) for v in VALUES]


def state(where, metric):
    return {path: x.get_value() for path, x in where.to_flat_state(where.state(metric))}


def run(where, make, updates):
    """All values a metric takes: at first, after every update, and after a reset."""
    metric = make(where)
    seen = [metric.compute()]
    for update in updates:
        metric.update(**update)
        seen.append(metric.compute())
    gathered = state(where, metric)
    metric.reset()
    return [jax.tree.leaves(s) for s in [*seen, metric.compute()]], gathered


@pytest.mark.parametrize(
    "make, updates",
    [
        (lambda n: n.metrics.Average(), [{"values": v} for v in VALUES]),
        (lambda n: n.metrics.Average("loss"), [{"loss": 3.0}, {"loss": jnp.arange(4), "other": 1}]),
        (lambda n: n.metrics.Average(), [{"values": v, "mask": m} for v, m in zip(VALUES, MASKS)]),
        (lambda n: n.metrics.Welford(), [{"values": v} for v in VALUES]),
        (lambda n: n.metrics.Welford("x"), [{"x": 3.0}, {"x": jnp.ones((2, 3))}]),
        (
            lambda n: n.metrics.Accuracy(),
            [{"logits": jax.nn.one_hot(jnp.array([0, 1, 2]), 3), "labels": jnp.array([0, 1, 1])}] * 2,
        ),
        (
            lambda n: n.metrics.Accuracy(threshold=0.5),
            [{"logits": jnp.array([0.1, 0.9, 0.7]), "labels": jnp.array([0, 1, 0]), "mask": jnp.array([1, 1, 0])}],
        ),
        (
            lambda n: n.metrics.Accuracy(threshold=0.5),  # at the threshold, and labels that are neither 0 nor 1
            [{"logits": jnp.array([0.4, 0.5, 0.6, 0.9, 0.5]), "labels": jnp.array([0, 1, 3, 0, -1])}],
        ),
        (
            lambda n: n.MultiMetric(accuracy=n.metrics.Accuracy(), loss=n.metrics.Average()),
            [{"logits": jnp.eye(3), "labels": jnp.array([0, 1, 1]), "values": VALUES[0]}],
        ),
    ],
)
def test_metrics_equal_flax(make, updates):
    ours, theirs = run(nnx, make, updates), run(fnnx, make, updates)
    same(ours[0], theirs[0], rtol=3e-6)
    assert list(ours[1]) == list(theirs[1])
    same(ours[1], theirs[1], rtol=3e-6)


def test_welford_is_exact_for_a_small_spread():
    metric = nnx.metrics.Welford()
    for batch in np.split(np.float32(1e4) + np.arange(8, dtype=np.float32), 4):
        metric.update(values=batch)
    np.testing.assert_allclose(metric.compute().standard_deviation, np.arange(8).std(), rtol=1e-6)


def test_a_metric_in_a_jitted_step():
    metric = nnx.metrics.Average("loss")
    graph, start = metric.split()

    @jax.jit
    def step(state, x):
        metric = nnx.merge(graph, state)
        metric.update(loss=x)
        return nnx.state(metric)

    for x in VALUES:
        start = step(start, x)
    nnx.update(metric, start)
    np.testing.assert_allclose(metric.compute(), np.concatenate([v.ravel() for v in VALUES]).mean(), rtol=1e-6)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (
            lambda: nnx.metrics.Average().update(x=1),
            TypeError,
            "Average.update takes its values under the name 'values', got .'x'.",
        ),
        (
            lambda: nnx.metrics.Welford().update(),
            TypeError,
            "Welford.update takes its values under the name 'values', got ",
        ),
        (
            lambda: nnx.metrics.Average().update(values=jnp.ones(2), mask=jnp.ones(3)),
            ValueError,
            r"Average.update: `mask` must have the shape of the values, \(2,\), got bool\[3\]",
        ),
        (lambda: nnx.metrics.Accuracy(threshold=1), TypeError, "`threshold` is a float or None, got 1 of type int"),
        (
            lambda: nnx.metrics.Accuracy().update(logits=jnp.ones((2, 3)), labels=jnp.ones((2, 3), int)),
            ValueError,
            r"must have one axis more than the labels, for the classes, got float32\[2,3\] and labels int32\[2,3\]",
        ),
        (
            lambda: nnx.metrics.Accuracy(threshold=0.5).update(logits=jnp.ones((2, 3)), labels=jnp.ones(2, int)),
            ValueError,
            r"must have as many axes as the labels, with threshold=0.5, got float32\[2,3\] and labels int32\[2\]",
        ),
        (
            lambda: nnx.metrics.Accuracy().update(logits=jnp.ones((2, 3)), labels=jnp.ones(2)),
            ValueError,
            r"`labels` must be integers, such as int32, got float32\[2\]",
        ),
        (
            lambda: nnx.MultiMetric(update=nnx.metrics.Average()),
            ValueError,
            r"MultiMetric cannot have metrics named \['update'\]",
        ),
        (nnx.Metric, NotImplementedError, "Metric does not define `__init__`"),
    ],
)
def test_what_does_not_fit_is_said(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_masks_by_the_names_of_metrics(same):
    def use(nnx):
        class Plain(nnx.metrics.Accuracy):  # an update that knows no masks
            def update(self, logits, labels, **_):
                super().update(logits=logits, labels=labels)

        metrics = nnx.MultiMetric(accuracy=Plain(), loss=nnx.metrics.Average())
        values = jnp.array([1.0, 2.0, 3.0, 4.0])
        inputs = {"logits": jnp.eye(4), "labels": jnp.arange(4), "values": values}
        metrics.update(**inputs, mask={"loss": jnp.array([1, 1, 0, 0])})
        partly = metrics.compute()
        metrics.update(**inputs)
        return partly, metrics.compute()

    same(use)


def test_reset_keeps_the_shape_of_mapped_metrics():
    make = nnx.vmap(lambda _: nnx.MultiMetric(loss=nnx.metrics.Average("loss")), in_axes=0, out_axes=0)
    metrics = make(jnp.arange(3))
    metrics.loss.total[...] += 1
    metrics.reset()
    assert metrics.loss.total[...].tolist() == [0, 0, 0]
    assert metrics.loss.count[...].shape == (3,)
