"""The inputs and outputs of module calls, as sites."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.core.frozen import Layer, X, call, make

import sonde
from sonde.core.capture import run_with
from sonde.core.collect import Collect
from sonde.core.module_calls import code_of, mark_arguments, mark_arrays, mark_result
from sonde.core.module_paths import ModuleRequest
from sonde.core.record_making import make_records

jitted = jax.jit(call)


def test_what_a_call_takes_and_returns():
    model = make(jitted)

    def run(request):
        _, handler = run_with(lambda depth: Collect((), depth=depth), model, (X,), {}, request=request)
        return make_records(handler.items, handler.met)

    records = run(ModuleRequest(methods=frozenset({"__call__"})))
    layers = [f"parts/layers/{i}/{name}" for i in range(3) for name in ("in", "y", "out")]
    assert list(records) == ["in", *layers, "out"]
    np.testing.assert_array_equal(records["parts/layers/1/in"].value, records["parts/layers/0/out"].value)
    code = Layer.forward.__code__
    assert records["parts/layers/0/out"].source == f"{code.co_filename}:{code.co_firstlineno}"
    assert list(run(None)) == [path for path in layers if path.endswith("y")]


def marked(mark, *args):
    """What `mark` returns in a capture, and the records."""
    return sonde.capture(lambda: mark(*args))()


def keep(value):
    return isinstance(value, Layer)


def method(self, *args, **kwargs):
    return args, kwargs


@pytest.mark.parametrize(
    ("args", "kwargs", "recorded"),
    [
        ((X,), {}, X),
        ((X, X + 1), {}, (X, X + 1)),
        ((X,), {"k": X + 1}, (X, {"k": X + 1})),
        ((), {}, ()),
        ((), {"k": X}, ({"k": X},)),
    ],
    ids=["one", "several", "keywords", "none", "keywords only"],
)
def test_arguments_are_one_site(args, kwargs, recorded):
    (new_args, new_kwargs), records = marked(mark_arguments, "__call__", method, args, kwargs, keep, frozenset({1}))
    jax.tree.map(np.testing.assert_array_equal, (new_args, new_kwargs), (args, kwargs))
    assert list(records) == ["in"]
    jax.tree.map(np.testing.assert_array_equal, records["in"].value, recorded)


def test_other_methods_are_named():
    _, records = marked(mark_arguments, "encode", method, (X,), {}, keep, frozenset({1}))
    assert list(records) == ["encode/in"]
    _, records = marked(mark_result, "encode", method, X, keep, frozenset({1}))
    assert list(records) == ["encode/out"]


def test_objects_that_must_stay_what_they_are_do():
    layer = Layer(w=jnp.ones(2))
    (found, x), records = marked(mark_arrays, (layer, X), "h", keep, None)
    assert found is layer
    np.testing.assert_array_equal(x, X)
    assert records["h"].value[0] == "<Layer>"
    np.testing.assert_array_equal(records["h"].value[1], X)


def test_the_line_of_a_wrapped_function_is_its_own():
    @functools.wraps(method)
    def wrapped(*args):
        return method(*args)

    assert code_of(wrapped) is method.__code__
    assert code_of(len) is None
