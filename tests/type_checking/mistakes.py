"""Programs with a mistake in each line that says so, which a type checker must find."""

import jax
import jax.numpy as jnp

import sonde
from sonde import dictionaries, models, nnx, store, tools


def f(x: jax.Array, n: int = 2) -> jax.Array:
    return sonde.sow(x * n, "h")


def loss(y: jax.Array) -> jax.Array:
    return y.sum()


X = jnp.ones(3)
sonde.captrue(f)  # mistake
tools.patch_swep(f)  # mistake
nnx.Linaer(2, 3)  # mistake
models.Decodr  # mistake
store.harvst  # mistake
dictionaries.Dictionry  # mistake

sonde.capture(f)("a text")  # mistake
sonde.capture(f)(X, m=3)  # mistake
sonde.capture(f, gards=True)  # mistake
sonde.capture(f, 3)  # mistake
sonde.capture(f)(X)[1]["h"].vaule  # mistake
sonde.capture(f)(X)[1]["h"].value.shpae  # mistake
sonde.edit(f, {"h": 0.0})("a text")  # mistake
sonde.edit(f, ["h"])  # mistake
sonde.Edit(0.0, postions=1)  # mistake
tools.ablate(f, "h", unit="all")  # mistake
tools.ablate(f, "h")("a text")  # mistake
tools.steer(f, {"h": X})(X, 2, 3)  # mistake
tools.summarize(f)(X, "a text")  # mistake
tools.first_nonfinite(f, context="five")  # mistake
tools.attribute(f, method="gradeint")  # mistake
tools.attribute(f, metric=str.upper)  # mistake
tools.patch_sweep(f, "h")  # mistake
tools.patch_sweep(f, "h", metric=loss)(X, -X).scors  # mistake
tools.monitor(f, {"h": ["mean"]})("a text")  # mistake
nnx.Linear(2, "three", rngs=nnx.Rngs(0))  # mistake
nnx.jit(f)("a text")  # mistake
nnx.jit(f, static_argname="n")  # mistake
models.load("folder", kind=models.Decoder).blokcs  # mistake
models.load("folder", layers="loop")  # mistake

# The old names are not for new programs.
sonde.records_before  # mistake
tools.ablate(f, "h", to=0.0)  # mistake
tools.patch_sweep(f, X, -X, "h", loss)  # mistake
