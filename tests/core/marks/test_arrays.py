import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.marks.arrays import arrays_in, is_array_like, shapes_in, split_arrays


def test_arrays_are_found_in_order_and_the_rest_left_out():
    a, b, kind = jnp.ones(2), np.float32(3), jax.ShapeDtypeStruct((4,), jnp.int32)
    found = arrays_in({"a": a, "b": ["text", 1.5, b], "c": (None, kind)})
    assert [id(x) for x in found] == [id(a), id(b), id(kind)]


def test_what_is_traced_is_an_array():
    seen = []
    jax.jit(lambda x: seen.append(is_array_like(x)) or x)(1.0)
    assert seen == [True]
    assert not is_array_like(1.0)


def test_a_pytree_without_its_arrays_is_made_again_with_others():
    tree = {"x": np.ones(2), "names": ("a", None), "y": [jax.ShapeDtypeStruct((3,), np.int32), 1.5]}
    arrays, rest = split_arrays(tree)
    assert [x.shape for x in arrays] == [(2,), (3,)]
    assert rest.whole(["X", "Y"]) == {"x": "X", "names": ("a", None), "y": ["Y", 1.5]}
    assert rest == split_arrays(tree)[1] and hash(rest) == hash(split_arrays(tree)[1])
    shapes, known = split_arrays(tree, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    assert len(shapes) == 1 and known.whole([0])["x"] is tree["x"]


def test_shapes_in_the_place_of_arrays():
    found = shapes_in({"x": np.ones((2, 3), np.int8), "s": "text"})
    assert (found["x"].shape, found["x"].dtype, found["s"]) == ((2, 3), np.int8, "text")
