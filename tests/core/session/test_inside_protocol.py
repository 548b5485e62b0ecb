"""How `inside=` is resolved before a run."""

import math
from typing import Any

import jax
import pytest

from sonde.core.session.inside_protocol import inside_request
from sonde.errors import InsideError

without_source: dict[str, Any] = {}
exec("def f(x): return x", without_source)


def test_nothing_asks_for_nothing():
    assert inside_request(None) is None


def test_the_same_functions_are_the_same_request():
    """Captures are compiled once for each request; if those of two calls were not equal, each would compile."""
    first, again, listed = inside_request(jax.nn.silu), inside_request(jax.nn.silu), inside_request([jax.nn.silu])
    assert first == again == listed
    assert hash(first) == hash(again) == hash(listed)
    assert first != inside_request(jax.nn.gelu)


def test_a_request_is_a_request_already():
    request = inside_request(jax.nn.silu)
    assert inside_request(request) is request


def test_nested_requests_keep_the_depth_of_each():
    silu, gelu = inside_request(jax.nn.silu), inside_request(jax.nn.gelu)
    assert silu is not None and gelu is not None
    outer = silu.nested_in(None, 1)
    both = gelu.nested_in(outer, 2)
    assert both is gelu.nested_in(silu.nested_in(None, 1), 2)
    assert both is not outer


@pytest.mark.parametrize(
    ("inside", "error", "says"),
    [
        (without_source["f"], InsideError, "f"),
        (math.sin, TypeError, "no Python function"),
        ("sonde.no_such_module:f", InsideError, "no_such_module"),
        (3, TypeError, "3"),
        ([], TypeError, "at least one function"),
    ],
    ids=["no source", "no Python", "no such name", "a number", "an empty list"],
)
def test_what_cannot_be_looked_into_is_an_error(inside, error, says):
    with pytest.raises(error, match=says):
        inside_request(inside)
