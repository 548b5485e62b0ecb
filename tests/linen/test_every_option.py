"""Every option of every Linen layer's constructor, at a value that is not the default, does what Flax does with it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.every_option import Outcome, attention, check_option, doubled, halved, options_of, value_of, weights
from tests.linen.against_flax import plain

from sonde import linen as sonde_nn

X = np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4).astype(np.float32)
LONG = np.linspace(-1.0, 1.0, 56).reshape(2, 7, 4).astype(np.float32)
TOKENS = np.array([[1, 4, 0]])
KEYS = {name: jax.random.key(i) for i, name in enumerate(("params", "dropout", "noise"))}


@dataclasses.dataclass(frozen=True)
class Made:
    """A module among the options, made from the library."""

    by: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Layer:
    """How a layer is made and called, and the options whose values depend on it.

    Attributes:
        passed: What its constructor is given.
        x: What it is called with.
        called: Further arguments of the call.
        steps: Whether it is a recurrent cell, which is called step by step.
        special: Values of options, each with what it needs.
    """

    passed: dict[str, Any]
    x: Any = dataclasses.field(default_factory=lambda: X)
    called: dict[str, Any] = dataclasses.field(default_factory=dict)
    steps: bool = False
    special: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


def cell(nn: Any) -> Any:
    return nn.GRUCell(3)


MASK = (np.arange(3 * 4 * 6) % 3 > 0).astype(np.float32)
LOCAL_MASK = (np.arange(7 * 12 * 6) % 3 > 0).astype(np.float32).reshape(7, 12, 6)
CARRIES = {
    "carry_init": {"carry_init": weights},
    "param_dtype": {"param_dtype": jnp.bfloat16, "recurrent_kernel_init": weights},
}
FEATURES = {"features": 3}
AXES = {
    "reduction_axes": {"reduction_axes": (1, 2)},
    "feature_axes": {"feature_axes": (1, 2), "reduction_axes": (1, 2)},
}
DROPPED = {"dropout_rate": 0.5, "deterministic": False}
ATTENTION = Layer(
    {"num_heads": 2},
    special={
        "out_features": {"out_features": 6},
        "decode": {"decode": True},
        "dropout_rate": DROPPED,
        "deterministic": {"deterministic": True, "dropout_rate": 0.5},
        "broadcast_dropout": {"broadcast_dropout": False, **DROPPED},
        "qk_attn_weights_einsum_cls": {
            "qk_attn_weights_einsum_cls": lambda: doubled(jnp.einsum),
            "attn_weights_value_einsum_cls": lambda: jnp.einsum,
        },
        "attn_weights_value_einsum_cls": {
            "attn_weights_value_einsum_cls": lambda: doubled(jnp.einsum),
            "qk_attn_weights_einsum_cls": lambda: jnp.einsum,
        },
        "attention_fn": {"attention_fn": attention},
    },
)
CONVOLUTION = {
    "feature_group_count": {"feature_group_count": 2},
    "mask": {"mask": MASK.reshape(3, 4, 6)},
    "input_dilation": {"input_dilation": 2, "padding": 1},
}
LAYERS = {
    "Dense": Layer(FEATURES),
    "DenseGeneral": Layer({"features": (2, 3)}, special={"axis": {"axis": 1}, "batch_dims": {"batch_dims": (0,)}}),
    "Einsum": Layer(
        {"shape": (4, 3), "einsum_str": "btd,dk->btk"}, special={"einsum_str": {"einsum_str": "btd,dk->bkt"}}
    ),
    "Embed": Layer({"num_embeddings": 5, "features": 3}, TOKENS),
    "Conv": Layer({"features": 6, "kernel_size": (3,)}, LONG, special=CONVOLUTION),
    "ConvLocal": Layer(
        {"features": 6, "kernel_size": (3,)}, LONG, special={**CONVOLUTION, "mask": {"mask": LOCAL_MASK}}
    ),
    "ConvTranspose": Layer(
        {"features": 6, "kernel_size": (3,)}, LONG, special={"mask": {"mask": MASK.reshape(3, 4, 6)}}
    ),
    "BatchNorm": Layer(
        {"use_running_average": False},
        special={"use_running_average": {"use_running_average": True}, "axis": {"axis": 1}},
    ),
    "LayerNorm": Layer({}, special=AXES),
    "RMSNorm": Layer({}, special=AXES),
    "GroupNorm": Layer(
        {"num_groups": 2},
        special={
            "num_groups": {"num_groups": 4},
            "group_size": {"num_groups": None, "group_size": 1},
            "reduction_axes": {"reduction_axes": (2,)},
        },
    ),
    "InstanceNorm": Layer({}, special={"feature_axes": {"feature_axes": 1}}),
    "SpectralNorm": Layer(
        {"layer_instance": Made(lambda nn: nn.Dense(3))},
        called={"update_stats": True},
        special={
            "error_on_non_matrix": {
                "error_on_non_matrix": True,
                "layer_instance": Made(lambda nn: nn.Conv(3, (3,))),
            },
            "collection_name": {"collection_name": "norms"},
        },
    ),
    "WeightNorm": Layer(
        {"layer_instance": Made(lambda nn: nn.Dense(3))},
        special={"feature_axes": {"feature_axes": None}, "variable_filter": {"variable_filter": {"bias"}}},
    ),
    "Dropout": Layer(
        {"rate": 0.5, "deterministic": False},
        special={
            "broadcast_dims": {"broadcast_dims": (1,)},
            "rate": {"rate": 0.3},
            "deterministic": {"deterministic": True},
        },
    ),
    "MultiHeadAttention": ATTENTION,
    "MultiHeadDotProductAttention": ATTENTION,
    "SelfAttention": ATTENTION,
    "LSTMCell": Layer(FEATURES, steps=True, special=CARRIES),
    "OptimizedLSTMCell": Layer(FEATURES, steps=True, special=CARRIES),
    "GRUCell": Layer(FEATURES, steps=True, special=CARRIES),
    "MGUCell": Layer(FEATURES, steps=True, special=CARRIES),
    "SimpleCell": Layer(FEATURES, steps=True, special=CARRIES),
    "ConvLSTMCell": Layer(
        {"features": 3, "kernel_size": (3,)},
        np.linspace(-1.0, 1.0, 40).reshape(2, 2, 5, 2).astype(np.float32),
        steps=True,
        special={"carry_init": {"carry_init": weights}, "padding": {"padding": "CIRCULAR"}, "strides": {"strides": 1}},
    ),
    "RNN": Layer(
        {"cell": Made(cell)},
        special={
            "variable_axes": {
                "variable_axes": {"params": 0},
                "variable_broadcast": False,
                "split_rngs": {"params": True},
            },
            "variable_broadcast": {"variable_broadcast": ("params", "others")},
            "variable_carry": {"variable_carry": "others"},
            "split_rngs": {"split_rngs": {"params": False, "dropout": True}},
        },
    ),
    "Bidirectional": Layer(
        {"forward_rnn": Made(lambda nn: nn.RNN(cell(nn))), "backward_rnn": Made(lambda nn: nn.RNN(cell(nn)))}
    ),
    "PReLU": Layer({}),
}
# They hold what they are given, have no options, or are made by others; those for fp8 have test_fp8.py.
WITHOUT = {
    "Module",
    "RNNCellBase",
    "Sequential",
    "Fp8DirectDotGeneralOp",
    "Fp8DotGeneral",
    "Fp8DotGeneralOp",
    "Fp8Einsum",
}
WITHOUT |= {"NANOOFp8DotGeneralOp"}
SIZES = {"features", "num_embeddings", "num_heads", "kernel_size", "shape", "parent", "name"}
# Where the value changes nothing: there is no mean whose square could be taken off; a cell with parameters alone.
UNUSED = {("RMSNorm", "use_fast_variance")}
UNUSED |= {("RNN", option) for option in ("variable_broadcast", "variable_carry", "split_rngs")}
# Only strides of one keep the shape of a memory; a local convolution is another function of JAX.
UNUSED |= {
    ("ConvLSTMCell", "strides"),
    ("ConvLocal", "conv_general_dilated"),
    ("ConvLocal", "conv_general_dilated_cls"),
}
# JAX has no groups under `vmap`, and none in local convolutions.
REFUSED = {(name, "axis_index_groups") for name in LAYERS}
REFUSED |= {("SpectralNorm", "error_on_non_matrix"), ("ConvLocal", "feature_group_count")}


def cases() -> list[tuple[str, str]]:
    """Every layer with every option that the installed Flax gives it."""
    found = []
    for name, layer in LAYERS.items():
        modules = {option for option, value in layer.passed.items() if isinstance(value, Made)}
        options = options_of(getattr(flax_nn, name), layer.passed)
        found += [(name, option) for option in options if option not in (modules | SIZES) - set(layer.special)]
    return found


def run(nn: Any, name: str, changed: dict[str, Any], x: Any) -> Any:
    """The variables of a layer, what a second call returns and changes, and the gradients."""
    layer = LAYERS[name]
    passed = {option: v.by(nn) if isinstance(v, Made) else v for option, v in {**layer.passed, **changed}.items()}
    module = getattr(nn, name)(**passed)

    def call(module: Any, x: Any = x) -> Any:
        if not layer.steps:
            return module(x, **layer.called)
        carry = module.initialize_carry(jax.random.key(7), x[:, 0].shape)
        outputs = [carry]
        for i in range(2):
            carry, y = module(carry, x[:, i])
            outputs += [carry, y]
        return outputs

    variables = module.init(KEYS, method=call)
    rest = {collection: tree for collection, tree in variables.items() if collection != "params"}

    def loss(params: Any) -> tuple[Any, Any]:
        part = x[:, :1] if "decode" in changed else x  # after `init`, a decoder takes one position at a time
        output, changes = module.apply({"params": params, **rest}, part, rngs=KEYS, mutable=True, method=call)
        floats = [y.astype(jnp.float32) for y in jax.tree.leaves(output) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum((y**2 * jnp.arange(1.0, y.size + 1).reshape(y.shape)).sum() for y in floats), (output, changes)

    gradients, (output, changes) = jax.grad(loss, has_aux=True)(variables.get("params", {}))
    return plain((dict(variables), output, dict(changes), gradients))


def outcome(nn: Any, name: str, changed: dict[str, Any]) -> Outcome:
    return Outcome.of(functools.partial(run, nn, name, changed), LAYERS[name].x, changed)


@pytest.mark.every(17)
@pytest.mark.parametrize(("name", "option"), cases())
def test_an_option_does_what_flax_does_with_it(name: str, option: str) -> None:
    check_option(
        functools.partial(outcome, sonde_nn, name),
        functools.partial(outcome, flax_nn, name),
        value_of(
            option, {"promote_dtype": {"promote_dtype": lambda *arrays, **_: halved(arrays)}, **LAYERS[name].special}
        ),
        option,
        may_fail=(name, option) in REFUSED,
        has_effect=(name, option) not in UNUSED,
    )


def test_no_layer_is_left_out() -> None:
    kinds = {name: getattr(flax_nn, name, None) for name in sonde_nn.__all__}
    layers = {name for name, kind in kinds.items() if inspect.isclass(kind) and issubclass(kind, flax_nn.Module)}
    assert layers == set(LAYERS) | WITHOUT
    assert len(cases()) > 8 * len(LAYERS)
