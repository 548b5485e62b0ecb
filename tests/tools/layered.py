"""A residual network by hand and with its layers as a list, a scan with a name, and a scan in a scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sonde

GROUPS, PER_GROUP, WIDTH = 2, 3, 5
LAYERS = GROUPS * PER_GROUP
W = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / 2
X, Y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 3, WIDTH)), jnp.float32)
SITES = ("in", "read", "out", "resid")


def layer(x: Any, w: Any, mark: Callable[[Any, str], Any]) -> Any:
    """What a layer reads and writes is marked."""
    x = mark(x, "in")
    return mark(x + mark(jnp.tanh(mark(x, "read") @ w), "out"), "resid")


def metric(y: Any) -> Any:
    """A number."""
    return jnp.sum(y[..., 0] ** 2) - jnp.sum(y[..., 1])


def by_hand(x: Any, edits: Mapping[str, Callable[[Any], Any]] | None = None) -> tuple[Any, dict[str, Any]]:
    """The result, with some values replaced, and all values by path, in the order in which they are computed."""
    seen: dict[str, Any] = {}
    for i in range(LAYERS):

        def mark(value: Any, name: str, i: int = i) -> Any:
            path = f"blocks/{i}/{name}"
            seen[path] = value if edits is None or path not in edits else edits[path](value)
            return seen[path]

        x = layer(x, W[i], mark)
    return x, seen


def listed(x: Any) -> Any:
    """A Python loop."""
    for i in range(LAYERS):
        with sonde.scope(f"blocks/{i}"):
            x = layer(x, W[i], sonde.sow)
    return x


def scanned(x: Any) -> Any:
    """One scan."""
    with sonde.scope("blocks/*"):
        return jax.lax.scan(lambda c, w: (layer(c, w, sonde.sow), None), x, W)[0]


def nested(x: Any) -> Any:
    """A scan over groups of a scan over layers."""

    def group(c: Any, ws: Any) -> Any:
        with sonde.scope("blocks/*"):
            return jax.lax.scan(lambda c, w: (layer(c, w, sonde.sow), None), c, ws)[0], None

    with sonde.scope("groups/*"):
        return jax.lax.scan(group, x, W.reshape(GROUPS, PER_GROUP, WIDTH, WIDTH))[0]


def in_groups(path: str) -> str:
    """The path in `nested` of a path in the others."""
    _, number, name = path.split("/")
    return f"groups/{int(number) // PER_GROUP}/blocks/{int(number) % PER_GROUP}/{name}"


FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[str], str]]] = {
    "list": (listed, str),
    "scan": (scanned, str),
    "nested": (nested, in_groups),
}
