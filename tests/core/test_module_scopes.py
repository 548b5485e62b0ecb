"""Calls of modules as scopes."""

import jax.numpy as jnp

import sonde
from sonde import _jax, nnx
from sonde.core.module_places import Move
from sonde.core.module_scopes import ModuleScope, at_module, overrides_running

X = jnp.arange(3.0)


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

    _, state = nnx.capture(Derived(), nnx.Intermediate, method_outputs=nnx.Intermediate)(X)
    assert [value.tolist() for value in state["__call__"].get_value()] == [[1.0, 2.0, 3.0]]
    assert not overrides_running(Derived(), "__call__", Base.__call__)
