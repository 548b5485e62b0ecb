"""Captures of every kind, each of which must give the same whatever ran before it in the process.

Run as a program, it prints for every capture what it gives in a process of its own, and what it gives in one process
after all the others: first in the order below, then in reverse, so that every capture runs before and after every
other. The programs have the names of each other's functions, scopes and modules on purpose.

Importing this file computes nothing: a process is only forked before JAX has started its threads.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

import sonde
from flax import nnx as flax_nnx
from sonde import linen, nnx


def ones() -> jax.Array:
    return jnp.ones((2, 3))


def attention(x: Any) -> Any:
    scores = x * 2.0
    return jnp.tanh(scores)


def teacher(x: Any) -> Any:
    mlp = attention(x) + 1.0
    return mlp


@jax.jit
def jitted_attention(x: Any) -> Any:
    with sonde.scope("teacher"):
        return sonde.sow(attention(x), "out")


def of_function() -> Any:
    return sonde.capture(teacher, inside=attention)(ones())


def of_functions_with_expressions() -> Any:
    return sonde.capture(jax.jit(teacher), inside=sonde.Inside(teacher, attention, expressions=True))(ones())


def of_package() -> Any:
    return sonde.capture(lambda x: jax.nn.silu(attention(x)), inside="jax.nn")(ones())


class _FlaxModel(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(3, name="attention")(x)
        return sonde.sow(nn.Dense(3, name="mlp")(attention(x)), "scores")


def of_flax_linen() -> Any:
    model = _FlaxModel()
    params = model.init(jax.random.key(0), ones())

    def run(x: Any) -> Any:
        with sonde.scope("teacher"):
            return model.apply(params, x)

    return sonde.capture(run, inside=model)(ones())


def of_flax_linen_and_a_function() -> Any:
    model = _FlaxModel()
    params = model.init(jax.random.key(0), ones())
    return sonde.capture(jax.jit(model.apply), inside=[model, attention])(params, ones())


def of_haiku() -> Any:
    def run(x: Any) -> Any:
        x = hk.Linear(3, name="attention")(x)
        return hk.Linear(3, name="teacher")(attention(x))

    model = hk.transform(run)
    params = model.init(jax.random.key(0), ones())

    def apply(x: Any) -> Any:
        with sonde.scope("mlp"):
            return model.apply(params, None, x)

    return sonde.capture(apply, inside=model)(ones())


class _Equinox(eqx.Module):
    attention: eqx.nn.Linear
    teacher: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.teacher)(attention(jax.vmap(self.attention)(x)))


def of_equinox() -> Any:
    model = _Equinox(eqx.nn.Linear(3, 3, key=jax.random.key(0)), eqx.nn.Linear(3, 3, key=jax.random.key(1)))
    return sonde.capture(jax.jit(lambda x: model(x)), inside=model)(ones())


class _FlaxNnx(flax_nnx.Module):
    def __init__(self) -> None:
        self.attention = flax_nnx.Linear(3, 3, rngs=flax_nnx.Rngs(0))
        self.mlp = flax_nnx.Linear(3, 3, rngs=flax_nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.mlp(attention(self.attention(x)))


def of_flax_nnx() -> Any:
    model = _FlaxNnx()
    return sonde.capture(lambda x: model(x), inside=model)(ones())


class _Nnx(nnx.Module):
    def __init__(self) -> None:
        self.attention = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return sonde.sow(attention(self.attention(x)), "teacher")


def of_nnx() -> Any:
    model = _Nnx()
    return sonde.capture(model, grads=True)(ones())


def of_nnx_inside() -> Any:
    model = _Nnx()
    return sonde.capture(model, inside=[model, attention])(ones())


class _Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(3, name="attention")(x)
        return sonde.sow(attention(x), "teacher")


def of_linen() -> Any:
    model = _Linen()
    params = model.init(jax.random.key(0), ones())
    return sonde.capture(lambda x: model.apply(params, x), inside=model)(ones())


def of_scopes() -> Any:
    def run(x: Any) -> Any:
        with sonde.scope("attention"), sonde.scope("teacher"):
            return sonde.sow(attention(x), "mlp")

    return sonde.capture(run)(ones())


def of_named_loop() -> Any:
    def run(x: Any) -> Any:
        with sonde.scope("attention/*"):
            return jax.lax.scan(lambda c, _: (sonde.sow(attention(c), "out"), None), x, length=3)[0]

    return sonde.capture(run, "attention/{1..2}/out")(ones())


def of_jit() -> Any:
    return sonde.capture(jax.jit(lambda x: jitted_attention(x) + jitted_attention(2 * x)))(ones())


def of_gradients() -> Any:
    return sonde.capture(jax.grad(lambda x: jitted_attention(x).sum()), grads=True)(ones())


def of_edit() -> Any:
    edited = sonde.edit(teacher, {"attention/scores": lambda x: x * 3}, inside=attention)
    return sonde.capture(edited, inside=teacher)(ones())


def of_failure() -> Any:
    def run(x: Any) -> Any:
        with sonde.scope("attention"):
            attention(x)
            raise RuntimeError

    try:
        sonde.capture(run, inside=attention)(ones())
    except RuntimeError:
        pass
    return sonde.capture(lambda x: sonde.sow(x, "after"))(ones())


def of_threads() -> Any:
    answers: dict[str, Any] = {}
    captures = [of_function, of_haiku, of_flax_linen]

    def run(capture: Callable[[], Any]) -> None:
        answers[capture.__name__] = capture()

    threads = [threading.Thread(target=run, args=(capture,)) for capture in captures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[capture.__name__] for capture in captures]


CAPTURES: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        of_function,
        of_functions_with_expressions,
        of_package,
        of_flax_linen,
        of_flax_linen_and_a_function,
        of_haiku,
        of_equinox,
        of_flax_nnx,
        of_nnx,
        of_nnx_inside,
        of_linen,
        of_scopes,
        of_named_loop,
        of_jit,
        of_gradients,
        of_edit,
        of_failure,
        of_threads,
    )
}


def given(capture: Callable[[], Any]) -> Any:
    """What a capture gives, as text and numbers."""
    answers = capture()
    return [
        [np.asarray(result).tolist(), {path: _of_record(record) for path, record in records.items()}]
        for result, records in (answers if isinstance(answers, list) else [answers])
    ]


def _of_record(record: sonde.Record) -> Any:
    arrays = [np.asarray(x, np.float32).tolist() for x in jax.tree.leaves((record.values, record.grads))]
    return [arrays, str(record.axes), os.path.basename(record.source)]


def in_a_process_of_its_own(capture: Callable[[], Any]) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as out:
            json.dump(given(capture), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of every fork; no thread runs yet
        alone = {name: in_a_process_of_its_own(capture) for name, capture in CAPTURES.items()}
    first = {name: given(capture) for name, capture in CAPTURES.items()}
    second = {name: given(capture) for name, capture in reversed(CAPTURES.items())}
    print(json.dumps({"alone": alone, "after those above": first, "after all": second}))
