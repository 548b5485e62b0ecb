"""Rules that watch a training run: each alerts once, with the step."""

import types

import jax
import jax.numpy as jnp
import pytest

import sonde
from sonde.tools import monitor
from sonde.tools.training import writers
from sonde.tools.training.alerts import Watchdog
from sonde.tools.training.bundle import read_bundle


def alerts_of(rule, series):
    """What a rule finds in a series of numbers, as pairs of step and name."""
    dog = Watchdog([rule], lambda alert: None)
    return [(alert.step, alert.name) for step, numbers in enumerate(series) for alert in dog.look(step, numbers)]


def test_each_rule_alerts_once():
    scale = lambda *numbers: [{"h/norm": x} for x in numbers]
    assert alerts_of("exploding", scale(1, 1.1, 0.9, 50, 2e3, 3e3)) == [(4, "h/norm")]
    assert alerts_of("vanishing", scale(1, 1.1, 0.9, 0.1, 1e-4, 1e-5)) == [(4, "h/norm")]
    assert alerts_of("nan", scale(1, float("nan"), float("nan"))) == [(1, "h/norm")]
    assert alerts_of("nan", [{"h/nonfinite": 0.0}, {"h/nonfinite": 2.0}]) == [(1, "h/nonfinite")]
    dead = [{"h/dead": n, "h/units": 10.0} for n in (2.0, 3.0, 6.0, 7.0)]
    assert alerts_of("dead", dead) == [(2, "h/dead")]
    family = lambda odd: {f"blocks/{i}/norm": odd if i == 2 else 1.0 + i / 10 for i in range(5)}
    assert alerts_of("family", [family(1.0), family(4.0), family(20.0), family(30.0)]) == [(2, "blocks/2/norm")]
    losses = [{"loss": x} for x in (3.0, 2.9, 3.1, 2.8, 2.7, 2.9, 2.6, 2.5, 2.6, 9.0, 9.0)]
    assert alerts_of("spike", losses) == [(9, "loss")]


@jax.jit
def train_step(w, x, rate):
    def loss(w):
        return jnp.sum(sonde.sow(jnp.sqrt(sonde.sow(x * w, "h")), "root"))

    value, grad = jax.value_and_grad(loss)(w)
    return w - rate * grad, value


def test_a_nan_leaves_the_last_good_step_and_a_bundle(tmp_path, caplog):
    step = monitor(
        train_step,
        {"h": ["norm", "grad_norm", "nonfinite"]},
        every=1,
        rules=["nan", "spike"],
        loss=lambda result: result[1],
        weights=(0, 0),
        bundle=tmp_path / "bad",
    )
    w, x, seen = jnp.array([4.0, 9.0]), jnp.ones(2), []
    for rate in (0.1, 0.1, 20.0, 0.1, 0.1):
        w, _ = step(w, x, rate)
        seen.append(step.flush())
    assert [alert.step for alert in step.alerts if alert.rule == "nan"] == [3, 3, 3, 4]
    assert {alert.name for alert in step.alerts} == {"h/grad_norm", "loss", "weights/update_ratio", "h/nonfinite"}
    assert step.last_good.step == 2 and "step 3: loss is nan" in caplog.text
    assert seen[0]["loss"] == 5.0 and 0 < seen[0]["weights/update_ratio"] < 0.01
    assert seen[3]["h/grad_norm"] != seen[3]["h/grad_norm"]  # NaN, not the norm of the finite part
    bundle = read_bundle(tmp_path / "bad")
    assert bundle.answer.startswith("step 3") and "sqrt" in bundle.answer
    assert bundle.replay().not_finite == ("result[0]", "result[1]")


def test_rules_are_checked():
    step = lambda x: sonde.sow(x, "h")
    with pytest.raises(ValueError, match="there is no rule 'nans'; there are nan, exploding"):
        monitor(step, {"h": ["mean"]}, rules=["nans"])
    with pytest.raises(ValueError, match="the rule 'spike' needs loss="):
        monitor(step, {"h": ["mean"]}, rules=["spike"])
    with pytest.raises(ValueError, match="add the rule 'nan'"):
        monitor(step, {"h": ["mean"]}, bundle="x")


def test_mlflow():
    written = []
    client = types.SimpleNamespace(log_metrics=lambda numbers, step: written.append((numbers, step)))
    writers.mlflow(client)(3, {"h[1]@2/mean": 1.0})
    assert written == [({"h_1__2/mean": 1.0}, 3)]


def test_statistics_of_narrow_formats():
    x = jnp.array([0.0, 1.0, 300.0, 500.0, 7e4, 1e-4, 1e-9, -3.0], jnp.float32)
    names = ["amax", "overflow_float16", "underflow_float16", "overflow_float8_e4m3fn", "underflow_float8_e5m2"]
    for f in (lambda x: sonde.sow(x, "h"), jax.jit(lambda x: sonde.sow(x, "h"))):
        step = monitor(f, {"h": [*names, "overflow_bfloat16"]}, every=1)
        step(x)
        numbers = {name.removeprefix("h/"): number for name, number in step.flush().items()}
        assert numbers["amax"] == 7e4
        assert numbers["overflow_float16"] == 1 / 8 and numbers["underflow_float16"] == 1 / 8
        assert numbers["overflow_float8_e4m3fn"] == 2 / 8 and numbers["overflow_bfloat16"] == 0
        assert numbers["underflow_float8_e5m2"] == 1 / 8
