"""The first answer of `first_nonfinite`, against compiling and running the step that it explains.

Two training steps: Adam without its epsilon, which divides 0 by 0, and a transformer of 24 layers, of which the 17th
overflows. Both are made anew for each measurement, in one process. The figure is processor time, which other load on
the machine changes little: wall time is shorter where XLA compiles on several cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import sonde
from measure import Row, main

LAYERS, BROKEN, WIDTH, HEADS = 24, 17, 64, 4
TURNS = 2


def adam_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step of Adam on parameters that get no gradient."""
    optimizer = optax.adam(1e-2, eps=0.0)

    def loss_of(params: Any, x: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2)

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = {"w": jnp.ones((8, 8)), "v": jnp.zeros((8, 1))}
    return step, (params, optimizer.init(params), jnp.zeros((4, 8)))


def transformer_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step of a transformer, one layer of which multiplies by a large number twice."""
    optimizer = optax.adamw(1e-3)

    def normalized(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def layer(params: Any, x: Any, number: int) -> Any:
        y = normalized(x)
        q, k, v = (jnp.einsum("btd,dhe->bthe", y, params[name]) for name in "qkv")
        scores = jnp.einsum("bthe,bshe->bhts", q, k) / 4.0
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), v)
        x = x + mixed.reshape(x.shape) @ params["o"]
        hidden = jax.nn.gelu(normalized(x) @ params["up"])
        if number == BROKEN:
            hidden = hidden * params["scale"] * params["scale"]
        return x + hidden @ params["down"]

    def loss_of(layers: Any, x: Any) -> Any:
        for number, params in enumerate(layers):
            x = layer(params, x, number)
        return jnp.mean(x**2)

    @jax.jit
    def step(layers: Any, state: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(layers, x)
        updates, state = optimizer.update(grads, state, layers)
        return optax.apply_updates(layers, updates), state, loss

    shapes = dict.fromkeys("qkv", (WIDTH, HEADS, WIDTH // HEADS))
    shapes |= {"o": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(jax.random.key(0), LAYERS)
    layers = [
        {name: jax.random.normal(key, shape) * 0.1 for name, shape in shapes.items()} | {"scale": jnp.float32(1e25)}
        for key in keys
    ]
    return step, (layers, optimizer.init(layers), jax.random.normal(jax.random.key(9), (2, 16, WIDTH)))


def seconds(run: Callable[[], Any]) -> float:
    """The processor time of a call."""
    started = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - started


def measure() -> list[Row]:
    rows = []
    sonde.first_nonfinite(jax.jit(jnp.log))(jnp.zeros(2))  # loads what the search needs
    for question, make, operation in (
        ("an optax step, 0 / 0 in Adam", adam_step, "div"),
        (f"a step of {LAYERS} layers, the {BROKEN}th overflows", transformer_step, "mul"),
    ):
        runs, answers = [], []
        for _ in range(TURNS):
            step, args = make()
            runs.append(seconds(lambda step=step, args=args: step(*args)))
            step, args = make()
            answer = []
            answers.append(
                seconds(lambda step=step, args=args, answer=answer: answer.append(sonde.first_nonfinite(step)(*args)))
            )
            assert answer[0].operation == operation, str(answer[0])
        ratio = min(answers) / min(runs)
        detail = f"{min(runs):.2f} s to compile and run, {min(answers):.2f} s to answer"
        rows.append(Row(f"first answer: {question}", ratio, 2.0, detail=detail))
    return rows


if __name__ == "__main__":
    main(measure)
