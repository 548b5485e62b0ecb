"""What interceptors and `method=` see, against flax.linen."""

import inspect

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest

from sonde import linen as nn
from sonde.errors import ApplyModuleInvalidMethodError, InvalidRngError

X = jnp.ones((1, 3))


def calls_seen(nn):
    class Model(nn.Module):
        def setup(self):
            self.layer = nn.Dense(2)

        def __call__(self, x):
            return self.layer(x)

    seen = []

    def note(run, args, kwargs, context):
        seen.append((type(context.module).__name__, context.method_name, len(args)))
        return run(*args, **kwargs)

    variables = Model().init(jax.random.key(0), X)
    with nn.intercept_methods(note):
        Model().apply(variables, X)
    return seen


def test_setup_is_intercepted_too():
    assert calls_seen(nn) == calls_seen(flax_nn)
    assert ("Model", "setup", 0) in calls_seen(nn)


def test_every_output_can_be_captured():
    def captured(nn):
        class Model(nn.Module):
            def setup(self):
                self.layer = nn.Dense(3)

            def encode(self, x):
                return nn.cond(True, lambda layer, x: layer(x), lambda layer, x: layer(x) * 2, self.layer, x)

            def __call__(self, x):
                return self.encode(self.layer(x))

        variables = Model().init(jax.random.key(0), X)
        _, changed = Model().apply(variables, X, capture_intermediates=lambda module, name: module.name is None)
        return jax.tree.map(jnp.shape, changed), {name: list(tree) for name, tree in variables["params"].items()}

    assert captured(nn) == captured(flax_nn)
    assert captured(nn)[1] == {"layer": ["kernel", "bias"]}


WRAPS = {
    "jit": lambda nn: nn.jit,
    "remat": lambda nn: nn.remat,
    "remat twice": lambda nn: lambda layer: nn.remat(nn.remat(layer)),
    "vmap": lambda nn: lambda layer: nn.vmap(layer, variable_axes={"params": 0}, split_rngs={"params": True}),
}


def is_trial(args):
    """Whether Flax tries out the setup of what is lifted: it passes an integer through the module."""
    return len(args) == 1 and args[0].dtype == "int32"


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("kind", ["class", "method", "function"])
def test_a_lifted_method_is_intercepted_once(wrap, kind):
    def run(nn):
        seen = []

        def plus_one(run, args, kwargs, context):
            if not is_trial(args):
                seen.append(context.method_name)
            output = run(*args, **kwargs)
            return output if context.method_name == "setup" else output + 1

        class Layer(nn.Module):
            def __call__(self, x):
                return x * self.weight(x)

            def weight(self, x):
                return jnp.sin(x)

            if kind == "method":
                weight = wrap(nn)(weight)

        def named(module, x):
            return module(x)

        model = wrap(nn)(Layer)() if kind == "class" else Layer()
        with nn.intercept_methods(plus_one):
            method = wrap(nn)(named) if kind == "function" else None
            return model.apply({}, X, method=method).tolist(), seen

    assert run(nn) == run(flax_nn)


LAYERS = sorted(
    name
    for name in nn.__all__
    if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module) and hasattr(flax_nn, name)
)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_no_methods_of_their_own_that_interceptors_see(name):
    def seen(layer, module):
        own = [cls for cls in layer.__mro__ if cls not in module.__mro__]
        methods = {name: value for cls in own for name, value in vars(cls).items() if inspect.isfunction(value)}
        return {name for name, value in methods.items() if not (name[:2] == "__" or getattr(value, "nowrap", False))}

    assert seen(getattr(nn, name), nn.Module) <= seen(getattr(flax_nn, name), flax_nn.Module)


def test_a_method_must_take_the_module():
    with pytest.raises(ApplyModuleInvalidMethodError, match="this one takes no argument"):
        nn.Dense(2).apply({}, method=lambda: True)
    with pytest.raises(TypeError):
        nn.Dense(2).apply({}, method="features")
    with pytest.raises(ValueError, match="takes rngs as one key"):
        nn.Dense(2).init({"params": "key"}, X)
    with pytest.raises(InvalidRngError):
        nn.Dense(2).init("key", X)
