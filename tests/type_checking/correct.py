"""Programs without a mistake, in which a type checker must find none; `assert_type` is checked by it, not here."""

from typing import assert_type

import jax
import jax.numpy as jnp

import sonde
from sonde import models, nnx, report, tools


def f(x: jax.Array, n: int = 2) -> jax.Array:
    return sonde.sow(x * n, "h")


def loss(y: jax.Array) -> jax.Array:
    return y.sum()


X = jnp.ones(3)
result, records = sonde.capture(f)(X, n=3)
assert_type(result, jax.Array)
assert_type(records, sonde.Records)
assert_type(records["h"].value, jax.Array)
assert_type(records["h"].grad, jax.Array)
assert_type(records["h"].values[0].shape, tuple[int, ...])
assert_type(sonde.edit(f, {"h": jnp.zeros_like})(X), jax.Array)
assert_type(sonde.edit(f, {"h": sonde.Edit(0.0, positions=1, position_axis=-1)})(X, 2), jax.Array)
assert_type(sonde.with_perturbations(f)(sonde.zero_perturbations(f, "h")(X), X), jax.Array)
assert_type(sonde.sites(f)(jax.ShapeDtypeStruct((3,), "float32")), sonde.Sites)
assert_type(sonde.first_nonfinite(f)(X), sonde.NonFinite | None)

assert_type(tools.summarize(f)(X, n=1), tools.Summary)
assert_type(tools.ablate(f, "h", units=[1], value="mean")(X), jax.Array)
assert_type(tools.steer(f, {"h": X}, scale=2.0)(X), jax.Array)
assert_type(tools.attribute(f, metric=loss, baseline=0.0)(X), tools.Attribution)
assert_type(tools.patch_sweep(f, "h", metric=loss, axis=None)(X, -X), tools.Sweep)
assert_type(tools.patch_paths(f, "h", ("a", "b"), metric=loss)(X, -X), tools.Paths)
assert_type(tools.attribute_edges(f, "h", "end", metric=loss)(X), tools.Edges)
assert_type(tools.logit_lens(f, "h", readout=loss)(X), tools.Lens)
assert_type(tools.compare(f, jax.jit(f))(X), tools.Comparison)
assert_type(tools.monitor(f, {"h": ["mean"]}, writers="numbers.jsonl")(X), jax.Array)
assert_type(report.examine(f, tokens=["a", "b"])(X), report.Report)

# Whatever `jax.jit` and `jax.grad` return has no types of its own in JAX.
sonde.capture(jax.jit(f))(X)[1]["h"].value.mean()
sonde.capture(jax.grad(lambda x: f(x).sum()), "h", grads=True)(X)


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(3, 3, rngs=rngs)

    @nnx.jit
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x)


@nnx.jit
def step(model: Model, x: jax.Array) -> int:
    return model(x).ndim


@nnx.jit(static_argnames="n")
def power(x: jax.Array, n: int) -> jax.Array:
    return x**n


model = Model(nnx.Rngs(0))
assert_type(model, Model)
assert_type(model(X), jax.Array)
assert_type(step(model, X), int)
assert_type(power(X, n=3), jax.Array)
assert_type(sonde.capture(step)(model, X)[0], int)
step.lower(model, X)

decoder = models.load("folder", kind=models.Decoder, dtype=jnp.bfloat16)
assert_type(decoder, models.Decoder)
assert_type(models.generate(decoder, "A text").texts, list[str])
models.load("folder").whatever_a_model_has
