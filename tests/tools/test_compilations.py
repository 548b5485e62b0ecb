"""An edit with other numbers compiles nothing, in every tool that is made of edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import Edit, models, sow
from sonde.tools import ablate, steer

X = jnp.arange(6.0).reshape(2, 3)
DIRECTIONS = np.asarray(jax.random.normal(jax.random.key(0), (3, 3)))
RECORDS = [sonde.capture(lambda x: sow(x, "h"))(X * i)[1]["h"] for i in range(3)]


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(name: str, *_: Any, **__: Any) -> None:
        if name.endswith("backend_compile_duration"):
            seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def network(x: Any) -> Any:
    return jnp.sin(sow(x * 3, "h")) ** 2


def looped(x: Any) -> Any:
    with sonde.scope("blocks/*"):
        return jax.lax.scan(lambda c, _: (sow(jnp.sin(c), "h"), None), x, length=3)[0]


jitted, jitted_loop = jax.jit(network), jax.jit(looped)
step = jax.jit(jax.grad(lambda x: network(x).sum()))
MODEL = models.from_config(
    {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2,
     "intermediate_size": 8, "vocab_size": 16}
)  # fmt: skip
DIRECTIONS_OF_MODEL = [jnp.full(4, 0.1 * i) for i in range(3)]

CALLS: dict[str, Callable[[int], Any]] = {
    "edit of a jitted function": lambda i: sonde.edit(jitted, {"h": lambda h, d=DIRECTIONS[i]: h + d})(X),
    "edit of Python with a jitted function": lambda i: sonde.edit(
        lambda x: jitted(x) + 1, {"h": lambda h, d=DIRECTIONS[i]: h + d}
    )(X),
    "edit of a step": lambda i: sonde.edit(step, {"h": lambda h, d=DIRECTIONS[i]: h * d})(X),
    "edit of a gradient": lambda i: sonde.edit(step, {"h": Edit(grad=lambda g, d=DIRECTIONS[i]: g * d)})(X),
    "array": lambda i: sonde.edit(jitted, {"h": X * i})(X),
    "number": lambda i: ablate(jitted, "h", value=float(i))(X),
    "record": lambda i: sonde.edit(jitted, {"h": RECORDS[i]})(X),
    "record in Python": lambda i: sonde.edit(lambda x: jitted(x) + 1, {"h": RECORDS[i]})(X),
    "row of a loop": lambda i: sonde.edit(jitted_loop, {"blocks/1/h": lambda h, d=DIRECTIONS[i]: h + d})(X),
    "steer": lambda i: steer(jitted, {"h": DIRECTIONS[i]}, scale=0.5 * i)(X),
    "steered generate": lambda i: (
        steer(models.generate, {"blocks/0/out": DIRECTIONS_OF_MODEL[i]})(MODEL, [[1, 2]], max_new_tokens=2).tokens
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_numbers_compile_nothing(name: str, compilations: list[str]) -> None:
    call = CALLS[name]
    jax.block_until_ready(call(0))
    jax.block_until_ready(call(1))
    compilations.clear()
    jax.block_until_ready(call(2))
    assert compilations == []
