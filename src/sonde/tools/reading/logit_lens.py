"""The logit lens: what would the model say if it stopped here? Applies the output layer to the values of every layer.

The readout runs at the site, on the device, and only the best few tokens are kept, never the logits of all layers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde._array_text import indexed
from sonde._renames import accepts_old_keywords
from sonde.core import (
    ByPath,
    InsideRequest,
    Pattern,
    Records,
    arrays_in,
    capture_only,
    check_callable,
    check_patterns,
    inside_request,
    two_steps,
    wrapped_like,
)
from sonde.display import WholePaths, as_text
from sonde.tools.execution.compiled_reading import CompiledReading
from sonde.tools.execution.record_values import Seen, each_seen
from sonde.tools.reading.heatmap import POSITION, Drawn, Heat, with_tokens
from sonde.tools.reading.lens_maps import LensMaps
from sonde.tools.reading.token_labels import Labels, TokenNames, input_words, shown_by, tokenizer_of, visible, words

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, slots=True)
class Reading(Drawn):
    """What the output layer reads at one site.

    Attributes:
        tokens: The best tokens, best first, along the last axis; loops and mapped axes are in front.
        probabilities: Their probabilities.
        entropy: How undecided it is, in nats.
        loops: How many of the axes in front are loops.
    """

    tokens: jax.Array
    probabilities: jax.Array
    entropy: jax.Array
    loops: int = 0

    def _heat(self) -> Heat:
        best, sure = (np.asarray(x)[..., 0] for x in (self.tokens, self.probabilities))
        best, sure = (np.reshape(x, (*x.shape[:-1], -1)) if x.ndim else x[None] for x in (best, sure))
        rows = list(np.ndindex(best.shape[:-1]))
        values = np.stack([sure[at] for at in rows]).astype(np.float64)
        names = [",".join(map(str, at)) for at in rows]
        texts = [[str(int(t)) for t in best[at]] for at in rows]
        return Heat(values, names, list(map(str, range(values.shape[1]))), _BEST, POSITION, texts)

    @accepts_old_keywords("html, heat and plot of what tools return")
    def heat(self, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> Heat:
        """What is drawn; `tokenizer` shows the best tokens too."""
        return _with_names(super(Reading, self).heat(tokens, tokenizer), tokenizer)


_BEST = "the best token at every position, and how sure"


def _with_names(heat: Heat, tokenizer: TokenNames | None) -> Heat:
    """The same, with the best tokens as strings."""
    if tokenizer is None:
        return heat
    show = shown_by(tokenizer)
    return dataclasses.replace(heat, texts=[[visible(show(int(t))) if t else "" for t in row] for row in heat.texts])


class Lens(ByPath[Reading], Drawn):
    """Readings by path, in program order. Calls of a site after the first have their number, as in `h[1]`.

    Tables and pictures show tokens if the model has a tokenizer, or if they are given one.
    """

    def __init__(
        self, readings: Mapping[str, Reading], *, tokenizer: TokenNames | None = None, prompt: Sequence[str] = ()
    ) -> None:
        super().__init__(readings)
        self._tokenizer = tokenizer
        self._prompt = prompt  # the tokens at the positions

    @accepts_old_keywords("sonde.tools.Lens.table")
    def table(self, tokenizer: TokenNames | None = None, *, tokens: Labels | None = None, example: int = 0) -> Any:
        """A rich table of the best token at every position.

        Args:
            tokenizer: Turns tokens into strings: a function, a list of strings, or a tokenizer (with `decode`). That of
                the model, if None.
            tokens: The tokens at the positions, for the heading: strings, or token ids that `tokenizer` converts.
            example: Which of the examples, if there are axes besides the position.

        Raises:
            TypeError: `tokenizer` cannot turn tokens into strings.
        """
        from rich.table import Table
        from rich.text import Text

        tokenizer = self._tokenizer if tokenizer is None else tokenizer
        tokens = (self._prompt or None) if tokens is None else tokens
        show = shown_by(tokenizer)
        rows = list(self.rows(example))
        columns = max((len(best) for _, best, _ in rows), default=0)
        head = [""] * columns if tokens is None else words(tokens, show)
        table = Table(title=_BEST)
        table.add_column("site", no_wrap=True, overflow="fold")
        for i in range(columns):
            table.add_column(Text(head[i] if i < len(head) else ""))
        for name, best, sure in rows:
            table.add_row(Text(name), *[Text(f"{visible(show(int(t)))} {float(p):.2f}") for t, p in zip(best, sure)])
        return table

    def _heat(self) -> Heat:
        rows = list(self.rows())
        width = max((len(best) for _, best, _ in rows), default=0)
        sure = [np.pad(p.astype(np.float64), (0, width - len(p)), constant_values=np.nan) for _, _, p in rows]
        texts = [[str(int(t)) for t in best] + [""] * (width - len(best)) for _, best, _ in rows]
        values = np.stack(sure) if sure else np.zeros((0, 0))
        return Heat(values, [name for name, _, _ in rows], list(map(str, range(width))), _BEST, POSITION, texts)

    @accepts_old_keywords("html, heat and plot of what tools return")
    def heat(self, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> Heat:
        """What is drawn; `tokenizer` shows the best tokens too."""
        tokenizer = self._tokenizer if tokenizer is None else tokenizer
        heat = self._heat()
        if tokens is None and len(self._prompt) == len(heat.columns):
            tokens = self._prompt
        return _with_names(with_tokens(heat, tokens, tokenizer), tokenizer)

    def rows(self, example: int = 0) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """The best token at each position and its probability, for every site and every iteration of its loops.

        Args:
            example: Which of the examples, if there are axes besides loops and the position.
        """
        for name, reading in self.items():
            tokens, sure = np.asarray(reading.tokens)[..., 0], np.asarray(reading.probabilities)[..., 0]
            last = tokens.shape[-1] if tokens.ndim > reading.loops else 1
            loops = tokens.shape[: reading.loops]
            tokens, sure = tokens.reshape(*loops, -1, last), sure.reshape(*loops, -1, last)
            for index in np.ndindex(loops):
                row = indexed(name, index) if index else name
                yield row, tokens[index][example], sure[index][example]

    def __repr__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Any:
        return WholePaths(self.table())


@two_steps
def logit_lens(
    f: Callable[P, Any],
    *patterns: Pattern,
    readout: Callable[[Any], Any],
    k: int = 5,
    maps: LensMaps | None = None,
    inside: object = None,
) -> Callable[P, Lens]:
    """A function that runs `f` and reads the values at its sites with an output layer.

    Args:
        f: Any callable.
        *patterns: Which sites, as in `sonde.capture`: those of the residual stream. All, if none are given.
        readout: A function of a value that returns logits, with tokens along the last axis: the model's last norm and
            output layer. Under `vmap` it sees one example.
        k: How many tokens to keep.
        maps: What `tuned_lens` or `jacobian_lens` returned: values are read through them. Then the sites are by default
            theirs.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `Lens`. It may be called inside `jax.jit`, to use the
        readings there.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: there are fewer than `k` tokens.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import logit_lens
        >>> def f(x):
        ...     x = sonde.sow(x, "start")
        ...     return sonde.sow(x[::-1], "end")
        >>> lens = logit_lens(f, readout=lambda h: 10 * h, k=1)(jnp.array([0.0, 1.0, 2.0]))
        >>> print(lens["start"].tokens, lens["end"].tokens)
        [2] [0]
    """
    check_callable(f, "logit_lens")
    check_callable(readout, "logit_lens: readout")
    if k < 1:
        raise ValueError(f"logit_lens: k must be at least 1, got {k}")

    chosen = check_patterns(patterns, "logit_lens") or tuple(maps or ())
    asked = inside_request(inside)
    run = CompiledReading(functools.partial(_readings, k, chosen, maps, asked), f, readout, inside=asked)

    def lens(*args: P.args, **kwargs: P.kwargs) -> Lens:
        records, mapped = run(f, args, kwargs)
        readings = {
            _name(seen): Reading(*(mapped.get(_name(seen)) or seen.value), loops=seen.loops)
            for seen in each_seen(records)
        }
        return Lens(readings, tokenizer=tokenizer_of(f), prompt=input_words(f, args))

    return wrapped_like(lens, f)


def _readings(
    k: int,
    patterns: tuple[Pattern, ...],
    maps: LensMaps | None,
    inside: InsideRequest | None,
    readout: Callable[[Any], Any],
    f: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> tuple[Records, dict[str, list[Any]]]:
    """Records of what the readout says; through maps, records of values, and by path what it says of them."""
    read = functools.partial(_read, readout, k)
    records = capture_only(f, patterns, args, kwargs, reduce=read if maps is None else None, inside=inside)
    if maps is None:
        return records, {}
    # A map belongs to a path, which a reduction in a loop does not know: such values are read afterwards.
    return records, {_name(seen): read(maps[_name(seen)](arrays_in(seen.value)[0])) for seen in each_seen(records)}


def _name(seen: Seen) -> str:
    return f"{seen.path}[{seen.call}]" if seen.call else seen.path


def _read(readout: Callable[[Any], Any], k: int, value: Any) -> list[Any]:
    """The best tokens of a value, their probabilities, and the entropy of all."""
    logits = readout(value)
    if not jnp.ndim(logits) or jnp.shape(logits)[-1] < k:
        raise ValueError(
            f"logit_lens: the readout returned logits of shape {list(jnp.shape(logits))}, which has no {k} tokens "
            "along the last axis"
        )
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    best, tokens = jax.lax.top_k(logs, k)
    # 0 * -inf is NaN: tokens that are ruled out count as zero.
    entropy = -jnp.sum(jnp.where(jnp.isneginf(logs), 0, jnp.exp(logs) * logs), -1)
    return [tokens, jnp.exp(best), entropy]
