"""What a result comes from: which number is explained, its gradients, and what adds to it directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import arrays_in
from sonde.report.plain_json import number
from sonde.tools import logit_attribution, site_gradients
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.families import natural
from sonde.viewer.arrays import Array
from sonde.viewer.changes import Change
from sonde.viewer.language import Language, check_token
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Runs


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
    position = int(explained.get("position", -1))
    if not -length <= position < length:
        raise ValueError(f"the prompt has {length} tokens, and none at position {position}: choose one of them")
    position %= length

    def token(name: str) -> int | None:
        asked = explained.get(name)
        return asked if asked is None or isinstance(asked, int) else language.one_token(str(asked))

    first, second = token("token"), token("against")
    logits = np.asarray(language.logits(runs.run(prompt).result)[0, position])
    for asked in (first, second):
        if asked is not None:
            check_token(asked, len(logits))
    if first is None:
        first = int(np.argmax(logits))
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
                return only_number(result)
            return jnp.sum(language.logits(result)[0, view_position][view_tokens] * view_signs)

        return explained_result

    places = runs.placed(prompt, changes)
    key = ("gradient", prompt, tuple(changes), position, tokens.tobytes(), signs.tobytes())

    def gradients_at(*paths: str) -> Any:
        args = runs.subject.arguments(prompt)
        options = {"view_position": np.int32(position), "view_tokens": tokens, "view_signs": signs}

        def sites(f: Callable[..., Any], program: Any) -> Callable[..., Any]:
            return site_gradients(make(f, program), *paths, inside=runs.subject.inside)

        return on_host(runs.call(("gradient", paths), sites, args, places, **options)[1], "view")

    def everywhere() -> Any:
        try:
            return gradients_at()
        except ValueError:  # such as a `while_loop`: no gradient goes through it, but other sites may have one
            return {}

    def at(array: Array) -> np.ndarray:
        records = runs.remembered(key, everywhere)
        if not records:
            records = runs.remembered((*key, array.path), lambda: gradients_at(array.path))
        grads = records[array.path].grads
        leaves = arrays_in(grads[array.call]) if grads and grads[array.call] is not None else []
        if array.part >= len(leaves):
            raise ValueError(f"there is no gradient at {array.path}: nothing differentiable uses this value")
        return np.asarray(leaves[array.part])

    return at


def only_number(result: Any) -> Any:
    """The number that a program returns; of several, the first floating point number."""
    return jax.tree.leaves(result)[_place_of_number(result)]


def _place_of_number(result: Any) -> int:
    for place, x in enumerate(jax.tree.leaves(result)):
        if jnp.ndim(x) == 0 and jnp.issubdtype(jnp.result_type(x), jnp.floating):
            return place
    raise ValueError("the program returns no number that could be explained: that needs one, such as a loss")


def metric_code(runs: Runs, prompt: str | None, explained: Any) -> str:
    """Python for the number that is explained: `metric`, a function of what the program returns."""
    result, language = runs.run(prompt).result, runs.subject.language
    is_array = jax.tree.structure(result) == jax.tree.structure(0)
    if language is None or language.logits is None:
        place = _place_of_number(result)
        return f"metric = lambda result: {'result' if is_array else f'jax.tree.leaves(result)[{place}]'}"
    position, tokens, signs = explained_number(runs, prompt, explained or {})
    logits = "result" if is_array else "logits(result)"
    explained_logits = [f"{logits}[0, {position}, {int(token)}]" for token, sign in zip(tokens, signs) if sign]
    note = "" if is_array else "# logits is the function that was given to sonde.view\n"
    return f"{note}metric = lambda result: {' - '.join(explained_logits)}"


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
            attributed = logit_attribution(
                f,
                *known.components,
                residual=known.residual,
                readout=lambda x: known.readout(program, x),  # pyright: ignore[reportOptionalCall]
                metric=lambda logits: jnp.sum(logits[0][view_tokens] * view_signs),
                position=position,
                writes=known.writes(program),
                inside=runs.subject.inside,
            )(*args, **kwargs)
            return dict(attributed.contributions), attributed.output

        return parts

    args = runs.subject.arguments(prompt)
    key = ("attribution", prompt, made, position, tokens.tobytes(), signs.tobytes())

    def compute() -> Any:
        options = {"view_tokens": tokens, "view_signs": signs}
        return on_host(runs.call(("attribution", position), make, args, runs.placed(prompt, made), **options), "view")

    contributions, output = runs.remembered(key, compute)
    names = language.pieces(tokens.tolist())
    return {
        "components": [
            {"path": path, "total": number(float(np.sum(x))), "units": packed(np.atleast_1d(x)) if np.ndim(x) else None}
            for path, x in sorted(contributions.items(), key=lambda entry: natural(entry[0]))
        ],
        "output": number(float(output)),
        "position": position,
        "token": names[0],
        "against": names[1] if signs[1] else None,
        "code": _attribution_code(language, position, tokens, signs, runs.subject.inside_code),
    }


def _attribution_code(language: Language, position: int, tokens: np.ndarray, signs: np.ndarray, inside: str) -> str:
    logits = " - ".join(f"logits[0, {int(token)}]" for token, sign in zip(tokens, signs) if sign)
    options = f"residual={language.residual!r}, readout={language.readout_code}, position={position}"
    writes = f", writes={{{language.writes_code}}}" if language.writes_code else ""
    writes += inside
    patterns = ", ".join(map(repr, language.components))
    return (
        f"found = sonde.tools.logit_attribution(\n    f, {patterns},\n    {options}{writes},\n"
        f"    metric=lambda logits: {logits},\n)(*args)\nprint(found)"
    )
