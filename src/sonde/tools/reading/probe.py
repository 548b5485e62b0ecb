"""`probe` fits a linear classifier to the values at each site.

All sites are fitted in one compiled call. What is minimized is scikit-learn's objective, `0.5 |w|² + C Σ loss`, without
a penalty on the bias. L-BFGS runs in coordinates in which the curvature is nearly the same in all directions. Computing
these from some of the rows costs little and saves most of the iterations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from sonde import _extras
from sonde._renames import accepts_old_keywords
from sonde.core import glob_matches, no_such_site


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Linear classifiers, one for each site.

    Attributes:
        paths: The paths.
        classes: The labels.
        accuracy: For each path, the share of the held-out rows that is classified correctly.
        train_accuracy: For each path, the same for the rows used in the fit.
        weights: For each path, a matrix from units to classes.
        bias: For each path, a number per class.
        baseline: The accuracy of always predicting the most frequent label.
        steps: For each path, how many steps the fit took.
    """

    paths: tuple[str, ...]
    classes: np.ndarray
    accuracy: dict[str, float]
    train_accuracy: dict[str, float]
    weights: dict[str, np.ndarray]
    bias: dict[str, np.ndarray]
    baseline: float
    steps: dict[str, int]

    def predict(self, path: str, x: jax.Array) -> np.ndarray:
        """The labels that the classifier of a site gives to rows."""
        scores = np.asarray(x, np.float32) @ self.weights[path] + self.bias[path]
        return self.classes[scores.argmax(-1)]

    def plot(self) -> Any:
        """The accuracy by site, as a matplotlib figure."""
        plt = _extras.load("matplotlib.pyplot", extra="plots", purpose="A figure")
        figure, axes = plt.subplots(figsize=(7, 0.6 + 0.25 * len(self.paths)), layout="constrained")
        axes.barh(self.paths, [self.accuracy[p] for p in self.paths])
        axes.axvline(self.baseline, linestyle="--", linewidth=1, color="gray")
        axes.set(xlim=(0, 1), xlabel="accuracy; dashed: always the most frequent label")
        axes.invert_yaxis()
        return figure

    def __rich__(self) -> Any:
        from rich.table import Table

        from sonde.display import WholePaths

        table = Table(title=f"probe: {len(self.classes)} classes, baseline {self.baseline:.3f}", title_justify="left")
        table.add_column("site", overflow="fold")
        table.add_column("accuracy", justify="right")
        table.add_column("")
        for path in self.paths:
            table.add_row(path, f"{self.accuracy[path]:.3f}", "█" * round(30 * self.accuracy[path]))
        return WholePaths(table)

    def _repr_html_(self) -> str:
        import html

        height = 20 * len(self.paths)
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height + 4}" font-size="12">']
        for i, path in enumerate(self.paths):
            right, y = self.accuracy[path], 20 * i
            lines.append(f'<text x="0" y="{y + 14}" fill="currentColor">{html.escape(path)}</text>')
            lines.append(f'<rect x="240" y="{y + 3}" width="{300 * right:.1f}" height="14" fill="#4c78a8"/>')
            lines.append(f'<text x="{246 + 300 * right:.1f}" y="{y + 14}" fill="currentColor">{right:.3f}</text>')
        x = 240 + 300 * self.baseline
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="gray" stroke-dasharray="3"/></svg>')
        return "".join(lines)

    def __repr__(self) -> str:
        best = max(self.paths, key=lambda p: self.accuracy[p])
        return f"<probe of {len(self.paths)} sites: best {best!r} with accuracy {self.accuracy[best]:.3f}>"


@accepts_old_keywords("sonde.tools.probe")
def probe(
    values: Mapping[str, Any],
    labels: ArrayLike,
    *patterns: str,
    C: float = 1.0,
    units: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    max_steps: int = 100,
    tolerance: float = 1e-4,
) -> Probe:
    """Fits a logistic regression to the values at every site, in one compiled call.

    Args:
        values: Rows of values by path: an open store, or a dict of arrays. Axes after the first are flattened.
        labels: A label for each row, of any type that can be compared.
        *patterns: Which paths; all by default.
        C: The inverse of the penalty on large weights, as in scikit-learn.
        units: How many units the classifier may use: those whose means differ most between the labels, in the rows
            that it is fitted to (sparse probing); the weights of all others are zero. All, if None.
        test_fraction: The share of the rows to hold out for the accuracy.
        seed: Chooses the held-out rows.
        max_steps: How many steps a fit takes at most.
        tolerance: A fit ends when no component of the gradient of the mean loss is larger than this.

    Example:
        >>> import numpy as np
        >>> from sonde.tools import probe
        >>> x = np.random.default_rng(0).standard_normal((500, 4))
        >>> found = probe({"noise": np.random.default_rng(1).standard_normal((500, 4)), "signal": x}, x[:, 0] > 0)
        >>> found.accuracy["signal"] > 0.95 > 0.7 > found.accuracy["noise"]
        True
    """
    paths = tuple(p for p in values if not patterns or any(glob_matches(pattern, p) for pattern in patterns))
    for pattern in patterns:
        if not any(glob_matches(pattern, path) for path in values):
            raise no_such_site(pattern, values)
    if not paths:
        raise ValueError("probe: there are no values")
    labels = np.asarray(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    if labels.ndim != 1 or len(classes) < 2:
        raise ValueError(
            f"probe needs one label per row and at least two different labels; got {len(classes)} in {labels.shape}"
        )
    if units is not None and units < 1:
        raise ValueError(f"probe: units= is at least 1, got {units}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"probe(test_fraction=...) is a share of the rows, between 0 and 1, got {test_fraction}")
    arrays = {}
    for path in paths:
        if len(values[path]) != len(labels):
            raise ValueError(f"probe: {path!r} has {len(values[path])} rows, and there are {len(labels)} labels")
        arrays[path] = np.asarray(values[path]).reshape(len(labels), -1)
    order = np.random.default_rng(seed).permutation(len(labels))
    kept = max(1, round(test_fraction * len(labels)))
    apart, fitted = np.sort(order[:kept]), np.sort(order[kept:])
    if len(np.unique(numbers[fitted])) != len(classes):
        raise ValueError("probe: too few rows of some label to fit and to test")
    accuracy, train_accuracy, weights, bias, steps = {}, {}, {}, {}, {}
    for width in dict.fromkeys(array.shape[1] for array in arrays.values()):  # sites of one width are one call
        mine = [path for path in paths if arrays[path].shape[1] == width]
        x = np.stack([arrays[path] for path in mine])
        if units is not None:
            x = np.where(_telling_units(x[:, fitted], numbers[fitted], units)[:, None], x, 0)
        fit = _fit(
            jnp.asarray(x[:, fitted], jnp.float32),
            jnp.asarray(numbers[fitted]),
            jnp.asarray(x[:, apart], jnp.float32),
            jnp.asarray(numbers[apart]),
            C,
            tolerance,
            n_classes=len(classes),
            max_steps=max_steps,
        )
        for path, *found in zip(mine, *jax.device_get(fit)):
            weights[path], bias[path], steps[path] = found[0], found[1], int(found[2])
            train_accuracy[path], accuracy[path] = float(found[3]), float(found[4])
    baseline = float(np.mean(numbers[apart] == np.bincount(numbers[fitted]).argmax()))
    return Probe(paths, classes, accuracy, train_accuracy, weights, bias, baseline, steps)


def _telling_units(x: np.ndarray, numbers: np.ndarray, units: int) -> np.ndarray:
    """For each site, which units have means that differ most between the labels: sites by units."""
    means = np.stack([x[:, numbers == label].mean(1) for label in np.unique(numbers)])
    order = np.argsort(-np.ptp(means, 0), 1, kind="stable")
    chosen = np.zeros(means.shape[1:], bool)
    np.put_along_axis(chosen, order[:, :units], True, 1)
    return chosen


@functools.partial(jax.jit, static_argnames=("n_classes", "max_steps"))
def _fit(
    x: jax.Array,
    y: jax.Array,
    x_apart: jax.Array,
    y_apart: jax.Array,
    C: float,
    tolerance: float,
    *,
    n_classes: int,
    max_steps: int,
) -> Any:
    """Weights, bias, steps and both accuracies for each site, one site after another."""

    def one(site: Any) -> Any:
        rows, rows_apart = site
        weights, bias, steps = _solve(rows, y, C, tolerance, n_classes, max_steps)

        def right(x: jax.Array, y: jax.Array) -> Any:
            return jnp.mean(jnp.argmax(x @ weights + bias, -1) == y)

        return weights, bias, steps, right(rows, y), right(rows_apart, y_apart)

    return jax.lax.map(one, (x, x_apart))


def _solve(
    x: jax.Array, y: jax.Array, C: float, tolerance: float, n_classes: int, max_steps: int
) -> tuple[Any, Any, Any]:
    n, width = x.shape
    penalty = 1 / (C * n)
    middle = jnp.mean(x, 0)
    part = x[:: max(1, n // (4 * width + 64))] - middle  # enough rows to know the curvature
    scale = 0.25 if n_classes == 2 else 0.5
    curvature = scale * (part.T @ part) / part.shape[0] + (penalty + 1e-6) * jnp.eye(width)
    root = jnp.linalg.cholesky(curvature + 1e-4 * jnp.trace(curvature) / width * jnp.eye(width))
    columns = 1 if n_classes == 2 else n_classes  # with two classes, one has all the weights: the other is its opposite

    def weights_of(u: jax.Array) -> Any:
        w = jax.scipy.linalg.solve_triangular(root.T, u["w"], lower=False)
        return w, u["b"] - middle @ w  # rows are centered by the bias, not by copying them

    def loss(u: jax.Array) -> Any:
        w, b = weights_of(u)
        scores = x @ w + b
        if n_classes == 2:
            each = jax.nn.softplus(jnp.where(y == 1, -scores[:, 0], scores[:, 0]))
        else:
            each = optax.softmax_cross_entropy_with_integer_labels(scores, y)
        return jnp.mean(each) + 0.5 * penalty * jnp.sum(w**2)

    solver = optax.lbfgs(memory_size=10)
    value_and_grad = optax.value_and_grad_from_state(loss)

    def body(state: Any) -> Any:
        u, known, step, _ = state
        value, slope = value_and_grad(u, state=known)
        updates, known = solver.update(slope, known, u, value=value, grad=slope, value_fn=loss)
        slope = optax.tree.get(known, "grad")
        largest = jnp.max(jnp.abs(root @ slope["w"]))  # in the coordinates of the weights themselves
        return optax.apply_updates(u, updates), known, step + 1, jnp.maximum(largest, jnp.max(jnp.abs(slope["b"])))

    start = {"w": jnp.zeros((width, columns)), "b": jnp.zeros(columns)}
    state = start, solver.init(start), 0, jnp.inf
    u, _, steps, _ = jax.lax.while_loop(lambda s: (s[2] < max_steps) & (s[3] > tolerance), body, state)
    w, b = weights_of(u)
    if n_classes == 2:
        w, b = jnp.concatenate([-w, w], 1) / 2, jnp.concatenate([-b, b]) / 2
    return w, b, steps
