"""Operations that change a run: sweeps, generated text, and the changes as Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde import models
from sonde.report.plain_json import number
from sonde.tools import compare
from sonde.tools.numerics.families import family, natural
from sonde.viewer.arrays import Array
from sonde.viewer.changes import Change, as_python, changed, changed_part, check_possible
from sonde.viewer.explained import explained_number, metric_code, only_number
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Runs

_MOST_TOKENS = 512
_IMPORTS = "import functools\n\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\nimport sonde"


@operation
def python(
    job: Job, subject: str, prompt: str | None = None, changes: Any = (), explained: Any = None
) -> dict[str, Any]:
    """The changes as Python, each of them in words; Python with which all other code of the page begins.

    If `explained` says of what, Python for the number that is explained, too.
    """
    runs = job.runs(subject)
    every = tuple(Change.of(change) for change in changes)
    made = changes_of(changes)
    arrays, inputs = [], {}
    for change in made:
        array = runs.array(prompt, change.path, change.call, change.part)
        check_possible(change, array)
        arrays.append(array)
        if change.kind in ("patch", "steer"):
            inputs[change.prompt] = f"(jnp.asarray([{runs.subject.token_ids(change.prompt)}]), *args[1:])"
    start = f"{_IMPORTS}\n\n{_origin(runs, prompt)}\n{as_python(made, arrays, inputs, runs.subject.inside_code)}"
    return {
        "start": start + ("\nf = changed" if made else ""),
        "code": f"{start}\nresult = changed(*args)",
        "metric": "" if explained is None else metric_code(runs, prompt, explained),
        "texts": [_text(runs, prompt, change) for change in every],
    }


def _origin(runs: Runs, prompt: str | None) -> str:
    """Python for the program `f` with its dictionaries, the model in it, and its arguments `args`."""
    subject = runs.subject
    given = {"kwargs": subject.kwargs, "inside": subject.inside, "dictionaries": subject.dictionaries}
    names = ", ".join(["f", "args", *(name for name, value in given.items() if value)])
    lines = [subject.code or f"# {names} are what was given to sonde.view", "model = f"]
    if subject.kwargs:
        lines.append("f = functools.partial(f, **kwargs)")
    if subject.dictionaries:
        lines.append(f"f = sonde.dictionaries.splice(f, dictionaries, keep_error=True{subject.inside_code})")
    if subject.language is not None and prompt is not None:
        lines.append(f"args = (jnp.asarray([{subject.token_ids(prompt)}]), *args[1:])  # {prompt!r}")
    return "\n".join(lines)


def _text(runs: Runs, prompt: str | None, change: Change) -> str:
    """A change in words."""
    arrays = {(a.path, a.call, a.part): a for a in runs.arrays(prompt)}
    return change.text(arrays.get((change.path, change.call, change.part)))


@operation
def sweep(
    job: Job,
    subject: str,
    path: str,
    kind: str = "ablate",
    axis: int | None = None,
    factor: float = 0.0,
    other: str = "",
    explained: Any = None,
    prompt: str | None = None,
    changes: Any = (),
) -> dict[str, Any]:
    """Changes every unit of every layer of a family, one at a time, and tells how the explained number moves.

    Args:
        job: The question; it is told how far the sweep is.
        subject: The program.
        path: A site of the family.
        kind: What is done, as in `Change`.
        axis: The axis of the units, such as the heads; None changes whole values.
        factor: As in `Change`.
        other: The other prompt, for a patch.
        explained: Which logit or difference is measured.
        prompt: The prompt.
        changes: Changes that stay on all the time.
    """
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path)
    own = family(path)
    layers = sorted(
        {a.path for a in runs.arrays(prompt) if family(a.path) == own and a.shape == array.shape}, key=natural
    )
    units = array.shape[axis] if axis is not None else 1
    measure = _measure(runs, prompt, explained)
    base = measure(made)
    asked = Change.of({"kind": kind, "path": path, "factor": factor, "prompt": other})
    scores = np.full((len(layers), units), np.nan)
    total = scores.size
    for at, layer in enumerate(layers):
        for unit in range(units):
            job.progress(at * units + unit, total, layer, row=at, values=packed(scores[max(at - 1, 0) : at + 1]))
            chosen = () if axis is None else ((axis, (unit,)),)
            change = dataclasses.replace(asked, path=layer, chosen=chosen)
            scores[at, unit] = measure((*made, change))
    return {
        "layers": layers,
        "axis": None if axis is None else array.axes[axis],
        "values": packed(scores),
        "base": number(base),
        "code": _sweep_code(runs, layers, array, axis, asked, metric_code(runs, prompt, explained)),
    }


def _measure(runs: Runs, prompt: str | None, explained: Any) -> Any:
    """A function of changes: the number that is explained, in a run with them. Nothing is recorded in these runs."""
    language = runs.subject.language
    position, tokens, signs = explained_number(runs, prompt, explained or {})
    args = runs.subject.arguments(prompt)

    def measure(changes: Sequence[Change]) -> float:
        result = runs.call("bare", lambda f, _: f, args, runs.placed(prompt, changes))
        if language is None or language.logits is None:
            return float(only_number(result))
        logits = np.asarray(language.logits(result)[0, position], np.float64)
        return float(logits[tokens] @ signs)

    return measure


def _sweep_code(
    runs: Runs, layers: Sequence[str], array: Array, axis: int | None, change: Change, explained: str
) -> str:
    """Python that runs the program once for each layer and unit, and keeps the number that is explained."""
    if change.kind not in ("ablate", "mean", "patch") or array.leaf is not None:
        return "# there is no short form of this sweep"
    index = ", ".join("unit" if i == axis else ":" for i in range(array.lead, len(array.shape))) or "..."
    edit = "sonde.Edit(new, calls=0)" if array.calls > 1 else "new"
    inside = runs.subject.inside_code
    lines = [f"paths = {list(layers)}", explained, "scores = {}"]
    if change.kind == "patch":
        lines.append(f"other_args = (jnp.asarray([{runs.subject.token_ids(change.prompt)}]), *args[1:])")
        lines.append(f"_, records = sonde.capture(f, *paths{inside})(*other_args)")
    lines.append("for path in paths:")
    if change.kind == "patch":
        lines.append("    other = records[path].values[0]")
    lines.append(f"    for unit in range({1 if axis is None else array.shape[axis]}):")
    lines.append(f"        new = lambda x, unit=unit: {changed_part(change, index, array)}")
    lines.append(f"        scores[path, unit] = float(metric(sonde.edit(f, {{path: {edit}}}{inside})(*args)))")
    return "\n".join(lines)


@operation
def comparison(job: Job, subject: str, other: str, prompt: str | None = None) -> dict[str, Any]:
    """Where two programs differ on the same input: every value that both have, and the first that differs."""
    runs, second = job.runs(subject), job.runs(other)
    args = runs.subject.arguments(prompt)

    def compute() -> Any:
        with runs.lock, second.lock:
            compared = compare(runs.subject.program, second.subject.program, grads=False, inside=runs.subject.inside)(
                *args, **runs.subject.kwargs
            )
        first = compared.first
        return {
            "drifts": [
                {
                    "path": drift.path,
                    "place": drift.place,
                    "second": drift.second or drift.path,
                    "rel_norm": number(drift.rel_norm),
                    "max_abs": number(drift.max_abs),
                    "differs": drift.differs,
                    "note": drift.note,
                    "is_result": drift.result,
                }
                for drift in (*compared.drifts, *compared.results)
            ],
            "first": None if first is None else {"path": first.path, "text": str(first)},
            "only_first": sorted({path for path, _ in compared.only_first}),
            "only_second": sorted({path for path, _ in compared.only_second}),
            "unchecked": list(compared.unchecked),
            "parting": None if compared.parting is None else str(compared.parting),
            "code": _comparison_code(runs, second, prompt),
        }

    return runs.remembered(("comparison", other, prompt), compute)


def _comparison_code(runs: Runs, second: Runs, prompt: str | None) -> str:
    name = repr(second.subject.name)  # a name stays a text, whatever it holds
    other = f"{_origin(second, prompt)}\ng = f" if second.subject.code else f"# g is the program {name}"
    call = f"sonde.tools.compare(f, g, grads=False{runs.subject.inside_code})(*args)"
    return f"{_IMPORTS}\n\n{other}\n{_origin(runs, prompt)}\nprint({call})"


@operation
def generate(
    job: Job,
    subject: str,
    prompt: str | None = None,
    changes: Any = (),
    tokens: int = 40,
    temperature: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Continues the prompt, token by token, with the changes on.

    A change of some positions is made while the prompt is read; one of all positions at every new token too.
    """
    runs, made = job.runs(subject), changes_of(changes)
    language = runs.subject.language
    if language is None or language.model is None or language.tokenizer is None:
        raise ValueError("only a model of `sonde.models` with a tokenizer can generate text here")
    made = tuple(change for change in made if not change.is_of_gradient)
    everywhere, at_prompt = [], []
    for change in made:
        length = runs.array(prompt, change.path, change.call).length_axis
        is_restricted = length in dict(change.chosen) or change.kind == "patch"
        (at_prompt if is_restricted else everywhere).append(change)
    steps = min(int(tokens), _MOST_TOKENS)
    said: list[str] = []

    def stream(texts: list[str]) -> None:
        said.append(texts[0])
        job.progress(len(said), steps, said[-1])

    program: Any = runs.subject.spliced(models.generate, runs.subject.dictionaries)
    for part, call in ((at_prompt, 0), (everywhere, None)):
        if part:
            places, numbers = runs.placed(prompt, tuple(part), loose=part is everywhere)
            places = tuple(dataclasses.replace(place, call=call) for place in places)
            program = changed(program, places, numbers, runs.subject.inside)
    with runs.lock:
        result = program(
            language.model,
            [runs.subject.token_ids(prompt)],
            max_new_tokens=steps,
            temperature=float(temperature),
            seed=int(seed),
            stream=stream,
        )
    return {"text": result.texts[0], "tokens": [int(token) for token in np.asarray(result.tokens)[0]]}
