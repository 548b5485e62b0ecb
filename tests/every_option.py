"""Options of the constructors of layers: for each a value that is not the default, and whether it does what Flax does.

Tests draw the options from the signatures of the installed Flax, so an option that is new there, and has no value here,
is a failing test. A value may come with others that it needs: `preferred_element_type` shows nothing unless the inputs
have another type.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.same_programs import names_of_outputs

HALF = jnp.bfloat16


def halved(arrays: Any, **_: Any) -> Any:
    """In place of `promote_dtype`."""
    return tuple(None if x is None else jnp.asarray(x, jnp.float16) for x in arrays)


def doubled(operation: Any) -> Any:
    """In place of an operation of `jax.lax` or `jax.numpy`."""
    return lambda *args, **kwargs: 2 * operation(*args, **kwargs)


def weights(key: Any, shape: Any, dtype: Any = jnp.float32, **_: Any) -> jax.Array:
    """In place of an initializer."""
    return jax.random.uniform(key, shape, dtype, 0.5, 1.5)


def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
    """In place of an attention function."""
    return query + key + value


VALUES: dict[str, dict[str, Any]] = {
    **{name: {name: False} for name in ("use_bias", "use_scale", "use_fast_variance", "reset_gate")},
    **{name: {name: True} for name in ("normalize_qk", "residual", "time_major", "return_carry", "reverse")},
    **{name: {name: True} for name in ("deterministic", "use_running_average", "error_on_non_matrix")},
    **{name: {name: HALF} for name in ("dtype", "param_dtype", "lora_param_dtype")},
    "lora_dtype": {"lora_dtype": HALF},
    "force_float32_reductions": {"force_float32_reductions": False, "dtype": jnp.float16},
    "force_fp32_for_softmax": {"force_fp32_for_softmax": True, "dtype": HALF},
    "preferred_element_type": {"preferred_element_type": jnp.float32, "dtype": HALF},
    "precision": {"precision": lax.Precision.HIGHEST},
    "epsilon": {"epsilon": 0.3},
    "momentum": {"momentum": 0.7},
    "axis_name": {"axis_name": "batch"},
    "axis_index_groups": {"axis_index_groups": [[0, 1], [2, 3]], "axis_name": "batch"},
    "gate_fn": {"gate_fn": jnp.cos},
    "activation_fn": {"activation_fn": jnp.sin},
    "merge_fn": {"merge_fn": lambda a, b: a * b},
    "conv_general_dilated": {"conv_general_dilated": doubled(lax.conv_general_dilated)},
    "conv_general_dilated_cls": {"conv_general_dilated_cls": lambda: doubled(lax.conv_general_dilated)},
    "einsum_op": {"einsum_op": doubled(jnp.einsum)},
    "attention_fn": {"attention_fn": attention},
    "negative_slope_init": {"negative_slope_init": 0.3},
    "n_steps": {"n_steps": 3},
    "padding": {"padding": "VALID"},
    "strides": {"strides": 2},
    "kernel_dilation": {"kernel_dilation": 2},
    "input_dilation": {"input_dilation": 2},
    "transpose_kernel": {"transpose_kernel": True},
    "rng_collection": {"rng_collection": "noise"},
    "qkv_features": {"qkv_features": 8},
    "num_kv_heads": {"num_kv_heads": 1},
    "unroll": {"unroll": 2},
    "keep_order": {"keep_order": True, "reverse": True},
}


def value_of(option: str, special: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The options that set this one, and what it needs, to values that are not the defaults.

    Args:
        option: The name.
        special: Those that the layer needs itself.
    """
    if option in special:
        return special[option]
    if option in VALUES:
        return VALUES[option]
    if option.endswith("_metadata"):
        return {option: {"note": option}}
    if option.endswith(("_init", "_initializer")):
        return {option: weights}
    if option.endswith("promote_dtype"):
        return {option: halved}
    if option.endswith("dot_general"):
        return {option: doubled(lax.dot_general)}
    if option.endswith("dot_general_cls"):
        return {option: lambda: doubled(lax.dot_general)}
    raise LookupError(f"no value for the option {option!r}: add one to tests/every_option.py, or to the layer's own")


def options_of(kind: type, passed: Mapping[str, Any]) -> list[str]:
    """The options of a constructor: its parameters with a default, and those that the tests pass anyway."""
    named = [p for p in parameters_of(kind).values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named if p.default is not p.empty or p.name in passed]


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor, by name."""
    parameters = dict(inspect.signature(kind.__init__).parameters)
    del parameters["self"]
    return parameters


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a layer does: the traced program, its input, and all results that are no arrays."""

    program: Any
    x: Any
    words: tuple[Any, ...]

    @classmethod
    def of(cls, run: Callable[[Any], Any], x: Any, changed: Mapping[str, Any]) -> Outcome:
        """Traces a function; with an axis to reduce over, for four examples, each with a layer of its own."""
        words: list[Any] = []

        def arrays(x: Any) -> list[Any]:
            leaves, structure = jax.tree.flatten(run(x))
            words[:] = [str(structure), *(leaf if isinstance(leaf, str) else None for leaf in leaves)]
            return [leaf for leaf in leaves if not isinstance(leaf, str)]

        if "axis_name" in changed:
            arrays, x = jax.vmap(arrays, axis_name=changed["axis_name"]), np.stack([x, 2 * x, x**2, -x])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Flax deprecates what Sonde keeps
            return cls(jax.jit(arrays).trace(x), x, tuple(words))

    def is_same_program(self, other: Outcome) -> bool:
        """Whether it computes the same, in whatever order."""
        return names_of_outputs(self.program) == names_of_outputs(other.program)

    def results(self) -> list[Any]:
        """The arrays."""
        return self.program.lower().compile()(self.x)


def check_option(
    ours: Callable[[dict[str, Any]], Outcome],
    theirs: Callable[[dict[str, Any]], Outcome],
    changed: dict[str, Any],
    option: str,
    *,
    may_fail: bool = False,
    has_effect: bool = True,
) -> None:
    """Compares what both libraries do with an option, and makes sure that it does something.

    Args:
        ours: What Sonde does with some options.
        theirs: What Flax does.
        changed: The options.
        option: The one in question.
        may_fail: Whether Flax may refuse it; then Sonde must too.
        has_effect: Whether the program must differ from the one without the option.
    """
    try:
        expected = theirs(changed)
    except Exception as error:
        assert may_fail, f"Flax itself cannot do this: give {option!r} another value"
        with pytest.raises(type(error)):
            ours(changed)
        return
    got = ours(changed)
    assert got.words == expected.words
    if not got.is_same_program(expected):
        is_half = bool({"dtype", "param_dtype"} & set(changed)) or any("promote_dtype" in name for name in changed)
        tolerance = 3e-2 if is_half else 1e-5
        for a, b in zip(got.results(), expected.results(), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, abs(b).max(initial=0)))
    if not has_effect:
        return
    try:
        without = theirs({name: value for name, value in changed.items() if name != option})
    except Exception:  # the others need this one
        return
    is_same = expected.words == without.words and expected.is_same_program(without)
    assert not is_same, f"{option!r} changes nothing, so this comparison could not fail: give it another value"
