"""Statistics during training, against steps worked out by hand."""

import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from tests.tools.models import LinenNetwork, Network, V, W, X, every_face, forward, plain

import sonde
from sonde import nnx, sow
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.tools import monitor
from sonde.tools.training import writers

WANTED = {"hidden": ["mean", "dead", "grad_norm"]}


def steps():
    def train(loss, params, x):
        return jax.tree.map(lambda p, g: p - 0.0 * g, params, jax.grad(loss)(params, x))

    by_plain = lambda p, x: train(lambda p, x: plain(x, *p).sum(), p, x)
    by_linen = lambda p, x: train(lambda p, x: LinenNetwork().apply(p, x).sum(), p, x)

    @nnx.jit
    def by_nnx(model, x):
        optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(lambda m: m(x).sum())(model))
        return nnx.clone(model)

    linen = {"params": {"w": W, "v": V}}
    return {
        "plain": (by_plain, (W, V)),
        "plain-jit": (jax.jit(by_plain), (W, V)),
        "nnx-jit": (by_nnx, Network()),
        "linen": (by_linen, linen),
        "linen-jit": (jax.jit(by_linen), linen),
    }


@pytest.mark.parametrize("face", list(steps()))
def test_every_face(face):
    train_step, params = steps()[face]
    seen = []
    with monitor(train_step, WANTED, every=2, writers=lambda step, numbers: seen.append((step, numbers))) as step:
        for _ in range(3):
            params = step(params, X)
    assert [number for number, _ in seen] == [0, 2]
    for _, numbers in seen:
        assert sorted(numbers) == ["hidden/dead", "hidden/grad_norm", "hidden/mean"]
        np.testing.assert_allclose(numbers["hidden/mean"], 10 / 6, rtol=1e-6)
        np.testing.assert_allclose(numbers["hidden/grad_norm"], np.sqrt(2 * 27), rtol=1e-6)
        assert numbers["hidden/dead"] == 1


@every_face
def test_results_are_those_of_the_step(face):
    step = monitor(forward(face), {"hidden": ["max"]}, every=2)
    for _ in range(2):
        np.testing.assert_allclose(step(X), [3.0, 3.0])
    assert step.flush() == {"hidden/max": 5.0}


def test_names_of_loops_calls_and_patterns():
    def f(x):
        x = sow(sow(x, "a/twice") + 1, "a/twice")
        return lax.scan(lambda c, _: (sow(c * 2, "b/loop"), None), x, length=2)[0]

    step = monitor(jax.jit(f), {"**": ["max"], lambda site: site.path.startswith("a"): ["min"]}, every=1)
    assert step(jnp.float32(1.0)) == 8.0
    assert step.flush() == {
        "a/twice/max": 1.0,
        "a/twice/min": 1.0,
        "a/twice[1]/max": 2.0,
        "a/twice[1]/min": 2.0,
        "b/loop@0/max": 4.0,
        "b/loop@1/max": 8.0,
    }


def test_only_some_steps_look_and_nothing_compiles_twice():
    looks = []

    @jax.jit
    def f(x):
        looks.append(0)
        return sow(x, "h")

    step = monitor(f, {"h": ["mean"]}, every=3)
    for i in range(7):
        step(jnp.float32(i))
    assert len(looks) == 2  # with sites and without
    assert step.latest == {"h/mean": 6.0}
    assert step.flush() == {"h/mean": 6.0}


def test_a_file(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    step = monitor(lambda x: sow(x, "h"), {"h": ["mean", "nonfinite"]}, every=2, writers=path)
    for x in (1.0, 2.0, jnp.nan):
        step(jnp.float32(x))
    step.flush()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"step": 0, "h/mean": 1.0, "h/nonfinite": 0.0},
        {"step": 2, "h/mean": None, "h/nonfinite": 1.0},
    ]


def test_tensorboard_and_weights_and_biases(monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, x, step):
            written.append((name, x, step))

        def flush(self):
            written.append("flush")

    run = types.SimpleNamespace(
        log=written.append, define_metric=lambda name, step_metric: written.append((name, step_metric))
    )
    fakes = {
        "tensorboardX": types.SimpleNamespace(SummaryWriter=SummaryWriter),
        "wandb": types.SimpleNamespace(run=run),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    step = monitor(
        lambda x: sow(x, "h"), {"h": ["mean"]}, writers=[writers.tensorboard("logs"), writers.weights_and_biases()]
    )
    step(jnp.float32(2.0))
    step.flush()
    assert written == [
        "logs",
        ("h/mean", 2.0, 0),
        "flush",
        ("h/mean", "monitored_step"),
        {"h/mean": 2.0, "monitored_step": 0},
    ]


@pytest.mark.parametrize(
    ("make", "extra"), [(lambda: writers.tensorboard("x"), "tensorboard"), (writers.weights_and_biases, "wandb")]
)
def test_a_missing_extra_is_named(monkeypatch, make, extra):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=rf"which is not installed: pip install 'sonde-jax\[{extra}\]'"):
        make()


def test_errors():
    f = lambda x: sonde.sow(x, "h")
    with pytest.raises(ValueError, match="monitor of 'h': there is no statistic 'median'; there are mean, std, "):
        monitor(f, {"h": ["median"]})
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        monitor(f, {"h": ["mean"]}, every=0)
    with pytest.raises(TypeError, match="'h' needs a list of statistics, got the string 'mean'"):
        monitor(f, {"h": "mean"})
    with pytest.raises(CaptureError, match="needs gradients for grad_norm of 'h', but none reached its sites"):
        monitor(f, {"h": ["mean", "grad_norm"]})(1.0)
    with pytest.raises(NoSuchSiteError, match="pattern 'g' matches none"):
        monitor(f, {"g": ["mean"]})(1.0)
    with pytest.raises(CaptureError, match="monitor must run on numbers"):
        jax.jit(monitor(f, {"h": ["mean"]}))(1.0)


def test_repr():
    step = monitor(plain, {"hidden": ["mean"]}, every=5)
    step(X)
    assert repr(step) == "Monitored(plain, every=5, step=1)"


@pytest.mark.parametrize("scan", [False, True])
def test_stacked_statistics_are_the_same(scan, monkeypatch):
    """On an accelerator small arrays are stacked and reduced together, at the end of the step."""

    def step(w, x):
        def layer(x, w):
            return sonde.sow(jnp.tanh(sonde.sow({"a": x @ w, "n": jnp.arange(3)}, "h")["a"]), "out"), None

        def loss(w):
            y = jax.lax.scan(layer, x, w)[0] if scan else layer(layer(x, w[0])[0], w[1])[0]
            return jnp.sum(sonde.sow(y, "end") ** 2)

        return jax.grad(loss)(w)

    w, x = jax.random.normal(jax.random.key(0), (2, 4, 4)), jax.random.normal(jax.random.key(1), (5, 4))
    wanted = {"**": ["mean", "std", "norm", "zeros", "grad_norm", "nonfinite"]}
    found = []
    for stacks in (False, True):
        monkeypatch.setattr("sonde.tools.training.monitor.worth_stacking", lambda stacks=stacks: stacks)
        watched = monitor(jax.jit(step), wanted, every=1)
        watched(w, x)
        assert (watched._stacked is not None) == stacks
        found.append(watched.latest)
    one, other = found
    assert one.keys() == other.keys() and len(one) > 15
    np.testing.assert_allclose([one[k] for k in one], [other[k] for k in one], rtol=1e-5, atol=1e-6)
