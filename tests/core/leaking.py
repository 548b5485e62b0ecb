"""What is done again and again in a session, for `test_leaks.py`: each time with fresh functions, methods or models.

JAX itself keeps a program for every fresh `cond`, `while_loop` and `scan` that is not in a jitted function, and
for every fresh class that is jitted. Such cases come with the same program written by hand, without Sonde: no more than
that may be kept.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from tests.freezing import freeze

import sonde
import sonde.errors
from sonde import linen, nnx, report, tools

X = np.ones((2, 2), np.float32)


def marked(x: Any) -> Any:
    return jnp.sum(sonde.sow(jnp.sin(x), "h"))


jitted = jax.jit(marked)


class Owner:
    """An object that owns its jitted step, and an array."""

    def __init__(self) -> None:
        self.scale = jnp.ones(2)
        self.step = jax.jit(self.method)

    def method(self, x: Any) -> Any:
        return marked(x * self.scale)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.layer(sonde.sow(x * 2, "h"))


class Layer(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(2)(x)
        self.sow("intermediates", "h", x)
        return x


def loss_of(model: Any, x: Any) -> Any:
    return jnp.sum(model(x) ** 2)


def branching(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, marked, lambda x: marked(2 * x), x)


def branching_by_hand(x: Any) -> Any:
    def value(x: Any) -> Any:
        h = jnp.sin(x)
        return jnp.sum(h), h

    return lax.cond(x[0, 0] > 0, value, lambda x: value(2 * x), x)


def looping(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sonde.sow(s[1] * 2, "h")), (0, x))[1]


def looping_by_hand(x: Any) -> Any:
    def body(state: Any) -> Any:
        i, x, _, count = state
        return i + 1, x * 2, x * 2, count + 1

    return lax.while_loop(lambda s: s[0] < 3, body, (0, x, jnp.zeros_like(x), 0))


def scanning(x: Any) -> Any:
    return lax.scan(lambda c, _: (sonde.sow(jnp.sin(c), "h"), None), x, None, length=2)[0]


def scanning_by_hand(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=2)


def without_result() -> None:
    try:
        sonde.capture(lambda x: marked(x), "no such site")(X)
    except sonde.errors.NoSuchSiteError:
        pass


def nnx_step(*, captured: bool) -> None:
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: loss_of(model, x))(model)
        optimizer.update(model, grads)
        return loss

    jitted = nnx.jit(step)
    for _ in range(2):
        (sonde.capture(jitted, grads=True) if captured else jitted)(model, optimizer, X)


def linen_step(*, captured: bool) -> None:
    layer = Layer()
    variables = layer.init(jax.random.key(0), X)
    loss = lambda params: jnp.sum(layer.apply({"params": params}, X) ** 2)
    step = jax.jit(lambda params: jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)))
    for _ in range(2):
        (sonde.capture(step, grads=True) if captured else step)(variables["params"])


def linen_captured() -> None:
    layer = Layer()
    layer.apply(layer.init(jax.random.key(0), X), X, capture_intermediates=True)


def linen_jitted() -> None:
    layer = linen.jit(Layer)()
    sonde.capture(layer.apply)(layer.init(jax.random.key(0), X), X)


def flax_jitted() -> None:
    from flax import linen as flax_linen

    class Layer(flax_linen.Module):
        @flax_linen.compact
        def __call__(self, x: Any) -> Any:
            x = flax_linen.Dense(2)(x)
            self.sow("intermediates", "h", x)
            return x

    layer = flax_linen.jit(Layer)()
    layer.apply(layer.init(jax.random.key(0), X), X, mutable="intermediates")


def edited_by(number: float) -> None:
    sonde.edit(jitted, {"h": lambda h: h * number})(X)


def monitored() -> None:
    step = tools.monitor(jax.jit(lambda x: marked(x)), {"h": ["norm"]})
    step(X)
    step.flush()


def reported(f: Callable, *args: Any, **options: Any) -> None:
    """A page, written to a file."""
    with tempfile.TemporaryDirectory() as folder:
        report.examine(f, **options)(*args).write(f"{folder}/page.html")


def gradient(i: int) -> Callable:
    return jax.grad(lambda x: marked(x) * i)


class Case(NamedTuple):
    """Something to do, with a new number each time; and the same without Sonde, if JAX keeps something of it."""

    do: Callable[[int], Any]
    plain: Callable[[int], Any] | None = None


CASES: dict[str, Case] = {
    "capture of a lambda": Case(lambda i: sonde.capture(lambda x: marked(x) * i)(X)),
    "capture of a jitted function": Case(lambda i: sonde.capture(jitted)(X)),
    "capture of a fresh jitted function": Case(lambda i: sonde.capture(jax.jit(lambda x: marked(x) * i))(X)),
    "capture of a fresh gradient": Case(lambda i: sonde.capture(gradient(i), grads=True)(X)),
    "capture of the gradient of a fresh jitted function": Case(
        lambda i: sonde.capture(jax.grad(jax.jit(lambda x: marked(x) * i)), grads=True)(X)
    ),
    "capture of a fresh mapped function": Case(lambda i: sonde.capture(jax.vmap(lambda x: marked(x) * i))(X)),
    "capture of a fresh rematerialized function": Case(
        lambda i: sonde.capture(jax.jit(jax.grad(jax.checkpoint(lambda x: marked(x) * i))), grads=True)(X)
    ),
    "capture with a fresh reduce": Case(lambda i: sonde.capture(jitted, reduce=lambda v: v.mean() * i)(X)),
    "capture with a fresh predicate": Case(lambda i: sonde.capture(jitted, lambda site: True)(X)),
    "capture inside": Case(lambda i: sonde.capture(lambda x: loss_of(jnp.sin, x) * i, inside=loss_of)(X)),
    "a jitted capture": Case(lambda i: jax.jit(sonde.capture(lambda x: marked(x) * i))(X)),
    "capture of a bound method": Case(lambda i: sonde.capture(Owner().method)(X)),
    "capture of a jitted method": Case(lambda i: sonde.capture(Owner().step)(X)),
    "capture of a cond": Case(lambda i: sonde.capture(lambda x: branching(x))(X), lambda i: branching_by_hand(X)),
    "capture of a while loop": Case(lambda i: sonde.capture(looping)(X), lambda i: looping_by_hand(X)),
    "capture of a scan": Case(lambda i: sonde.capture(scanning)(X), lambda i: scanning_by_hand(X)),
    "a capture that fails": Case(lambda i: without_result()),
    "an edit": Case(lambda i: edited_by(float(i))),
    "an edit of a fresh function": Case(lambda i: sonde.edit(lambda x: marked(x) * i, {"h": lambda h: h * 2})(X)),
    "a perturbation": Case(
        lambda i: sonde.with_perturbations(lambda x: jnp.sum(sonde.perturb(x, "p")))({"p": X * i}, X)
    ),
    "a list of sites": Case(lambda i: sonde.sites(lambda x: marked(x) * i)(X)),
    "a search for NaN": Case(lambda i: sonde.first_nonfinite(lambda x: marked(x) * i)(X)),
    "a summary": Case(lambda i: tools.summarize(gradient(i))(X)),
    "a comparison": Case(lambda i: tools.compare(lambda x: marked(x) * i, marked)(X)),
    "an attribution": Case(lambda i: tools.attribute(lambda x: marked(x) * i)(X)),
    "a sweep": Case(lambda i: tools.patch_sweep(lambda x: marked(x) * i, "h", metric=jnp.sum)(X, 2 * X)),
    "an ablation": Case(lambda i: tools.ablate(lambda x: marked(x) * i, "h")(X)),
    "features": Case(lambda i: tools.extract(lambda x: marked(x) * i, {"h": "feature"})(X)),
    "a monitored step": Case(lambda i: monitored()),
    "a report": Case(lambda i: reported(lambda x: marked(x) * i, X)),
    "a report of a gradient": Case(lambda i: reported(gradient(i), X, grads=True)),
    "capture of a model": Case(lambda i: sonde.capture(Model())(X)),
    "capture of a jitted model": Case(lambda i: sonde.capture(nnx.jit(lambda m, x: m(x)))(Model(), X)),
    "nnx.capture": Case(lambda i: nnx.capture(Model(), nnx.Intermediate)(X)),
    "nnx.capture of method outputs": Case(
        lambda i: nnx.capture(Model(), nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    ),
    "an nnx step": Case(lambda i: nnx_step(captured=False)),
    "a captured nnx step": Case(lambda i: nnx_step(captured=True)),
    "linen's capture_intermediates": Case(lambda i: linen_captured()),
    "a linen step": Case(lambda i: linen_step(captured=False)),
    "a captured linen step": Case(lambda i: linen_step(captured=True)),
    "a class jitted by linen": Case(lambda i: linen_jitted(), lambda i: flax_jitted()),
}


class Held(NamedTuple):
    """Objects, arrays and programs that a process keeps."""

    objects: int
    arrays: int
    programs: int


def held() -> Held:
    for _ in range(3):
        gc.collect()
    programs = jax.devices()[0].client.live_executables()
    return Held(len(gc.get_objects()), len(jax.live_arrays()), len(programs))


def growth(step: Callable[[int], Any], times: int, before: int) -> Held:
    """How much memory grows if something is done many times, after a few times to fill the caches."""
    freeze()  # what other tests left is not counted, and need not be gone through
    for i in range(before):  # until what is kept once for all is kept
        step(i)
    start = held()
    for i in range(before, before + times):
        step(i)
    return Held(*[b - a for a, b in zip(start, held())])
