"""Two more ports that the search was not written for: a convolutional network in another layout, and a recurrent one.

As in `planted`, each mistake is on lines that carry its name as a comment. Swapped gates of the recurrent network are
on the lines that use a gate: both programs compute both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CHANNELS, GROUPS, SIDE, CLASSES, STAGES = 8, 4, 8, 5, 2
STATE, INPUT, LENGTH = 6, 4, 7


def _normal(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 4), jnp.float32)


def convolution_weights() -> dict[str, Any]:
    """Weights of the convolutional network, as the original has them: out, in, height, width."""
    rng = np.random.default_rng(3)
    stages = [
        {
            "wide": _normal(rng, CHANNELS, CHANNELS, 3, 3),
            "bias": _normal(rng, CHANNELS),
            "deep": _normal(rng, CHANNELS, 1, 3, 3),
            "scale": 1 + _normal(rng, CHANNELS),
            "shift": _normal(rng, CHANNELS),
            "squeeze": _normal(rng, CHANNELS, CHANNELS),
        }
        for _ in range(STAGES)
    ]
    return {
        "stem": _normal(rng, CHANNELS, 3, 3, 3),
        "head": _normal(rng, CLASSES, CHANNELS),
        "stages": stages,
    }


CONVOLUTIONS = convolution_weights()
IMAGE = jnp.asarray(np.random.default_rng(4).normal(size=(2, 3, SIDE, SIDE)), jnp.float32)


def convolutional(image: Any) -> Any:
    """The original: channels first."""

    def conv(x: Any, w: Any, padding: Any = ((1, 1), (1, 1)), groups: int = 1, step: int = 1) -> Any:
        return lax.conv_general_dilated(x, w, (step, step), padding, feature_group_count=groups)

    x = conv(image, CONVOLUTIONS["stem"])  # stem_flipped
    for w in CONVOLUTIONS["stages"]:
        h = conv(x, w["wide"], step=2) + w["bias"][:, None, None]  # padding # stride
        parts = h.reshape(2, GROUPS, -1)  # groups
        parts = (parts - parts.mean(-1, keepdims=True)) / jnp.sqrt(parts.var(-1, keepdims=True) + 1e-5)  # eps # ddof
        h = parts.reshape(h.shape) * w["scale"][:, None, None] + w["shift"][:, None, None]  # affine
        h = jax.nn.silu(h)  # relu
        h = h + conv(h, w["deep"], groups=CHANNELS)  # dilation
        gate = jax.nn.sigmoid(h.mean((2, 3)) @ w["squeeze"].T)  # max_pool # gate
        x = h * gate[:, :, None, None]  # gate
    return x.mean((2, 3)) @ CONVOLUTIONS["head"].T  # head


def convolutional_port(image: Any, wrong: str = "") -> Any:
    """The port: channels last, other formulas."""

    def conv(x: Any, w: Any, **options: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        strides = options.pop("strides", (1, 1))
        padding = options.pop("padding", ((1, 1), (1, 1)))
        return lax.conv_general_dilated(
            x, w.transpose(2, 3, 1, 0), strides, padding, dimension_numbers=numbers, **options
        )

    stem = CONVOLUTIONS["stem"]
    x = conv(image.transpose(0, 2, 3, 1), stem[:, ::-1] if wrong == "stem_flipped" else stem)  # stem_flipped
    for i, w in enumerate(CONVOLUTIONS["stages"]):
        bad = wrong if i == 1 else ""
        padding: Any = "SAME" if bad == "padding" else ((1, 1), (1, 1))
        h = conv(x, w["wide"], strides=(2, 2), padding=padding) + w["bias"]  # padding
        n, height, width, _ = h.shape
        if bad == "groups":
            grouped = h.reshape(n, height * width, CHANNELS // GROUPS, GROUPS).swapaxes(2, 3)  # groups
        else:
            grouped = h.reshape(n, height * width, GROUPS, CHANNELS // GROUPS)
        count = height * width * CHANNELS // GROUPS
        mean = grouped.sum((1, 3), keepdims=True) / count  # groups
        spread = jnp.square(grouped - mean).sum((1, 3), keepdims=True) / (count - (bad == "ddof"))  # ddof
        grouped = (grouped - mean) * lax.rsqrt(spread + (1e-3 if bad == "eps" else 1e-5))  # eps # ddof
        grouped = grouped.swapaxes(2, 3) if bad == "groups" else grouped
        h = grouped.reshape(h.shape) * (1 if bad == "affine" else w["scale"]) + w["shift"]  # affine
        h = jax.nn.relu(h) if bad == "relu" else h * jax.nn.sigmoid(h)  # relu
        dilation = {"rhs_dilation": (2, 2), "padding": ((2, 2), (2, 2))} if bad == "dilation" else {}
        h = h + conv(h, w["deep"], feature_group_count=CHANNELS, **dilation)  # dilation
        pooled = h.max((1, 2)) if bad == "max_pool" else jnp.mean(h, (1, 2))  # max_pool
        gate = jnp.tanh(pooled @ w["squeeze"].T) if bad == "gate" else jax.nn.sigmoid(pooled @ w["squeeze"].T)  # gate
        x = h * gate[:, None, None]  # gate
    features = x.mean((1, 2))
    return features @ (CONVOLUTIONS["head"][::-1] if wrong == "head" else CONVOLUTIONS["head"]).T  # head


def recurrent_weights() -> dict[str, Any]:
    """Weights of the recurrent network."""
    rng = np.random.default_rng(5)
    cells = [
        {
            "input": _normal(rng, INPUT if i == 0 else STATE, 3 * STATE),
            "state": _normal(rng, STATE, 3 * STATE),
            "bias": _normal(rng, 3 * STATE),
            "state_bias": _normal(rng, 3 * STATE),
        }
        for i in range(2)
    ]
    return {"cells": cells, "decay": _normal(rng, STATE), "out": _normal(rng, STATE, INPUT)}


RECURRENT = recurrent_weights()
SERIES = jnp.asarray(np.random.default_rng(6).normal(size=(LENGTH, 2, INPUT)), jnp.float32)


def recurrent(series: Any) -> Any:
    """The original: two GRU layers as scans, a leaky sum, and an output layer."""
    for w in RECURRENT["cells"]:

        def step(h: Any, x: Any, w: Any = w) -> Any:
            a, b = x @ w["input"] + w["bias"], h @ w["state"] + w["state_bias"]  # bias
            reset, update, new = jnp.split(a, 3, -1)  # gate_order
            r, u, n = jnp.split(b, 3, -1)  # gate_order
            r, u = jax.nn.sigmoid(reset + r), jax.nn.sigmoid(update + u)  # hard_sigmoid
            n = jnp.tanh(new + r * n)  # reset_before # gate_order
            h = (1 - u) * n + u * h  # update_swapped # gate_order
            return h, h

        series = lax.scan(step, jnp.zeros((2, STATE)), series)[1]  # first_state
    decay = jax.nn.sigmoid(RECURRENT["decay"])  # decay
    leaky = lax.scan(lambda c, x: (decay * c + (1 - decay) * x,) * 2, jnp.zeros((2, STATE)), series)[1]  # leak # decay
    return leaky @ RECURRENT["out"]  # reversed_time


def recurrent_port(series: Any, wrong: str = "") -> Any:
    """The port: Python loops over time, separate weights."""
    for i, w in enumerate(RECURRENT["cells"]):
        bad = wrong if i == 1 else ""
        names = ("update", "reset", "new") if bad == "gate_order" else ("reset", "update", "new")
        inputs = dict(zip(names, jnp.split(w["input"], 3, -1)))  # gate_order
        states = dict(zip(names, jnp.split(w["state"], 3, -1)))  # gate_order
        biases = dict(zip(names, jnp.split(w["bias"], 3)))
        others = dict(zip(names, jnp.split(w["state_bias"] * (bad != "bias"), 3)))  # bias
        h = jnp.ones((2, STATE)) if bad == "first_state" else jnp.zeros((2, STATE))  # first_state
        outs = []
        for x in series:
            of_input = {g: jnp.einsum("bi,is->bs", x, inputs[g]) + biases[g] for g in names}  # gate_order # bias
            of_state = {g: jnp.einsum("bi,is->bs", h, states[g]) + others[g] for g in names}  # first_state # bias
            squash = jax.nn.hard_sigmoid if bad == "hard_sigmoid" else jax.nn.sigmoid
            r = squash(of_input["reset"] + of_state["reset"])  # hard_sigmoid # gate_order
            u = squash(of_input["update"] + of_state["update"])  # hard_sigmoid # gate_order
            if bad == "reset_before":
                n = jnp.tanh(of_input["new"] + (r * h) @ states["new"] + others["new"])  # reset_before
            else:
                n = jnp.tanh(of_input["new"] + r * of_state["new"])  # gate_order
            h = n + ((1 - u) if bad == "update_swapped" else u) * (h - n)  # update_swapped # first_state # gate_order
            outs.append(h)
        series = jnp.stack(outs)
    total, outs = jnp.zeros((2, STATE)), []
    decay = jnp.exp(-jax.nn.softplus(RECURRENT["decay"] * (1 if wrong == "decay" else -1)))  # decay
    for x in series[::-1] if wrong == "reversed_time" else series:  # reversed_time
        total = decay * total + (1.0 if wrong == "leak" else 1 - decay) * x  # leak # reversed_time # decay
        outs.append(total)
    return jnp.stack(outs) @ RECURRENT["out"]  # reversed_time


PORTS = {
    "convolutional": (convolutional, convolutional_port, IMAGE),
    "recurrent": (recurrent, recurrent_port, SERIES),
}
MISTAKES = {
    "convolutional": [
        "stem_flipped",
        "padding",
        "groups",
        "ddof",
        "eps",
        "affine",
        "relu",
        "dilation",
        "max_pool",
        "gate",
    ]
    + ["head"],
    "recurrent": ["gate_order", "bias", "first_state", "hard_sigmoid", "reset_before", "update_swapped", "decay"]
    + ["leak", "reversed_time"],
}


def lines_of(mistake: str) -> set[str]:
    """The lines of both programs that carry the name of a mistake, as `file:line`."""
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return {f"{__file__}:{i}" for i, line in enumerate(text, 1) if mistake in line.partition("  # ")[2].split(" # ")}
