"""`view`: opens a page on a program, in the browser and in a notebook."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import check_callable, scope, sow, with_capture_state
from sonde.dictionaries import Dictionary
from sonde.models.decoder import Decoder
from sonde.store import Store
from sonde.store import open as open_store
from sonde.store.format.manifest import MANIFEST
from sonde.tools.reading.token_labels import TokenNames
from sonde.tools.training.bundle import read_bundle
from sonde.viewer.language import EXAMPLE, Language, language_of_decoder
from sonde.viewer.operations import Subjects
from sonde.viewer.runs import MEMORY, Runs
from sonde.viewer.saved import SavedReport
from sonde.viewer.server import Served
from sonde.viewer.stored import Stored
from sonde.viewer.subject import Subject
from sonde.viewer.training import TrainingRun


def view(
    f: Callable[..., Any],
    *args: Any,
    inside: object = None,
    tokenizer: TokenNames | None = None,
    logits: Callable[[Any], jax.Array] | None = None,
    readout: Callable[[Any], Any] | None = None,
    stream: str | Sequence[str] = (),
    dictionaries: Mapping[Any, Dictionary] | None = None,
    store: Store | None = None,
    title: str | None = None,
    memory: int = MEMORY,
    host: str = "127.0.0.1",
    port: int = 0,
    **kwargs: Any,
) -> Served:
    """Serves a page on which a program is looked at, and changed, with the mouse.

    The server runs in a thread of this process, on this machine only, until `close` is called or Python ends. Nothing
    is run before the page asks for it.

    Args:
        f: Any callable: a function, a jitted function, a model. A `models.Decoder` takes a prompt as its argument, or
            nothing, and has all views.
        *args: Its arguments.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
        tokenizer: The program reads token ids as its first argument, `(batch, length)`; this turns them into texts, and
            prompts into ids if it has `encode`.
        logits: Takes the logits, `(batch, length, tokens)`, from the result; by default its first array with
            three axes.
        readout: Turns a value of the residual stream into logits, for the logit lens.
        stream: The sites of the residual stream.
        dictionaries: Dictionaries, as for `dictionaries.splice`: their features become sites of the program, and their
            errors are added back, so that nothing changes until a feature or an error is changed.
        store: Values that were stored at these sites: where features are most active is looked for in it.
        title: The name of the program on the page.
        memory: How many megabytes of recorded values are kept.
        host: The interface to listen on; others than the loopback can be reached from other machines.
        port: The port; 0 takes a free one.
        **kwargs: Keyword arguments of the program.

    Returns:
        An object with the `address` to open, and `close`.

    Raises:
        MissingExtra: The extra `view` is not installed.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h").sum()
        >>> served = sonde.view(f, jnp.ones(3))
        >>> served.address.startswith("http://127.0.0.1:")
        True
        >>> served.close()
    """
    subject = subject_of(
        f,
        args,
        kwargs,
        inside=inside,
        tokenizer=tokenizer,
        logits=logits,
        readout=readout,
        stream=stream,
        dictionaries=dictionaries,
        title=title,
    )
    subjects: Subjects = {subject.name: Runs(subject, memory * 1_000_000)}
    if store is not None:
        stored = stored_of(store, dictionaries, subject)
        subjects[stored.name] = stored
    return Served(subjects, host=host, port=port)


def stored_of(
    store: Store,
    dictionaries: Mapping[Any, Dictionary] | None = None,
    subject: Subject | None = None,
    *,
    name: str = "store",
) -> Stored:
    """A store as it is on a page, beside the program whose values it holds, if that is there.

    Args:
        store: The store.
        dictionaries: As for `view`; those of values that are not in the store are left out.
        subject: The program.
        name: The name of the store on the page.
    """
    language = None if subject is None else subject.language
    stored_here = {
        place: dictionary
        for place, dictionary in (dictionaries or {}).items()
        if (place[0] if isinstance(place, tuple) else place) in store
    }
    return Stored(
        store,
        name=name,
        dictionaries=stored_here,
        tokenizer=None if language is None else language.tokenizer,
        unembed=None if language is None else language.unembed,
        program=subject.name if language is not None and language.vocabulary and subject is not None else "",
    )


def joined(parts: Sequence[Subjects], dictionaries: Mapping[Any, Dictionary] | None = None) -> Subjects:
    """Everything that is on one page: names are told apart, and stores know the program whose values they hold.

    Args:
        parts: What was opened, by name.
        dictionaries: Dictionaries for the values of the stores.

    Raises:
        ValueError: A dictionary does not fit what is stored.
    """
    subjects: Subjects = {}
    for name, one in (entry for part in parts for entry in part.items()):
        number, own = 2, name
        while own in subjects:
            own, number = f"{name} ({number})", number + 1
        subjects[own] = one
    programs = [one.subject for one in subjects.values() if isinstance(one, Runs)]
    program = programs[0] if programs else None
    for name, one in subjects.items():
        if isinstance(one, Stored):
            subjects[name] = stored_of(one.store, dictionaries, program, name=name)
    return subjects


def opened_file(target: str) -> list[tuple[str, Any]]:
    """What a file or folder holds that a page can show, with its names: none, if it is a program's or a model's.

    A training run (`.jsonl`), a page of `sonde report` (`.html`), a store, a bundle of `sonde run`; or a folder with
    any of these.

    Args:
        target: The path; of a store, an address such as `gs://bucket/run` too.

    Raises:
        StoreError: A store or a bundle is damaged.
    """
    path = Path(target)
    if "://" in target or (path / MANIFEST).is_file():
        return [(path.name, stored_of(open_store(target), name=path.name))]
    if (path / "bundle.json").is_file():
        return [(path.name, Runs(_bundle_subject(path)))]
    if path.suffix == ".jsonl" and path.is_file():
        return [(path.name, TrainingRun(path))]
    if path.suffix == ".html" and path.is_file():
        return [(path.name, SavedReport(path))]
    if path.is_dir() and not (path / "config.json").exists():
        return [entry for inner in sorted(path.iterdir(), key=_runs_first) for entry in opened_file(str(inner))]
    return []


def _runs_first(path: Path) -> tuple[bool, str]:
    return path.suffix != ".jsonl", path.name


def _bundle_subject(path: Path) -> Subject:
    """The call in a bundle as a program: its inputs and its results are sites."""
    bundle = read_bundle(path)

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        with scope("inputs"):
            seen = {name: sow(x, _site_name(name)) for name, x in inputs.items()}
        with with_capture_state(None):  # captures refuse exported programs, which may hide sites; this one has none
            results = bundle.call(seen)
        with scope("results"):
            return {name: sow(x, _site_name(name)) for name, x in results.items()}

    code = (
        "from sonde.tools.training.bundle import read_bundle\n"
        f"bundle = read_bundle({str(path)!r})\nf, args = bundle.call, (dict(bundle.inputs),)"
    )
    return Subject(path.name, call, (dict(bundle.inputs),), about=bundle.answer, code=code)


def _site_name(name: str) -> str:
    """The name of an array as the name of a site: without the brackets and quotes of Python's way to write it."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "array"


def subject_of(
    f: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inside: object = None,
    tokenizer: TokenNames | None = None,
    logits: Callable[[Any], jax.Array] | None = None,
    readout: Callable[[Any], Any] | None = None,
    stream: str | Sequence[str] = (),
    dictionaries: Mapping[Any, Dictionary] | None = None,
    title: str | None = None,
    code: str = "",
) -> Subject:
    """A program with what is known of it; the arguments are those of `view`, and `code`, Python that makes `f`."""
    check_callable(f, "view")
    name = title or getattr(f, "__name__", None) or type(f).__name__
    subject = _plain_subject(f, args, dict(kwargs or {}), inside, tokenizer, logits, readout, stream, name)
    return dataclasses.replace(subject, dictionaries=dict(dictionaries or {}), code=code)


def _plain_subject(
    f: Callable[..., Any],
    args: Sequence[Any],
    options: dict[str, Any],
    inside: object,
    tokenizer: TokenNames | None,
    logits: Callable[[Any], jax.Array] | None,
    readout: Callable[[Any], Any] | None,
    stream: str | Sequence[str],
    name: str,
) -> Subject:
    if isinstance(f, Decoder):
        return _subject_of_decoder(f, args, options, inside, name)
    reads_tokens = tokenizer is not None or logits is not None or readout is not None
    if not reads_tokens:
        return Subject(name, f, tuple(args), options, inside)
    patterns = (stream,) if isinstance(stream, str) else tuple(stream)
    apply = readout
    language = Language(
        tokenizer=tokenizer,
        logits=logits or _as_logits,
        readout=None if apply is None else lambda program, x: apply(x),
        stream=patterns,
    )
    ids = [int(token) for token in np.asarray(args[0]).reshape(-1, np.shape(args[0])[-1])[0]] if args else []
    decode = getattr(tokenizer, "decode", None) if hasattr(tokenizer, "encode") else None
    shown = " ".join(map(str, ids)) if decode is None else str(decode(ids))
    return Subject(name, f, tuple(args), options, inside, language, shown)


def _subject_of_decoder(
    model: Decoder, args: Sequence[Any], kwargs: dict[str, Any], inside: object, name: str
) -> Subject:
    language = language_of_decoder(model)
    first = args[0] if args else EXAMPLE if model.tokenizer is not None else [0, 1, 2, 3]
    if isinstance(first, str):
        prompt, ids = first, language.encoded(first)
    else:
        ids = [int(token) for token in np.asarray(first).reshape(-1)]
        prompt = model.tokenizer.decode(ids, special=True) if model.tokenizer is not None else " ".join(map(str, ids))
    return Subject(name, model, (jnp.asarray([ids], jnp.int32), *args[1:]), kwargs, inside, language, prompt)


def _as_logits(result: Any) -> jax.Array:
    """The logits in a result: the first array with three axes."""
    for x in jax.tree.leaves(result):
        if np.ndim(x) == 3:
            return x
    raise ValueError("the result has no array (batch, length, tokens): say where the logits are with logits=")
