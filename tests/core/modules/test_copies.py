"""The engine asks a library what its modules are copies of, and does not know how it finds out."""

import jax.numpy as jnp
import pytest

import sonde
from sonde.core.modules.calls import run_method
from sonde.core.modules.copies import CopyKey
from sonde.core.modules.index import ModuleKind, copy_kind, register_modules


class Layer:
    def __init__(self, original=None):
        self.original = original

    def __call__(self, x):
        return run_method(self, "__call__", lambda self, x: x * 2, (x,), {})


class Model:
    def __init__(self):
        self.left, self.right = Layer(), Layer()


class ByAttribute:
    """What finds copies, for a library that keeps the original in an attribute of the copy."""

    shapes = frozenset()

    def finder(self, roots, trees, trace_around):
        self.calls = [(roots, trees)]
        return self

    @property
    def followed(self):
        return self

    def find(self, stack, module, is_called):
        self.calls.append(is_called)
        place = stack.segments[0].find(module.original)
        return (None if place is None else (place, 0)), [CopyKey() for _ in stack.segments]

    def meet(self, stack, module):
        self.calls.append(module)

    def may_be_model(self, stack, module):
        return False


KIND = ByAttribute()
register_modules(Layer, ModuleKind(lambda layer: (), copies=KIND))
register_modules(Model, ModuleKind(lambda model: list(vars(model).items()), copies=KIND))


def test_a_copy_has_the_place_of_the_module_that_the_library_names():
    model, calls = Model(), []

    def f(model, x):
        copy = Layer(model.right)
        y = model.left(copy(x))
        calls.extend(KIND.calls)
        return sonde.sow(y, "y")

    request = sonde.core.ModuleRequest(methods=frozenset({"__call__"}))
    handler = sonde.core.Recording((sonde.core.check_pattern("**"),))
    sonde.core.run_with(handler, f, (model, jnp.ones(2)), {}, request=request)
    assert [item.path for item in handler.items] == ["right/in", "right/out", "left/in", "left/out", "y"]
    assert calls == [([model], []), True, model.left]


def test_a_library_that_says_the_origin_of_copies_has_no_finder():
    assert copy_kind(Model()) is KIND
    assert copy_kind(object()) is None


def test_what_a_library_notes_for_a_traced_function_is_its_own():
    for ask in (lambda: CopyKey().kind, CopyKey().is_own):
        with pytest.raises(NotImplementedError):
            ask()
