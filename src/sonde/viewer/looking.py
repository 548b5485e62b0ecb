"""Operations that read a run: tokens, the tree of sites, one site, gradients, layers, attention, source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde._array_text import short_place
from sonde._version import __version__
from sonde.core import arrays_in, sow
from sonde.port.difference import distance
from sonde.report import examine
from sonde.report.plain_json import number, plain
from sonde.tools import attention_heads, logit_attribution, logit_lens, site_gradients
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.array_statistics import EDGES, described, moments_of_whole
from sonde.tools.numerics.families import natural
from sonde.viewer.changes import Change, changed
from sonde.viewer.language import Language
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Array, Runs

_POINTS = 16  # of the small curve beside a site
_MOST_CELLS = 300_000  # of one picture
_SHARES = 0.02  # how far from one the sum of a row of attention may be


@operation
def hello(job: Job) -> dict[str, Any]:
    """What was opened, and what can be asked of it."""
    return {
        "versions": {"sonde": __version__, "jax": jax.__version__},
        "edges": plain(EDGES),
        "subjects": [subject.card | {"name": name} for name, subject in job.subjects.items()],
    }


# ----------------------------------------------------------------------------------------------------------- tokens


@operation
def read(job: Job, subject: str, prompt: str | None = None, changes: Any = (), k: int = 6) -> dict[str, Any]:
    """The tokens of a prompt, how likely each was, and what is likely next at every position; before changes, too."""
    runs, made = job.runs(subject), changes_of(changes)
    language = runs.subject.language
    result = runs.result(prompt, made)
    if language is None or language.logits is None:
        return {"tokens": [], "result": _result_lines(result)}
    ids = runs.subject.token_ids(prompt)
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


# ------------------------------------------------------------------------------------------------------------ sites


@operation
def sites(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """Every array that a run records, with a small curve of its scale; after changes, how far each has moved."""
    runs, made = job.runs(subject), changes_of(changes)
    run, before = runs.run(prompt, made), runs.run(prompt)
    listed = []
    for array in runs.arrays(prompt):
        value = run.value(array.path, array.call, array.part)
        entry = _card(array)
        if value is not None:
            entry |= _glance(value, array)
            if made:
                entry["moved"] = number(_moved(value, before.value(array.path, array.call, array.part)))
        listed.append(entry)
    return {"sites": listed, "complete": runs.fits(prompt), "bytes": runs.bytes, "memory": runs.memory}


def _card(array: Array) -> dict[str, Any]:
    return {
        "path": array.path,
        "call": array.call,
        "part": array.part,
        "shape": list(array.shape),
        "lead": array.lead,
        "axes": list(array.axes),
        "dtype": array.dtype,
        "source": short_place(array.source),
        "bytes": array.bytes,
    }


def _glance(value: np.ndarray, array: Array) -> dict[str, Any]:
    """The scale of a value, and the scale along its positions, or along its last axis."""
    if not np.issubdtype(value.dtype, np.number) and value.dtype.name not in ("bfloat16", "float16"):
        return {}
    wide = np.abs(np.asarray(value, np.float32))
    finite = np.isfinite(wide)
    bad = int(wide.size - finite.sum())
    squares = np.where(finite, wide, 0) ** 2
    rms = math.sqrt(float(squares.sum(dtype=np.float64)) / max(int(finite.sum()), 1))
    axis = array.length_axis if array.length_axis is not None else wide.ndim - 1
    curve: list[float] = []
    if wide.ndim and wide.shape[axis] > 1:
        along = np.sqrt(squares.mean(tuple(d for d in range(wide.ndim) if d != axis)))
        curve = [float(part.mean()) for part in np.array_split(along, min(_POINTS, len(along)))]
    top = max(curve, default=0.0) or 1.0
    glance = {"rms": number(rms), "spark": [round(15 * x / top) for x in curve]}
    return glance | ({"bad": bad} if bad else {}) | ({"attention": True} if _is_attention(value, array) else {})


def _is_attention(value: np.ndarray, array: Array) -> bool:
    """Whether the rows of a value are shares of attention: queries by keys, none below zero, with a sum of one."""
    if array.axes[-2:] != ("length", "keys") or value.shape[-2] != value.shape[-1]:
        return False
    first = np.asarray(value.reshape(-1, *value.shape[-2:])[0], np.float32)
    return bool((first >= 0).all() and (np.abs(first.sum(-1) - 1) < _SHARES).all())


def _moved(value: np.ndarray, before: np.ndarray | None) -> float | None:
    """The norm of the difference, relative to the value before."""
    if before is None or before.shape != value.shape:
        return None
    return distance(value, before).norm


@operation
def site(
    job: Job,
    subject: str,
    path: str,
    call: int = 0,
    part: int = 0,
    prompt: str | None = None,
    changes: Any = (),
    explained: Any = None,
) -> dict[str, Any]:
    """The statistics and the histogram of a value, or of its gradient if `explained` says of what."""
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path, call, part)
    value = _values(runs, prompt, made, array, explained)
    statistics = described(moments_of_whole(np.asarray(value)))
    counts = statistics.histogram
    used = np.flatnonzero(counts) if counts is not None else np.zeros(0, int)
    numbers = {
        name: number(getattr(statistics, name))
        for name in ("size", "mean", "std", "min", "max", "norm", "zeros", "nonfinite", "units", "dead")
    }
    before = _values(runs, prompt, (), array, explained) if made else None
    return {
        **_card(array),
        "drawn": _first_axes(array.axes),
        "statistics": numbers,
        "histogram": {"first": int(used[0]), "counts": counts[used[0] : used[-1] + 1].tolist()}
        if counts is not None and used.size
        else None,
        "moved": None if before is None else number(_moved(np.asarray(value), np.asarray(before))),
        "attention": explained is None and _is_attention(np.asarray(value), array),
    }


def _first_axes(axes: Sequence[str]) -> dict[str, int | None]:
    """Which axes are drawn at first: positions down, units across, and a picture for each head."""
    columns = len(axes) - 1
    inner = [i for i in range(columns) if axes[i] != "batch"]
    rows = next((i for i in inner if axes[i] == "length"), inner[0] if inner else len(axes) - 2 if columns else -1)
    each = next((i for i in range(columns) if axes[i].endswith("heads") and i != rows), None)
    return {"rows": rows, "columns": columns, "each": each}


@operation
def picture(
    job: Job,
    subject: str,
    path: str,
    rows: int,
    columns: int,
    call: int = 0,
    part: int = 0,
    index: Any = (),
    each: int | None = None,
    prompt: str | None = None,
    changes: Any = (),
    explained: Any = None,
    against: bool = False,
) -> dict[str, Any]:
    """A part of a value as rows by columns, or one such picture for each index along an axis.

    Args:
        job: The question.
        subject: The program.
        path: The path of the site.
        rows: The axis that goes down.
        columns: The axis that goes across.
        call: Which call of the site.
        part: Which array.
        index: For each axis, the index that is shown; ignored for those that are drawn.
        each: An axis of which every index is a picture.
        prompt: The prompt.
        changes: The changes.
        explained: Of what the gradient is shown; None shows the value.
        against: Whether the difference to the run without changes is shown.
    """
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path, call, part)
    value = np.asarray(_values(runs, prompt, made, array, explained), np.float32)
    if against:
        value = value - np.asarray(_values(runs, prompt, (), array, explained), np.float32)
    drawn = [axis for axis in (each, rows, columns) if axis is not None and 0 <= axis < value.ndim]
    if len(set(drawn)) != len(drawn):
        raise ValueError("a picture needs different axes for its rows and columns")
    chosen = [*index, *[0] * value.ndim]
    cut_out = value[
        tuple(slice(None) if d in drawn else min(int(chosen[d]), size - 1) for d, size in enumerate(value.shape))
    ]
    whole = np.transpose(cut_out, [sorted(drawn).index(d) for d in drawn])
    whole = whole.reshape((1,) * (2 - whole.ndim) + whole.shape)
    cut = list(whole.shape)
    cut[-2] = min(cut[-2], max(1, _MOST_CELLS // max(cut[-1], 1)))
    cut[-1] = min(cut[-1], _MOST_CELLS)
    if len(cut) == 3:
        cut[0] = min(cut[0], max(1, _MOST_CELLS // max(cut[-1] * cut[-2], 1)))
    return {"values": packed(whole[tuple(slice(n) for n in cut)]), "of": list(whole.shape)}


def _values(runs: Runs, prompt: str | None, changes: Sequence[Change], array: Array, explained: Any) -> Any:
    if explained is None:
        return runs.value(prompt, changes, array.path, array.call, array.part)
    return gradient_values(runs, prompt, changes, explained)(array)


# ------------------------------------------------------------------------------------------------------- gradients


def explained_number(runs: Runs, prompt: str | None, explained: Any) -> tuple[int, np.ndarray, np.ndarray]:
    """The position, the tokens and the signs of the logits that are explained.

    Args:
        runs: The program.
        prompt: The prompt.
        explained: `{"position": -1, "token": " Paris", "against": " Rome"}`; the texts may be token ids, and `against`
            may be missing.
    """
    language = runs.subject.language
    if language is None or language.logits is None:
        return 0, np.zeros(2, np.int32), np.zeros(2, np.float32)
    length = len(runs.subject.token_ids(prompt))
    position = int(explained.get("position", -1)) % length

    def token(name: str) -> int | None:
        asked = explained.get(name)
        return asked if asked is None or isinstance(asked, int) else language.one_token(str(asked))

    first, second = token("token"), token("against")
    if first is None:
        first = int(np.argmax(np.asarray(language.logits(runs.run(prompt).result))[0, position]))
    tokens = np.array([first, first if second is None else second], np.int32)
    return position, tokens, np.array([1.0, 0.0 if second is None else -1.0], np.float32)


def gradient_values(
    runs: Runs, prompt: str | None, changes: Sequence[Change], explained: Any
) -> Callable[[Array], np.ndarray]:
    """The gradient of a logit, of a difference of two, or of the result, at every array."""
    language = runs.subject.language
    position, tokens, signs = explained_number(runs, prompt, explained)

    def make(f: Callable[..., Any], _: Any) -> Callable[..., Any]:
        def explained_result(*args: Any, view_position: Any, view_tokens: Any, view_signs: Any, **kwargs: Any) -> Any:
            result = f(*args, **kwargs)
            if language is None or language.logits is None:
                return _only_number(result)
            return jnp.sum(language.logits(result)[0, view_position][view_tokens] * view_signs)

        return site_gradients(explained_result, inside=runs.subject.inside)

    places = runs.placed(prompt, changes)
    key = ("gradient", prompt, tuple(changes), position, tokens.tobytes(), signs.tobytes())

    def compute() -> Any:
        args = runs.subject.arguments(prompt)
        options = {"view_position": np.int32(position), "view_tokens": tokens, "view_signs": signs}
        return on_host(runs.call("gradient", make, args, places, **options)[1], "view")

    records = runs.remembered(key, compute)

    def at(array: Array) -> np.ndarray:
        grads = records[array.path].grads
        leaves = arrays_in(grads[array.call]) if grads and grads[array.call] is not None else []
        if array.part >= len(leaves):
            raise ValueError(f"there is no gradient at {array.path}: nothing differentiable uses this value")
        return np.asarray(leaves[array.part])

    return at


def _only_number(result: Any) -> Any:
    """The number that a program returns; of several, the first floating point number."""
    numbers = [
        x for x in jax.tree.leaves(result) if jnp.ndim(x) == 0 and jnp.issubdtype(jnp.result_type(x), jnp.floating)
    ]
    if not numbers:
        raise ValueError("the program returns no number that could be explained: a gradient needs one, such as a loss")
    return numbers[0]


# ---------------------------------------------------------------------------------------------------------- layers


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
    found = runs.remembered(
        ("lens", prompt, made, k),
        lambda: on_host(runs.call(("lens", k), make, args, runs.placed(prompt, made)), "view"),
    )
    layers = sorted(found, key=natural)
    layers.sort(key=lambda name: not name.startswith("embed"))
    tokens = [np.asarray(found[name][0]).reshape(-1, *np.shape(found[name][0])[-2:])[0] for name in layers]
    sure = [np.asarray(found[name][1]).reshape(-1, *np.shape(found[name][1])[-2:])[0] for name in layers]
    ids = sorted({int(token) for layer in tokens for token in layer.reshape(-1)})
    return {
        "layers": layers,
        "readout": language.readout_code,
        "tokens": [layer.tolist() for layer in tokens],
        "sure": packed(np.stack(sure)),
        "entropy": packed(
            np.stack([np.asarray(found[name][2]).reshape(-1, np.shape(found[name][2])[-1])[0] for name in layers])
        ),
        "texts": dict(zip(map(str, ids), language.pieces(ids))),
    }


@operation
def attention(job: Job, subject: str, path: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """The attention weights of every head of one layer, and what kind of heads they are."""
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path)
    value = np.asarray(runs.value(prompt, made, path), np.float32)
    heads = value.reshape(-1, *value.shape[-3:])[0] if value.ndim >= 3 else value[None]
    return {**_card(array), "heads": packed(heads)}


@operation
def heads(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """For every head of every layer, the share of its attention on the previous token, copies, and what came after."""
    runs, made = job.runs(subject), changes_of(changes)
    found = [a for a in runs.arrays(prompt) if a.axes[-3:] == ("heads", "length", "keys")]
    paths = [a.path for a in found if _is_attention(np.asarray(runs.value(prompt, made, a.path, a.call, a.part)), a)]
    if not paths:
        raise ValueError("no site holds attention weights: queries by keys, with a sum of one for each query")
    weights = [np.asarray(runs.value(prompt, made, path), np.float32) for path in paths]
    alike = [path for path, w in zip(paths, weights) if w.shape == weights[0].shape]
    values = {path: jnp.asarray(w) for path, w in zip(paths, weights) if path in alike}
    ids = jnp.asarray([runs.subject.token_ids(prompt)])

    def shown(tokens: Any) -> None:
        for path, w in values.items():
            sow(w.reshape(-1, *w.shape[-3:])[:1], path)

    scores = attention_heads(shown, *alike)(ids)
    return {
        "paths": list(alike),
        **{kind: packed(scores[kind]) for kind in ("previous", "duplicate", "induction")},
    }


@operation
def attribution(
    job: Job, subject: str, explained: Any = None, prompt: str | None = None, changes: Any = ()
) -> dict[str, Any]:
    """What every component and head adds directly to a logit, or to the difference of two."""
    runs, made = job.runs(subject), changes_of(changes)
    language = runs.subject.language
    if language is None or language.readout is None or not language.components:
        raise ValueError("direct logit attribution needs the output layer and the components of the stream")
    known = language
    position, tokens, signs = explained_number(runs, prompt, explained or {})

    def make(f: Callable[..., Any], program: Any) -> Callable[..., Any]:
        def parts(*args: Any, view_tokens: Any, view_signs: Any, **kwargs: Any) -> Any:
            found = logit_attribution(
                f,
                *known.components,
                residual=known.residual,
                readout=lambda x: known.readout(program, x),  # pyright: ignore[reportOptionalCall]
                metric=lambda logits: jnp.sum(logits[0][view_tokens] * view_signs),
                position=position,
                writes=known.writes(program),
                inside=runs.subject.inside,
            )(*args, **kwargs)
            return dict(found.contributions), found.output

        return parts

    args = runs.subject.arguments(prompt)
    key = ("attribution", prompt, made, position, tokens.tobytes(), signs.tobytes())

    def compute() -> Any:
        options = {"view_tokens": tokens, "view_signs": signs}
        return on_host(runs.call(("attribution", position), make, args, runs.placed(prompt, made), **options), "view")

    found, output = runs.remembered(key, compute)
    names = language.pieces(tokens.tolist())
    return {
        "components": [
            {"path": path, "total": number(float(np.sum(x))), "units": packed(np.atleast_1d(x)) if np.ndim(x) else None}
            for path, x in sorted(found.items(), key=lambda entry: natural(entry[0]))
        ],
        "output": number(float(output)),
        "position": position,
        "token": names[0],
        "against": names[1] if signs[1] else None,
        "code": _attribution_code(language, position, tokens, signs),
    }


def _attribution_code(language: Language, position: int, tokens: np.ndarray, signs: np.ndarray) -> str:
    logits = " - ".join(f"logits[0, {int(token)}]" for token, sign in zip(tokens, signs) if sign)
    options = f"residual={language.residual!r}, readout={language.readout_code}, position={position}"
    writes = f", writes={{{language.writes_code}}}" if language.writes_code else ""
    patterns = ", ".join(map(repr, language.components))
    return (
        f"found = sonde.tools.logit_attribution(\n    f, {patterns},\n    {options}{writes},\n"
        f"    metric=lambda logits: {logits},\n)(*args)\nprint(found)"
    )


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
            found = look(*runs.subject.arguments(prompt), **runs.subject.kwargs)
        data = found.to_json()
        return {name: data[name] for name in ("findings", "source", "failure", "checked")}

    return runs.remembered(("findings", prompt, made), compute)
