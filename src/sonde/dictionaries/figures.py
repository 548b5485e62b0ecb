"""Quality of a dictionary: active features, explained variance, and a program's loss and predictions with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.dictionaries.batches import pairs
from sonde.dictionaries.dictionary import Dictionary
from sonde.dictionaries.splicing import splice
from sonde.store.writing.program import arguments
from sonde.tools.intervention.ablate import ablate


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures of a dictionary on some data.

    Attributes:
        active: How many features are active per input (L0).
        explained: The part of the target's variance that the output explains; 1 is all.
        dead: How many features were never active.
        density: For each feature, the fraction of the inputs on which it is active.
        size: The sum of the features per input (L1).
        squared_error: The mean squared error of a number of the output.
        cosine: The mean cosine between output and target.
        relative_length: The mean length of the output, relative to that of the target: below 1 if features shrink.
    """

    active: float
    explained: float
    dead: int
    density: np.ndarray
    size: float = float("nan")
    squared_error: float = float("nan")
    cosine: float = float("nan")
    relative_length: float = float("nan")


def evaluate(dictionary: Dictionary, batches: Iterable[Any]) -> Figures:
    """The figures of a dictionary over minibatches, in the forms that `train` takes.

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, evaluate
        >>> autoencoder = Dictionary(8, 16, activation="topk", k=4, rngs=nnx.Rngs(0))
        >>> evaluate(autoencoder, iter([jax.random.normal(jax.random.key(0), (64, 8))])).active <= 4
        True
    """
    n, active, squares = 0, np.zeros(dictionary.n_features), 0.0
    mean, around, totals = np.zeros(dictionary.d_out), 0.0, np.zeros(3)
    for x, y in pairs(iter(batches), dictionary):
        fired, squared, middle, spread, sums = jax.device_get(_sums(dictionary, x, y))
        totals += sums
        share = len(x) / (n + len(x))
        away = middle - mean
        around += float(spread) + float(away @ away) * n * share
        mean, n = mean + away * share, n + len(x)
        active, squares = active + fired, squares + float(squared)
    if not n:
        raise ValueError("evaluate: there are no batches")
    explained = 1 - squares / around if around else float("nan")
    size, cosine, length = (totals / n).tolist()
    return Figures(
        active=float(active.sum() / n),
        explained=explained,
        dead=int((active == 0).sum()),
        density=active / n,
        size=size,
        squared_error=squares / n / dictionary.d_out,
        cosine=cosine,
        relative_length=length,
    )


@jax.jit
def _sums(dictionary: Dictionary, x: jax.Array, y: jax.Array) -> Any:
    features = dictionary.activate(dictionary.pre_activations(x))
    output, middle = dictionary.decode(features) + dictionary.skipped(x), jnp.mean(y, 0)
    lengths = [jnp.maximum(jnp.linalg.norm(side, axis=-1), 1e-12) for side in (output, y)]
    cosines = jnp.sum(output * y, -1) / (lengths[0] * lengths[1])
    sums = jnp.stack([jnp.sum(features), jnp.sum(cosines), jnp.sum(lengths[0] / lengths[1])])
    return jnp.sum(features > 0, 0), jnp.sum((output - y) ** 2), middle, jnp.sum((y - middle) ** 2), sums


@accepts_old_keywords("sonde.dictionaries.loss_recovered")
def loss_recovered(
    loss: Callable[..., Any],
    path: str,
    dictionary: Dictionary,
    batches: Iterable[Any],
    *,
    value: Any = 0.0,
    inside: object = None,
) -> float:
    """The fraction of the loss recovered with the dictionary: 1 is as good as the site, 0 as bad as ablating it.

    Args:
        loss: A function that returns a number, with a site.
        path: The path of the site.
        dictionary: An autoencoder for the values there.
        batches: Inputs: each a tuple of arguments, or one argument.
        value: What replaces the value when it is ablated, as in `ablate`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
    """
    totals = np.zeros(3)
    for numbers in _three_ways(loss, path, dictionary, batches, value, inside):
        totals += [float(number) for number in numbers]
    clean, without, spliced = totals
    return (without - spliced) / (without - clean) if without != clean else float("nan")


def kl_recovered(
    f: Callable[..., Any],
    path: str,
    dictionary: Dictionary,
    batches: Iterable[Any],
    *,
    value: Any = 0.0,
    inside: object = None,
) -> float:
    """The fraction of the predictions recovered with the dictionary: 1 is as good as the site, 0 as bad as ablating it.

    Predictions are compared by their divergence from those of `f`, added up over all positions.

    Args:
        f: A function that returns logits, with a site.
        path: The path of the site.
        dictionary: An autoencoder for the values there.
        batches: Inputs: each a tuple of arguments, or one argument.
        value: What replaces the value when it is ablated, as in `ablate`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
    """
    totals = np.zeros(2)
    for logits in _three_ways(f, path, dictionary, batches, value, inside):
        totals += np.asarray(_divergences(*logits), np.float64)
    without, spliced = totals
    return (without - spliced) / without if without else float("nan")


@jax.jit
def _divergences(clean: jax.Array, *changed: jax.Array) -> list[jax.Array]:
    whole = jax.nn.log_softmax(clean.astype(jnp.float32))
    others = [jax.nn.log_softmax(logits.astype(jnp.float32)) for logits in changed]
    return [jnp.sum(jnp.exp(whole) * (whole - other)) for other in others]


def _three_ways(
    f: Callable[..., Any], path: str, dictionary: Dictionary, batches: Iterable[Any], value: Any, inside: object
) -> Iterator[list[Any]]:
    """For each batch, the results of the program, of the program without the site, and with the dictionary there."""
    without = ablate(f, path, value=value, inside=inside)
    programs = [jax.jit(g) for g in (f, without, splice(f, {path: dictionary}, inside=inside))]
    for batch in batches:
        yield [program(*arguments(batch)) for program in programs]
