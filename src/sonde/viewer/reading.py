"""Operations about a whole run: its tokens with their probabilities, and what a report finds in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sonde._version import __version__
from sonde.report import examine
from sonde.report.plain_json import number, plain
from sonde.tools.numerics.array_statistics import EDGES
from sonde.viewer.changes import changed
from sonde.viewer.language import check_token
from sonde.viewer.operations import Job, changes_of, operation


@operation
def hello(job: Job) -> dict[str, Any]:
    """What was opened, and what can be asked of it."""
    return {
        "versions": {"sonde": __version__, "jax": jax.__version__},
        "edges": plain(EDGES),
        "subjects": [subject.card | {"name": name} for name, subject in job.subjects.items()],
    }


@operation
def read(job: Job, subject: str, prompt: str | None = None, changes: Any = (), k: int = 6) -> dict[str, Any]:
    """The tokens of a prompt, how likely each was, and what is likely next at every position; before changes, too."""
    runs, made = job.runs(subject), changes_of(changes)
    language = runs.subject.language
    result = runs.run(prompt, made).result
    if language is None or language.logits is None:
        return {"tokens": [], "result": _result_lines(result)}
    ids = runs.subject.token_ids(prompt)
    for token in ids:
        check_token(token, language.logits(result).shape[-1])
    best = _likely(language.logits(result)[0], k)
    before, logits = None, language.logits
    if made:
        unchanged = runs.run(prompt).result
        before = runs.remembered(("likely", prompt, k), lambda: _likely(logits(unchanged)[0], k))
    texts = language.pieces(ids)
    return {
        "tokens": [
            {"text": text, "id": token, **_position(language.pieces, ids, i, best, before)}
            for i, (text, token) in enumerate(zip(texts, ids))
        ],
        "result": [],
    }


class _Likely(NamedTuple):
    """What is likely next at every position.

    Attributes:
        logits: Positions by tokens.
        norms: For each position, the logarithm of the sum of the exponentials of its logits.
        order: For each position, the likeliest tokens, the likeliest first.
    """

    logits: np.ndarray
    norms: np.ndarray
    order: np.ndarray

    def share(self, position: int, token: int) -> float:
        """The probability of a token after a position."""
        return math.exp(float(self.logits[position, token]) - self.norms[position])


def _likely(logits: Any, k: int) -> _Likely:
    wide = np.asarray(logits, np.float32)
    with np.errstate(all="ignore"):
        top = wide.max(-1, keepdims=True)
        norms = top[:, 0] + np.log(np.exp(wide - top).sum(-1, dtype=np.float64))
    ranked = wide if np.isfinite(top).all() else np.nan_to_num(wide, nan=-np.inf)
    k = min(k, wide.shape[1])
    best = np.argpartition(ranked, -k, axis=-1)[:, -k:]
    order = np.take_along_axis(best, np.argsort(-np.take_along_axis(ranked, best, -1), axis=-1, kind="stable"), -1)
    return _Likely(wide, norms, order)


def _position(
    pieces: Callable[[Sequence[int]], list[str]], ids: Sequence[int], i: int, best: _Likely, before: _Likely | None
) -> dict[str, Any]:
    """What the page shows at a position: how likely its token was, and what is likely after it."""
    chosen = [int(token) for token in best.order[i]]
    if before is not None:  # what was likely before the change is shown beside it
        chosen += [int(token) for token in before.order[i][:3] if int(token) not in chosen]
    following = [
        {
            "id": token,
            "text": text,
            "p": number(best.share(i, token)),
            "logit": number(best.logits[i, token]),
            "was": None if before is None else number(before.share(i, token)),
        }
        for token, text in zip(chosen, pieces(chosen))
    ]
    return {
        "p": None if i == 0 else number(best.share(i - 1, ids[i])),
        "was": None if i == 0 or before is None else number(before.share(i - 1, ids[i])),
        "next": following,
    }


def _result_lines(result: Any) -> list[str]:
    """What a program returned, an array a line."""
    lines = []
    for keys, x in jax.tree_util.tree_flatten_with_path(result)[0][:12]:
        name = jax.tree_util.keystr(keys, simple=True, separator="/")
        shown = f"{float(x):.6g}" if np.ndim(x) == 0 and np.issubdtype(np.asarray(x).dtype, np.number) else ""
        array = np.asarray(x)
        lines.append(f"{name or 'result'}: {shown or f'{array.dtype}{list(array.shape)}'}")
    return lines


@operation
def findings(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """What `sonde report` would find in this run, and the source of the functions that made the values."""
    runs, made = job.runs(subject), changes_of(changes)

    def compute() -> Any:
        places, numbers = runs.placed(prompt, made)
        program = changed(runs.subject.program, places, numbers, runs.subject.inside)
        with runs.lock:
            look = examine(
                program,
                inside=runs.subject.inside,
                title=runs.subject.name,
                progress=lambda text, done: job.progress(round(100 * done), 100, text),
            )
            report = look(*runs.subject.arguments(prompt), **runs.subject.kwargs)
        data = report.to_json()
        return {name: data[name] for name in ("findings", "source", "failure", "checked")}

    return runs.remembered(("findings", prompt, made), compute)
