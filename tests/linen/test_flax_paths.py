"""Import paths of Flax's own files below `flax.linen`."""

import importlib
import inspect

import jax
import jax.numpy as jnp
import pytest

from sonde import linen as nn
from sonde.linen.flax_names.import_paths import PATHS


@pytest.mark.parametrize("path", [*PATHS, "initializers", "kw_only_dataclasses", "partitioning"])
def test_public_names_of_a_file_are_found_under_its_path(path):
    theirs = importlib.import_module(f"flax.linen.{path}")
    ours = importlib.import_module(f"sonde.linen.{path}")
    assert getattr(nn, path) is ours
    own = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == theirs.__name__ and len(name) > 1
    }
    assert own
    missing = {name for name in own if not hasattr(ours, name)}
    assert missing <= NOT_OURS, missing


# Types for annotations, and what the mechanism of Flax's own lifting, wrapping and tables is made of.
NOT_OURS = {
    *("CompactNameScope", "Descriptor", "DescriptorWrapper", "ModuleBase", "ParentDescriptor", "SetupState"),
    *("TestScope", "ThreadLocalStack", "capture_call_intermediates", "create_descriptor_wrapper", "module_field"),
    *("run_interceptors", "tuple_init", "tuple_reduce", "wrap_descriptor_once"),
    *("Table", "RNNBase", "DenseParams", "core_remat_static"),
    *("arbitrary_mergeable_leaf", "merge_leading_dims", "ndim_at_least", "split_leading_dim"),
    *("InstancePlaceholder", "VariablePlaceholder", "clean_clone", "decorator_lift_transform", "fork_rngs"),
    *("decorator_lift_transform_cached", "get_module_scopes", "lift_direct_transform", "lift_transform"),
    *("lift_transform_cached", "module_class_lift_transform", "module_class_lift_transform_cached"),
    *("set_module_scopes", "ModuleT", "Target"),
    # The rules of derivatives of functions that are there, and of the dtype.
    *(f"{name}_{way}" for name in ("in_q", "in_qdq", "out_dq", "out_qdq", "quantized_dot") for way in ("fwd", "bwd")),
    *("dot_general_transpose_lhs", "dot_general_transpose_rhs", "dot_general_with_precision_jvp"),
    *("Fp8MetaTyRules", "fp8_meta_dtype", "fp8_meta_dtype_wrapper"),
}


def test_layers_with_named_axes():
    theirs = importlib.import_module("flax.linen.experimental.layers_with_named_axes")
    ours = importlib.import_module("sonde.linen.experimental.layers_with_named_axes")
    key, tokens = jax.random.key(0), jnp.array([3, 1])
    for name, fields, x in (
        ("Dense", {"features": 4, "kernel_axes": ("embed", "mlp")}, jnp.ones((2, 3), jnp.bfloat16)),
        ("Embed", {"num_embeddings": 5, "features": 3}, tokens),
        ("Embed", {"num_embeddings": 5, "features": 3, "one_hot": True, "dtype": jnp.bfloat16}, tokens),
    ):
        (y, variables), (y2, variables2) = (
            getattr(package, name)(**fields).init_with_output(key, x) for package in (ours, theirs)
        )
        assert (y.dtype, y.tolist()) == (y2.dtype, y2.tolist())
        assert {k: tuple(v.names) for k, v in variables["params_axes"].items()} == {
            k: tuple(v.names) for k, v in variables2["params_axes"].items()
        }
    for package in (ours, theirs):  # one-hot codes of 2.5 would be zeros
        with pytest.raises(ValueError, match="integers|integer"):
            package.Embed(num_embeddings=5, features=3, one_hot=True).init(key, jnp.array([2.5, 1.0]))
    variables = ours.LayerNorm().init(key, jnp.ones((2, 3)))  # that of Flax cannot be called
    assert {k: tuple(v.names) for k, v in variables["params_axes"].items()} == {
        "bias_axes": ("embed",),
        "scale_axes": ("embed",),
    }


def test_the_module_that_is_running_is_found():
    class Model(nn.Module):
        def __call__(self):
            return nn.module._context.module_stack[-1] is self

    assert Model().apply({})


def test_fields_stay_keyword_only_and_own_fields_come_first():
    class Base(nn.Module):
        width: int = 3

    class Derived(Base):
        depth: int = nn.kw_only_dataclasses.field(default=1, kw_only=True)

    class Last(Derived):
        size: float = 0.0
        depth: int = 2

    assert list(Last.__dataclass_fields__) == ["width", "depth", "size", "parent", "name"]
    parameters = inspect.signature(Last).parameters
    assert list(parameters) == ["width", "size", "parent", "name", "depth"]
    assert parameters["depth"].default == 2
    assert Last(4, 5.0).depth == 2


def test_which_axes_of_a_convolution_are_which():
    theirs = importlib.import_module("flax.linen.linear")
    for shape in ((2, 5, 3), (2, 5, 5, 3)):
        assert nn.linear._conv_dimension_numbers(shape) == theirs._conv_dimension_numbers(shape)
