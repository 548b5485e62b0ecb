"""Names of axes in the metadata of Variables, kept correct across transforms that map."""

import jax.numpy as jnp
import pytest

from flax import nnx as flax_nnx
from sonde import nnx


def test_named_axes():
    v = nnx.Param(jnp.ones((2, 3)), out_sharding=("layers", "x"), eager_sharding=False)

    def f(v):
        assert v.out_sharding == ("x",)
        return nnx.Param(v[...], out_sharding=("y",), eager_sharding=False)

    out = nnx.vmap(f, transform_metadata={nnx.PARTITION_NAME: "layers"})(v)
    assert out.out_sharding == ("layers", "y") and v.out_sharding == ("layers", "x")


def param(shape, names):
    return nnx.Param(jnp.ones(shape), out_sharding=names, eager_sharding=False)


def test_names_are_put_back_also_if_the_function_fails():
    v = param((2, 3), ("layers", "x"))

    @nnx.transform_metadata(partition="layers")
    def fails(v):
        assert v.out_sharding == ("x",)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails(v)
    assert v.out_sharding == ("layers", "x")


@pytest.mark.parametrize(
    ("axis", "outside"), [(0, ("layers", "x", "y")), (1, ("x", "layers", "y")), (-1, ("x", "y", "layers"))]
)
def test_the_axis_is_named_where_it_is(axis, outside):
    make = nnx.transform_metadata(lambda: param((3, 4), ("x", "y")), in_axes=(), out_axes=axis, partition="layers")
    assert make().out_sharding == outside


def test_what_is_not_mapped_keeps_its_names():
    f = nnx.transform_metadata(lambda v, w: (v.out_sharding, w.out_sharding), in_axes=(0, None), partition="layers")
    assert f(param((2, 3), ("layers", "x")), param((3,), ("x",))) == (("x",), ("x",))


def test_an_axis_of_another_name_is_an_error():
    v = param((2, 3), ("rows", "x"))
    with pytest.raises(ValueError, match="is named 'rows', but the transform calls it 'layers'"):
        nnx.transform_metadata(lambda v: v, partition="layers")(v)
    assert v.out_sharding == ("rows", "x")


def test_other_metadata_gets_names_of_its_own():
    def use(nnx):
        names = {nnx.PARTITION_NAME: "layers", "nickname": "nick"}

        def made(x):
            return nnx.Param(x, nickname=("in",), out_sharding=("din",), eager_sharding=False)

        seen = []

        def look(v):
            seen.append((v.nickname, tuple(v.out_sharding)))
            return v[...].sum()

        v = nnx.vmap(made, transform_metadata=names)(jnp.ones((3, 2)))
        nnx.vmap(look, transform_metadata=names)(v)
        nnx.vmap(look, transform_metadata={nnx.PARTITION_NAME: "layers"})(v)
        return seen, v.nickname, tuple(v.out_sharding)

    seen, nickname, out_sharding = use(nnx)
    assert (seen, nickname, out_sharding) == use(flax_nnx)
    assert seen == [(("in",), ("din",)), (("nick", "in"), ("din",))]
