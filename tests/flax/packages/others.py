"""Prints numbers of small programs with packages written on Flax: run it with `sonde check-move`.

A package that is not installed is a line that says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def total(tree: Any) -> float:
    """The sum of the sizes of all floats in a tree."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    return float(sum(np.abs(x.astype(np.float64)).sum() for x in arrays))


X = jnp.sin(jnp.arange(24.0)).reshape(6, 4)


def numpyro_linen() -> list[float]:
    import numpyro
    from numpyro.contrib.module import flax_module, random_flax_module

    from flax import linen as nn

    def model(x: Any, y: Any) -> None:
        net = flax_module("net", nn.Dense(1), input_shape=(4,))
        noisy = random_flax_module("noisy", nn.Dense(1), numpyro.distributions.Normal(0, 1), input_shape=(4,))
        numpyro.sample("y", numpyro.distributions.Normal(net(x)[:, 0] + noisy(x)[:, 0], 1.0), obs=y)

    return _inference(model)


def numpyro_nnx() -> list[float]:
    import numpyro
    from numpyro.contrib.module import nnx_module, random_nnx_module

    from flax import nnx

    def model(x: Any, y: Any) -> None:
        net = nnx_module("net", nnx.Linear(4, 1, rngs=nnx.Rngs(0)))
        prior = numpyro.distributions.Normal(0, 1)
        noisy = random_nnx_module("noisy", nnx.Linear(4, 1, rngs=nnx.Rngs(1)), prior)
        numpyro.sample("y", numpyro.distributions.Normal(net(x)[:, 0] + noisy(x)[:, 0], 1.0), obs=y)

    return _inference(model)


def _inference(model: Callable[..., None]) -> list[float]:
    import numpyro

    guide = numpyro.infer.autoguide.AutoNormal(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO())
    result = svi.run(jax.random.key(0), 5, X, X.sum(-1), progress_bar=False)
    return [total(result.losses), total(result.params)]


def ott_potentials() -> list[float]:
    from ott.neural.networks import icnn, potentials

    sizes: list[float] = []
    for model in (icnn.ICNN(dim_data=4, dim_hidden=[8, 8]), potentials.PotentialMLP(dim_hidden=[8, 8])):
        state = model.create_train_state(jax.random.key(0), optax.adam(0.1), 4)
        value = state.potential_value_fn(state.params)
        sizes += [total(state.params), total(jax.vmap(value)(X)), total(jax.vmap(jax.grad(value))(X))]
    return sizes


def brax_networks() -> list[float]:
    from brax.training.agents.ppo import networks as ppo
    from brax.training.agents.sac import networks as sac

    sizes: list[float] = []
    for networks in (ppo.make_ppo_networks(4, 2), sac.make_sac_networks(4, 2)):
        params = networks.policy_network.init(jax.random.key(0))
        value = lambda p, apply=networks.policy_network.apply: (apply(None, p, X) ** 2).sum()
        sizes += [total(params), total(value(params)), total(jax.grad(value)(params))]
    return sizes


def jraph_network() -> list[float]:
    import jraph

    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, graph: Any) -> Any:
            update = jraph.concatenated_args(lambda x: nn.relu(nn.Dense(8)(x)))
            return jraph.GraphNetwork(update_node_fn=update, update_edge_fn=update, update_global_fn=update)(graph)

    ring = jnp.arange(6)
    graph = jraph.GraphsTuple(
        X, X * 2, senders=ring, receivers=(ring + 1) % 6, globals=X[:1], n_node=jnp.array([6]), n_edge=jnp.array([6])
    )
    net = Net()
    params = net.init(jax.random.key(0), graph)
    loss = lambda params: (net.apply(params, graph).nodes ** 2).sum()
    return [total(params), total(loss(params)), total(jax.grad(loss)(params))]


def qwix_quantized() -> list[float]:
    import qwix

    from flax import linen as nn
    from flax import nnx

    rules = [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8, act_qtype=jnp.int8)]

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4)(nn.relu(nn.Dense(8)(x)))

    linen = qwix.quantize_model(Net(), qwix.PtqProvider(rules))
    variables = linen.init(jax.random.key(0), X)
    model = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 4, rngs=nnx.Rngs(1)))
    quantized = qwix.quantize_model(model, qwix.PtqProvider(rules), X)
    qat = qwix.quantize_model(Net(), qwix.QtProvider(rules))
    trained = qat.init(jax.random.key(0), X)
    grads = jax.grad(lambda v: (qat.apply(v, X) ** 2).sum())(trained)
    return [total(variables), total(linen.apply(variables, X)), total(quantized(X)), total(grads)]


def qwix_trained() -> list[float]:
    import qwix

    from flax import nnx

    sizes: list[float] = []
    rules = [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8, act_qtype=jnp.int8)]
    lora = [qwix.LoraRule(module_path=".*", rank=2, alpha=1.0)]
    for provider in (qwix.QtProvider(rules), qwix.LoraProvider(lora)):
        model = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 4, rngs=nnx.Rngs(1)))
        wrapper = qwix.quantize_model if isinstance(provider, qwix.QtProvider) else qwix.apply_lora_to_model
        model = wrapper(model, provider, X, rngs=nnx.Rngs(2))
        wrt = nnx.LoRAParam if isinstance(provider, qwix.LoraProvider) else nnx.Param
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=wrt)

        @nnx.jit
        def step(model: Any, optimizer: Any, wrt: Any = wrt) -> Any:
            loss, grads = nnx.value_and_grad(lambda m: (m(X) ** 2).mean(), argnums=nnx.DiffState(0, wrt))(model)
            optimizer.update(model, grads)
            return loss

        sizes += [total(step(model, optimizer)) for _ in range(3)]
        sizes.append(total(nnx.state(model, wrt)))
    return sizes


def tunix_trainer() -> list[float]:
    import qwix
    from tunix.models.qwen2 import model as qwen
    from tunix.sft import peft_trainer, utils

    from flax import nnx

    config = qwen.ModelConfig(
        num_layers=2, vocab_size=32, embed_dim=16, hidden_dim=32, num_heads=4, head_dim=4, num_kv_heads=2,
        rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True,
    )  # fmt: skip
    tokens = jnp.arange(12).reshape(2, 6) % 32
    positions = jnp.broadcast_to(jnp.arange(6), (2, 6))
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((6, 6), bool)), (2, 6, 6))
    sizes: list[float] = []
    for with_lora in (False, True):
        model: Any = qwen.Qwen2(config, rngs=nnx.Rngs(0))
        if with_lora:
            provider = qwix.LoraProvider(module_path=".*q_proj|.*gate_proj", rank=2, alpha=2.0)
            inputs = model.get_model_input()
            model = qwix.apply_lora_to_model(model, provider, **inputs, rngs=nnx.Rngs(1))
        sizes.append(total(model(tokens, positions, None, causal)[0]))
        trainer = peft_trainer.PeftTrainer(
            model, optax.adamw(0.01), peft_trainer.TrainingConfig(eval_every_n_steps=10, max_steps=3)
        ).with_gen_model_input_fn(
            lambda x: {
                "input_tokens": x.input_tokens,
                "input_mask": x.input_mask,
                "positions": utils.build_positions_from_mask(x.input_mask),
                "attention_mask": utils.make_causal_attn_mask(x.input_mask),
            }
        )
        batch = peft_trainer.TrainingInput(input_tokens=tokens, input_mask=jnp.ones((2, 6), bool))
        trainer.train([batch] * 3)
        sizes += [total(model(tokens, positions, None, causal)[0]), total(nnx.state(model))]
    return sizes


def netket_states() -> list[float]:
    import netket as nk

    from flax import nnx

    class Jastrow(nnx.Module):
        def __init__(self, rngs: Any):
            self.hidden = nnx.Linear(6, 8, rngs=rngs)
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(nnx.gelu(self.hidden(x)))[..., 0]

    space = nk.hilbert.Spin(0.5, 6)
    energy = nk.operator.IsingJax(space, nk.graph.Chain(6), h=1.0)
    sizes: list[float] = []
    for model in (
        nk.models.RBM(alpha=1),
        nk.models.Jastrow(),
        nk.models.ARNNDense(space, layers=2, features=4),
        Jastrow(nnx.Rngs(0)),
    ):
        is_autoregressive = isinstance(model, nk.models.ARNNDense)
        sampler = (
            nk.sampler.ARDirectSampler(space) if is_autoregressive else nk.sampler.MetropolisLocal(space, n_chains=4)
        )
        state = nk.vqs.MCState(sampler, model, n_samples=32, seed=1, sampler_seed=2)
        driver = nk.driver.VMC(energy, nk.optimizer.Sgd(0.05), variational_state=state)
        driver.run(2, out=nk.logging.RuntimeLog(), show_progress=False)
        sizes += [total(state.parameters), total(jnp.asarray(state.expect(energy).mean).real)]
    return sizes


def diffusers_unet() -> list[float]:
    from diffusers import FlaxUNet2DConditionModel

    model = FlaxUNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(32, 32),
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=8,
    )
    params = model.init_weights(jax.random.key(0))
    call = lambda params: model.apply({"params": params}, jnp.ones((1, 4, 8, 8)), 3, jnp.ones((1, 5, 8))).sample
    grads = jax.grad(lambda params: (call(params) ** 2).sum())(params)
    return [total(params), total(call(params)), total(grads)]


def diffusers_vae() -> list[float]:
    from diffusers import FlaxAutoencoderKL

    model = FlaxAutoencoderKL(block_out_channels=(32,), sample_size=8)
    params = model.init_weights(jax.random.key(0))
    image = jnp.linspace(-1, 1, 3 * 64).reshape(1, 3, 8, 8)
    call = lambda params: model.apply({"params": params}, image).sample
    return [total(params), total(call(params)), total(jax.grad(lambda params: (call(params) ** 2).sum())(params))]


PROGRAMS = [
    numpyro_linen,
    numpyro_nnx,
    ott_potentials,
    brax_networks,
    jraph_network,
    qwix_quantized,
    qwix_trained,
    tunix_trainer,
    netket_states,
    diffusers_unet,
    diffusers_vae,
]


def main(chosen: list[str]) -> None:
    """Prints a line for each program; an error is a line too, as both libraries must raise it."""
    for program in PROGRAMS:
        if chosen and program.__name__ not in chosen:
            continue
        try:
            line = " ".join(f"{number:.17g}" for number in program())
        except ModuleNotFoundError as error:
            line = f"not installed: {error.name}"
        except Exception as error:
            line = f"{type(error).__name__}: {str(error)[:300]!r}"
        print(program.__name__, line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
