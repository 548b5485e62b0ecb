"""The tuned lens: for each layer, the map with which the output layer says what the whole model will say.

A map is `value + matrix @ value + bias` and starts as the logit lens, with zeros. It is trained to bring the
probabilities that the output layer reads from it close to those of the model (KL divergence), on any texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    StaticPart,
    arrays_in,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    static_and_arrays,
)
from sonde.tools.execution.record_values import each_seen
from sonde.tools.reading.lens_maps import LensMap, LensMaps


def tuned_lens(
    f: Callable[..., Any],
    *patterns: Pattern,
    readout: Callable[[Any], Any],
    learning_rate: float = 1e-3,
    logits: Callable[[Any], Any] | None = None,
    inside: object = None,
) -> Callable[[Iterable[Any]], LensMaps]:
    """A function that trains a tuned lens on batches.

    Args:
        f: Any callable that returns logits. Models are not changed by the runs.
        *patterns: Which sites: the stream after each layer, all of one shape.
        readout: A function of a value of the last layer that returns logits, as for `logit_lens`.
        learning_rate: Of Adam.
        logits: A function of the result of `f` that returns its logits, if the result is something else.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function of batches, one for each step: the arguments of `f`, as a tuple, or the only one. It returns
        `LensMaps`, for `logit_lens(maps=...)`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: there are no batches, or the sites have different shapes.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> from sonde.tools import tuned_lens
        >>> def f(x):
        ...     return 3 * sonde.sow(x, "h")[:, ::-1]
        >>> batches = [jax.random.normal(jax.random.key(i), (64, 2)) for i in range(300)]
        >>> lens = tuned_lens(f, "h", readout=lambda h: 3 * h, learning_rate=0.03)(batches)
        >>> bool(lens.losses["h"][-1] < 0.01 < lens.losses["h"][0])
        True
    """
    check_callable(f, "tuned_lens")
    check_callable(readout, "tuned_lens: readout")
    if not patterns:
        raise ValueError("tuned_lens: name the sites of the stream, such as blocks/*/out")
    asked = inside_request(inside)
    sites = check_patterns(patterns, "tuned_lens")
    step = JitByStaticPart.shared(functools.partial(_step, sites, readout, logits, learning_rate, asked), f, readout)

    def trained(batches: Iterable[Any]) -> LensMaps:
        maps: Any = None
        state: Any = None
        losses, names, texts = [], (), 0
        for batch in batches:
            call = f, batch if isinstance(batch, tuple) else (batch,), {}
            static, arrays = static_and_arrays(call, asked)
            if maps is None:
                names, width = _names_and_width(sites, asked, call)
                maps = {"matrix": jnp.zeros((len(names), width, width)), "bias": jnp.zeros((len(names), width))}
                state = _optimizer(learning_rate).init(maps)
            maps, state, loss, count = step(static, arrays, maps, state)
            losses.append(loss)
            texts += count
        if maps is None:
            raise ValueError("tuned_lens: there are no batches")
        by_step = np.asarray(jnp.stack(losses))
        whole = np.asarray(maps["matrix"]) + np.eye(maps["matrix"].shape[-1], dtype=np.float32)
        found = {name: LensMap(whole[i], np.asarray(maps["bias"][i])) for i, name in enumerate(names)}
        return LensMaps(found, int(texts), {name: by_step[:, i] for i, name in enumerate(names)})

    return trained


def _names_and_width(sites: tuple[Pattern, ...], asked: InsideRequest | None, call: Any) -> tuple[tuple[str, ...], int]:
    f, args, kwargs = call
    records = jax.eval_shape(lambda *a, **k: capture(f, *sites, inside=asked)(*a, **k)[1], *args, **kwargs)
    seen = list(each_seen(records))
    shapes = {s.path: arrays_in(s.value)[0].shape for s in seen}
    if len({*shapes.values()}) != 1 or not next(iter(shapes.values())):
        raise ValueError(f"tuned_lens: the sites must have one shape, got {shapes}")
    names = tuple(f"{s.path}[{s.call}]" if s.call else s.path for s in seen)
    return names, next(iter(shapes.values()))[-1]


def _optimizer(learning_rate: float) -> optax.GradientTransformation:
    # Where the lens is right already, slopes are rounding noise, which the usual epsilon would make whole steps of.
    return optax.adam(learning_rate, eps=1e-6)


def _step(
    sites: tuple[Pattern, ...],
    readout: Callable[[Any], Any],
    logits: Callable[[Any], Any] | None,
    learning_rate: float,
    asked: InsideRequest | None,
    static: StaticPart,
    arrays: list[Any],
    maps: dict[str, jax.Array],
    state: Any,
) -> Any:
    f, args, kwargs = static.whole(arrays)
    result, records = capture(f, *sites, inside=asked)(*args, **kwargs)
    wanted = jax.lax.stop_gradient(jax.nn.log_softmax((logits or (lambda result: result))(result).astype(jnp.float32)))
    values = jnp.stack([arrays_in(seen.value)[0] for seen in each_seen(records)]).astype(jnp.float32)

    def loss(one: dict[str, jax.Array], value: jax.Array) -> jax.Array:
        said = jax.nn.log_softmax(readout(value + value @ one["matrix"].T + one["bias"]).astype(jnp.float32))
        if said.shape != wanted.shape:
            raise ValueError(f"tuned_lens: the readout has the shape {said.shape}, and the logits have {wanted.shape}")
        # Tokens that the model rules out have no share; 0 * inf would be NaN.
        each = jnp.where(jnp.isneginf(wanted), 0, jnp.exp(wanted) * (wanted - said))
        return jnp.mean(jnp.sum(each, -1))

    # One site after the other: the logits of all layers at once would not fit.
    losses, slopes = jax.lax.map(lambda pair: jax.value_and_grad(loss)(*pair), (maps, values))
    updates, state = _optimizer(learning_rate).update(slopes, state, maps)
    count = values.shape[1] if values.ndim > 3 else 1
    return optax.apply_updates(maps, updates), state, losses, count
