"""Operations about all layers: what the output layer would say at each, and where their heads look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde.core import sow
from sonde.tools import attention_heads, logit_lens
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.families import natural
from sonde.viewer.changes import Change
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Runs

_SHARES = 0.02  # how far from one the sum of a row of attention may be


@operation
def lens(job: Job, subject: str, prompt: str | None = None, changes: Any = (), k: int = 5) -> dict[str, Any]:
    """What the output layer would say at every layer and position."""
    runs, made = job.runs(subject), changes_of(changes)
    language = runs.subject.language
    if language is None or language.readout is None or not language.stream:
        raise ValueError("the logit lens needs the output layer: open the program with readout= and stream=")
    readout, stream = language.readout, language.stream

    def make(f: Callable[..., Any], program: Any) -> Callable[..., Any]:
        look = logit_lens(f, *stream, readout=lambda x: readout(program, x), k=k, inside=runs.subject.inside)

        def parts(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return {name: (r.tokens, r.probabilities, r.entropy) for name, r in look(*args, **kwargs).items()}

        return parts

    args = runs.subject.arguments(prompt)
    readings = runs.remembered(
        ("lens", prompt, made, k),
        lambda: on_host(runs.call(("lens", k), make, args, runs.placed(prompt, made)), "view"),
    )
    layers = sorted(readings, key=natural)
    layers.sort(key=lambda name: not name.startswith("embed"))
    tokens = [np.asarray(readings[name][0]).reshape(-1, *np.shape(readings[name][0])[-2:])[0] for name in layers]
    sure = [np.asarray(readings[name][1]).reshape(-1, *np.shape(readings[name][1])[-2:])[0] for name in layers]
    ids = sorted({int(token) for layer in tokens for token in layer.reshape(-1)})
    return {
        "layers": layers,
        "readout": language.readout_code,
        "tokens": [layer.tolist() for layer in tokens],
        "sure": packed(np.stack(sure)),
        "entropy": packed(
            np.stack([np.asarray(readings[name][2]).reshape(-1, np.shape(readings[name][2])[-1])[0] for name in layers])
        ),
        "texts": dict(zip(map(str, ids), language.pieces(ids))),
    }


def _layers_with_attention(runs: Runs, prompt: str | None, changes: Sequence[Change]) -> list[str]:
    """The sites that hold attention weights: in the first head, every row that is finite has a sum of one."""
    paths = []
    for array in runs.arrays(prompt):
        if not array.is_square or array.path in paths:
            continue
        value = runs.value(prompt, changes, array.path, array.call, array.part)
        rows = np.asarray(value.reshape(-1, *value.shape[-2:])[0], np.float32)
        rows = rows[np.isfinite(rows).all(-1)]
        if rows.size and (rows >= 0).all() and (np.abs(rows.sum(-1) - 1) < _SHARES).all():
            paths.append(array.path)
    return paths


def _heads_of(runs: Runs, prompt: str | None, changes: Sequence[Change], path: str) -> np.ndarray:
    """The first example's attention: heads by queries by keys."""
    value = np.asarray(runs.value(prompt, changes, path), np.float32)
    return value.reshape(-1, *value.shape[-3:])[0] if value.ndim >= 3 else value[None]


@operation
def attention(job: Job, subject: str, path: str = "", prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """The attention weights of every head of one layer, that of the path if it has any; and which layers have some."""
    runs, made = job.runs(subject), changes_of(changes)
    layers = _layers_with_attention(runs, prompt, made)
    if not layers:
        return {"layers": [], "path": "", "heads": None}
    block = path.split("/")[1:2]
    shown = path if path in layers else next((name for name in layers if name.split("/")[1:2] == block), layers[0])
    return {"layers": layers, "path": shown, "heads": packed(_heads_of(runs, prompt, made, shown))}


@operation
def heads(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """For every head of every layer, the share of its attention on the previous token, copies, and what came after."""
    runs, made = job.runs(subject), changes_of(changes)
    weights = {path: _heads_of(runs, prompt, made, path) for path in _layers_with_attention(runs, prompt, made)}
    if not weights:
        raise ValueError("no site holds attention weights: queries by keys, with a sum of one for each query")
    shape = next(iter(weights.values())).shape
    alike = {path: jnp.asarray(layer)[None] for path, layer in weights.items() if layer.shape == shape}

    def attend(tokens: Any) -> None:
        for path, layer in alike.items():
            sow(layer, path)

    scores = attention_heads(attend, *alike)(jnp.asarray([runs.subject.token_ids(prompt)]))
    return {"paths": list(alike), **{kind: packed(scores[kind]) for kind in ("previous", "duplicate", "induction")}}
