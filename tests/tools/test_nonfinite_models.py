"""The first NaN or Inf in models and their training steps: `sonde.nnx`, `sonde.linen`, and plain JAX."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from tests.tools.defects import exponential, norm_of_zero

from sonde import first_nonfinite, linen, nnx, sow

WIDTH, DEPTH = 3, 4
X = jnp.array([[0.3, 0.8, 0.5], [0.1, -0.4, 0.2]])


def spoiled(h, number, bad, backward):
    """The value of layer `number`, with a defect if that is layer `bad`."""
    return (norm_of_zero if backward else exponential)(h, number == bad)


def layer_of(matmul, h, number, bad, backward):
    """Layers mark their value; a forward defect is before the mark, a backward defect after it."""
    h = jnp.tanh(matmul(h)) + 0.5
    h = h if backward else spoiled(h, number, bad, backward)
    h = sow(h, "h")
    return spoiled(h, number, bad, backward) if backward else h


# -- nnx ---------------------------------------------------------------------------------------------------------------


class Layer(nnx.Module):
    def __init__(self, *, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, h, number, bad, backward):
        return layer_of(self.linear, h, number, bad, backward)


class Model(nnx.Module):
    def __init__(self, *, scanned, rngs):
        self.scanned = scanned
        if scanned:
            make = nnx.vmap(lambda key: Layer(rngs=nnx.Rngs(key)))
            self.layers = make(jax.random.split(rngs.params(), DEPTH))
        else:
            self.layers = nnx.List([Layer(rngs=rngs) for _ in range(DEPTH)])

    def __call__(self, h, bad, backward):
        if not self.scanned:
            for number, layer in enumerate(self.layers):
                h = layer(h, number, bad, backward)
            return h

        @nnx.scan(in_axes=(nnx.Carry, 0, 0), out_axes=nnx.Carry)
        def run(h, layer, number):
            return layer(h, number, bad, backward)

        return run(h, self.layers, jnp.arange(DEPTH))


@pytest.mark.every(3)
@pytest.mark.parametrize("scanned", [False, True], ids=["list", "scan"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_nnx_training_step(scanned, backward, donate):
    model = Model(scanned=scanned, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)

    def step(model, optimizer, x, bad):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x, bad, backward) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    step = nnx.jit(step, donate_argnums=(0, 1)) if donate else nnx.jit(step)
    assert first_nonfinite(step)(model, optimizer, X, jnp.int32(-1)) is None
    found = first_nonfinite(step)(model, optimizer, X, jnp.int32(2))
    where = (found.path, found.gradient, found.iteration)
    assert where == (("layers/h", backward, (2,)) if scanned else ("layers/2/h", backward, ()))
    # The line in the defect; in a scan that is differentiated, JAX may keep only the line of the scan.
    assert "defects.py:" in found.source or scanned
    assert any("test_nonfinite_models.py:" in line for line in found.chain)


def test_nnx_model_itself():
    model = Model(scanned=False, rngs=nnx.Rngs(0))
    assert first_nonfinite(model)(X, 1, False).path == "layers/1/h"
    assert first_nonfinite(nnx.jit(lambda m, x: m(x, 3, False)))(model, X).path == "layers/3/h"


# -- linen -------------------------------------------------------------------------------------------------------------


class LinenLayer(linen.Module):
    backward: bool

    @linen.compact
    def __call__(self, h, number, bad):
        return layer_of(linen.Dense(WIDTH), h, number, bad, self.backward), None


class LinenModel(linen.Module):
    scanned: bool
    backward: bool

    @linen.compact
    def __call__(self, h, bad):
        if self.scanned:
            scanned = linen.scan(
                LinenLayer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=(0, linen.broadcast),
                length=DEPTH,
            )
            return scanned(self.backward, name="layers")(h, jnp.arange(DEPTH), bad)[0]
        for number in range(DEPTH):
            h, _ = LinenLayer(self.backward, name=f"layer_{number}")(h, number, bad)
        return h


@pytest.mark.every(3)
@pytest.mark.parametrize("scanned", [False, True], ids=["list", "scan"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
def test_linen_training_step(scanned, backward, donate):
    model = LinenModel(scanned, backward)
    params = model.init(jax.random.key(0), X, -1)

    def step(params, x, bad):
        grads = jax.grad(lambda p: jnp.mean(model.apply(p, x, bad) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)

    step = jax.jit(step, donate_argnums=0 if donate else ())
    assert first_nonfinite(step)(params, X, jnp.int32(-1)) is None
    found = first_nonfinite(step)(params, X, jnp.int32(1))  # and the parameters are still there
    where = (found.path, found.gradient, found.iteration)
    assert where == (("layers/h", backward, (1,)) if scanned else ("layer_1/h", backward, ()))


# -- plain -------------------------------------------------------------------------------------------------------------


def test_several_training_steps_in_a_loop():
    """A training loop on the device: which step, which layer."""
    weights = jnp.stack([jnp.eye(WIDTH) * 0.9] * DEPTH)

    def loss(weights, x, step):
        def layer(h, args):
            w, number = args
            h = norm_of_zero(sow(h @ w, "h"), (step == 3) & (number == 2))
            return h, None

        return lax.scan(layer, x, (weights, jnp.arange(DEPTH)))[0].mean()

    @jax.jit
    def train(weights, x):
        def step(weights, number):
            return weights - 0.01 * jax.grad(loss)(weights, x, number), None

        return lax.scan(step, weights, jnp.arange(6))[0]

    found = first_nonfinite(train)(weights, X)
    assert (found.path, found.gradient, found.iteration) == ("h", True, (3, 2))
    assert "defects.py:" in found.source and found.operation == "div"
