import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx
from sonde.nnx.transforms.jit.arguments import Arguments, assemble, holds_objects, named_arguments, shardings_along

M = nnx.Dict(w=nnx.Param(1.0))


@pytest.mark.parametrize(
    "value, expected",
    [(M, True), (M.w, True), ([1, {"a": (M,)}], True), (jnp.ones(2), False), ({"a": [np.ones(2), None, "x"]}, False)],
)
def test_objects_in_containers(value, expected):
    assert holds_objects(value) is expected


def test_sorted_and_put_together_again():
    args = [M, 2.0, {"m": M.w, "x": [1, 2]}, "static", jnp.ones(1)]
    sorted_ = Arguments(args, ("key",), frozenset([3]))
    assert sorted_.roots == [M, M.w] and sorted_.names == ["args[0]", "args[2]['m']"]
    assert sorted_.root_arguments == [0, 2] and sorted_.plain_arguments == [1, 2, "key"]
    again, keywords = assemble(sorted_.skeleton, sorted_.roots, sorted_.plain)
    assert again == tuple(args[:4]) and keywords["key"] is args[4]
    assert hash(sorted_.skeleton) == hash(Arguments(args, ("key",), frozenset([3])).skeleton)


def test_static_arguments_must_be_hashable():
    with pytest.raises(ValueError, match=r"Non-hashable static arguments .* args\[0\] of type list"):
        Arguments([[1]], (), frozenset([0]))


def test_shardings_go_to_arguments_that_are_not_static():
    skeleton = Arguments([M, "s", 2.0, {"a": M, "b": 1.0}], (), frozenset([1])).skeleton
    assert shardings_along(("x", "y", {"a": "p", "b": "q"}), skeleton) == (["x", "p"], ["y", "q"])
    assert shardings_along("all", skeleton) == (["all", "all"], ["all", "all"])
    with pytest.raises(ValueError, match="4 in_shardings and 3 positional arguments that are not static"):
        shardings_along((1, 2, 3, 4), skeleton)


def test_places_by_number_and_name():
    def f(a, b, *, c):
        pass

    assert named_arguments(f, 1, None) == {1, "b"} == named_arguments(f, None, "b")
    assert named_arguments(f, -1, None) == {1, "b"} and named_arguments(f, None, ("c",)) == {"c"}
    assert named_arguments(f, None, None) == frozenset()
