"""Models of PyTorch, and ports of them to Flax, Equinox and Haiku with the mistakes that people make.

The search was not written for any of them. As in `planted`, a mistake is on lines that carry its name as a comment. For
one that leaves an operation out, `LACKING` says which operation of the original the port does not have.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde.port.parting import Parting

WIDTH, HEADS, LENGTH, TOKENS = 16, 4, 6, 19
SIZE = WIDTH // HEADS
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Port:
    """An original and its port.

    Attributes:
        original: Makes the module of PyTorch.
        port: Makes the port from its weights, with a mistake or `""`.
        given: What both are called with.
        mistakes: The names of the mistakes.
    """

    original: Callable[[], Any]
    port: Callable[[Weights, str], Callable[..., Any]]
    given: Sequence[np.ndarray]
    mistakes: str

    def weights(self) -> Weights:
        """The weights of the original."""
        return {name: jnp.asarray(x.detach().numpy()) for name, x in self.original().state_dict().items()}


def only(model: Any, pick: Callable[[Any], Any] = lambda out: out.last_hidden_state, **options: Any) -> Any:
    """A module of `transformers` with random norms and biases that returns one array."""
    import torch

    class Original(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Any) -> Any:
            return pick(self.model(*[x if x.is_floating_point() else x.long() for x in args], **options))

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:  # initialized by `transformers`, weights are so small that little of what they do is seen
                parameter.copy_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer += 0.3 * torch.rand_like(buffer)
    return Original().eval()


def heads_of(x: Any) -> Any:
    """Heads before positions."""
    return x.reshape(*x.shape[:-1], HEADS, SIZE).swapaxes(-3, -2)


def merged(x: Any) -> Any:
    """Heads after positions, in one axis."""
    return x.swapaxes(-3, -2).reshape(*x.shape[:-3], x.shape[-2], WIDTH)


# ---------------------------------------------------------------------------------------------------------------------
# GPT-2 to Flax Linen
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def gpt2() -> Any:
    """The original."""
    import transformers

    config = transformers.GPT2Config(vocab_size=TOKENS, n_positions=16, n_embd=WIDTH, n_layer=2, n_head=HEADS)
    return only(transformers.GPT2LMHeadModel(config), lambda out: out.logits)


def gpt2_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Linen, with its default epsilon unless one is given."""
    from flax import linen as nn

    def parameters(name: str, weight: str) -> dict[str, Any]:
        return {weight: w[f"model.transformer.{name}.weight"], "bias": w[f"model.transformer.{name}.bias"]}

    class Block(nn.Module):
        bad: str

        @nn.compact
        def __call__(self, x: Any) -> Any:
            bad = self.bad
            h = nn.LayerNorm(epsilon=1e-3 if bad == "eps" else 1e-5, name="ln_1")(x)  # eps
            q, k, v = jnp.split(nn.Dense(3 * WIDTH, name="c_attn")(h), 3, -1)
            k, v = (v, k) if bad == "keys_values" else (k, v)
            q, k, v = map(heads_of, (q, k, v))  # keys_values
            scores = q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH if bad == "scale" else SIZE)  # scale # keys_values
            mask = np.tri(LENGTH, k=1 if bad == "mask" else 0, dtype=bool)
            scores = jnp.where(mask, scores, -1e30)  # mask # scale
            weights = jax.nn.softmax(scores, -2 if bad == "softmax" else -1)  # softmax # mask
            x = x + nn.Dense(WIDTH, name="c_proj", use_bias=bad != "bias")(merged(weights @ v))  # bias # keys_values
            h = nn.LayerNorm(epsilon=1e-5, name="ln_2")(h if bad == "wrong_input" else x)  # wrong_input
            h = nn.Dense(4 * WIDTH, name="c_fc")(h)
            h = nn.gelu(h, approximate=bad != "gelu")  # gelu
            h = nn.Dense(WIDTH, name="c_out")(h)
            return h if bad == "residual" else x + h  # residual

    class Gpt2(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            embed = nn.Embed(TOKENS, WIDTH, name="wte")
            positions = jnp.arange(LENGTH) + (wrong == "positions")
            x = embed(ids) + nn.Embed(16, WIDTH, name="wpe")(positions)  # positions
            for i in range(2):
                x = Block(wrong if i == 1 else "", name=f"h_{i}")(x)
            x = x if wrong == "final_norm" else nn.LayerNorm(epsilon=1e-5, name="ln_f")(x)
            return embed.attend(x)  # final_norm

    blocks = {}
    for i in range(2):
        block = {name: parameters(f"h.{i}.{name}", "scale") for name in ("ln_1", "ln_2")}
        names = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "c_out": "mlp.c_proj"}
        block |= {own: parameters(f"h.{i}.{name}", "kernel") for own, name in names.items()}
        blocks[f"h_{i}"] = block
    tables = {name: {"embedding": w[f"model.transformer.{name}.weight"]} for name in ("wte", "wpe")}
    variables = {"params": {**blocks, **tables, "ln_f": parameters("ln_f", "scale")}}
    return lambda ids: Gpt2().apply(variables, ids)


# ---------------------------------------------------------------------------------------------------------------------
# BERT to Haiku
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def bert() -> Any:
    """The original: it takes tokens and which of them are no padding."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    return only(transformers.BertModel(config), lambda out: out.pooler_output)


def bert_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Haiku."""
    import haiku as hk

    def net(ids: Any, keep: Any) -> Any:
        def linear(x: Any, own: str, size: int = WIDTH, bias: bool = True) -> Any:
            return hk.Linear(size, with_bias=bias, name=own)(x)

        def norm(x: Any, own: str, eps: float = 1e-12) -> Any:
            return hk.LayerNorm(-1, True, True, eps=eps, name=own)(x)

        table = functools.partial(hk.get_parameter, init=jnp.zeros)
        x = table("words", (TOKENS, WIDTH))[ids] + table("positions", (16, WIDTH))[:LENGTH]
        x = x if wrong == "types" else x + table("types", (2, WIDTH))[0]
        x = norm(x, "embed_norm")  # types
        for i in range(2):
            bad, at = wrong if i == 1 else "", f"l{i}_"
            q, k = (heads_of(linear(x, at + name)) for name in ("query", "key"))
            v = heads_of(linear(x, at + "value", bias=bad != "value_bias"))  # value_bias
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 if bad == "scale" else SIZE**-0.5)  # scale
            allowed = keep[:, ::-1] if bad == "padding_side" else keep
            masked = 0 if bad == "padding" else -1e30
            scores = scores + (1 - allowed[:, None, None]) * masked  # padding_side # padding
            a = merged(jax.nn.softmax(scores) @ v)  # padding # scale # padding_side
            a = linear(a, at + "out")
            x = norm(x + a, at + "norm1", 1e-3 if bad == "eps" else 1e-12)  # eps
            h = linear(x, at + "up", 4 * WIDTH)
            h = jax.nn.gelu(h, approximate=bad == "gelu") if bad != "relu" else jax.nn.relu(h)  # gelu # relu
            h = linear(h, at + "down")
            x = x + norm(h, at + "norm2") if bad == "norm_before_sum" else norm(x + h, at + "norm2")  # norm_before_sum
        first = x[:, -1] if wrong == "last_token" else x[:, 0]  # last_token
        return jnp.tanh(linear(first, "pool")) if wrong != "no_tanh" else linear(first, "pool")  # no_tanh # last_token

    def from_linear(name: str) -> dict[str, Any]:
        return {"w": w[f"model.{name}.weight"].T, "b": w[f"model.{name}.bias"]}

    def from_norm(name: str) -> dict[str, Any]:
        return {"scale": w[f"model.{name}.weight"], "offset": w[f"model.{name}.bias"]}

    e = "model.embeddings."
    params: dict[str, Any] = {
        "~": {
            "words": w[f"{e}word_embeddings.weight"],
            "positions": w[f"{e}position_embeddings.weight"],
            "types": w[f"{e}token_type_embeddings.weight"],
        },
        "embed_norm": from_norm("embeddings.LayerNorm"),
        "pool": from_linear("pooler.dense"),
    }
    for i in range(2):
        layer = f"encoder.layer.{i}"
        for own, name in (("query", "query"), ("key", "key"), ("value", "value")):
            params[f"l{i}_{own}"] = from_linear(f"{layer}.attention.self.{name}")
        params[f"l{i}_out"] = from_linear(f"{layer}.attention.output.dense")
        params[f"l{i}_norm1"] = from_norm(f"{layer}.attention.output.LayerNorm")
        params[f"l{i}_up"] = from_linear(f"{layer}.intermediate.dense")
        params[f"l{i}_down"] = from_linear(f"{layer}.output.dense")
        params[f"l{i}_norm2"] = from_norm(f"{layer}.output.LayerNorm")
    apply = hk.without_apply_rng(hk.transform(net)).apply
    return lambda ids, keep: apply(params, ids, keep)


# ---------------------------------------------------------------------------------------------------------------------
# ViT to Equinox
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def vit() -> Any:
    """The original."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        image_size=8,
        patch_size=4,
    )
    return only(transformers.ViTModel(config, add_pooling_layer=False), lambda out: out.last_hidden_state[:, 0])


def vit_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Equinox, for one image, mapped over several."""
    import equinox as eqx

    key = jax.random.key(0)

    def linear(name: str) -> Any:
        weight, bias = w[f"model.{name}.weight"], w[f"model.{name}.bias"]
        layer = eqx.nn.Linear(weight.shape[1], weight.shape[0], key=key)
        return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, bias))

    def norm(name: str, eps: float = 1e-12) -> Any:
        layer = eqx.nn.LayerNorm(WIDTH, eps=eps)
        return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (w[f"model.{name}.weight"], w[f"model.{name}.bias"]))

    class Block(eqx.Module):
        norm1: Any
        norm2: Any
        q: Any
        k: Any
        v: Any
        o: Any
        up: Any
        down: Any
        bad: str = eqx.field(static=True)

        def __init__(self, i: int) -> None:
            at = f"encoder.layer.{i}."
            self.bad = wrong if i == 1 else ""
            self.norm1 = norm(at + "layernorm_before", 1e-3 if self.bad == "eps" else 1e-12)
            self.norm2 = norm(at + ("layernorm_before" if self.bad == "norms" else "layernorm_after"))
            names = ("query", "key", "value")
            self.q, self.k, self.v = (linear(f"{at}attention.attention.{name}") for name in names)
            self.o = linear(at + "attention.output.dense")
            self.up, self.down = linear(at + "intermediate.dense"), linear(at + "output.dense")

        def __call__(self, x: Any) -> Any:
            h = jax.vmap(self.norm1)(x)  # eps
            q, k, v = (jax.vmap(layer)(h) for layer in (self.q, self.k, self.v))
            if self.bad == "heads":
                q = q.reshape(len(x), SIZE, HEADS).transpose(2, 0, 1)  # heads
            else:
                q = heads_of(q)
            k, v = heads_of(k), heads_of(v)
            scores = jnp.einsum("hqd,hkd->hqk", q, k) / SIZE**0.5  # heads
            if self.bad == "causal":
                scores = jnp.where(jnp.tri(len(x)) > 0, scores, -jnp.inf)  # causal
            a = merged(jax.nn.softmax(scores) @ v)  # causal
            out = a @ self.o.weight + self.o.bias if self.bad == "transposed" else jax.vmap(self.o)(a)  # transposed
            x = x + out
            h = jax.vmap(self.norm2)(x)  # norms
            h = jax.nn.gelu(jax.vmap(self.up)(h), approximate=self.bad == "gelu")  # gelu
            h = h if self.bad != "dropout" else h * jax.random.bernoulli(key, 0.9, h.shape) / 0.9  # dropout
            return x + jax.vmap(self.down)(h)  # dropout

    class Vit(eqx.Module):
        patches: Any
        blocks: list[Any]
        norm: Any

        def __init__(self) -> None:
            conv = eqx.nn.Conv2d(3, WIDTH, 4, 4, key=key)
            name = "model.embeddings.patch_embeddings.projection."
            new = w[name + "weight"], w[name + "bias"][:, None, None]
            self.patches = eqx.tree_at(lambda x: (x.weight, x.bias), conv, new)
            self.blocks, self.norm = [Block(0), Block(1)], norm("layernorm")

        def __call__(self, image: Any) -> Any:
            patches = self.patches(image)
            x = patches.transpose(2, 1, 0) if wrong == "columns" else patches.transpose(1, 2, 0)  # columns
            x = jnp.concatenate([w["model.embeddings.cls_token"][0], x.reshape(-1, WIDTH)])  # columns
            positions = w["model.embeddings.position_embeddings"][0]
            x = x + (jnp.roll(positions, 1, 0) if wrong == "positions" else positions)  # positions # columns
            for block in self.blocks:
                x = block(x)
            return self.norm(x.mean(0) if wrong == "pooling" else x[0])  # pooling

    return jax.vmap(Vit())


# ---------------------------------------------------------------------------------------------------------------------
# ResNet to Flax NNX
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def resnet() -> Any:
    """The original: channels first."""
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", hidden_act="relu"
    )
    return only(transformers.ResNetModel(config), lambda out: out.pooler_output[..., 0, 0])


def resnet_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In NNX: channels last."""
    from flax import nnx

    def conv(name: str, stride: int, padding: Any) -> Any:
        kernel = w[f"{name}.convolution.weight"].transpose(2, 3, 1, 0)
        rngs = nnx.Rngs(0)
        layer = nnx.Conv(*kernel.shape[2:], kernel.shape[:2], stride, padding=padding, use_bias=False, rngs=rngs)
        layer.kernel[...] = kernel
        return layer

    def batch_norm(name: str, eps: float = 1e-5, running: bool = True) -> Any:
        at = f"{name}.normalization."
        layer = nnx.BatchNorm(len(w[at + "weight"]), use_running_average=running, epsilon=eps, rngs=nnx.Rngs(0))
        layer.scale[...], layer.bias[...] = w[at + "weight"], w[at + "bias"]
        layer.mean[...], layer.var[...] = w[at + "running_mean"], w[at + "running_var"]
        return layer

    def both(x: Any, name: str, stride: int = 1, padding: Any = 1, bad: str = "") -> Any:
        x = conv(name, stride, "SAME" if bad == "padding" else padding)(x)  # padding
        eps, running = (1e-2 if bad == "eps" else 1e-5), bad != "batch_statistics"
        return batch_norm(name, eps, running)(x)  # eps # batch_statistics

    def net(image: Any) -> Any:
        x = both(image.transpose(0, 2, 3, 1), "model.embedder.embedder", 2, 3)
        x = nnx.relu(x)
        if wrong == "pool":
            x = nnx.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))  # pool
        else:
            x = nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, depth in enumerate((1, 2)):
            for i in range(depth):
                at = f"model.encoder.stages.{stage}.layers.{i}."
                bad, stride = (wrong if (stage, i) == (1, 0) else ""), 2 if (stage, i) == (1, 0) else 1
                h = both(x, at + "layer.0", 2 if bad == "stride" else stride, 1, bad)
                h = h if bad == "relu" else nnx.relu(h)
                h = both(h, at + "layer.1")  # relu
                short = both(x, at + "shortcut", stride, 0) if stride == 2 else x
                if bad == "shortcut":
                    short = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, 8)))  # shortcut
                x = nnx.relu(h) + short if bad == "order" else nnx.relu(h + short)  # order # shortcut
        return x.max((1, 2)) if wrong == "head" else x.mean((1, 2))  # head

    return net


# ---------------------------------------------------------------------------------------------------------------------
# LSTM to Haiku
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def lstm() -> Any:
    """The original: two layers over time, and an output layer."""
    import torch

    class Lstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cells = torch.nn.ModuleList([torch.nn.LSTMCell(5, 8), torch.nn.LSTMCell(8, 8)])
            self.out = torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            for cell in self.cells:
                state, outs = None, []
                for row in x:
                    state = cell(row, state)
                    outs.append(state[0])
                x = torch.stack(outs)
            return self.out(x)

    return Lstm()


def lstm_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Haiku, as scans."""
    import haiku as hk

    def net(x: Any) -> Any:
        for i in range(2):
            bad = wrong if i == 1 else ""
            both = hk.Linear(32, name=f"cell_{i}")

            def step(state: Any, row: Any, both: Any = both, bad: str = bad) -> Any:
                h, c = state
                gates = both(jnp.concatenate([row, h], -1))  # state # state_bias
                if bad == "gate_order":
                    a, g, f, o = jnp.split(gates, 4, -1)  # gate_order
                else:
                    a, f, g, o = jnp.split(gates, 4, -1)
                f = jax.nn.sigmoid(f + 1.0 if bad == "forget_bias" else f)  # forget_bias # gate_order
                g = jax.nn.sigmoid(g) if bad == "sigmoid" else jnp.tanh(g)  # sigmoid # gate_order
                c = f * c + jax.nn.sigmoid(a) * g  # cell # gate_order # forget_bias
                h = jax.nn.sigmoid(o) * (c if bad == "cell" else jnp.tanh(c))  # cell
                return (h, c), (c if bad == "returned" else h)  # returned

            start = jnp.ones if bad == "state" else jnp.zeros
            rows = x[::-1] if bad == "reversed" else x  # reversed
            x = hk.scan(step, (start((2, 8)), start((2, 8))), rows)[1]  # state # reversed # returned
        return hk.Linear(3, name="out")(x)  # returned # reversed

    params: dict[str, Any] = {"out": {"w": w["out.weight"].T, "b": w["out.bias"]}}
    for i in range(2):
        at = f"cells.{i}."
        weight = jnp.concatenate([w[at + "weight_ih"], w[at + "weight_hh"]], 1).T
        bias = w[at + "bias_ih"] + (0 if i == 1 and wrong == "state_bias" else w[at + "bias_hh"])
        params[f"cell_{i}"] = {"w": weight, "b": bias}
    apply = hk.without_apply_rng(hk.transform(net)).apply
    return lambda x: apply(params, x)


# ---------------------------------------------------------------------------------------------------------------------
# T5's encoder to Flax Linen
# ---------------------------------------------------------------------------------------------------------------------


@functools.cache
def t5() -> Any:
    """The original."""
    import transformers

    config = transformers.T5Config(
        vocab_size=TOKENS, d_model=WIDTH, d_kv=SIZE, d_ff=32, num_layers=2, num_heads=HEADS,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return only(transformers.T5EncoderModel(config))


def t5_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In plain functions of Flax's kind: `params` go in."""
    from flax import linen as nn

    def buckets(apart: np.ndarray) -> np.ndarray:
        half = 8 if wrong == "one_sided" else 4
        above = 0 if wrong == "one_sided" else 4 * (apart > 0)
        size = np.maximum(-apart, 0) if wrong == "one_sided" else np.abs(apart)
        near = half // 2
        far = near + (np.log(np.maximum(size, 1) / near) / np.log(16 / near) * (half - near)).astype(int)
        return above + np.where(size < near, size, np.minimum(far, half - 1))

    def norm(x: Any, weight: Any, eps: float = 1e-6, bad: str = "") -> Any:
        x = x - x.mean(-1, keepdims=True) if bad == "layer_norm" else x  # layer_norm
        return weight * x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)  # eps # layer_norm

    def net(ids: Any) -> Any:
        x = w["model.shared.weight"][ids] * (WIDTH**0.5 if wrong == "embedding_scale" else 1)  # embedding_scale
        apart = np.arange(LENGTH) - np.arange(LENGTH)[:, None]
        table = w["model.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = table[buckets(apart.T if wrong == "bias_transposed" else apart)]  # bias_transposed # one_sided
        bias = bias.transpose(2, 0, 1)  # bias_transposed # one_sided
        for i in range(2):
            bad, at = wrong if i == 1 else "", f"model.encoder.block.{i}.layer."
            h = norm(x, w[at + "0.layer_norm.weight"], 1e-3 if bad == "eps" else 1e-6, bad)
            q, k, v = (heads_of(h @ w[f"{at}0.SelfAttention.{name}.weight"].T) for name in "qkv")
            scores = q @ k.swapaxes(-1, -2) / (SIZE**0.5 if bad == "scale" else 1)  # scale
            scores = scores if bad == "no_bias" else scores + bias  # bias_transposed # one_sided
            a = merged(nn.softmax(scores) @ v)  # no_bias
            x = x + a @ w[at + "0.SelfAttention.o.weight"].T
            h = norm(x, w[at + "1.layer_norm.weight"])
            gate, up = (h @ w[f"{at}1.DenseReluDense.wi_{n}.weight"].T for n in (0, 1))
            gate, up = (up, gate) if bad == "gates" else (gate, up)
            h = nn.gelu(gate, approximate=bad != "gelu") * up  # gelu # gates
            x = x + h @ w[at + "1.DenseReluDense.wo.weight"].T
        x = norm(x, 1 if wrong == "norm_weight" else w["model.encoder.final_layer_norm.weight"])
        return x  # norm_weight

    return net


_RNG = np.random.default_rng(0)
_IDS = _RNG.integers(0, TOKENS, (2, LENGTH)).astype(np.int32)
_KEEP = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]], np.int32)
_IMAGE = _RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)
_LARGER = _RNG.normal(size=(2, 3, 32, 32)).astype(np.float32)
_SERIES = _RNG.normal(size=(LENGTH, 2, 5)).astype(np.float32)

PORTS = {
    "gpt2 in linen": Port(
        gpt2,
        gpt2_port,
        [_IDS],
        "eps keys_values scale mask softmax bias wrong_input gelu residual positions final_norm",
    ),
    "bert in haiku": Port(
        bert,
        bert_port,
        [_IDS, _KEEP],
        "types value_bias scale padding_side padding eps gelu relu norm_before_sum last_token no_tanh",
    ),
    "vit in equinox": Port(
        vit, vit_port, [_IMAGE], "eps norms heads causal transposed gelu dropout columns positions pooling"
    ),
    "resnet in nnx": Port(resnet, resnet_port, [_LARGER], "padding eps batch_statistics pool relu shortcut order head"),
    "lstm in haiku": Port(
        lstm, lstm_port, [_SERIES], "gate_order forget_bias sigmoid cell returned state reversed state_bias"
    ),
    "t5 in linen": Port(
        t5,
        t5_port,
        [_IDS],
        "one_sided layer_norm eps embedding_scale bias_transposed scale no_bias gates gelu norm_weight",
    ),
}
# The operation of the original that a port lacks, with its module; or the operation of the port, with its line.
LACKING = {
    "final_norm": r"native_layer_norm.*ln_f.*",
    "types": r"(add|embedding).*embeddings.*",
    "bias": r"(addmm|add)\(.*attn/c_proj.*",
    "value_bias": r"(addmm|add)\(.*self/value.*",
    "no_tanh": r"tanh.*pooler.*",
    "relu": r"(relu|gelu).*(stages/1/layers/0|intermediate).*",
    "residual": r"add.*h/1.*",
    "no_bias": r"add.*block/1/layer/0.*",
    "norm_weight": r"mul.*final_layer_norm.*",
    "state_bias": r"(addmm|add)\(.*cells/1.*",
    "padding": r"(add|mul|where|masked_fill)\(.*layer/1/attention.*",
    "scale": r"(mul|div|scaled_dot\w*)\(.*1.*",
}


def is_found(port: Port, mistake: str, lacking: Mapping[str, str], parting: Parting | None) -> bool:
    """Whether the first operation of a parting, on either side, is that of a mistake."""
    if parting is None:
        return False
    file = inspect.getsourcefile(port.port)
    lines, start = inspect.getsourcelines(port.port)
    marked = {f"{file}:{i}" for i, line in enumerate(lines, start) if mistake in _marks(line)}
    for operation in parting.second[:1]:
        # A helper of the port, and where it is called.
        if not marked.isdisjoint((operation.source, *operation.callers[:2])):
            return True
    return mistake in lacking and any(re.search(lacking[mistake], str(operation)) for operation in parting.first[:1])


def _marks(line: str) -> list[str]:
    return line.partition("  # ")[2].strip().split(" # ")
