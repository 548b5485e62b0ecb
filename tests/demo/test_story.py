"""The demo finds the induction head and the planted defect, and says so only if it did."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.demo.training_once import use_one_training

import sonde
from sonde.cli.program import sonde_command
from sonde.demo import Story, report_of, show, tell
from sonde.demo.locating import ASKED_AT
from sonde.report import examine
from sonde.tools import Sweep

FIVE = range(5)


@pytest.fixture(scope="module")
def told() -> list[tuple[str, float]]:
    return []


@pytest.fixture(scope="module")
def story(told: list[tuple[str, float]]) -> Story:
    with pytest.MonkeyPatch.context() as patch:
        use_one_training(patch)
        return tell(0, lambda what, done: told.append((what, done)))


def check(story: Story) -> None:
    """What the demo must reach, from the numbers themselves."""
    restored = {path: float(share[0]) for path, share in story.located.sweep.restored.items()}
    assert len(restored) == 8
    assert float(story.located.sweep.clean) - float(story.located.sweep.corrupt) > 3
    best = restored.pop(story.located.head)
    assert best > 0.8
    assert max(restored.values()) < 0.2
    assert story.search.found is not None
    assert (story.search.found.path, story.search.found.gradient) == (story.search.planted, False)
    assert story.problems == [] and len(story.findings) == 3


def test_the_head_is_found_and_so_is_the_defect(story: Story) -> None:
    check(story)
    assert story.located.head.startswith("layers/1/")
    assert np.isnan(story.search.loss)
    assert 0 < story.search.found.infs < story.search.found.size / 2


@pytest.mark.thorough
@pytest.mark.parametrize("seed", FIVE)
def test_on_five_seeds(seed: int) -> None:
    check(tell(seed))


@pytest.mark.thorough
def test_a_model_that_was_hardly_trained_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.demo.training.MOST_STEPS", 50)
    story = tell(0)
    assert story.problems[0] == "the loss did not fall below 0.1 nats in 50 steps"
    assert not any("induction head" in sentence for sentence in story.findings)
    json.dumps(story.to_json(), allow_nan=False)


def test_the_head_matters_at_the_position_asked_about(story: Story) -> None:
    (path, at, share), (_, _, next_share) = story.located.by_position.best(2)
    assert (path, at) == (story.located.head, (ASKED_AT,))
    assert share > 0.8 and next_share < 0.2


def test_progress_is_told(story: Story, told: list[tuple[str, float]]) -> None:
    training = [done for what, done in told if what.startswith("training")]
    assert training == sorted(training) and training[0] == 0 and training[-1] == 1
    assert told[-1][0] == "planting a defect and searching for it"


def test_the_numbers_are_plain_data(story: Story) -> None:
    data = json.loads(json.dumps(story.to_json(), allow_nan=False))
    assert data["head"] == story.located.head
    assert data["restored"][data["head"]] > 0.8
    assert data["problems"] == [] and data["defect"]["found"] == data["defect"]["planted"]


def printed(story: Story, **options: object) -> str:
    console = Console(width=100, **options)
    with console.capture() as capture:
        console.print(show(story))
    return capture.get()


def test_the_terminal_shows_the_pattern(story: Story) -> None:
    text = printed(story, color_system=None)
    assert all(len(line) <= 100 for line in text.splitlines())
    for sentence in story.findings:
        assert sentence[:50] in text
    start = text.index("looks, from the second half")
    rows = text[start:].splitlines()[2:17]
    for i, row in enumerate(rows):  # the diagonal, one to the right of the letter's earlier place
        cells = row[4:].ljust(64)
        assert max(range(32), key=lambda j: " ·░▒▓█".index(cells[2 * j])) == i + 1
    assert "\x1b[" in printed(story, force_terminal=True, color_system="truecolor")


def test_the_page_has_the_panels(story: Story) -> None:
    report = report_of(story)
    titles = [panel.title for panel in report.panels]
    assert titles[0] == "What this run found" and f"Where {story.located.head} looks" in titles
    assert len(titles) == 6
    assert report.failure is None and not [f.text for f in report.findings if f.severity == "problem"]


def test_the_command(story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sonde.demo.tell", lambda seed, progress: dataclasses.replace(story, seed=seed))
    result = CliRunner().invoke(sonde_command, ["demo", "--seed", "0"])
    assert result.exit_code == 0, result.output
    page = tmp_path / "sonde-demo.html"
    assert result.stdout.splitlines()[-1] == f"page: {page}"
    assert story.findings[0][:60] in result.stdout
    assert story.located.head in page.read_text() and "is the induction head" in page.read_text()

    weak = spoiled(story, layers_1_heads_0=0.6)
    monkeypatch.setattr("sonde.demo.tell", lambda seed, progress: weak)
    monkeypatch.setattr("sonde.demo.report_of", lambda story: examine(lambda: sonde.sow(1.0, "h"))())
    result = CliRunner().invoke(sonde_command, ["demo", "--json", "--out", "other.html"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"][0] == "layers/1/heads/0 brings back 60 %, not more than 80 %"
    assert json.loads(result.stdout)["page"] == str(tmp_path / "other.html")


def spoiled(story: Story, **shares: float) -> Story:
    """The same story with other shares for some heads."""
    lost = {path: jnp.asarray([shares.get(path.replace("/", "_"), 0.0)]) for path in story.located.sweep.scores}
    sweep = Sweep(lost, jnp.asarray(1.0), jnp.asarray(0.0))
    return dataclasses.replace(story, located=dataclasses.replace(story.located, sweep=sweep))


def test_a_seed_that_fails_is_said_to_fail(story: Story) -> None:
    weak = spoiled(story, layers_1_heads_0=0.6, layers_1_heads_1=0.35)
    assert weak.problems[:2] == [
        "layers/1/heads/0 brings back 60 %, not more than 80 %",
        "layers/1/heads/1 brings back 35 % too",
    ]
    assert not any("induction head" in sentence for sentence in weak.findings)
    assert "Not shown with this seed: layers/1/heads/0 brings back 60 %" in printed(weak, color_system=None)

    untrained = dataclasses.replace(story, trained=dataclasses.replace(story.trained, learned=False))
    assert untrained.problems == [f"the loss did not fall below 0.1 nats in {len(story.trained.losses)} steps"]

    unfound = dataclasses.replace(story, search=dataclasses.replace(story.search, found=None))
    assert unfound.problems == [f"the defect is in {story.search.planted}, but first_nonfinite found nothing"]
    assert len(unfound.findings) == 2
    assert "every value and every gradient is finite" in printed(unfound, color_system=None)


def test_looking_and_patching_must_agree(story: Story) -> None:
    elsewhere = spoiled(story, layers_0_heads_0=1.0)
    assert any("looks in the right place" in problem for problem in elsewhere.problems)
