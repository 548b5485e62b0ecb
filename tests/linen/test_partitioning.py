"""`linen.partitioning` against its namesake."""

from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from flax.linen import partitioning as flax_partitioning
from jax.sharding import PartitionSpec
from tests.linen.against_flax import assert_same

from sonde import linen as nn
from sonde.linen.sharding import partitioning

KEY = jax.random.key(0)
X = jnp.arange(3.0)
LIBRARIES = ((nn, partitioning), (flax_nn, flax_partitioning))


def names(tree: Any) -> Any:
    """A tree with the names of axes in place of the boxes of either library."""
    is_box = lambda x: hasattr(x, "names")
    return jax.tree.map(lambda x: x.names if is_box(x) else jnp.asarray(x), tree, is_leaf=is_box)


def layer(nn, partitioning):
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = partitioning.param_with_axes("w", nn.initializers.uniform(), (3, 3), axes=("embed", "mlp"))
            tree = partitioning.param_with_axes(
                "tree",
                lambda k: {"a": jnp.ones(3), "b": (jnp.ones((3, 1)),)},
                axes={"a": ("mlp",), "b": (("mlp", None),)},
            )
            total = partitioning.variable_with_axes("stats", "total", jnp.zeros, (3,), axes=("mlp",))
            if self.is_mutable_collection("stats"):
                total.value = total.value + x
            return x @ w * tree["a"], None

    return Layer


def plain(nn, partitioning):
    return layer(nn, partitioning)()


def scanned(nn, partitioning):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            tower = partitioning.scan_with_axes(
                layer(nn, partitioning),
                in_axes=(),
                variable_axes={"params": 0, "stats": 1},
                split_rngs={"params": True},
                axis_name="layer",
                axes_collections=("params", "stats"),
                length=2,
            )()
            return tower(tower(x)[0])

    return Model()


def mapped(nn, partitioning):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return partitioning.vmap_with_axes(
                layer(nn, partitioning),
                variable_axes={"params": 1, "stats": 0},
                split_rngs={"params": True},
                in_axes=None,
                axis_size=2,
                partitioning_axis_names={"params": "copy", "stats": "copy"},
            )()(x)

    return Model()


@pytest.mark.parametrize("build", [plain, scanned, mapped])
def test_variables_and_names(build):
    results = []
    for library, its_partitioning in LIBRARIES:
        model = build(library, its_partitioning)
        variables = model.init(KEY, X)
        specs = {c: its_partitioning.get_axis_names(t) for c, t in variables.items() if c.endswith("_axes")}
        changed = model.apply(variables, X, mutable=["stats", "stats_axes"])
        specs = jax.tree.map(tuple, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
        results.append((names(variables), names(changed), model.apply(variables, X), specs))
    (*ours, our_specs), (*theirs, their_specs) = results
    assert_same(ours, theirs)
    assert jax.tree.map(str, our_specs) == jax.tree.map(str, jax.tree.map(lambda x: x, dict(their_specs)))


def test_static_arguments_of_remat_are_counted_without_the_module():
    def build(nn, partitioning):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x, mask=None, flag=True):
                return nn.Dense(2)(x) * (2 if flag else 3)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return partitioning.remat(Layer, static_argnums=(2,))()(x, None, False)

        return Model()

    assert_same(*(build(*library).init_with_output(KEY, X) for library in LIBRARIES))


def test_values_are_constrained_where_rules_and_a_mesh_are_set():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh), partitioning.axis_rules([("mlp", "model")]):
        assert partitioning.get_axis_rules() == [("mlp", "model")]

        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x):
                w = partitioning.param_with_axes("w", nn.initializers.ones, (3, 4), axes=("embed", "mlp"))
                return partitioning.with_sharding_constraint(x @ w, ("mlp",))

        text = jax.jit(Layer().apply).lower({"params": {"w": jnp.ones((3, 4))}}, X).as_text()
    assert text.count("sharding_constraint") == 2


def test_other_names_for_the_same_axes_are_an_error():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, axes):
            return partitioning.param_with_axes("w", nn.initializers.ones, (3,), axes=axes)

    variables = Model().init(KEY, ("embed",))
    with pytest.raises(ValueError, match="module / names the axes of 'w' .*'mlp'.* before"):
        Model().apply(variables, ("mlp",), mutable="params_axes")
    with pytest.raises(ValueError, match="param_with_axes was called outside a module's method"):
        partitioning.param_with_axes("w", nn.initializers.ones, (3,), axes=("embed",))
