"""`Module.__captures__`: what was recorded in a Module so far, while a capture runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from flax import nnx as flax_nnx
from sonde import nnx

X = jnp.float32(1.0)


def models(nnx):
    """The same model for both libraries, which notes in a list what it sees."""
    seen = []

    def note(module):
        if not hasattr(module, "__captures__"):
            return seen.append(None)
        seen.append(
            [
                (type(v).__name__, {name: jax.tree.map(number, x) for name, x in v.get_value().items()})
                for v in module.__captures__
            ]
        )

    def number(x):
        return "traced" if isinstance(x, jax.core.Tracer) else float(x)

    class Layer(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.float32(2.0))

        def __call__(self, x):
            note(self)
            x = self.perturb("p", x * self.w[...])
            note(self)
            self.sow(nnx.Intermediate, "h", x)
            self.sow(nnx.Intermediate, "h", x + 1)
            self.sow(nnx.Intermediate, "sum", x, init_fn=lambda: 0.0, reduce_fn=lambda a, b: a + b)
            note(self)
            return x

    class Model(nnx.Module):
        def __init__(self):
            self.a, self.b = Layer(), Layer()

        def __call__(self, x):
            y = self.b(self.a(x))
            note(self.a)
            note(self)
            return y

    return Model(), note, seen


@pytest.mark.parametrize("transform", ["nothing", "jit", "remat"])
def test_as_in_flax(transform):
    found = []
    for library in (flax_nnx, nnx):
        model, note, seen = models(library)

        def f(model, x):
            return model(x)

        note(model)
        run = f if transform == "nothing" else getattr(library, transform)(f)
        library.capture(run, library.Intermediate, library.Perturbation)(model, X)
        note(model)
        found.append(seen)
    assert found[0] == found[1]
    assert found[1][0] is None and found[1][-1] is None and found[1][1] == [("Intermediate", {}), ("Perturbation", {})]


def test_after_a_jitted_call_and_in_the_function_around():
    model, note, seen = models(nnx)

    def f(model, x):
        y = nnx.jit(lambda m, x: m(x))(model, x)
        note(model.b)
        return y

    nnx.capture(f, nnx.Intermediate)(model, X)
    assert seen[-1] == [("Intermediate", {"h": (4.0, 5.0), "sum": 4.0})]


def test_given_values_stand_beside_what_is_recorded():
    model, _, seen = models(nnx)
    _, given = nnx.capture(model, nnx.Perturbation)(X)
    seen.clear()
    nnx.capture(model, nnx.Intermediate, init=given)(X)
    assert seen[0] == [("Intermediate", {}), ("Perturbation", {"p": 0.0})]


def test_it_is_a_view():
    class M(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            assert "__captures__" not in vars(self) and not jax.tree.leaves(nnx.state(self))
            self.__captures__[0].get_value()["h"] = "another"
            return x

    _, state = nnx.capture(M(), nnx.Intermediate)(X)
    np.testing.assert_array_equal(state["h"].get_value()[0], X)
    with pytest.raises(AttributeError, match="no attribute '__captures__'"):
        M().__captures__

    def foreign(model, x):
        return model(x), hasattr(M(), "__captures__")

    assert not nnx.capture(foreign, nnx.Intermediate)(M(), X)[0][1]
    assert not sonde.capture(lambda x: hasattr(M(), "__captures__"))(X)[0]


def test_nothing_leaks():
    model, _, _ = models(nnx)
    with jax.checking_leaks():
        nnx.capture(lambda m, x: nnx.jit(lambda m, x: jax.vmap(lambda x: m(x))(x))(m, x), nnx.Intermediate)(
            model, X[None]
        )
