"""Metrics: numbers gathered over many batches.

A metric is a Pytree whose state is in `MetricState` Variables, so it can be an argument of a jitted training step:
`update` inside, `compute` and `reset` outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sonde._array_text import describe
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import Filter
from sonde.nnx.structure import split_merge
from sonde.nnx.variable.variable import Variable
from sonde.ops.dtypes import Dtype


class MetricState(Variable[Any]):
    """What a metric has accumulated."""

    __slots__ = ()


class Metric(Pytree):
    """The base of metrics: define `reset`, `update` and `compute`."""

    def __init__(self) -> None:
        raise self._undefined("__init__")

    def reset(self) -> None:
        """Discards everything accumulated."""
        raise self._undefined("reset")

    def update(self, **kwargs: Any) -> None:
        """Adds one batch."""
        raise self._undefined("update")

    def compute(self) -> Any:
        """The value of the metric over all batches since the last reset."""
        raise self._undefined("compute")

    def _undefined(self, method: str) -> NotImplementedError:
        name = type(self).__name__
        return NotImplementedError(f"{name} does not define `{method}`, which every metric must.")

    def split(self, *filters: Filter) -> Any:
        """The same as `nnx.split(metric, *filters)`."""
        return split_merge.split(self, *filters)


class _Sums(Metric):
    """A metric that accumulates the values given under one name; `_dtypes` has the names and dtypes of the sums."""

    _dtypes: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, argname: str = "values"):
        self.argname = argname
        for name, dtype in self._dtypes.items():
            setattr(self, name, MetricState(jnp.zeros((), dtype)))

    def reset(self) -> None:
        """Discards all values. Sums that `nnx.vmap` made, one for each of several metrics, keep their shape."""
        for name, dtype in self._dtypes.items():
            sums = getattr(self, name)
            sums.set_value(jnp.zeros(sums.shape, dtype))

    def _values(self, kwargs: Mapping[str, Any], dtype: Dtype | None = None) -> jax.Array:
        """The values among the arguments of `update`: those under `argname`."""
        if self.argname not in kwargs:
            raise TypeError(
                f"{type(self).__name__}.update takes its values under the name '{self.argname}', got {sorted(kwargs)}."
            )
        return jnp.asarray(kwargs[self.argname], dtype)


class Average(_Sums):
    """The mean of all values.

    Args:
        argname: The name under which `update` is given the values.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> loss = nnx.metrics.Average("loss")
        >>> loss.update(loss=jnp.array([1.0, 2.0]))
        >>> loss.update(loss=6.0)
        >>> print(loss.compute())
        3.0
    """

    _dtypes: ClassVar[Mapping[str, Any]] = {"total": jnp.float32, "count": jnp.int32}
    total: MetricState
    count: MetricState

    def update(self, *, mask: ArrayLike | None = None, **kwargs: Any) -> None:
        """Adds more values.

        Args:
            mask: Which of the values count; must have their shape.
            **kwargs: The values, under the name given as `argname`; others are ignored.

        Raises:
            TypeError: The values are missing.
            ValueError: The mask has another shape than the values.
        """
        values = self._values(kwargs)
        if mask is None:
            # The total is in float32: in bfloat16 it would stop growing at 256 times a summand.
            self.total[...] += jnp.sum(values).astype(jnp.float32)
            self.count[...] += values.size
            return
        mask = jnp.asarray(mask, bool)
        if mask.shape != values.shape:
            raise ValueError(
                f"{type(self).__name__}.update: `mask` must have the shape of the values, {values.shape}, "
                f"got {describe(mask)}."
            )
        self.total[...] += jnp.sum(jnp.where(mask, values, jnp.zeros_like(values))).astype(jnp.float32)
        self.count[...] += jnp.sum(mask, dtype=jnp.int32)

    def compute(self) -> jax.Array:
        """The mean; NaN before the first value."""
        return self.total[...] / self.count[...]


class Accuracy(Average):
    """The share of labels that were predicted correctly.

    Args:
        threshold: None if there is one score per class: the largest is the prediction. A float if there is only one
            score: a score of at least the threshold predicts class 1, and labels above 0 count as class 1.
        *args: As in `Average`.
        **kwargs: As in `Average`.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> accuracy = nnx.metrics.Accuracy()
        >>> accuracy.update(logits=jnp.array([[0.0, 1.0], [3.0, 2.0]]), labels=jnp.array([1, 1]))
        >>> print(accuracy.compute())
        0.5
    """

    def __init__(self, threshold: float | None = None, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if threshold is not None and not isinstance(threshold, float):
            raise TypeError(
                f"Accuracy: `threshold` is a float or None, got {threshold!r} of type {type(threshold).__name__}."
            )
        self.threshold = threshold

    def update(self, *, logits: ArrayLike, labels: ArrayLike, mask: ArrayLike | None = None, **_: Any) -> None:  # type: ignore[override]
        """Adds more predictions.

        Args:
            logits: `(..., classes)`, or `(...)` with a threshold.
            labels: Integers, `(...)`.
            mask: Which of them count; shaped as `labels`.
            **_: Other arguments are ignored.

        Raises:
            ValueError: Shapes or dtype do not fit.
        """
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        threshold = self.threshold
        by_class = threshold is None
        if logits.ndim - labels.ndim != by_class:
            form = (
                "one axis more than the labels, for the classes"
                if by_class
                else f"as many axes as the labels, with threshold={self.threshold}"
            )
            raise ValueError(
                f"Accuracy.update: `logits` must have {form}, got {describe(logits)} and labels {describe(labels)}."
            )
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(f"Accuracy.update: `labels` must be integers, such as int32, got {describe(labels)}.")
        right = jnp.argmax(logits, axis=-1) == labels if threshold is None else (logits >= threshold) == (labels > 0)
        super().update(**{self.argname: right}, mask=mask)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """What `Welford` computes."""

    mean: jax.Array
    standard_error_of_mean: jax.Array
    standard_deviation: jax.Array


class Welford(_Sums):
    """Mean and spread of all values, by Welford's algorithm: accurate even if the spread is much smaller than the mean.

    Args:
        argname: The name under which `update` is given the values.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> loss = nnx.metrics.Welford()
        >>> loss.update(values=jnp.array([1.0, 3.0]))
        >>> loss.update(values=jnp.array([1.0, 3.0]))
        >>> print(loss.compute().mean, loss.compute().standard_deviation)
        2.0 1.0
    """

    _dtypes: ClassVar[Mapping[str, Any]] = {"count": jnp.int32, "mean": jnp.float32, "m2": jnp.float32}
    count: MetricState
    mean: MetricState
    m2: MetricState

    def update(self, **kwargs: Any) -> None:
        """Adds more values.

        Args:
            **kwargs: The values, under the name given as `argname`; others are ignored.

        Raises:
            TypeError: The values are missing.
        """
        values = self._values(kwargs, jnp.float32)
        before, mean = self.count[...], self.mean[...]
        count = before + values.size
        # The spread within the batch, plus that between the batch mean and the mean so far.
        batch_mean = jnp.mean(values)
        delta = batch_mean - mean
        self.count.set_value(count)
        self.mean.set_value(mean + delta * values.size / count)
        self.m2[...] += jnp.sum(jnp.square(values - batch_mean)) + delta * delta * before * values.size / count

    def compute(self) -> Statistics:
        """Mean, standard error of the mean, standard deviation; the last two are NaN before the first value."""
        count = self.count[...]
        deviation = jnp.sqrt(self.m2[...] / count)
        return Statistics(
            mean=self.mean[...], standard_error_of_mean=deviation / jnp.sqrt(count), standard_deviation=deviation
        )


class MultiMetric(Metric):
    """Several metrics updated in one call.

    Args:
        **metrics: The metrics by name.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
        >>> metrics.update(loss=0.5, logits=jnp.array([[0.0, 1.0]]), labels=jnp.array([1]))
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'loss': 0.5, 'accuracy': 1.0}
    """

    def __init__(self, **metrics: Any):
        taken = sorted(name for name in metrics if hasattr(type(self), name))
        if taken:
            raise ValueError(f"MultiMetric cannot have metrics named {taken}: these are its methods. Rename them.")
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def reset(self) -> None:
        """Resets all metrics."""
        for name in self._metric_names:
            getattr(self, name).reset()

    def update(self, *, mask: ArrayLike | Mapping[str, ArrayLike] | None = None, **updates: Any) -> None:
        """Updates all metrics; each gets all arguments and takes its own.

        Args:
            mask: A mask for all metrics, or a dict of masks by the names of metrics; metrics without one get none.
            **updates: The arguments.
        """
        masks = mask if isinstance(mask, Mapping) else dict.fromkeys(self._metric_names, mask)
        for name in self._metric_names:
            masked = {} if masks.get(name) is None else {"mask": masks[name]}
            getattr(self, name).update(**updates, **masked)

    def compute(self) -> dict[str, Any]:
        """All metrics by name."""
        return {name: getattr(self, name).compute() for name in self._metric_names}
