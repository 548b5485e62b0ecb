"""Intermediate values as features: `extract` makes a function that returns them and computes nothing else.

The function is compiled, and whatever the chosen values do not need is removed, such as the end of the network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    Record,
    Records,
    StaticPart,
    capture,
    check_callable,
    explains_arguments,
    inside_request,
    static_and_arrays,
    wrapped_like,
)
from sonde.tools.execution.needed_iterations import only_needed
from sonde.tools.execution.record_values import chooses

P = ParamSpec("P")


@explains_arguments
def extract(
    f: Callable[P, Any], features: Mapping[str, str] | Mapping[Pattern, str], *, inside: object = None
) -> Callable[P, dict[str, Any]]:
    """A compiled function that returns values at sites, by name, and leaves out the rest of the computation.

    Args:
        f: Any callable. A model is not changed when it runs.
        features: For each site the name of its value in the result: a path, or another pattern that matches one path.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a dict from names to values. The value of a site that runs
        several times is a tuple.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: Two features have the same name; or, when called, a pattern matches several paths.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import extract
        >>> def f(x):
        ...     h = sonde.sow(x * 2, "block/h")
        ...     return jnp.linalg.inv(h)
        >>> print(extract(f, {"block/h": "features"})(jnp.ones((1, 2)).T @ jnp.ones((1, 2))))
        {'features': Array([[2., 2.],
               [2., 2.]], dtype=float32)}
    """
    check_callable(f, "extract")
    if not isinstance(features, Mapping) or not features:
        raise TypeError(f"extract takes a mapping from paths to names, such as {{'h': 'features'}}, got {features!r}")
    if len(set(features.values())) != len(features):
        raise ValueError(f"extract: every feature needs a different name, got {list(features.values())}")
    patterns = tuple(features)
    asked = inside_request(inside)
    capture(f, *patterns, inside=asked)  # for its checks

    names = tuple(features.values())
    compiled = JitByStaticPart.shared(functools.partial(_values, patterns, names, asked), f)

    def extracted(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        return compiled(*static_and_arrays((f, args, kwargs), asked))

    return wrapped_like(extracted, f)


def _values(
    patterns: tuple[Pattern, ...],
    names: tuple[str, ...],
    inside: InsideRequest | None,
    rest: StaticPart,
    arrays: list[Any],
) -> dict[str, Any]:
    def values(arrays: list[Any]) -> dict[str, Any]:
        f, args, kwargs = rest.whole(arrays)
        _, records = capture(f, *patterns, inside=inside)(*args, **kwargs)
        return {name: _value(_only(records, pattern)) for pattern, name in zip(patterns, names)}

    return only_needed(values, arrays)


def _only(records: Records, pattern: Pattern) -> Record:
    found = [r for r in records.values() if chooses(pattern, r)]
    if len(found) != 1:
        raise ValueError(
            f"extract: {pattern!r} must match one site, but matches {len(found)} sites: "
            f"{', '.join(repr(r.path) for r in found)}; give each a name"
        )
    return found[0]


def _value(record: Record) -> Any:
    return record.values[0] if len(record.values) == 1 else record.values
