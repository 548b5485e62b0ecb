"""Every option of every layer's constructor, at a value that is not the default, does what Flax does with it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.every_option import Outcome, check_option, halved, options_of, parameters_of, value_of, weights

from flax import nnx as flax_nnx
from sonde import nnx as sonde_nnx

X = np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4).astype(np.float32)
LONG = np.linspace(-1.0, 1.0, 56).reshape(2, 7, 4).astype(np.float32)
TOKENS = np.array([[1, 4, 0]])


def called(layer: Any, x: Any) -> Any:
    return layer(x)


def stepped(layer: Any, x: Any) -> Any:
    """Two steps of a recurrent cell."""
    carry = layer.initialize_carry(x[:, 0].shape, sonde_or_flax(layer).Rngs(7))
    outputs = [carry]
    for i in range(2):
        carry, y = layer(carry, x[:, i])
        outputs += [carry, y]
    return outputs


def attended(layer: Any, x: Any) -> Any:
    if layer.in_kv_features != layer.in_features:
        return layer(x, jnp.concatenate([x, x], -1))
    if layer.decode:
        layer.init_cache(x.shape)
        return [layer(x[:, :1]), layer(x[:, 1:2])]
    return layer(x, rngs=sonde_or_flax(layer).Rngs(3) if layer.rngs is None else None)


def sonde_or_flax(layer: Any) -> Any:
    return flax_nnx if isinstance(layer, flax_nnx.Module) else sonde_nnx


@dataclasses.dataclass(frozen=True)
class Layer:
    """How a layer is made and called, and the options whose values depend on it.

    Attributes:
        passed: What its constructor is given; a function makes the modules among them, from the library.
        x: What it is called with.
        call: How.
        special: Values of options, each with what it needs.
    """

    passed: dict[str, Any]
    x: Any = dataclasses.field(default_factory=lambda: X)
    call: Callable[[Any, Any], Any] = called
    special: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Made:
    """A module among the arguments of a constructor, or anything else that depends on the library."""

    by: Callable[[Any], Any]


def inner(nnx: Any) -> Any:
    return nnx.Linear(4, 3, rngs=nnx.Rngs(1))


def cell(nnx: Any) -> Any:
    return nnx.GRUCell(4, 3, rngs=nnx.Rngs(1))


def noisy_cell(nnx: Any) -> Any:
    class Noisy(nnx.RNNCellBase):
        def __init__(self):
            self.cell, self.noise = cell(nnx), nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=2))

        def __call__(self, carry, x):
            return self.cell(carry, self.noise(x))

        def initialize_carry(self, shape, rngs=None):
            return self.cell.initialize_carry(shape, rngs)

        num_feature_axes = 1

    return Noisy()


MASK = (np.arange(3 * 4 * 6) % 3 > 0).astype(np.float32)
CELL = {"in_features": 4, "hidden_features": 3}
# A kernel that is orthogonal cannot be drawn in half precision.
KEEPS = {
    "keep_rngs": {"keep_rngs": True},
    "param_dtype": {"param_dtype": jnp.bfloat16, "recurrent_kernel_init": weights},
}
PARAM_TYPE = {"lora_param_type": {"lora_param_type": Made(lambda nnx: nnx.BatchStat)}}
LAYERS = {
    "Linear": Layer({"in_features": 4, "out_features": 3}),
    "LinearGeneral": Layer(
        {"in_features": 4, "out_features": (2, 3)},
        special={"axis": {"axis": 1, "in_features": 3}, "batch_axis": {"batch_axis": {0: 2}}},
    ),
    "Einsum": Layer(
        {"einsum_str": "btd,dk->btk", "kernel_shape": (4, 3), "bias_shape": (3,)},
        special={"bias_shape": {"bias_shape": None}},
    ),
    "Embed": Layer({"num_embeddings": 5, "features": 3}, TOKENS),
    "Conv": Layer(
        {"in_features": 4, "out_features": 6, "kernel_size": (3,)},
        LONG,
        special={
            "feature_group_count": {"feature_group_count": 2},
            "mask": {"mask": MASK.reshape(3, 4, 6)},
            "input_dilation": {"input_dilation": 2, "padding": 1},
        },
    ),
    "ConvTranspose": Layer(
        {"in_features": 4, "out_features": 6, "kernel_size": (3,)},
        LONG,
        special={"mask": {"mask": MASK.reshape(3, 4, 6)}},
    ),
    "BatchNorm": Layer({"num_features": 4}, special={"axis": {"axis": 1, "num_features": 3}}),
    "LayerNorm": Layer(
        {"num_features": 4},
        special={
            "reduction_axes": {"reduction_axes": (1, 2)},
            "feature_axes": {"feature_axes": 1, "num_features": 3, "reduction_axes": (1, 2)},
        },
    ),
    "RMSNorm": Layer(
        {"num_features": 4},
        special={
            "reduction_axes": {"reduction_axes": (1, 2)},
            "feature_axes": {"feature_axes": 1, "num_features": 3, "reduction_axes": (1, 2)},
        },
    ),
    "GroupNorm": Layer(
        {"num_features": 4, "num_groups": 2},
        special={
            "num_groups": {"num_groups": 4},
            "group_size": {"num_groups": None, "group_size": 1},
            "reduction_axes": {"reduction_axes": (2,)},
        },
    ),
    "InstanceNorm": Layer({"num_features": 4}, special={"feature_axes": {"feature_axes": 1, "num_features": 3}}),
    "SpectralNorm": Layer(
        {"layer_instance": Made(inner)},
        special={
            "error_on_non_matrix": {
                "error_on_non_matrix": True,
                "layer_instance": Made(lambda nnx: nnx.Conv(4, 3, 3, rngs=nnx.Rngs(1))),
            },
            "update_stats": {"update_stats": False},
        },
    ),
    "WeightNorm": Layer(
        {"layer_instance": Made(inner)},
        special={
            "feature_axes": {"feature_axes": None},
            "scale_init": {"scale_init": lambda key, shape, dtype=jnp.float32: jnp.full(shape, 0.4, dtype)},
            "variable_filter": {"variable_filter": Made(lambda nnx: nnx.PathContains("bias"))},
        },
    ),
    "Dropout": Layer(
        {"rate": 0.5, "rngs": Made(lambda nnx: nnx.Rngs(0, noise=5))},
        special={"broadcast_dims": {"broadcast_dims": (1,)}, "rate": {"rate": 0.3}},
    ),
    "MultiHeadAttention": Layer(
        {"num_heads": 2, "in_features": 4, "decode": False},
        call=attended,
        special={
            "in_kv_features": {"in_kv_features": 8},
            "out_features": {"out_features": 6},
            "decode": {"decode": True},
            "dropout_rate": {"dropout_rate": 0.5, "deterministic": False},
            "deterministic": {"deterministic": True, "dropout_rate": 0.5},
            "broadcast_dropout": {"broadcast_dropout": False, "dropout_rate": 0.5, "deterministic": False},
            "keep_rngs": {"keep_rngs": False, "dropout_rate": 0.5, "deterministic": False},
            "ln_promote_dtype": {**value_of("ln_promote_dtype", {}), "normalize_qk": True},
            "query_ln_scale_metadata": {"query_ln_scale_metadata": {"note": "q"}, "normalize_qk": True},
            "key_ln_scale_metadata": {"key_ln_scale_metadata": {"note": "k"}, "normalize_qk": True},
        },
    ),
    "LSTMCell": Layer(CELL, call=stepped, special=KEEPS),
    "OptimizedLSTMCell": Layer(CELL, call=stepped, special=KEEPS),
    "GRUCell": Layer(CELL, call=stepped, special=KEEPS),
    "SimpleCell": Layer(CELL, call=stepped, special=KEEPS),
    "RNN": Layer(
        {"cell": Made(cell)},
        special={
            "state_axes": {"state_axes": Made(lambda nnx: nnx.StateAxes({nnx.RngState: None, ...: nnx.Carry}))},
            "broadcast_rngs": {"broadcast_rngs": "dropout", "cell": Made(noisy_cell)},
            "rngs": {"rngs": Made(lambda nnx: nnx.Rngs(4))},
        },
    ),
    "Bidirectional": Layer(
        {"forward_rnn": Made(lambda nnx: nnx.RNN(cell(nnx))), "backward_rnn": Made(lambda nnx: nnx.RNN(cell(nnx)))},
        special={
            "rngs": {"rngs": Made(lambda nnx: nnx.Rngs(4))},
            "time_major": {"time_major": True},
        },
    ),
    "LoRA": Layer(
        {"in_features": 4, "lora_rank": 2, "out_features": 3},
        special={"base_module": {"base_module": Made(inner)}, **PARAM_TYPE},
    ),
    "LoRALinear": Layer(
        {"in_features": 4, "out_features": 3, "lora_rank": 2, "b_initializer": weights},
        special={"b_initializer": {"b_initializer": jax.nn.initializers.constant(0.3)}, **PARAM_TYPE},
    ),
    "PReLU": Layer({}, special={"promote_dtype": {"promote_dtype": halved, "dtype": jnp.float32}}),
}
if hasattr(flax_nnx, "RoPE"):  # from 0.12.12 on
    LAYERS["RoPE"] = Layer(
        {"embedding_size": 4, "max_seq_len": 8},
        special={
            "theta": {"theta": 10.0},
            "embedding_size": {"embedding_size": None, "max_seq_len": None},
            "max_seq_len": {"max_seq_len": 5},
        },
    )
# They hold what they are given, and have no options.
CONTAINERS = {"Dict", "List", "Module", "RNNCellBase", "Sequential"}
# Flax itself does not use these: the value is stored, or not even that. Cells get their initial state elsewhere.
# Where the value changes nothing: there is no mean whose square could be taken off, and a cell without keys.
UNUSED = {("RMSNorm", "use_fast_variance"), ("RNN", "state_axes")}
# Scales are no parameters in Flax 0.12.8, and have no type.
UNUSED |= {("WeightNorm", "param_dtype"), ("WeightNorm", "promote_dtype")}
# Flax repeats the mean of each group along the second axis, whichever axes are left.
WRONG_IN_FLAX = {("GroupNorm", "reduction_axes")}
# Sizes, which every comparison has anyhow, and the random keys that every layer gets.
SIZES = {"in_features", "out_features", "num_features", "num_embeddings", "features", "hidden_features", "num_heads"}
SIZES |= {"lora_rank", "rngs"}
REFUSED = {"error_on_non_matrix", "axis_index_groups"}  # JAX has no groups under `vmap`
UNCOMPARED = ("hijax", "ref", "eager_sharding")


def cases() -> list[tuple[str, str]]:
    """Every layer with every option that the installed Flax gives it."""
    found = []
    for name, layer in LAYERS.items():
        modules = {option for option, value in layer.passed.items() if isinstance(value, Made)}
        options = options_of(getattr(flax_nnx, name), layer.passed)
        needed = {"kernel_size", "einsum_str", "kernel_shape", *SIZES}
        known = (modules | needed) - set(layer.special)
        found += [(name, option) for option in options if option not in known and (name, option) not in WRONG_IN_FLAX]
    return found


def run(nnx: Any, name: str, changed: dict[str, Any], x: Any) -> Any:
    """The output, the state afterwards and the gradients of a layer; and what Variables carry, as text."""
    layer = LAYERS[name]
    passed = {option: v.by(nnx) if isinstance(v, Made) else v for option, v in {**layer.passed, **changed}.items()}
    if takes_rngs(name):
        passed.setdefault("rngs", nnx.Rngs(0, dropout=1))
    module = getattr(nnx, name)(**passed)

    def loss(module: Any, x: Any) -> tuple[Any, Any]:
        output = layer.call(module, x)
        floats = [y.astype(jnp.float32) for y in jax.tree.leaves(output) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum((y**2 * jnp.arange(1.0, y.size + 1).reshape(y.shape)).sum() for y in floats), output

    gradients, output = nnx.grad(loss, has_aux=True)(module, x)
    return output, described(nnx, nnx.state(module)), described(nnx, gradients)


def takes_rngs(name: str) -> bool:
    rngs = parameters_of(getattr(flax_nnx, name)).get("rngs")
    return rngs is not None and rngs.default is rngs.empty


def described(nnx: Any, state: Any) -> dict[str, Any]:
    """By path: the value of a Variable, and its type and metadata as text."""
    found = {}
    for path, variable in nnx.to_flat_state(state):
        if path[0] == "scales":  # of WeightNorm: no parameters in Flax 0.12.8, as in later versions and here
            continue
        if not isinstance(variable, nnx.Variable):  # a mask is an array as it is
            found["/".join(map(str, path))] = (jnp.asarray(variable), "")
            continue
        value = variable.get_value()
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        notes = {k: getattr(v, "__name__", str(v)) for k, v in variable.get_metadata().items() if k not in UNCOMPARED}
        found["/".join(map(str, path))] = (value, f"{type(variable).__name__} {sorted(notes.items())}")
    return found


def outcome(nnx: Any, name: str, changed: dict[str, Any]) -> Outcome:
    return Outcome.of(functools.partial(run, nnx, name, changed), LAYERS[name].x, changed)


@pytest.mark.every(11)
@pytest.mark.parametrize(("name", "option"), cases())
def test_an_option_does_what_flax_does_with_it(name: str, option: str) -> None:
    changed = value_of(option, LAYERS[name].special)
    check_option(
        functools.partial(outcome, sonde_nnx, name),
        functools.partial(outcome, flax_nnx, name),
        changed,
        option,
        may_fail=option in REFUSED,
        has_effect=(name, option) not in UNUSED,
    )


def test_no_layer_is_left_out() -> None:
    layers = set()
    for name in sonde_nnx.__all__:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind = getattr(flax_nnx, name, None)
        if inspect.isclass(kind) and issubclass(kind, flax_nnx.Module):
            layers.add(name)
    assert layers == set(LAYERS) | CONTAINERS
    assert len(cases()) > 10 * len(LAYERS)
