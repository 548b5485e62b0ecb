"""Four more models of PyTorch, ported to JAX, Equinox and Haiku.

The search was written before them. As in `library_ports`, a mistake is on lines that carry its name as a comment, and
`LACKING` has the operations of the original that a port leaves out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.port.library_ports import Port, Weights, only

# ---------------------------------------------------------------------------------------------------------------------
# A Mamba-like network to plain JAX
# ---------------------------------------------------------------------------------------------------------------------

MODEL, INNER, STATES, RANK, TAPS, STEPS = 8, 16, 4, 2, 4, 7


@functools.cache
def mamba() -> Any:
    """The original: a loop over time in every block."""
    import torch
    from torch.nn import functional as F

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(MODEL)
            self.in_proj = torch.nn.Linear(MODEL, 2 * INNER, bias=False)
            self.conv1d = torch.nn.Conv1d(INNER, INNER, TAPS, groups=INNER, padding=TAPS - 1)
            self.x_proj = torch.nn.Linear(INNER, RANK + 2 * STATES, bias=False)
            self.dt_proj = torch.nn.Linear(RANK, INNER)
            self.A_log = torch.nn.Parameter(torch.log(torch.arange(1, STATES + 1).float()).repeat(INNER, 1))
            self.D = torch.nn.Parameter(torch.ones(INNER) + 0.3 * torch.randn(INNER))
            self.out_proj = torch.nn.Linear(INNER, MODEL, bias=False)

        def forward(self, x: Any) -> Any:
            inner, gate = self.in_proj(self.norm(x)).chunk(2, -1)
            inner = F.silu(self.conv1d(inner.transpose(1, 2))[..., :STEPS].transpose(1, 2))
            step, into, out = self.x_proj(inner).split([RANK, STATES, STATES], -1)
            step = F.softplus(self.dt_proj(step))
            decay = torch.exp(step[..., None] * -torch.exp(self.A_log))
            state, outs = torch.zeros(x.shape[0], INNER, STATES), []
            for t in range(STEPS):
                state = decay[:, t] * state + (step[:, t] * inner[:, t])[..., None] * into[:, t, None]
                outs.append((state * out[:, t, None]).sum(-1))
            y = torch.stack(outs, 1) + self.D * inner
            return x + self.out_proj(y * F.silu(gate))

    class Mamba(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.layers, self.norm_f = torch.nn.ModuleList([Block(), Block()]), torch.nn.LayerNorm(MODEL)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.norm_f(x)

    return Mamba()


def mamba_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """With one scan over time, channels last."""

    def norm(x: Any, name: str) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        scale = lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-5)
        return centered * scale * w[name + "weight"] + w[name + "bias"]

    def net(x: Any) -> Any:
        for i in range(2):
            bad, at = wrong if i == 1 else "", f"layers.{i}."
            both = norm(x, at + "norm.") @ w[at + "in_proj.weight"].T
            inner, gate = jnp.split(both, 2, -1)[:: -1 if bad == "halves" else 1]  # halves
            ends = (1, 2) if bad == "centered" else (TAPS - 1, 0)
            taps = w[at + "conv1d.weight"].transpose(2, 1, 0)
            taps = taps[::-1] if bad == "flipped" else taps
            numbers = ("NWC", "WIO", "NWC")
            inner = lax.conv_general_dilated(  # centered # flipped # halves
                inner, taps, (1,), [ends], dimension_numbers=numbers, feature_group_count=INNER
            )
            inner = inner + w[at + "conv1d.bias"]
            inner = inner if bad == "no_silu" else jax.nn.silu(inner)  # no_silu
            parts = inner @ w[at + "x_proj.weight"].T  # no_silu
            step, into, out = parts[..., :RANK], parts[..., RANK : RANK + STATES], parts[..., RANK + STATES :]
            into, out = (out, into) if bad == "into_out" else (into, out)  # into_out
            bias = 0 if bad == "step_bias" else w[at + "dt_proj.bias"]
            step = step @ w[at + "dt_proj.weight"].T + bias  # step_bias
            step = jax.nn.relu(step) if bad == "relu_step" else jax.nn.softplus(step)  # relu_step # step_bias
            slope = w[at + "A_log"] if bad == "slope_sign" else -jnp.exp(w[at + "A_log"])  # slope_sign

            def tick(state: Any, row: Any, slope: Any = slope, bad: str = bad) -> Any:
                step, inner, into, out = row
                decay = jnp.exp(jnp.einsum("bi,is->bis", step, slope))  # slope_sign
                new = jnp.einsum("bi,bs->bis", inner if bad == "no_step" else step * inner, into)  # no_step # into_out
                before, state = state, decay * state + new  # no_step
                used = before if bad == "late" else state  # late
                return state, jnp.einsum("bis,bs->bi", used, out)  # late # into_out

            rows = tuple(part.swapaxes(0, 1) for part in (step, inner, into, out))
            y = lax.scan(tick, jnp.zeros((x.shape[0], INNER, STATES)), rows)[1].swapaxes(0, 1)  # late
            y = y if bad == "no_skip" else y + w[at + "D"] * inner
            y = y * (jax.nn.sigmoid(gate) if bad == "gate" else jax.nn.silu(gate))  # gate # no_skip # halves
            x = x + y @ w[at + "out_proj.weight"].T
        return norm(x, "norm_f.")

    return net


# ---------------------------------------------------------------------------------------------------------------------
# A translator of GRUs with attention to Haiku
# ---------------------------------------------------------------------------------------------------------------------

SOURCE, TARGET, GRU, WORDS = 6, 5, 8, 13


@functools.cache
def translator() -> Any:
    """The original: an encoder in both directions, attention, and a decoder that is fed the target."""
    import torch

    class Translator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.source = torch.nn.Embedding(WORDS, GRU)
            self.target = torch.nn.Embedding(WORDS, GRU)
            self.encoder = torch.nn.GRU(GRU, GRU, batch_first=True, bidirectional=True)
            self.bridge = torch.nn.Linear(2 * GRU, GRU)
            self.decoder = torch.nn.GRU(GRU, GRU, batch_first=True)
            self.query = torch.nn.Linear(GRU, 2 * GRU, bias=False)
            self.mix = torch.nn.Linear(3 * GRU, GRU)
            self.norm = torch.nn.LayerNorm(GRU)
            self.out = torch.nn.Linear(GRU, WORDS)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(0.5 * torch.randn_like(parameter))

        def forward(self, source: Any, target: Any) -> Any:
            source, target = source.long(), target.long()
            read, ends = self.encoder(self.source(source))
            start = torch.tanh(self.bridge(torch.cat([ends[0], ends[1]], -1)))
            states, _ = self.decoder(self.target(target), start[None])
            scores = self.query(states) @ read.transpose(1, 2) / (2 * GRU) ** 0.5
            scores = scores.masked_fill((source == 0)[:, None], float("-inf"))
            seen = torch.softmax(scores, -1) @ read
            mixed = torch.tanh(self.mix(torch.cat([seen, states], -1)))
            return torch.log_softmax(self.out(self.norm(mixed)), -1)

    return Translator()


def translator_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Haiku; the recurrences are scans over one step."""
    import haiku as hk

    def gru(rows: Any, start: Any, name: str, end: str, bad: str = "") -> Any:
        into, of = w[f"{name}.weight_ih_{end}"].T, w[f"{name}.weight_hh_{end}"].T
        into_bias, of_bias = w[f"{name}.bias_ih_{end}"], w[f"{name}.bias_hh_{end}"]

        def step(h: Any, x: Any) -> Any:
            r, z, n = jnp.split(x @ into + into_bias, 3, -1)
            if bad == "bias_outside":
                rh, zh, nh = jnp.split(h @ of, 3, -1)  # bias_outside
                br, bz, bn = jnp.split(of_bias, 3)
                r, z = jax.nn.sigmoid(r + rh + br), jax.nn.sigmoid(z + zh + bz)  # bias_outside
                n = jnp.tanh(n + r * nh + bn)  # bias_outside
            else:
                rh, zh, nh = jnp.split(h @ of + of_bias, 3, -1)
                r, z = jax.nn.sigmoid(r + rh), jax.nn.sigmoid(z + zh)
                n = jnp.tanh(n + r * nh)
            h = z * n + (1 - z) * h if bad == "update" else (1 - z) * n + z * h  # update
            return h, h

        return lax.scan(step, start, rows.swapaxes(0, 1))  # start

    def net(source: Any, target: Any) -> Any:
        table = functools.partial(hk.get_parameter, shape=(WORDS, GRU), init=jnp.zeros)
        words = table("source")[source]
        zeros = jnp.zeros((len(source), GRU))
        forth, read = gru(words, zeros, "encoder", "l0")
        back, again = gru(words[:, ::-1], zeros, "encoder", "l0_reverse")  # not_turned
        again = again if wrong == "not_turned" else again[::-1]
        read = jnp.concatenate([read, again], -1).swapaxes(0, 1)  # not_turned
        ends = [again[-1] if wrong == "wrong_end" else back, forth]
        ends = ends if wrong == "ends" else ends[::-1]
        start = hk.Linear(GRU, name="bridge")(jnp.concatenate(ends, -1))  # ends # wrong_end
        start = zeros if wrong == "start" else jnp.tanh(start)  # start
        fed = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1] if wrong == "shifted" else target  # shifted
        bad = wrong if wrong in ("bias_outside", "update") else ""
        states = gru(table("target")[fed], start, "decoder", "l0", bad)[1].swapaxes(0, 1)  # start # shifted
        query = hk.Linear(2 * GRU, with_bias=False, name="query")(states)
        scores = jnp.einsum("btd,bsd->bts", query, read)
        scores = scores / np.sqrt(GRU if wrong == "scale" else 2 * GRU)  # scale
        if wrong != "no_mask":
            scores = jnp.where((source == 0)[:, None], -1e9, scores)  # no_mask
        seen = jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), read)  # no_mask
        parts = [states, seen] if wrong == "concatenation" else [seen, states]
        mixed = jnp.tanh(hk.Linear(GRU, name="mix")(jnp.concatenate(parts, -1)))  # concatenation
        mixed = hk.LayerNorm(-1, True, True, eps=1e-2 if wrong == "eps" else 1e-5, name="norm")(mixed)  # eps
        return jax.nn.log_softmax(hk.Linear(WORDS, name="out")(mixed), 0 if wrong == "log_axis" else -1)  # log_axis

    params: dict[str, Any] = {
        "~": {name: w[f"{name}.weight"] for name in ("source", "target")},
        "norm": {"scale": w["norm.weight"], "offset": w["norm.bias"]},
        "query": {"w": w["query.weight"].T},
    }
    params |= {name: {"w": w[f"{name}.weight"].T, "b": w[f"{name}.bias"]} for name in ("bridge", "mix", "out")}
    apply = hk.without_apply_rng(hk.transform(net)).apply
    return lambda source, target: apply(params, source, target)


# ---------------------------------------------------------------------------------------------------------------------
# Whisper to Equinox
# ---------------------------------------------------------------------------------------------------------------------

SOUND, WHISPER, WHISPER_HEADS, FRAMES, HEARD = 5, 16, 4, 12, 4


@functools.cache
def whisper() -> Any:
    """The original: an encoder of sound and a decoder with attention to it."""
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=17, num_mel_bins=SOUND, d_model=WHISPER, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=WHISPER_HEADS, decoder_attention_heads=WHISPER_HEADS, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_source_positions=FRAMES // 2, max_target_positions=8, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    made = only(transformers.WhisperModel(config), lambda out: out.last_hidden_state)
    forward = made.model.forward
    made.model.forward = lambda sound, ids: forward(sound, decoder_input_ids=ids)
    return made


def whisper_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Equinox, for one sound, mapped over several."""
    import equinox as eqx

    key = jax.random.key(0)
    size = WHISPER // WHISPER_HEADS

    def filled(layer: Any, name: str) -> Any:
        layer = eqx.tree_at(lambda x: x.weight, layer, w[f"model.{name}.weight"])
        if layer.bias is None:
            return layer
        return eqx.tree_at(lambda x: x.bias, layer, w[f"model.{name}.bias"].reshape(layer.bias.shape))

    def linear(name: str, bias: bool = True) -> Any:
        weight = w[f"model.{name}.weight"]
        return filled(eqx.nn.Linear(weight.shape[1], weight.shape[0], bias, key=key), name)

    def norm(name: str) -> Any:
        return filled(eqx.nn.LayerNorm(WHISPER), name)

    def conv(name: str, channels: int, stride: int) -> Any:
        return filled(eqx.nn.Conv1d(channels, WHISPER, 3, stride, padding=1, key=key), name)

    class Attention(eqx.Module):
        q: Any
        k: Any
        v: Any
        o: Any
        bad: str = eqx.field(static=True)

        def __init__(self, name: str, bad: str = "") -> None:
            self.bad = bad
            self.q, self.v, self.o = (linear(f"{name}.{part}_proj") for part in ("q", "v", "out"))
            self.k = linear(f"{name}.k_proj", bias=False)

        def __call__(self, x: Any, other: Any, causal: bool = False) -> Any:
            def heads(x: Any) -> Any:
                return x.reshape(len(x), WHISPER_HEADS, size)

            q = heads(jax.vmap(self.q)(x))  # query_input
            k = heads(jax.vmap(self.k)(other))  # cross_input
            less = self.v.bias if self.bad == "value_bias" else 0
            v = heads(jax.vmap(self.v)(other) - less)  # cross_input # value_bias
            scores = jnp.einsum("qhd,khd->hqk", q, k) / size**0.5
            if causal:
                scores = jnp.where(jnp.tri(len(x), k=int(self.bad == "mask"), dtype=bool), scores, -jnp.inf)  # mask
            scores = jax.nn.softmax(scores)  # mask # causal
            return jax.vmap(self.o)(jnp.einsum("hqk,khd->qhd", scores, v).reshape(len(x), WHISPER))

    def mlp(name: str, x: Any, tanh: bool = False) -> Any:
        return jax.vmap(linear(name + "fc2"))(jax.nn.gelu(jax.vmap(linear(name + "fc1"))(x), approximate=tanh))  # gelu

    def encoder(sound: Any) -> Any:
        x = jax.nn.gelu(conv("encoder.conv1", SOUND, 1)(sound), approximate=False)
        x = conv("encoder.conv2", WHISPER, 2)(x)
        x = x if wrong == "second_gelu" else jax.nn.gelu(x, approximate=False)
        x = x.T  # second_gelu
        x = x if wrong == "sound_positions" else x + w["model.encoder.embed_positions.weight"]  # second_gelu
        at = "encoder.layers.0."
        h = jax.vmap(norm(at + "self_attn_layer_norm"))(x)  # sound_positions
        x = x + Attention(at + "self_attn")(h, h)
        x = x + mlp(at, jax.vmap(norm(at + "final_layer_norm"))(x), wrong == "gelu")  # gelu
        return x if wrong == "encoder_norm" else jax.vmap(norm("encoder.layer_norm"))(x)

    def net(sound: Any, ids: Any) -> Any:
        heard = encoder(sound)
        positions = w["model.decoder.embed_positions.weight"]
        start = 2 if wrong == "offset" else 0
        x = w["model.decoder.embed_tokens.weight"][ids] + positions[start : start + len(ids)]  # offset
        for i in range(2):
            bad, at = wrong if i == 1 else "", f"decoder.layers.{i}."
            h = jax.vmap(norm(at + "self_attn_layer_norm"))(x)
            x = x + Attention(at + "self_attn", bad)(h, h, causal=bad != "causal")  # causal
            h = jax.vmap(norm(at + "encoder_attn_layer_norm"))(x)
            cross = Attention(at + ("self_attn" if bad == "wrong_weights" else "encoder_attn"))  # wrong_weights
            other = h if bad == "cross_input" else heard  # encoder_norm
            asking = x if bad == "query_input" else h
            x = x + cross(asking, other)  # query_input # cross_input # wrong_weights # encoder_norm
            x = x + mlp(at, jax.vmap(norm(at + "final_layer_norm"))(x))
        return jax.vmap(norm("decoder.layer_norm"))(x)

    return jax.vmap(net)


# ---------------------------------------------------------------------------------------------------------------------
# A U-Net to Equinox
# ---------------------------------------------------------------------------------------------------------------------

NARROW, WIDE, UNET_GROUPS, TIMES = 8, 16, 4, 6


@functools.cache
def unet() -> Any:
    """The original: a noisy image and the time of its noise."""
    import torch
    from torch.nn import functional as F

    class Residual(torch.nn.Module):
        def __init__(self, into: int, out: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.GroupNorm(UNET_GROUPS, into), torch.nn.GroupNorm(UNET_GROUPS, out)
            self.conv1 = torch.nn.Conv2d(into, out, 3, padding=1)
            self.conv2 = torch.nn.Conv2d(out, out, 3, padding=1)
            self.time = torch.nn.Linear(TIMES, 2 * out)
            self.short = torch.nn.Conv2d(into, out, 1) if into != out else torch.nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            h = self.conv1(F.silu(self.norm1(x)))
            scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
            h = self.norm2(h) * (1 + scale) + shift
            return self.short(x) + self.conv2(F.silu(h))

    class UNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.time = torch.nn.Linear(TIMES, TIMES)
            self.stem = torch.nn.Conv2d(3, NARROW, 3, padding=1)
            self.down1, self.shrink = Residual(NARROW, NARROW), torch.nn.Conv2d(NARROW, WIDE, 3, 2, 1)
            self.middle = Residual(WIDE, WIDE)
            self.grow = torch.nn.ConvTranspose2d(WIDE, NARROW, 4, 2, 1)
            self.up1 = Residual(2 * NARROW, NARROW)
            self.norm, self.out = torch.nn.GroupNorm(UNET_GROUPS, NARROW), torch.nn.Conv2d(NARROW, 3, 3, padding=1)
            with torch.no_grad():
                for parameter in self.parameters():
                    if parameter.ndim == 1:
                        parameter += 0.3 * torch.randn_like(parameter)

        def forward(self, image: Any, time: Any) -> Any:
            angle = time[:, None] * torch.exp(-torch.arange(TIMES // 2) * np.log(100.0) / (TIMES // 2))
            time = self.time(torch.cat([angle.sin(), angle.cos()], -1))
            narrow = self.down1(self.stem(image), time)
            wide = self.middle(self.shrink(narrow), time)
            x = self.up1(torch.cat([self.grow(wide), narrow], 1), time)
            x = self.out(F.silu(self.norm(x)))
            return x + F.avg_pool2d(image, 3, 1, 1, count_include_pad=False)

    return UNet()


def unet_port(w: Weights, wrong: str) -> Callable[..., Any]:
    """In Equinox, for one image, mapped over several."""
    import equinox as eqx

    key = jax.random.key(0)

    def filled(layer: Any, name: str) -> Any:
        bias = w[name + ".bias"].reshape(layer.bias.shape)
        return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (w[name + ".weight"], bias))

    def linear(name: str) -> Any:
        out, into = w[name + ".weight"].shape
        return filled(eqx.nn.Linear(into, out, key=key), name)

    def conv(name: str, stride: int = 1, padding: Any = None) -> Any:
        out, into, size, _ = w[name + ".weight"].shape
        padding = size // 2 if padding is None else padding
        return filled(eqx.nn.Conv2d(into, out, size, stride, padding, key=key), name)

    def norm(name: str, eps: float = 1e-5, groups: int = UNET_GROUPS) -> Any:
        return filled(eqx.nn.GroupNorm(groups, len(w[name + ".weight"]), eps=eps), name)

    class Residual(eqx.Module):
        name: str = eqx.field(static=True)
        bad: str = eqx.field(static=True)

        def __call__(self, x: Any, time: Any) -> Any:
            name, bad = self.name, self.bad
            first = norm(name + ".norm1", 1e-3 if bad == "eps" else 1e-5, 2 if bad == "groups" else UNET_GROUPS)
            h = first(x)  # eps # groups
            h = conv(name + ".conv1")(jax.nn.relu(h) if bad == "relu" else jax.nn.silu(h))  # relu
            both = linear(name + ".time")(time if bad == "time_silu" else jax.nn.silu(time))  # time_silu
            shift, scale = jnp.split(both[:, None, None], 2)  # scale_shift
            scale, shift = (shift, scale) if bad != "scale_shift" else (scale, shift)  # scale_shift
            h = norm(name + ".norm2")(h)
            h = h * (scale if bad == "no_one" else 1 + scale) + shift  # no_one # scale_shift
            short = conv(name + ".short")(x) if name + ".short.weight" in w else x
            return short + conv(name + ".conv2")(jax.nn.silu(h))

    def upsampled(x: Any) -> Any:
        weight = w["grow.weight"]
        kernel = weight if wrong == "unflipped" else weight[:, :, ::-1, ::-1]
        numbers = ("NCHW", "IOHW", "NCHW")
        grown = lax.conv_general_dilated(  # unflipped
            x[None], kernel, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2), dimension_numbers=numbers
        )
        return grown[0] + w["grow.bias"][:, None, None]

    def net(image: Any, time: Any) -> Any:
        angle = time * 100.0 ** -(jnp.arange(TIMES // 2) / (TIMES // 2))
        waves = [jnp.cos(angle), jnp.sin(angle)] if wrong == "cos_sin" else [jnp.sin(angle), jnp.cos(angle)]
        time = linear("time")(jnp.concatenate(waves))  # cos_sin
        narrow = Residual("down1", wrong)(conv("stem")(image), time)
        if wrong == "shrink":
            wide = conv("shrink", 2, ((0, 1), (0, 1)))(narrow)  # shrink
        else:
            wide = conv("shrink", 2)(narrow)
        wide = Residual("middle", "")(wide, time)
        parts = [narrow, upsampled(wide)] if wrong == "skip_order" else [upsampled(wide), narrow]
        x = Residual("up1", "")(jnp.concatenate(parts), time)  # skip_order
        x = conv("out")(jax.nn.silu(norm("norm")(x)))
        pool = functools.partial(lax.reduce_window, init_value=0.0, computation=lax.add)
        pool = functools.partial(pool, window_dimensions=(1, 3, 3), window_strides=(1, 1, 1))
        sums = pool(image, padding=((0, 0), (1, 1), (1, 1)))
        counts = 9.0 if wrong == "pool_count" else pool(jnp.ones_like(image), padding=((0, 0), (1, 1), (1, 1)))
        return x + sums / counts  # pool_count

    return jax.vmap(net)


_RNG = np.random.default_rng(7)
_ROWS = _RNG.normal(size=(2, STEPS, MODEL)).astype(np.float32)
_FROM = np.array([[3, 7, 1, 9, 4, 2], [5, 5, 12, 8, 0, 0]], np.int32)
_TO = _RNG.integers(1, WORDS, (2, TARGET)).astype(np.int32)
_SOUND = _RNG.normal(size=(2, SOUND, FRAMES)).astype(np.float32)
_IDS = _RNG.integers(3, 17, (2, HEARD)).astype(np.int32)
_NOISY = _RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)
_TIME = np.array([0.7, 2.3], np.float32)

PORTS = {
    "mamba in jax": Port(
        mamba,
        mamba_port,
        [_ROWS],
        "halves centered flipped no_silu into_out step_bias relu_step slope_sign no_step late no_skip gate",
    ),
    "translator in haiku": Port(
        translator,
        translator_port,
        [_FROM, _TO],
        "bias_outside update not_turned wrong_end ends start shifted scale no_mask concatenation eps log_axis",
    ),
    "whisper in equinox": Port(
        whisper,
        whisper_port,
        [_SOUND, _IDS],
        "query_input value_bias cross_input mask gelu second_gelu sound_positions encoder_norm offset causal "
        "wrong_weights",
    ),
    "unet in equinox": Port(
        unet,
        unet_port,
        [_NOISY, _TIME],
        "eps groups relu time_silu scale_shift no_one unflipped cos_sin shrink skip_order pool_count",
    ),
}

LACKING = {
    "no_silu": r"silu.*layers/1.*",
    "step_bias": r"(addmm|add)\(.*layers/1/dt_proj.*",
    "no_skip": r"(mul|add)\(.*layers/1.*",
    "second_gelu": r"gelu.*encoder.*",
    "sound_positions": r"add\(.*encoder.*",
    "encoder_norm": r"native_layer_norm.*encoder/layer_norm.*",
    "no_mask": r"masked_fill.*",
    "time_silu": r"silu.*down1.*",
    "pool_count": r"avg_pool2d.*",
    "no_one": r"add\(.*down1.*",
    "causal": r"(add|where|masked_fill)\(.*decoder/layers/1/self_attn.*",
    "start": r"tanh.*",
    "scale": r"div.*",
    "value_bias": r"(addmm|add)\(.*decoder/layers/1/self_attn/v_proj.*",
}
