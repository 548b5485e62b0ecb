"""The examples run as their reader runs them, and keep what they claim."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import xla_flags

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TRAIN_LONG = ["digits_cnn", "language_model", "lstm"]
SHORT = [*TRAIN_LONG, "several_devices"]


def run(name: str, *arguments: str) -> str:
    """What an example prints, in a terminal wide enough for its tables. A warning is an error."""
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment["XLA_FLAGS"] = xla_flags(1, trains=name in TRAIN_LONG)
    environment |= {"COLUMNS": "160", "PYTHONPATH": str(EXAMPLES.parent / "src"), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr
    assert "training ━" in done.stdout  # the progress bar
    return done.stdout


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SHORT)
def test_it_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After two steps of training, all that follows; what the example claims is checked in the thorough run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    terminal = importlib.import_module("terminal")
    training = terminal.training
    monkeypatch.setattr(terminal, "training", lambda console, steps: training(console, min(steps, 2)))
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # one example changes it
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "training ━" in printed and "┏" in printed  # the bar and a table
    assert "╭" in printed or name not in TRAIN_LONG  # a picture
    assert "nan" not in printed


def find(pattern: str, text: str) -> list[float]:
    """The numbers in the groups of a pattern; percentages as shares."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return [float(g.removesuffix("%")) / (100 if g.endswith("%") else 1) for g in found.groups()]


def row(name: str, text: str) -> list[str]:
    """The cells of a table's row, without its name."""
    lines = [line for line in text.splitlines() if re.match(rf"│ {re.escape(name)} +│", line)]
    assert len(lines) == 1, f"{name!r} is not one row of\n{text}"
    return [cell.strip() for cell in lines[0].strip("│").split("│")][1:]


def share(cell: str) -> float:
    return float(cell.removesuffix("%")) / 100


def test_every_example_is_tested() -> None:
    tests = Path(__file__).read_text()
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    assert scripts >= {"digits_cnn", "language_model", "look_inside", "lstm", "several_devices"}
    assert scripts == {name for name in scripts if f'run("{name}"' in tests}


def test_look_inside() -> None:
    text = run("look_inside")
    [dead] = find(r"([\d.]+%) of the units of layer3/out never fired at the start", text)
    assert dead > 0.5
    loss, silenced = find(r"loss ([\d.]+); with layer3/out silenced it would be ([\d.]+)", text)
    assert loss < 0.01 < 0.05 < silenced


@pytest.mark.thorough
def test_digits_are_read_in_under_a_minute() -> None:
    """The claim of the project: over 97 % of the test images, in less than a minute on two cores."""
    text = run("digits_cnn")
    accuracy, seconds = find(r"test accuracy ([\d.]+%) after ([\d.]+) s", text)
    assert accuracy > 0.97
    assert seconds < 60
    layers = ["conv1", "norm1", "conv2", "norm2", "dropout", "hidden", "head"]
    apart = [share(row(layer, text)[-1]) for layer in layers]
    assert apart[-1] > 0.7 > apart[0]
    assert [row(layer, text)[0] for layer in ("conv1", "dropout", "head")] == ["8x8x16", "512", "10"]
    assert text.count("─ channel ") == 4 and "##" in text


@pytest.mark.thorough
def test_language_model_looks_where_the_next_letter_stands() -> None:
    text = run("language_model", "--quick")
    before, after = find(r"loss of the refrain ([\d.]+) at first, ([\d.]+) after", text)
    assert after < 0.1 < 3 < before
    layers = {i: row(f"blocks/{i}/attention", text) for i in (0, 1)}
    layer, attention = find(r"head \d of blocks/(\d) spends ([\d.]+%) of its attention there", text)
    assert attention > 0.8
    assert max(share(cell) for cell in layers[int(layer)][:4]) == attention
    assert float(layers[int(layer)][4]) > 1 > after  # without that layer the refrain is lost
    picture = text[text.index(f"blocks/{int(layer)}, head") :].splitlines()[1:33]
    assert len(picture) == 32 and all(set(line[2 * i + 4 : -1]) <= {" ", "│"} for i, line in enumerate(picture))


@pytest.mark.thorough
def test_lstm_forgets_at_a_flag() -> None:
    text = run("lstm", "--quick")
    before, after = find(r"mean squared error ([\d.]+) at first, ([\d.]+) after", text)
    assert after < before / 100
    flagged, unflagged = map(float, row("rnn/cell/forget_gate", text))
    assert flagged < unflagged
    assert find(r"keeps ([\d.]+%) more without a flag", text)[0] > 0.2
    for gate in ("input_gate", "cell_gate", "output_gate"):
        assert all(0 < float(cell) < 1 for cell in row(f"rnn/cell/{gate}", text))


@pytest.mark.thorough
def test_several_devices_share_parameters_moments_and_records() -> None:
    text = run("several_devices", "--quick")
    before, after = find(r"loss ([\d.]+) at first, ([\d.]+) after", text)
    assert after < before / 10
    both = "cpu:0, cpu:1"
    assert row("up/kernel", text) == ["8x128", "8x64", both]
    assert row("down/kernel", text) == ["128x1", "64x1", both]
    assert row("opt_state/0/mu/up/kernel", text) == ["8x128", "8x64", both]
    assert row("value of hidden", text) == row("gradient of hidden", text) == ["256x128", "256x64", both]
