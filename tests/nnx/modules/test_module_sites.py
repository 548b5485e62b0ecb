"""Sites of Modules, with a capture and without."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx


def test_sowing_outside_of_a_capture(same):
    def use(nnx):
        m = nnx.Dict()
        m.sow(nnx.Intermediate, "h", 1)
        m.sow(nnx.Intermediate, "h", 2)
        m.sow("losses_test", "loss", 3.0, init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b)
        return m.h, m.loss.get_value(), type(m.loss)

    same(use)

    def clash(other):
        def use(nnx):
            m = nnx.Dict(h=other(nnx))
            m.sow(nnx.Intermediate, "h", 1)

        return use

    same(clash(lambda nnx: 3))
    same(clash(lambda nnx: nnx.Param(3)))


@pytest.mark.parametrize(
    "taken, words",
    [
        (3, r"Dict.sow\('h'\) stores its value, and needs that attribute to be a Variable, got int"),
        (nnx.Param(3), "needs that attribute to be of type 'Intermediate', found 'Param'. Use another name"),
    ],
)
def test_a_name_that_is_taken_is_said(taken, words):
    with pytest.raises(ValueError, match=words):
        nnx.Dict(h=taken).sow(nnx.Intermediate, "h", 1)


def test_sowing_outside_of_a_capture_warns():
    m = nnx.Dict()
    with pytest.warns(DeprecationWarning, match=r"Dict.sow\('h'\) is called without nnx.capture.*which is deprecated"):
        m.sow(nnx.Intermediate, "h", 1)
    with pytest.warns(
        DeprecationWarning, match=r"Dict.perturb\('p'\) is called without nnx.capture.*which is deprecated"
    ):
        m.perturb("p", jnp.ones(2))


def test_perturbing_outside_of_a_capture(same):
    def use(nnx):
        m = nnx.Dict()
        first = m.perturb("p", jnp.ones(2))
        m.p.set_value(jnp.array([1.0, 2.0]))
        return first, m.perturb("p", jnp.ones(2)), m.p

    same(use)
    same(lambda nnx: nnx.Dict(p=nnx.Param(1)).perturb("p", jnp.ones(2)))


def test_perturbing_a_tree():
    with pytest.warns(DeprecationWarning):
        out = nnx.Dict().perturb("p", {"a": jnp.ones(2), "b": (jnp.zeros(1),)})
    assert jax.tree.structure(out) == jax.tree.structure({"a": 0, "b": (0,)})


def test_methods_stay_what_they_were():
    """A class is prepared for captures when it is made, without visible effects."""

    def twice(f):
        @functools.wraps(f)
        def wrapper(self, x):
            return f(self, f(self, x))

        return wrapper

    class Model(nnx.Module):
        constant = max

        def __call__(self, x: int, *, k: int = 1) -> int:
            """Adds."""
            return x + k

        @twice
        def decorated(self, x):
            """Doubles."""
            return 2 * x

        @staticmethod
        def static(x):
            return x

        @classmethod
        def of(cls, x):
            return cls, x

        @property
        def seven(self):
            return 7

        class Nested:
            pass

        def _private(self):
            return 1

    class Sub(Model):
        def __call__(self, x, **kwargs):
            return super().__call__(x, **kwargs) * 10

    m = Sub()
    assert m(1, k=2) == 30 and m.decorated(1) == 4 and m.static(3) == 3 and m.seven == 7
    assert Sub.of(1) == (Sub, 1) and Model.constant(1, 2) == 2 and isinstance(m.Nested(), Model.Nested)
    assert Model.__call__.__name__ == "__call__" and Model.__call__.__doc__ == "Adds."
    assert str(inspect.signature(Model.__call__)) in ("(self, x: int, *, k: int = 1) -> int",)
    assert inspect.unwrap(Model.decorated).__name__ == "decorated" and Model.decorated.__doc__ == "Doubles."
    assert Model.__call__.__qualname__.endswith("Model.__call__")


X = jnp.arange(4.0) * 0.3 + 0.1


class Block(nnx.Module):
    def __init__(self, w=2.0):
        self.w = nnx.Param(jnp.asarray(w, jnp.float32))

    def __call__(self, x):
        h = x * self.w[...]
        self.sow(nnx.Intermediate, "h", h)
        return jnp.sin(h)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def call(m, x):
    return m(x)


def test_methods_that_return_modules_return_the_same_object():
    class M(nnx.Module):
        def __init__(self):
            self.a = Block()

        def pick(self):
            return self.a

        def __call__(self, x):
            assert self.pick() is self.a
            return self.pick()(x)

    out, seen = nnx.capture(M(), method_outputs=nnx.Intermediate)(X)
    close(out, jnp.sin(2 * X))


def test_engine_paths_are_module_paths():
    class Layer(nnx.Module):
        def __call__(self, x):
            return sonde.sow(x * 2, "inner")

    class M(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Layer(), Layer()])

        def __call__(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    model = M()
    for f in (lambda m, x: m(x), lambda m, x: nnx.jit(call)(m, x), lambda m, x: jax.jit(call)(m, x)):
        _, records = sonde.capture(f)(model, X)
        assert list(records) == ["blocks/0/inner", "blocks/1/inner"]
    assert list(sonde.capture(lambda x: model(x))(X)[1]) == ["blocks/0/inner", "blocks/1/inner"]
    assert list(sonde.capture(model)(X)[1]) == ["blocks/0/inner", "blocks/1/inner"]
    out = sonde.edit(model, {"blocks/1/inner": jnp.zeros_like})(X)
    close(out, jnp.zeros(4))


def test_sites_are_on_the_lines_of_the_user():
    class M(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            x = self.perturb("p", x)
            return sonde.sow(x, "e")

    _, records = sonde.capture(lambda x: nnx.capture(M(), method_outputs=nnx.Intermediate)(x)[0])(X)
    first = M.__call__.__wrapped__.__code__.co_firstlineno
    lines = {path: int(record.source.rpartition(":")[2]) - first for path, record in records.items()}
    assert lines == {"h": 1, "p": 2, "e": 3, "__call__": 0}
    assert all(record.source.startswith(__file__) for record in records.values())
