"""Operations that change a run: sweeps, generated text, and the changes as Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde import models
from sonde.report.plain_json import number
from sonde.tools import compare
from sonde.tools.numerics.families import family, natural
from sonde.viewer.arrays import Array
from sonde.viewer.changes import Change, as_python, changed
from sonde.viewer.explained import explained_number
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Runs

_MOST_TOKENS = 512


@operation
def python(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """The changes as Python, each of them in words, and Python with which all other code of the page begins."""
    runs = job.runs(subject)
    every = tuple(Change.of(change) for change in changes)
    made = changes_of(changes)
    layouts, inputs = [], {}
    for change in made:
        array = runs.array(prompt, change.path, change.call)
        layouts.append((len(array.shape), array.unit_axis))
        if change.kind in ("patch", "steer"):
            inputs[change.prompt] = f"(jnp.asarray([{runs.subject.token_ids(change.prompt)}]), *args[1:])"
    lead = ""
    if runs.subject.language is not None and prompt is not None:
        lead = f"args = (jnp.asarray([{runs.subject.token_ids(prompt)}]), *args[1:])  # {prompt!r}\n"
    code = as_python(made, layouts, inputs)
    head, _, body = code.partition("\n\n")
    origin = runs.subject.code and f"{runs.subject.code}\n"
    start = f"{head}\n{origin}\n{lead}{body}"
    return {
        "start": start + ("\nf = changed" if made else ""),
        "code": f"{start}\nresult = changed(*args)",
        "texts": [_text(runs, prompt, change) for change in every],
    }


def _text(runs: Runs, prompt: str | None, change: Change) -> str:
    """A change in words, with the names of the axes; for a site that is not there, with their numbers."""
    names = {(a.path, a.call): a.axes for a in runs.arrays(prompt)}
    return change.text(names.get((change.path, change.call), ()))


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
    scores = np.full((len(layers), units), np.nan)
    total = scores.size
    for at, layer in enumerate(layers):
        for unit in range(units):
            job.progress(at * units + unit, total, layer, row=at, values=packed(scores[max(at - 1, 0) : at + 1]))
            chosen = () if axis is None else ((axis, (unit,)),)
            change = Change.of({"kind": kind, "path": layer, "chosen": dict(chosen), "factor": factor, "prompt": other})
            scores[at, unit] = measure((*made, change))
    return {
        "layers": layers,
        "axis": None if axis is None else array.axes[axis],
        "values": packed(scores),
        "base": number(base),
        "code": _sweep_code(
            runs, layers, array, axis, Change.of({"kind": kind, "path": path, "factor": factor, "prompt": other})
        ),
    }


def _measure(runs: Runs, prompt: str | None, explained: Any) -> Any:
    """A function of changes: the number that is explained, in a run with them. Nothing is recorded in these runs."""
    language = runs.subject.language
    position, tokens, signs = explained_number(runs, prompt, explained or {})
    args = runs.subject.arguments(prompt)

    def measure(changes: Sequence[Change]) -> float:
        result = runs.call("bare", lambda f, _: f, args, runs.placed(prompt, changes))
        if language is None or language.logits is None:
            numbers = [
                x
                for x in jax.tree.leaves(result)
                if np.ndim(x) == 0 and np.issubdtype(np.asarray(x).dtype, np.floating)
            ]
            if not numbers:
                raise ValueError("the program returns no number that a sweep could measure, such as a loss")
            return float(numbers[0])
        logits = np.asarray(language.logits(result)[0, position], np.float64)
        return float(logits[tokens] @ signs)

    return measure


def _sweep_code(runs: Runs, layers: Sequence[str], array: Array, axis: int | None, change: Change) -> str:
    """Python that runs the program once for each layer and unit."""
    index = ", ".join("unit" if i == axis else ":" for i in range(len(array.shape)))
    action = {
        "ablate": "set(0)",
        "mean": f"set(x.mean({tuple(i for i in range(len(array.shape) - 1) if i != axis)}, keepdims=True)[{index}])",
        "patch": f"set(other[{index}])",
    }.get(change.kind)
    if action is None:
        return "# there is no short form of this sweep"
    lines = [f"paths = {list(layers)}", "results = {}"]
    if change.kind == "patch":
        lines.append(f"other_args = (jnp.asarray([{runs.subject.token_ids(change.prompt)}]), *args[1:])")
        lines.append("_, records = sonde.capture(f, *paths)(*other_args)")
    lines.append("for path in paths:")
    if change.kind == "patch":
        lines.append("    other = records[path].value")
    lines.append(f"    for unit in range({1 if axis is None else array.shape[axis]}):")
    lines.append(f"        new = lambda x, unit=unit: x.at[{index}].{action}")
    lines.append("        results[path, unit] = sonde.edit(f, {path: new})(*args)")
    return "\n".join(lines)


@operation
def comparison(job: Job, subject: str, other: str, prompt: str | None = None) -> dict[str, Any]:
    """Where two programs differ on the same input: every value that both have, and the first that differs."""
    runs, second = job.runs(subject), job.runs(other)
    args = runs.subject.arguments(prompt)

    def compute() -> Any:
        with runs.lock, second.lock:
            found = compare(runs.subject.program, second.subject.program, grads=False, inside=runs.subject.inside)(
                *args, **runs.subject.kwargs
            )
        first = found.first
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
                for drift in (*found.drifts, *found.results)
            ],
            "first": None if first is None else {"path": first.path, "text": str(first)},
            "only_first": sorted({path for path, _ in found.only_first}),
            "only_second": sorted({path for path, _ in found.only_second}),
            "unchecked": list(found.unchecked),
            "parting": None if found.parting is None else str(found.parting),
        }

    return runs.remembered(("comparison", other, prompt), compute)


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
