"""What interceptors and `method=` see, against flax.linen."""

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


def test_a_method_must_take_the_module():
    with pytest.raises(ApplyModuleInvalidMethodError, match="this one takes no argument"):
        nn.Dense(2).apply({}, method=lambda: True)
    with pytest.raises(TypeError):
        nn.Dense(2).apply({}, method="features")
    with pytest.raises(ValueError, match="takes rngs as one key"):
        nn.Dense(2).init({"params": "key"}, X)
    with pytest.raises(InvalidRngError):
        nn.Dense(2).init("key", X)
