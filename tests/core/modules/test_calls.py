"""Calls of modules as scopes, with what they take and return as sites."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.core.frozen import Layer, X, call, make

import sonde
from sonde import _jax, nnx
from sonde.core.interpret.recording import Recording
from sonde.core.modules.call_stack import ModuleRequest
from sonde.core.modules.calls import (
    ModuleScope,
    at_module,
    code_of,
    mark_arguments,
    mark_arrays,
    mark_result,
    overrides_running,
)
from sonde.core.modules.places import Move
from sonde.core.records.build import make_records
from sonde.core.session.run import run_with

jitted = jax.jit(call)


def test_what_a_call_takes_and_returns():
    model = make(jitted)

    def run(request):
        handler = Recording(())
        run_with(handler, model, (X,), {}, request=request)
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


def test_a_scope_gets_every_capture_to_its_own_path():
    scope = ModuleScope.of((Move(0, "mlp"), Move(1, "other"), Move(None, "from/start"), Move(0, "")))
    assert scope is ModuleScope.of((Move(0, "mlp"), Move(1, "other"), Move(None, "from/start"), Move(0, "")))
    paths = [scope.path("a/b/", depth) for depth in (1, 2, 3, 4, 5)]
    assert paths == ["a/b/mlp/", "a/other/", "from/start/", "a/b/", "a/b/"]


def test_in_the_call_of_a_module_its_scope_is_not_opened_again():
    class Model(nnx.Module):
        def __call__(self, x):
            names = _jax.open_names()
            block, (place,) = at_module(self)
            with block:
                assert _jax.open_names() is names
            with sonde.scope("inner"):
                block, _ = at_module(self)
                with block:
                    x = sonde.sow(x, "outside")
            assert place.text == ""
            return x

    assert list(sonde.capture(Model())(X)[1]) == ["outside"]


def test_a_method_and_the_one_that_it_overrides_are_one_call():
    class Base(nnx.Module):
        def __call__(self, x):
            return x

    class Derived(Base):
        def __call__(self, x):
            return super().__call__(x) + 1

    _, state = nnx.capture(Derived(), nnx.Intermediate, method_outputs=nnx.Intermediate)(jnp.arange(3.0))
    assert [value.tolist() for value in state["__call__"].get_value()] == [[1.0, 2.0, 3.0]]
    assert not overrides_running(Derived(), "__call__", Base.__call__)
