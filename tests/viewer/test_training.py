"""A training run is followed while it is written, and after it was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.viewer.conftest import unpacked

import sonde
from sonde import tools
from sonde.tools.training.alerts import RULES, Watchdog
from sonde.viewer.operations import Job, answer
from sonde.viewer.training import TrainingRun


def asked(run: TrainingRun, name: str, **data: Any) -> Any:
    return answer(Job({"run": run}), name, {"subject": "run", **data})


def test_what_monitor_writes_is_read(tmp_path: Path) -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(sonde.sow(x @ w, "blocks/0/h") ** 2)

    file = tmp_path / "run.jsonl"
    step = jax.jit(jax.value_and_grad(loss))
    monitored = tools.monitor(step, {"**": ["norm", "mean"]}, every=2, writers=[tools_writer(file)])
    with monitored:
        for i in range(6):
            monitored(jnp.eye(3) * i, jnp.ones((4, 3)))
    found = asked(run := TrainingRun(file), "run")
    assert found["steps"] == 3 and found["last"] == 4 and "blocks/0/h/norm" in found["names"]
    column = asked(run, "series", names=["blocks/0/h/norm"])["columns"]["blocks/0/h/norm"]
    assert unpacked(column["steps"]).tolist() == [0, 2, 4]
    np.testing.assert_allclose(unpacked(column["values"]), [np.sqrt(12.0) * i for i in (0, 2, 4)], rtol=1e-5)


def tools_writer(file: Path) -> Any:
    from sonde.tools.training.writers import json_lines

    return json_lines(file)


def line(step: int, **numbers: Any) -> str:
    return json.dumps({"step": step, **numbers}) + "\n"


def test_a_growing_file_is_read_on_and_a_killed_one_to_its_last_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(line(0, loss=3.0) + line(1, loss=2.0)[:9])
    run = TrainingRun(file)
    found = asked(run, "run")
    assert found["steps"] == 1
    with file.open("a") as opened:
        opened.write(line(1, loss=2.0)[9:] + "not json\n" + line(2, loss=None, text="x") + line(5, other=1.0))
    found = asked(run, "run")
    assert (found["steps"], found["last"], found["unreadable"]) == (4, 5, 1)
    loss, other = (asked(run, "series", names=[name])["columns"][name] for name in ("loss", "other"))
    assert unpacked(loss["steps"]).tolist() == [0, 1, 2] and unpacked(other["steps"]).tolist() == [5]
    assert np.isnan(unpacked(loss["values"])[2])  # written, and not finite
    file.write_text(line(0, loss=9.0))  # begun anew
    assert asked(run, "run")["steps"] == 1
    with pytest.raises(ValueError, match="no number 'nothing'"):
        asked(run, "series", names=["nothing"])


def test_a_resumed_run_is_read_in_the_order_of_its_steps(tmp_path: Path) -> None:
    far = 2**30 + 1  # no 32-bit float
    file = tmp_path / "run.jsonl"
    written = [(0, 3.0), (2, 2.0), (far, 1.0), (1, 2.5), (2, 2.25)]
    file.write_text("".join(line(step, loss=loss) for step, loss in written) + line(2, accuracy=0.5) + line(10**400))
    run = TrainingRun(file)
    column = asked(run, "series", names=["loss"])["columns"]["loss"]
    assert unpacked(column["steps"]).tolist() == [0, 1, 2, far]
    assert unpacked(column["values"]).tolist() == [3.0, 2.5, 2.25, 1.0]  # what was written last
    assert asked(run, "run")["unreadable"] == 1
    for step, own, values in (
        (5, 2, {"loss": 2.25, "accuracy": 0.5}),
        (-3, 0, {"loss": 3.0}),
        (2**40, far, {"loss": 1.0}),
    ):
        answered = asked(run, "step", step=step)
        assert (answered["step"], answered["values"]) == (own, values)


def test_alerts_are_those_of_the_rules_of_monitor(tmp_path: Path) -> None:
    rows = []
    for step in range(60):
        numbers = {f"blocks/{i}/out/norm": 1.0 + 0.01 * i for i in range(6)}
        if step > 40:
            numbers["blocks/3/out/norm"] = 50.0
        if step == 50:
            numbers["loss"] = float("nan")
        rows.append((step, numbers))
    expected: list[Any] = []
    watchdog = Watchdog(RULES, expected.append)
    for step, numbers in rows:
        watchdog.look(step, numbers)
    file = tmp_path / "run.jsonl"
    file.write_text("".join(line(s, **{k: None if v != v else v for k, v in n.items()}) for s, n in rows))
    run = TrainingRun(file)
    while (found := asked(run, "alerts"))["watched"] < found["rows"]:
        pass
    assert found["rows"] == 60
    assert [(a["step"], a["rule"], a["name"]) for a in found["alerts"]] == [(a.step, a.rule, a.name) for a in expected]
    assert {(41, "family"), (50, "nan")} <= {(a["step"], a["rule"]) for a in found["alerts"]}
