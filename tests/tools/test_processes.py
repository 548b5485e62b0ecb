"""Captures, edits and tools in two processes give what they give in one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.processes import HEAD, run

PROGRAM = """
import optax
from sonde import nnx, tools
from sonde.nnx import checkpoints
from sonde.report import examine

rng = np.random.default_rng(0)
W, X = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
w, x = put(W, None, "model"), put(X, "data")


def loss(w, x):
    h = sonde.sow(jnp.tanh(x @ w), "h")
    c, _ = jax.lax.scan(lambda c, _: (sonde.sow(jnp.sin(c), "r"), None), h, None, length=3)
    return (sonde.sow(c, "c") ** 2).mean()


def same(array, expected):
    assert array.shape == expected.shape
    for shard in array.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data), np.asarray(expected)[shard.index], rtol=1e-5, atol=1e-6)


_, alone = sonde.capture(jax.value_and_grad(loss), grads=True)(W, X)  # on one device of this process
for f in (jax.value_and_grad(loss), jax.jit(jax.value_and_grad(loss))):
    _, records = sonde.capture(f, grads=True)(w, x)
    assert list(records) == list(alone) and repr(records)
    for path in alone:
        same(records[path].value, alone[path].value)
        same(records[path].grad, alone[path].grad)

np.testing.assert_allclose(np.asarray(jax.jit(sonde.edit(loss, {"h": lambda h: h * 0}))(w, x)), 0)
_, records = sonde.capture(jax.jit(loss), "h", reduce=jnp.sum)(w, x)
np.testing.assert_allclose(np.asarray(records["h"].value), np.tanh(X @ W).sum(), rtol=1e-4)

assert sonde.first_nonfinite(jax.jit(loss))(w, x) is None
bad = X.copy()
bad[-1, 0] = np.nan  # on the last process alone
found = sonde.first_nonfinite(jax.jit(lambda w, x: loss(w, sonde.sow(x, "x"))))(w, put(bad, "data"))
assert found.path == "x" and found.nans == 1

summary = tools.summarize(jax.jit(loss))(w, x)
assert repr(summary)
step = tools.monitor(jax.jit(loss), {"h": ["mean", "nonfinite"]}, every=1, writers=folder + "/numbers.jsonl")
step(w, x)
np.testing.assert_allclose(step.flush()["h/mean"], np.tanh(X @ W).mean(), rtol=1e-4)
report = examine(jax.jit(jax.value_and_grad(loss)), grads=True)(w, x)
if index == 0:
    report.write(folder + "/page.html")


class Model(nnx.Module):
    def __init__(self, seed):
        rngs = nnx.Rngs(seed)
        self.a, self.b = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.b(sonde.sow(nnx.relu(self.a(x)), "h"))


def shared(model):
    nnx.update(model, jax.tree.map(lambda a: put(np.asarray(a), *([None] * np.ndim(a))), nnx.state(model)))
    return model


@nnx.jit
def train(model, optimizer, x):
    value, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return value


model, single = shared(Model(0)), Model(0)
optimizers = [nnx.Optimizer(m, optax.sgd(0.1), wrt=nnx.Param) for m in (model, single)]
for _ in range(3):
    losses = train(model, optimizers[0], x), train(single, optimizers[1], jnp.asarray(X))
np.testing.assert_allclose(*map(np.asarray, losses), rtol=1e-5)
checkpoints.save(folder + "/checkpoint", model)
same(checkpoints.restore(folder + "/checkpoint", shared(Model(1))).a.kernel[...], np.asarray(single.a.kernel[...]))
"""


@pytest.mark.thorough
def test_two_processes_see_what_one_sees(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HEAD + PROGRAM)
    run(program, 2, str(tmp_path))
    lines = (tmp_path / "numbers.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0]  # one process writes
    assert (tmp_path / "page.html").stat().st_size > 10_000
