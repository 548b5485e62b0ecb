"""What can be opened, the graphs of a program, and pages that are files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.viewer.conftest import TOKENS
from tests.viewer.test_training import line

import sonde
from sonde import models, tools
from sonde.report import examine
from sonde.tools.training.bundle import write_bundle
from sonde.viewer import notebook
from sonde.viewer.assets import bundle, whole_page
from sonde.viewer.conversation import Conversation
from sonde.viewer.open import joined, opened_file, subject_of
from sonde.viewer.operations import Job, answer
from sonde.viewer.runs import Runs
from sonde.viewer.saved import first_answers, key_of


def program(x: Any) -> Any:
    return jnp.log(sonde.sow(x * 2, "h")).sum()


def test_a_folder_opens_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(line(0, loss=1.0))
    examine(program)(jnp.ones(2)).write(tmp_path / "report.html")
    sonde.store.harvest(program, [jnp.ones((2, 3))], tmp_path / "store", progress=False)
    write_bundle(tmp_path / "bundle", jax.jit(program), (jnp.zeros(3),), {}, answer="log of zero")
    (tmp_path / "notes.txt").write_text("nothing to see")
    opened = joined([dict(opened_file(str(tmp_path)))])
    assert {name: one.card["kind"] for name, one in opened.items()} == {
        "run.jsonl": "run",
        "bundle": "program",
        "report.html": "report",
        "store": "store",
    }
    ask = lambda name, **data: answer(Job(opened), name, {"subject": "bundle", **data})
    assert opened["bundle"].card["about"] == "log of zero"
    assert ask("read")["result"] == ["result: -inf"]
    (path, _) = [site["path"] for site in ask("sites")["sites"]]
    change = {"kind": "add", "path": path, "factor": 0.5}
    assert ask("read", changes=[change])["result"] == ["result: 0"]  # 3 log 1


@pytest.mark.every(2)
def test_the_command_looks_into_functions_that_have_no_marks(tmp_path: Path) -> None:
    from sonde.cli.view import _opened

    file = tmp_path / "unmarked.py"
    lines = "import jax.numpy as jnp", "def step(x, *, plus=0):", "    big = x * 2", "    return big + plus"
    file.write_text("\n".join((*lines, "def main():", "    return step, (jnp.ones(3),), {'plus': 1}")))
    opened = _opened(f"{file}:main", None, None, (f"{file}:step",), None, 64, {}, {})
    ((name, runs),) = opened.items()
    assert isinstance(runs, Runs)
    assert runs.value(None, (), "step/big").tolist() == [2.0, 2.0, 2.0]
    names: dict[str, Any] = {}
    change = {"kind": "scale", "path": "step/big", "chosen": {"0": [1]}, "factor": 5.0}
    exec(answer(Job(opened), "python", {"subject": name, "changes": [change]})["code"], names)
    assert names["result"].tolist() == [3.0, 11.0, 3.0]


def test_names_that_are_equal_are_told_apart(tmp_path: Path) -> None:
    for part in "ab":
        (tmp_path / part).mkdir()
        (tmp_path / part / "run.jsonl").write_text(line(0, loss=1.0))
    parts = [dict(opened_file(str(tmp_path / part / "run.jsonl"))) for part in "ab"]
    assert list(joined(parts)) == ["run.jsonl", "run.jsonl (2)"]


@pytest.mark.every(2)
def test_the_graph_of_components_is_that_of_the_tool(ask: Callable[..., Any], model: models.Decoder) -> None:
    explained = {"position": -1, "token": 3}
    senders, receivers, _ = model.circuit_sites()
    edges = tools.attribute_edges(model, senders, receivers, metric=lambda y: y[0, -1, 3], baseline=0)(
        jnp.asarray([TOKENS])
    )
    found = ask("graph", explained=explained, share=0.6)
    kept = edges.prune(0.6)
    assert found["kept"] == len(kept) and found["of"] == len(edges)
    assert found["faithfulness"] == pytest.approx(kept.measured(), rel=1e-3)
    assert [score for *_, score in found["edges"]] == pytest.approx([e.score for e in kept], rel=1e-3)
    names = {node["id"] for node in found["nodes"]}
    left_out = sorted({node["id"] for node in ask("graph", explained=explained, share=1.0)["nodes"]} - names)
    if left_out:
        pinned = ask("graph", explained=explained, share=0.6, pinned=left_out[:1])
        assert left_out[0] in {node["id"] for node in pinned["nodes"]} and pinned["kept"] > found["kept"]
    file = ask("graph_file", explained=explained, share=0.6, groups={"both": sorted(names)[:2]}, pinned=[min(names)])
    ids = {node["node_id"] for node in file["nodes"]}
    assert ids == names and all({link["source"], link["target"]} <= ids for link in file["links"])
    assert file["qParams"]["supernodes"] == [["both", *sorted(names)[:2]]]
    assert file["metadata"]["prompt_tokens"] == [str(token) for token in TOKENS]


def test_the_bundled_script_has_every_file_once_and_imports_nothing() -> None:
    script = bundle()
    assert script.count('modules["main.js"] = ') == 1 and script.count('modules["shared.js"] = ') == 1
    assert "\nimport " not in script and "\nexport " not in script
    page = whole_page("</script>", {"answers": {"</script>": "<!--"}})
    assert page.count("</script>") == 2 and "<!--" not in page and "/static/" not in page.split("<script>")[0]


def test_a_notebook_keeps_what_a_page_shows_first(model: models.Decoder) -> None:
    runs = {"m": Runs(subject_of(model, (jnp.asarray([TOKENS]),), title="m"))}
    answers = first_answers(runs)
    assert [key.partition(" ")[0] for key in answers] == ["hello", "sites", "site", "picture", "read", "glances"]
    assert key_of("sites", {"subject": "m", "changes": [], "prompt": None}) in answers
    shown, _ = notebook.shown(runs, "Served(...)")
    assert "application/vnd.jupyter.widget-view+json" in shown and shown["text/plain"] == "Served(...)"
    assert "blocks/2/attn/weights" in shown["text/html"] and "sandbox" in shown["text/html"]


def test_a_widget_answers_what_its_frame_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    import concurrent.futures

    pools = []

    def pool() -> concurrent.futures.ThreadPoolExecutor:
        pools.append(concurrent.futures.ThreadPoolExecutor(2))
        return pools[-1]

    monkeypatch.setattr(notebook, "threads", pool)
    widget = notebook.widget({"f": Runs(subject_of(program, (jnp.ones(2),), title="f"))})
    sent: list[Any] = []
    widget.send = sent.append
    for content in ({"sonde": json.dumps({"id": 1, "op": "hello"})}, {"other": 1}, "text", {"sonde": "{"}):
        widget._handle_custom_msg(content, [])
    pools[0].shutdown(wait=True)
    assert [(message["id"], message["result"]["subjects"][0]["name"]) for message in sent] == [(1, "f")]


def test_a_question_that_was_cancelled_while_it_waited_is_not_computed() -> None:
    import concurrent.futures
    import threading

    go, sent = threading.Event(), []
    with concurrent.futures.ThreadPoolExecutor(1) as one:
        one.submit(go.wait)
        conversation = Conversation({}, one, sent.append)
        conversation.take('{"id": 1, "op": "hello"}')
        conversation.take('{"id": 1, "op": "cancel"}')
        go.set()
    assert sent == [{"id": 1, "cancelled": True}]


@pytest.mark.every(2)
def test_code_of_the_page_runs_by_itself(ask: Callable[..., Any], model: models.Decoder) -> None:
    change = {"kind": "ablate", "path": "blocks/0/attn/heads", "chosen": {"2": [1]}}
    start = ask("python", changes=[change])["start"]
    names: dict[str, Any] = {"f": model, "args": (jnp.asarray([TOKENS]),)}
    exec(f"{start}\n{ask('attribution', changes=[change])['code']}", names)
    page = ask("attribution", changes=[change])
    assert float(names["found"].output) == pytest.approx(page["output"], rel=1e-3)
