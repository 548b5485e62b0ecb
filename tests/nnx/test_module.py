import functools
import inspect

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx


def block(nnx):
    class Noise(nnx.Module):
        def __init__(self, deterministic=False):
            self.deterministic = deterministic
            self.rate = 0.5

        def set_view(self, deterministic: bool | None = None):
            """Sets the mode.

            Args:
              deterministic: if True, there is
                no noise.
            """
            if deterministic is not None:
                self.deterministic = deterministic

    class Norm(nnx.Module):
        def __init__(self):
            self.use_running_average = False
            self.scale = nnx.Param(jnp.ones(2))

        def set_view(self, use_running_average: bool, momentum=0.9):
            self.use_running_average = use_running_average

    class Block(nnx.Module):
        def __init__(self):
            self.noise = Noise()
            self.norm = Norm()
            self.more = nnx.List([Noise(), Norm()])

    return Block()


def modes(m):
    return (
        m.noise.deterministic,
        m.norm.use_running_average,
        m.more[0].deterministic,
        m.more[1].use_running_average,
        m.noise.rate,
    )


SETTINGS = {
    "train": lambda nnx, m: (m.eval(), m.train(), modes(m)),
    "eval": lambda nnx, m: (m.eval(), modes(m)),
    "eval with more": lambda nnx, m: (m.eval(rate=0.1), modes(m)),
    "set all": lambda nnx, m: (m.set_attributes(deterministic=True, rate=0.2), modes(m)),
    "set by type": lambda nnx, m: (m.set_attributes(type(m.norm), use_running_average=True), modes(m)),
    "set by path": lambda nnx, m: (m.set_attributes(nnx.PathContains("more"), deterministic=True), modes(m)),
    "not found": lambda nnx, m: m.set_attributes(nothing=1),
    "not found, allowed": lambda nnx, m: (m.set_attributes(nothing=1, raise_if_not_found=False), modes(m)),
    "tree": lambda nnx, m: (m.set_attributes(deterministic=True, graph=False), modes(m)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_attributes(same, name):
    same(lambda nnx: SETTINGS[name](nnx, block(nnx)))


COPIES = {
    "with_attributes": lambda nnx, m: nnx.with_attributes(m, deterministic=True),
    "with_attributes only": lambda nnx, m: nnx.with_attributes(m, only=nnx.PathContains("more"), deterministic=True),
    "with_attributes not found": lambda nnx, m: nnx.with_attributes(m, nothing=1),
    "with_attributes tree": lambda nnx, m: nnx.with_attributes(m, rate=0.1, graph=False),
    "view": lambda nnx, m: nnx.view(m, deterministic=True, use_running_average=True),
    "view only": lambda nnx, m: nnx.view(m, only=type(m.noise), deterministic=True),
    "view not found": lambda nnx, m: nnx.view(m, only=type(m.noise), nothing=1),
    "view not found, allowed": lambda nnx, m: nnx.view(m, only=type(m.noise), nothing=1, raise_if_not_found=False),
    "view tree": lambda nnx, m: nnx.view(m, use_running_average=True, graph=False),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_in_another_mode(same, name):
    def use(nnx):
        m = block(nnx)
        other = COPIES[name](nnx, m)
        return modes(m), modes(other), other.norm.scale is m.norm.scale, other is m

    same(use)


def test_setting_that_fails_changes_nothing():
    m = block(nnx)
    with pytest.raises(ValueError, match=r"Could not find \['nothing'\].*Noise"):
        m.set_attributes(deterministic=True, nothing=1)
    assert modes(m) == (False, False, False, False, 0.5)
    with pytest.raises(ValueError, match=r"no chosen Module has a set_view that takes \['nothing'\].*nnx.view_info"):
        nnx.view(m, only=type(m.noise), nothing=1)


def test_view_info(same):
    text = same(lambda nnx: nnx.view_info(block(nnx)).replace(block.__qualname__ + ".<locals>.", ""))
    assert "if True, there is" in text
    same(lambda nnx: nnx.view_info(block(nnx), only=lambda path, m: "noise" in path))


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


def test_methods_of_iteration_are_deprecated():
    with pytest.warns(DeprecationWarning, match=r"nnx.iter_modules\(m\)"):
        nnx.Dict().iter_modules()
    with pytest.warns(DeprecationWarning, match=r"nnx.iter_children\(m\)"):
        nnx.Dict().iter_children()


def test_methods_stay_what_they_were():
    """A class is prepared for captures when it is made; nobody should notice."""

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
