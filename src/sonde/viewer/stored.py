"""A store on the page: its rows with their tokens, and the features of dictionaries that were trained on it.

All features are looked for in one pass over the store (`tools.top_examples`): their best examples, how often and how
strongly they are active. That is remembered; a click on a feature then reads the rows around its examples.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde._array_text import describe
from sonde.core import sow
from sonde.dictionaries import Dictionary
from sonde.report.plain_json import number, plain
from sonde.store import Store, StoredArray
from sonde.tools import logit_effects, top_examples
from sonde.tools.reading.logit_effects import LogitEffects
from sonde.tools.reading.token_labels import TokenNames, shown_by
from sonde.tools.reading.top_examples import POWERS, UnitExamples
from sonde.viewer.operations import Job, operation, packed

_TOKEN_KEYS = ("tokens", "token_ids", "input_ids", "ids", "token")
_EXAMPLES = 12  # of each feature
_CONTEXT = 12  # tokens before and after an example
_TEXT = 64  # rows that are read as one text, in a store of single positions
_BATCH = 2**24  # features at positions that are computed at a time
_MOST_ROWS = 512  # of one picture
_FOUND = 200  # features that a search returns
_NEIGHBORS, _EFFECTS = 8, 10
_CORRELATIONS = ("indices", "l1", "pearson")

Unembed = Callable[[Any], Any]
Place = str | tuple[str, str]


class Stored:
    """A store that was opened.

    Args:
        store: The store.
        name: Its name on the page.
        dictionaries: By the path of the values that a dictionary reads; or by a pair of paths, what a transcoder reads
            and what it replaces.
        tokenizer: Turns the token ids of the rows into texts.
        unembed: The map from the stream to logits, linear but for biases, to say which tokens features raise.
        program: The name of the program on the same page, in which features can be changed; empty if there is none.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        dictionaries: Mapping[Place, Dictionary] | None = None,
        tokenizer: TokenNames | None = None,
        unembed: Unembed | None = None,
        program: str = "",
    ) -> None:
        self.store, self.name, self.program = store, name, program
        self.show, self.unembed = shown_by(tokenizer), unembed
        self.has_words = tokenizer is not None  # otherwise a prompt is the numbers of its tokens
        self.coders = {_ends(place): (_ends(place, 0), d) for place, d in (dictionaries or {}).items()}
        self.lock = threading.RLock()
        for _, (reads, dictionary) in self.coders.items():
            width = store[reads].shape[-1]  # an error names the nearest paths
            if width != dictionary.d_in:
                raise ValueError(f"the dictionary for {reads!r} reads {dictionary.d_in} numbers, the store has {width}")
        self.clear()

    def clear(self) -> None:
        """Forgets what was computed; it is computed again when it is asked for."""
        self._examples: dict[str, UnitExamples] = {}
        self._effects: dict[str, LogitEffects | None] = {}

    @property
    def card(self) -> dict[str, Any]:
        """What the page needs to know of it."""
        return {
            "kind": "store",
            "name": self.name,
            "folder": str(self.store.folder),
            "program": self.program,
            "arrays": [
                {"path": a.path, "kind": a.kind, "shape": list(a.shape), "text": describe(a)} for a in self.store.arrays
            ],
            "batches": self.store.n_batches,
            "finished": self.store.finished,
            "request": {name: str(text) for name, text in dict(self.store.request).items()},
            "dictionaries": [
                {"path": path, "reads": reads, "count": d.n_features, "kind": d.kind, "activation": d.activation}
                for path, (reads, d) in self.coders.items()
            ],
        }

    def array(self, path: str, kind: str = "values") -> StoredArray:
        """An array of the store. Raises KeyError if there is none."""
        kinds = {
            "values": self.store,
            "grads": self.store.grads,
            "taken": self.store.taken,
            "keys": self.store.row_keys,
        }
        if kind not in kinds:
            raise ValueError(f"arrays of a store are {', '.join(kinds)}, not {kind!r}")
        return kinds[kind][path]

    def tokens_of(self, array: StoredArray) -> StoredArray | None:
        """The key that has the token of each row, or of each position of a row; None if there is none."""
        by_name = [self.store.row_keys[name] for name in _TOKEN_KEYS if name in self.store.row_keys]
        whole = [key for key in self.store.row_keys.values() if key.dtype.kind in "iu"]
        for key in by_name or (whole if len(whole) == 1 else []):
            if key.shape == array.shape[: key.ndim] and key.ndim <= 2:
                return key
        return None

    # -------------------------------------------------------------------------------------------------- features

    def coder(self, path: str) -> tuple[str, Dictionary]:
        """What the dictionary for a path reads, and the dictionary."""
        if path not in self.coders:
            raise ValueError(f"there is no dictionary for {path!r}: open the store with one")
        return self.coders[path]

    def texts(self, path: str) -> tuple[StoredArray, int, int]:
        """The array that a dictionary reads, how many texts it is read as, and how many positions each has."""
        array = self.store[self.coder(path)[0]]
        if array.ndim == 3:
            return array, array.shape[0], array.shape[1]
        if array.ndim != 2:
            raise ValueError(f"a dictionary reads rows, or texts by positions; {array.path} has shape {array.shape}")
        length = min(_TEXT, max(array.shape[0], 1))
        return array, -(-array.shape[0] // length), length

    def batches(self, path: str, job: Job) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Values, texts by positions by width, and their tokens."""
        array, n_texts, length = self.texts(path)
        _, dictionary = self.coder(path)
        key = self.tokens_of(array)
        at_a_time = max(1, _BATCH // (dictionary.n_features * length))
        whole = n_texts if array.ndim == 3 else len(array) // length  # single rows may leave a shorter text at the end
        spans = [(first, min(first + at_a_time, whole)) for first in range(0, whole, at_a_time)]
        for first, end in [*spans, (whole, n_texts)] if whole < n_texts else spans:
            job.progress(first, n_texts, f"texts of {path}")
            rows = slice(first, end) if array.ndim == 3 else slice(first * length, end * length)
            values = np.asarray(array[rows], np.float32).reshape(end - first, -1, array.shape[-1])
            tokens = np.zeros(values.shape[:2], np.int32) if key is None else np.asarray(key[rows])
            yield values, tokens.reshape(values.shape[:2])

    def examples(self, path: str, job: Job) -> UnitExamples:
        """Where each feature is most active."""
        with self.lock:
            if path not in self._examples:
                _, dictionary = self.coder(path)

                def features(values: Any, tokens: Any) -> None:
                    sow(dictionary.activate(dictionary.pre_activations(jnp.asarray(values))), "features")

                find = top_examples(features, "features", k=_EXAMPLES, tokens=lambda values, tokens: tokens)
                self._examples[path] = find(self.batches(path, job))["features"]
            return self._examples[path]

    def effects(self, path: str) -> LogitEffects | None:
        """The tokens that features raise and lower; None if it is not known how they reach the logits."""
        with self.lock:
            if path not in self._effects:
                _, dictionary = self.coder(path)
                rows = dictionary.decoder[...]
                self._effects[path] = None if self.unembed is None else _logit_effects(rows, self.unembed)
            return self._effects[path]

    @functools.lru_cache(maxsize=4)  # noqa: B019  (one page holds its store as long as it lives)
    def directions(self, path: str) -> np.ndarray:
        """What features write, with length one."""
        rows = np.asarray(self.coder(path)[1].decoder[...], np.float32)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    def around(self, path: str, feature: int, text: int, position: int) -> dict[str, Any]:
        """The tokens around an example, and how active the feature is at each."""
        array, _, length = self.texts(path)
        _, dictionary = self.coder(path)
        first, end = max(0, position - _CONTEXT), min(length, position + _CONTEXT + 1)
        rows: Any = (text, slice(first, end)) if array.ndim == 3 else slice(text * length + first, text * length + end)
        values = np.asarray(array[rows], np.float32)
        acts = np.asarray(dictionary.activate(dictionary.pre_activations(jnp.asarray(values))))[:, feature]
        key = self.tokens_of(array)
        ids = None if key is None else [int(token) for token in np.asarray(key[rows]).reshape(-1)]
        names = [f"row {i}" for i in range(first, end)] if ids is None else [self.show(token) for token in ids]
        return {"text": text, "position": position, "first": first, "tokens": names, "values": plain(acts.tolist())}


def _ends(place: Place, at: int = -1) -> str:
    """What a dictionary reads, or replaces."""
    return place[at] if isinstance(place, tuple) else place


def _logit_effects(rows: Any, unembed: Unembed) -> LogitEffects | None:
    """What rows do to logits; None if they are no vectors of the stream."""
    try:
        of_biases = unembed(jnp.zeros(rows.shape[1]))
    except (TypeError, ValueError):
        return None
    return logit_effects(rows, lambda x: unembed(x) - of_biases, k=_EFFECTS)


def _stored(job: Job, subject: str) -> Stored:
    stored = job.subjects.get(subject)
    if not isinstance(stored, Stored):
        raise ValueError(f"there is no store {subject!r} here")
    return stored


@operation
def rows(job: Job, subject: str, path: str, kind: str = "values", first: int = 0, count: int = 32) -> dict[str, Any]:
    """Some rows of a stored array as a picture: rows by their elements; one row of texts by positions; their tokens."""
    stored = _stored(job, subject)
    array = stored.array(path, kind)
    has_texts = array.ndim >= 3
    first = max(0, min(int(first), len(array) - 1))
    end = first + 1 if has_texts else min(len(array), first + max(1, min(int(count), _MOST_ROWS)))
    values = np.asarray(array[first:end])
    shape = values.shape[1:] if has_texts else values.shape
    table = values.reshape(shape[0], -1) if len(shape) > 1 else values.reshape(-1, 1)
    key = stored.tokens_of(array)
    tokens = None
    if key is not None and kind != "keys" and (key.ndim == 2) == has_texts:
        tokens = [stored.show(int(token)) for token in np.asarray(key[first:end]).reshape(-1)]
    return {
        "values": packed(table[:_MOST_ROWS]),
        "shape": list(array.shape),
        "first": first,
        "is_text": has_texts,
        "text": None if tokens is None else "".join(tokens) if stored.has_words else " ".join(tokens),
        "tokens": None if tokens is None or len(tokens) != len(table) else tokens[:_MOST_ROWS],
    }


@operation
def features(job: Job, subject: str, path: str) -> dict[str, Any]:
    """How often and how strongly each feature of a dictionary is active in the store."""
    stored = _stored(job, subject)
    examples = stored.examples(path, job)
    return {
        "density": packed(examples.density),
        "mean": packed(examples.mean),
        "highest": packed(np.maximum(examples.values[:, 0], 0)),
        "dead": int((examples.density == 0).sum()),
        "positions": sum(len(tokens) for tokens in examples.tokens),
    }


@operation
def feature(job: Job, subject: str, path: str, index: int) -> dict[str, Any]:
    """One feature: where it is most active, its values, what it does to logits, and which features write alike."""
    stored = _stored(job, subject)
    examples = stored.examples(path, job)
    count = len(examples.density)
    if not 0 <= index < count:
        raise ValueError(f"the dictionary has features 0 to {count - 1}, not {index}")
    best = examples.of(index, context=0)
    directions = stored.directions(path)
    alike = directions @ directions[index]
    order = [int(i) for i in np.argsort(-np.abs(alike))[: _NEIGHBORS + 1] if i != index][:_NEIGHBORS]
    return {
        "index": index,
        "density": number(examples.density[index]),
        "mean": number(examples.mean[index]),
        "highest": number(best[0].value if best else 0.0),
        "spaced": not stored.has_words,
        "histogram": {"counts": examples.histogram[index].tolist(), "ends": plain(POWERS)},
        "examples": [stored.around(path, index, x.text, x.position) | {"value": number(x.value)} for x in best],
        "neighbors": [[i, number(alike[i])] for i in order],
        "effects": _effects(stored, path, index),
    }


def _effects(stored: Stored, path: str, index: int) -> dict[str, Any] | None:
    effects = stored.effects(path)
    if effects is None:
        return None
    pairs = {"raised": (effects.raised, effects.raised_by), "lowered": (effects.lowered, effects.lowered_by)}
    return {
        name: [[stored.show(int(token)), number(by)] for token, by in zip(tokens[index], sizes[index])]
        for name, (tokens, sizes) in pairs.items()
    }


@operation
def find_features(job: Job, subject: str, path: str, text: str) -> dict[str, Any]:
    """Features whose best examples have a text in or beside the token, those with most such examples first."""
    stored = _stored(job, subject)
    examples = stored.examples(path, job)
    wanted = text.strip().lower()
    if not wanted:
        raise ValueError("type what to search for")
    names: dict[int, str] = {}

    def shown(tokens: Sequence[int]) -> str:
        return "".join(names.setdefault(token, stored.show(token)) for token in tokens)

    hits: list[tuple[float, float, int]] = []
    effects = stored.effects(path)
    for unit in np.flatnonzero(examples.density > 0):
        best = examples.of(int(unit), context=4)
        share = sum(wanted in shown([x.token]).lower() for x in best)
        share += 0.25 * sum(wanted in shown([*x.before, x.token, *x.after]).lower() for x in best)
        if effects is not None:
            share += 0.5 * any(wanted in shown([int(token)]).lower() for token in effects.raised[unit])
        if share:
            hits.append((share / len(best), float(examples.density[unit]), int(unit)))
    hits.sort(key=lambda hit: (-hit[0], hit[1]))
    return {"features": [unit for _, _, unit in hits[:_FOUND]], "of": len(hits)}


@operation
def neuronpedia(job: Job, subject: str, path: str, indices: Sequence[int]) -> dict[str, Any]:
    """Some features in the JSON form in which Neuronpedia takes them."""
    stored = _stored(job, subject)
    examples = stored.examples(path, job)
    _, n_texts, length = stored.texts(path)
    layer = next((int(part) for part in path.split("/") if part.isdigit()), 0)
    listed = []
    for done, index in enumerate(indices):
        job.progress(done, len(indices), f"feature {index}")
        one = feature(job, subject, path, int(index))
        effects = one["effects"] or {"raised": [], "lowered": []}
        used = [i for i, n in enumerate(one["histogram"]["counts"]) if n]
        listed.append(
            {
                "feature_index": int(index),
                **_alignment(np.asarray(stored.coder(path)[1].decoder[index], np.float32)),
                # Correlations over a corpus are not computed: the lists are empty.
                **{f"correlated_{of}_{name}": [] for of in ("neurons", "features") for name in _CORRELATIONS},
                "neg_str": [token for token, _ in effects["lowered"]],
                "neg_values": [by for _, by in effects["lowered"]],
                "pos_str": [token for token, _ in effects["raised"]],
                "pos_values": [by for _, by in effects["raised"]],
                "frac_nonzero": float(examples.density[index]),
                "freq_hist_data_bar_values": [float(POWERS[i]) for i in used],
                "freq_hist_data_bar_heights": [int(one["histogram"]["counts"][i]) for i in used],
                "logits_hist_data_bar_heights": [],
                "logits_hist_data_bar_values": [],
                "n_prompts_total": n_texts,
                "n_tokens_in_prompt": length,
                "dataset": stored.name,
                "decoder_weights_dist": [],
                "activations": [_activation(x, one["highest"], len(one["examples"])) for x in one["examples"]],
            }
        )
    return {"model_id": stored.program, "layer": layer, "sae_set": path, "features": listed}


def _alignment(row: np.ndarray) -> dict[str, list[Any]]:
    """The elements of the stream that a feature writes to most: which, how much, and as shares of all."""
    most = np.argsort(-row)[:3]
    return {
        "neuron_alignment_indices": most.tolist(),
        "neuron_alignment_values": plain(row[most].tolist()),
        "neuron_alignment_l1": plain((row[most] / max(float(np.abs(row).sum()), 1e-12)).tolist()),
    }


def _activation(example: dict[str, Any], highest: float, count: int) -> dict[str, Any]:
    """One example: all are of one bin, which ends with the highest value."""
    return {
        "bin_min": 0.0,
        "bin_max": highest,
        "bin_contains": 1.0 / count,
        "tokens": example["tokens"],
        "values": [0.0 if isinstance(x, str) else float(x) for x in example["values"]],
    }
