"""How modules given as fields become submodules, and what may be set on a module, against flax.linen."""

from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import KEYS, assert_same, check

from sonde import linen as nn
from sonde.errors import DescriptorAttributeError, NameInUseError, SetAttributeFrozenModuleError

X = jnp.ones((2, 3))
KEY = jax.random.key(0)


def test_a_module_given_in_two_places_belongs_to_the_first():
    def in_a_dict(nn):
        class Model(nn.Module):
            parts: Any

            @nn.compact
            def __call__(self, x):
                return self.parts["z"](self.parts["b"](self.parts["m"](x)))

        shared = nn.Dense(3)
        return Model({"z": shared, "b": nn.Dense(3), "m": shared})

    def in_two_modules(nn):
        class Holder(nn.Module):
            part: Any

            @nn.compact
            def __call__(self, x):
                return self.part(x)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                shared = nn.Dense(3, parent=None)
                first, second = Holder(shared), Holder(shared)
                return first(second(x))  # second is called first, and first was made first

        return Model()

    check(in_a_dict, X)
    check(in_two_modules, X)


def test_a_field_is_bound_as_soon_as_its_owner_is():
    def build(nn):
        class Inner(nn.Module):
            def setup(self):
                self.p = self.param("p", nn.initializers.normal(), (3,))

            def shifted(self, x):
                return x + self.p

        class Outer(nn.Module):
            inner: Any

            def __call__(self, x):
                return self.inner.shifted(x)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Outer(Inner(parent=None)).inner.shifted(x)

        return Model(), Outer(Inner())

    check(lambda nn: build(nn)[0], X)
    outer = build(nn)[1]
    variables = outer.init(KEY, X)
    assert outer.bind(variables).inner.shifted(X).shape == X.shape
    assert nn.apply(lambda m, x: m.inner.shifted(x), outer)(variables, X).shape == X.shape
    assert outer.bind(variables).inner.variables["params"]["p"].shape == (3,)


def test_a_submodule_that_is_a_field_can_be_run_by_its_name():
    def build(nn):
        class Model(nn.Module):
            inner: Any

            @nn.compact
            def __call__(self, x):
                return self.inner(x)

        return Model(nn.Dense(2))

    outputs = []
    for library in (nn, flax_nn):
        model = build(library)
        variables = model.init(KEYS, X)
        outputs.append(model.apply(variables, X, method="inner"))
    assert_same(*outputs)


def test_names_of_adopted_modules_are_kept_on_request():
    def build(nn):
        class Model(nn.Module):
            preserve_adopted_names = True
            a: Any
            b: Any

            @nn.compact
            def __call__(self, x):
                return self.b(self.a(x))

        return Model

    check(lambda nn: build(nn)(nn.Dense(3, name="mine"), nn.Dense(3)), X)
    with pytest.raises(NameInUseError):
        build(nn)(nn.Dense(3, name="mine"), nn.Dense(3, name="mine")).init(KEY, X)


def test_a_module_without_variables_may_be_changed():
    module = nn.Dense(2)
    module.features = 5
    module.note = "any"
    assert module.init_with_output(KEYS, X)[0].shape == (2, 5)

    class Other(nn.Dense):
        pass

    module.__class__ = Other
    assert module.init_with_output(KEYS, X)[0].shape == (2, 5)
    with pytest.raises(SetAttributeFrozenModuleError, match="Dense at /"):
        nn.Dense(2).bind({}).features = 5


def test_an_attribute_missing_inside_a_descriptor_is_not_taken_for_the_descriptor():
    class Descriptor:
        def __get__(self, instance, owner=None):
            return instance.missing

    class Model(nn.Module):
        by_descriptor = Descriptor()

        @property
        def by_property(self):
            return self.missing

        def __call__(self, which):
            return getattr(self, which)

    for name in ("by_descriptor", "by_property"):
        with pytest.raises(DescriptorAttributeError, match=f'Model.{name} accesses .* no attribute "missing"'):
            Model().apply({}, name)
