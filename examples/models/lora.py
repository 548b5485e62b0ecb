"""SmolLM2 learns one fact by LoRA: small corrections to the queries and values, everything else frozen.

`sonde report examples/models/lora.py:make_program --grads` looks inside the training step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from sonde import models, nnx

FACT = "The capital of Sondeland is Probeville."
ASKED = "The capital of Sondeland is"


def adapted(model: models.Decoder, rank: int = 4) -> models.Decoder:
    rngs = nnx.Rngs(0)
    for block in model.blocks:
        for name in ("q", "v"):
            base = getattr(block.attn, name)
            new = nnx.LoRA(base.in_features, rank, base.out_features, base_module=base, rngs=rngs)
            setattr(block.attn, name, new)
    return model


def loss(model: models.Decoder, tokens: jax.Array) -> jax.Array:
    logs = jax.nn.log_softmax(model(tokens)[:, :-1])
    return -jnp.take_along_axis(logs, tokens[:, 1:, None], -1).mean()


@nnx.jit
def step(model: models.Decoder, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    value, grads = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, tokens)
    optimizer.update(model, grads)
    return value


def make_program():
    """The program for `sonde report`: a gradient of the loss, and its arguments."""
    model = adapted(models.load(models.path("smollm2")))
    tokens = jnp.asarray([model.tokenizer.encode(FACT)])
    return nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam)), (model, tokens)


if __name__ == "__main__":
    model = adapted(models.load(models.path("smollm2")))
    tokens = jnp.asarray([model.tokenizer.encode(FACT)])
    before = models.generate(model, ASKED, max_new_tokens=6).texts[0]
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.LoRAParam)
    losses = [float(step(model, optimizer, tokens)) for _ in range(15)]
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")
    print(f"before: {ASKED}{before}")
    print(f"after:  {ASKED}{models.generate(model, ASKED, max_new_tokens=6).texts[0]}")
