"""Options that all transforms share."""

import functools

import jax
import pytest

from sonde import nnx
from sonde.nnx.transforms.options import Mode, as_indices, mode, named_like, positional, refuse_bound_method, with_axes


@pytest.mark.parametrize(
    ("numbers", "n", "expected"),
    [
        (None, 3, ()),
        (1, 3, (1,)),
        (-1, 3, (2,)),
        ((2, 0), 3, (0, 2)),
        ([0, -3], 3, (0,)),  # twice the same
        ((), 0, ()),
    ],
)
def test_numbers_of_arguments(numbers, n, expected):
    assert as_indices(numbers, n) == expected


def test_trees_have_no_updates():
    assert mode(True, True) == Mode(True, True)
    assert mode(False, True) == Mode(False, False)
    assert mode(None, None) == Mode(True, True)
    with nnx.set_graph_updates(False):
        assert mode(None, None) == Mode(True, False)
        assert mode(None, True) == Mode(True, True)
    with nnx.set_graph_mode(False):
        assert mode(None, None) == Mode(False, False)


def f(a, b, *rest, c=3, **more):
    """A function."""


def test_keywords_get_the_places_that_they_have():
    g = lambda a, b, c=3: None
    assert positional(g, (1,), {"c": 5, "b": 2}) == (1, 2, 5)
    assert positional(g, (1, 2), {}) == (1, 2)
    with pytest.raises(TypeError, match=r"keyword-only arguments \['c'\]"):
        positional(f, (1, 2), {"c": 5})
    with pytest.raises(TypeError, match="missing a required argument"):
        positional(g, (), {"b": 2})


def test_axes_say_where_keywords_go():
    g = lambda a, b, *, c: None
    assert with_axes(g, (1,), {"b": 2, "c": 3}, (0, None)) == ((1, 2), {"c": 3})
    assert with_axes(g, (1,), {"b": 2, "c": 3}, 0) == ((1,), {"b": 2, "c": 3})  # one axis for all
    assert with_axes(g, (1, 2), {"c": 3}, (0, 1)) == ((1, 2), {"c": 3})


def test_names_are_kept_also_of_what_has_none():
    @named_like(f)
    def wrapper():
        pass

    assert (wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__) == ("f", "A function.", f)
    partial = functools.partial(f, 1)
    assert named_like(partial)(lambda: None).__wrapped__ is partial


def test_a_method_of_an_instance_is_refused_and_that_of_a_class_is_not():
    layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"nnx.jit does not support bound methods, got Linear.__call__ of an instance"):
        refuse_bound_method("jit", layer.__call__)
    for fine in (nnx.Linear.__call__, jax.random.key, functools.partial(layer.__call__), "text".upper):
        refuse_bound_method("jit", fine)
