"""Changes give the numbers of the tools, and of the Python that the page copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.viewer.conftest import CONFIG, OTHERS, TOKENS

import sonde
from sonde import models, nnx, tools
from sonde.dictionaries import Dictionary
from sonde.viewer.changes import KINDS, Change
from sonde.viewer.open import subject_of
from sonde.viewer.operations import Job, answer
from sonde.viewer.runs import Runs

OTHER_PROMPT = " ".join(map(str, OTHERS))
HEADS, OUT = "blocks/1/attn/heads", "blocks/2/out"


def change(kind: str, path: str = HEADS, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "path": path, "prompt": OTHER_PROMPT, "factor": 2.5, **more}


@pytest.mark.every(7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", [{}, {"2": [1]}, {"1": [2, 4], "2": [0]}, {"1": [2, 4], "2": [0, 1]}])
def test_the_python_of_a_change_makes_the_same_change(
    kind: str, chosen: dict[str, list[int]], runs: Runs, ask: Callable[..., Any], model: models.Decoder
) -> None:
    if kind == "gradient":
        return _check_gradient(chosen, ask, model)
    data = change(kind, chosen=chosen)
    code = ask("python", changes=[data])["code"]
    names: dict[str, Any] = {"f": model, "args": (jnp.asarray([TOKENS]),)}
    exec(code, names)
    changed = runs.run(None, (Change.of(data),)).result
    np.testing.assert_allclose(changed, names["result"], rtol=1e-4, atol=1e-5)
    assert np.abs(changed - runs.run(None).result).max() > 1e-3
    return None


def _check_gradient(chosen: dict[str, list[int]], ask: Callable[..., Any], model: models.Decoder) -> None:
    from tests.viewer.conftest import unpacked

    data = change("gradient", chosen=chosen)
    options = {"path": "embedded", "rows": 1, "columns": 2, "explained": {"position": -1, "token": 3}}
    page = unpacked(ask("picture", changes=[data], **options)["values"])
    names: dict[str, Any] = {"f": model, "args": (jnp.asarray([TOKENS]),)}
    exec(ask("python", changes=[data])["code"], names)
    _, records = tools.site_gradients(names["changed"], "embedded", metric=lambda y: y[0, -1, 3])(*names["args"])
    np.testing.assert_allclose(page, records["embedded"].grad[0], rtol=1e-3, atol=1e-6)
    plain = unpacked(ask("picture", **options)["values"])
    assert np.abs(plain - page).max() > 1e-6


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", ["scan", "list"])
def test_ablations_are_those_of_the_tool_in_every_layer_and_compile_once(layers: Any) -> None:
    model = models.from_config(CONFIG, layers=layers)
    traced = []

    def program(tokens: Any) -> Any:
        traced.append(True)
        return model(tokens)

    tokens = jnp.asarray([TOKENS])
    runs = Runs(subject_of(program, (tokens,), logits=lambda result: result))
    base = runs.run(None).result
    times = [len(traced)]
    for layer in range(3):
        made = Change("ablate", f"blocks/{layer}/attn/heads", ((2, (layer % 2,)),))
        result = runs.run(None, (made,)).result
        times.append(len(traced))
        expected = tools.ablate(model, f"blocks/{layer}/attn/heads", units=layer % 2, unit_axis=-2)(tokens)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        assert np.abs(result - base).max() > 1e-4
    assert times[0] == 1  # the list of sites and the first run share a trace
    assert times[1] > times[0] and times[1] == times[2] == times[3]


def test_features_of_every_layer_of_a_loop_are_changed_in_their_layer(model: models.Decoder) -> None:
    coders: dict[Any, Dictionary] = {
        (f"blocks/{i}/norm2", f"blocks/{i}/mlp/out"): Dictionary(
            16, 24, d_out=16, activation="topk", k=6, rngs=nnx.Rngs(i)
        )
        for i in range(3)
    }
    coders["blocks/1/mid"] = Dictionary(16, 24, activation="topk", k=6, rngs=nnx.Rngs(9))  # keys that do not sort
    args = (jnp.asarray([TOKENS]),)
    runs = Runs(subject_of(model, args, dictionaries=coders, title="m"))
    unchanged = runs.run(None).result
    for layer in range(3):
        data = change("add", f"blocks/{layer}/mlp/out/features", chosen={"2": [3]})
        names: dict[str, Any] = {"f": model, "args": args, "dictionaries": coders}
        exec(answer(Job({"m": runs}), "python", {"subject": "m", "changes": [data]})["code"], names)
        changed = runs.run(None, (Change.of(data),)).result
        np.testing.assert_allclose(changed, names["result"], rtol=1e-3, atol=1e-4)
        assert np.abs(changed - unchanged).max() > 0.1, layer


def run_code(ask: Callable[..., Any], code: str, model: models.Decoder, **question: Any) -> dict[str, Any]:
    """What Python from the page computes: the page puts the program, its changes and the metric in front of it."""
    start = ask("python", explained=question.pop("explained", {}), **question)
    names: dict[str, Any] = {"f": model, "args": (jnp.asarray([TOKENS]),)}
    exec(f"{start['start']}\n\n{start['metric']}\n{code}", names)
    return names


@pytest.mark.parametrize(("kind", "axis"), [("ablate", 2), ("mean", 1), ("mean", None), ("patch", 1)])
@pytest.mark.every(3)
def test_the_python_of_a_sweep_gives_its_scores(
    kind: str, axis: int | None, ask: Callable[..., Any], model: models.Decoder
) -> None:
    from tests.viewer.conftest import unpacked

    explained = {"position": -2, "token": 7, "against": 9}
    swept = ask("sweep", path="blocks/0/attn/heads", kind=kind, axis=axis, other=OTHER_PROMPT, explained=explained)
    last = swept["code"].replace("for path in paths:", "for path in paths[-1:]:")  # each edit is traced anew
    scores = run_code(ask, last, model, explained=explained)["scores"]
    values = unpacked(swept["values"])
    assert np.ptp(values) > 1e-4
    assert [*scores.values()] == pytest.approx([*values[-1]], rel=1e-3, abs=1e-5)


def test_the_metric_that_is_copied_explains_the_token_of_the_page(
    ask: Callable[..., Any], model: models.Decoder
) -> None:
    likeliest = ask("read")["tokens"][-1]["next"][0]
    other = change("scale", "blocks/2/out", factor=-3.0)
    changed = ask("read", changes=[other])["tokens"][-1]["next"]
    assert changed[0]["id"] != likeliest["id"]  # with the change another token is the likeliest
    names = run_code(ask, "number = metric(f(*args))", model, changes=[other], explained={"position": -1})
    same = next(token for token in changed if token["id"] == likeliest["id"])
    assert float(names["number"]) == pytest.approx(same["logit"], rel=1e-3)


@pytest.mark.every(3)
def test_the_python_of_a_graph_measures_what_the_page_says(ask: Callable[..., Any], model: models.Decoder) -> None:
    question = {"explained": {"position": -1, "token": 3}, "changes": [change("ablate", chosen={"2": [1]})]}
    graph = ask("graph", share=0.8, **question)
    names = run_code(ask, graph["code"], model, **question)
    assert len(names["kept"]) == graph["kept"]
    assert names["kept"].measured() == pytest.approx(graph["faithfulness"], rel=1e-3)


def test_several_changes_are_made_in_their_order(runs: Runs, model: models.Decoder) -> None:
    first, second = Change("scale", OUT, factor=0.0), Change("scale", OUT, ((2, (3,)),), factor=5.0)
    both = runs.run(None, (first, second)).result
    np.testing.assert_allclose(both, runs.run(None, (first,)).result, atol=1e-6)
    third = Change("ablate", "blocks/0/mlp/out")
    edited = sonde.edit(model, {OUT: lambda x: x.at[..., 3].multiply(5.0), "blocks/0/mlp/out": jnp.zeros_like})
    np.testing.assert_allclose(
        runs.run(None, (second, third)).result, edited(jnp.asarray([TOKENS])), rtol=1e-4, atol=1e-5
    )


def test_a_change_that_does_not_fit_says_so(ask: Callable[..., Any]) -> None:
    for data, text in (
        (change("ablate", chosen={"2": [2]}), "axis 2 has no index 2"),
        (change("ablate", chosen={"4": [0]}), "there is no axis 4"),
        (change("ablate", "blocks/1/attn/head"), "blocks/1/attn/heads"),
        (change("explode"), "a change is one of"),
        (change("scale", factor=float("nan")), "finite"),
        (change("patch", prompt="1 2"), "same number of tokens"),
        (change("patch", prompt="one two"), "type token ids"),
    ):
        with pytest.raises(Exception, match=text):
            ask("read", changes=[data])


def test_a_change_that_is_off_is_not_made(ask: Callable[..., Any]) -> None:
    data = change("ablate", chosen={"2": [1]})
    assert ask("read", changes=[data | {"on": False}]) == ask("read")
    assert ask("read", changes=[data]) != ask("read")
