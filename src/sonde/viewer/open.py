"""`view`: opens a page on a program, in the browser and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import check_callable
from sonde.models.decoder import Decoder
from sonde.tools.reading.token_labels import TokenNames
from sonde.viewer.language import EXAMPLE, Language, language_of_decoder
from sonde.viewer.runs import MEMORY, Runs, Subject
from sonde.viewer.server import Served


def view(
    f: Callable[..., Any],
    *args: Any,
    inside: object = None,
    tokenizer: TokenNames | None = None,
    logits: Callable[[Any], jax.Array] | None = None,
    readout: Callable[[Any], Any] | None = None,
    stream: str | Sequence[str] = (),
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
        f, args, kwargs, inside=inside, tokenizer=tokenizer, logits=logits, readout=readout, stream=stream, title=title
    )
    return Served({subject.name: Runs(subject, memory * 1_000_000)}, host=host, port=port)


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
    title: str | None = None,
) -> Subject:
    """A program with what is known of it; the arguments are those of `view`."""
    check_callable(f, "view")
    name = title or getattr(f, "__name__", None) or type(f).__name__
    options = dict(kwargs or {})
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
