"""Generating text: the prompt is read once, then one token at a time, with keys and values kept in a cache.

Prompts of a batch are padded in front to one length, so that all rows write the same slot of the cache; positions and
masks leave the padding out. Everything is one compiled program: it is compiled once for each shape of the prompts and
number of new tokens.

While a capture or an edit runs, tokens are generated in a scan: a site of the model then has two calls, one for the
prompt (call 0) and one for the new tokens (call 1), whose first axis is the generated position. Row `i` is what the
model computes when it reads generated token `i`. Otherwise the loop ends when every row has met a stop token.

Sharp edge: if rotary frequencies change with the length of a text (`dynamic`, `longrope`) and prompts grow past the
length that the model was trained on, the cache becomes invalid. The text before the new token is then read again at
every step, which takes the time of a prompt for each token. Its sites are not recorded again.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import nnx
from sonde.core import Edit, capture_state, with_capture_state
from sonde.models.decoder import Decoder
from sonde.models.sampling import Sampling, choose
from sonde.models.stack import KeyValueCache
from sonde.models.tokens import Tokenizer, pad

Prompts = Any  # a text, texts, chats, or tokens
Stream = bool | Callable[[list[str]], Any]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("tokens", "lengths", "prompt", "padding"),
    meta_fields=("tokenizer",),
)
@dataclasses.dataclass(frozen=True, repr=False)
class Generated:
    """What `generate` returns.

    Attributes:
        tokens: Integers, `(batch, new tokens)`; after a stop token, padding.
        lengths: Integers, `(batch,)`: the number of new tokens of a row, including its stop token.
        prompt: Integers, `(batch, length)`: the prompts, with padding before the shorter ones.
        padding: Integers, `(batch,)`: the number of padding tokens of each row.
        tokenizer: The model's tokenizer, if it has one.
    """

    tokens: jax.Array
    lengths: jax.Array
    prompt: jax.Array
    padding: jax.Array
    tokenizer: Tokenizer | None = None

    @property
    def texts(self) -> list[str]:
        """The new tokens of every row as text, without special tokens."""
        if self.tokenizer is None:
            raise ValueError("the model has no tokenizer: use `tokens` and `lengths`.")
        rows = zip(np.asarray(self.tokens), np.asarray(self.lengths))
        return [self.tokenizer.decode(row[:length]) for row, length in rows]

    def __repr__(self) -> str:
        shown = self.texts if self.tokenizer is not None else np.asarray(self.tokens).tolist()
        return f"Generated({shown!r})"

    def __str__(self) -> str:
        """The texts, one after the other; the tokens, if the model has no tokenizer."""
        if self.tokenizer is not None:
            return "\n".join(self.texts)
        rows = zip(np.asarray(self.tokens), np.asarray(self.lengths))
        return "\n".join(" ".join(map(str, row[:length])) for row, length in rows)

    @property
    def pieces(self) -> list[list[str]]:
        """Every token of the prompts and the answers as a separate text, for labels of pictures."""
        if self.tokenizer is None:
            raise ValueError("pieces: the model has no tokenizer, so there are only `tokens`")
        whole = np.concatenate([np.asarray(self.prompt), np.asarray(self.tokens)], axis=1)
        ends = np.asarray(self.lengths) + self.prompt.shape[1]
        return [self.tokenizer.pieces(row[a:b]) for row, a, b in zip(whole, np.asarray(self.padding), ends)]


class _State(NamedTuple):
    """The state between two steps."""

    step: jax.Array
    tokens: jax.Array  # those chosen last
    done: jax.Array
    cache: KeyValueCache
    texts: jax.Array | None = None  # `(batch, slots)`: all tokens so far, if they must be read again


def generate(
    model: Decoder,
    prompts: Prompts,
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Iterable[int | str] | None = None,
    seed: int = 0,
    stream: Stream = False,
    pad_to: int = 1,
) -> Generated:
    """Continues prompts.

    Args:
        model: A language model.
        prompts: A text, several texts, chats (lists of messages with `role` and `content`), or rows of tokens.
        max_new_tokens: The maximum number of tokens to generate.
        temperature: The sampling temperature; 0 takes the likeliest token.
        top_k: How many of the likeliest tokens are considered; all if None.
        top_p: The likeliest tokens are considered until their probabilities add up to this; all if None.
        stop: Tokens, as numbers or texts, that end an answer; those of the tokenizer if None.
        seed: For random choices.
        stream: True prints the first answer as it grows; a function is called with the new text of every row at every
            step. Each step is then a separate call, and a site has one call for the prompt and one for every new token.
        pad_to: Prompts are padded to a multiple of this, so that similar lengths share a compiled program.

    Returns:
        The new tokens, and their texts.

    Raises:
        ValueError: An argument is out of range, a prompt is empty, or there are not enough positions.

    Example:
        >>> from sonde import models
        >>> model = models.from_config({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8,
        ...                     "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32})
        >>> models.generate(model, [[1, 2, 3], [4]], max_new_tokens=5).tokens.shape
        (2, 5)
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}.")
    rows = _rows(model, prompts)
    if isinstance(model, (str, Path)):
        raise TypeError(f"generate takes a model, such as models.load({str(model)!r}), not its name")
    tokenizer = model.tokenizer
    fill = 0 if tokenizer is None else tokenizer.pad_id
    length = -(-max(map(len, rows)) // pad_to) * pad_to
    if model.config.positions and length + max_new_tokens > model.config.positions:
        raise ValueError(
            f"a prompt of {length} tokens and {max_new_tokens} new ones need {length + max_new_tokens} positions; the "
            f"model has {model.config.positions}."
        )
    tokens, mask = pad(rows, fill, left=True, length=length)
    ends = jnp.asarray(_stops(model, stop), jnp.int32)
    options: dict[str, Any] = {
        "sampling": Sampling.of(temperature, top_k, top_p),
        "key": jax.random.key(seed) if temperature else None,
        "ends": ends,
        "anew": _outgrows_its_cache(model, rows, max_new_tokens),
    }
    prompt, padding = jnp.asarray(tokens), jnp.asarray((~mask).sum(1).astype(np.int32))
    if stream:
        new_tokens, lengths = _streamed(
            model, prompt, padding, steps=max_new_tokens, fill=fill, show=_shower(model, stream), **options
        )
    else:
        new_tokens, lengths = _whole(model, prompt, padding, steps=max_new_tokens, fill=fill, **options)
    return Generated(new_tokens, lengths, prompt, padding, tokenizer)


def from_token(new: Any, first: int = 0) -> Edit:
    """An edit of a site of `generate` that begins when some generated token is read.

    Args:
        new: A function of the value, `(batch, 1, ...)`, or a new value.
        first: The first generated token at which the edit applies.

    Returns:
        What `sonde.edit` takes for a site.

    Example:
        >>> import sonde
        >>> from sonde import models
        >>> model = models.from_config({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8,
        ...                     "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32})
        >>> steered = sonde.edit(models.generate, {"blocks/0/out": models.from_token(lambda x: x + 9, 2)})
        >>> steered(model, [[1, 2]], max_new_tokens=6).tokens.shape
        (1, 6)
    """
    return Edit(new, calls=1, iterations=lambda step: step >= first)


# ---------------------------------------------------------------------------------------------------------------------
# Prompts
# ---------------------------------------------------------------------------------------------------------------------


def _rows(model: Decoder, prompts: Prompts) -> list[list[int]]:
    """The tokens of every prompt."""
    if isinstance(prompts, str) or (isinstance(prompts, list) and prompts and isinstance(prompts[0], dict)):
        prompts = [prompts]
    rows = [_tokens(model, prompt) for prompt in prompts]
    empty = [i for i, row in enumerate(rows) if not row]
    if empty or not rows:
        raise ValueError(f"prompt {empty[0]} has no tokens." if empty else "there are no prompts.")
    return rows


def _tokens(model: Decoder, prompt: Any) -> list[int]:
    is_chat = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], dict)
    if not isinstance(prompt, str) and not is_chat:
        return [int(token) for token in np.asarray(prompt).reshape(-1)]
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer: give prompts as rows of tokens.")
    if is_chat:
        return model.tokenizer.encode(model.tokenizer.chat(prompt), special=False)
    return model.tokenizer.encode(prompt)


def _outgrows_its_cache(model: Decoder, rows: list[list[int]], new: int) -> bool:
    """Whether rotary frequencies change while these prompts are continued.

    Raises:
        ValueError: They do, and an edit is running, which cannot be repeated when the text is read again.
    """
    rotaries = [kind.rotary for kind in model.config.kinds if kind.rotary is not None]
    outgrows = any(rotary.changes_between(len(row), len(row) + new - 1) for rotary in rotaries for row in rows)
    state = capture_state()
    if outgrows and state is not None and state.edits:
        raise ValueError(
            f"the rotary frequencies of this model change when a text is longer than {rotaries[0].trained_length} "
            f"tokens, so the text is read again for every new token, and edits cannot be repeated in it. "
            f"Generate fewer tokens, or edit the model itself."
        )
    return outgrows


def _stops(model: Decoder, stop: Iterable[int | str] | None) -> list[int]:
    if stop is None:
        return [] if model.tokenizer is None else list(model.tokenizer.stop)
    token_ids = []
    for token in [stop] if isinstance(stop, (str, int)) else stop:
        if isinstance(token, str):
            token_id = model.tokenizer.token_id(token)
            token_ids.append(model.tokenizer.one(token) if token_id is None else token_id)
        else:
            token_ids.append(int(token))
    return token_ids


# ---------------------------------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------------------------------


def _start(
    model: Decoder,
    prompt: jax.Array,
    padding: jax.Array,
    slots: int,
    sampling: Sampling,
    key: jax.Array | None,
    ends: jax.Array,
    anew: bool = False,
) -> _State:
    """Reads the prompts and chooses the first new tokens."""
    batch, length = prompt.shape
    positions = jnp.arange(length, dtype=jnp.int32)[None] - padding[:, None]
    logits, cache = model.extend(
        prompt, model.new_cache(batch, slots), positions=positions, valid=_valid(padding, slots)
    )
    tokens = choose(logits, sampling, _at_step(key, 0))
    texts = jnp.pad(prompt, ((0, 0), (0, slots - length))) if anew else None
    return _State(jnp.int32(0), tokens, jnp.isin(tokens, ends), cache, texts)


def _step(
    model: Decoder,
    state: _State,
    padding: jax.Array,
    sampling: Sampling,
    key: jax.Array | None,
    ends: jax.Array,
    fill: int,
) -> _State:
    """Reads the tokens chosen last and chooses the next ones."""
    positions = state.cache.filled - padding[:, None]
    valid, cache, texts = _valid(padding, state.cache.slots), state.cache, state.texts
    if texts is not None:
        cache = _read_anew(model, texts, padding, valid, cache.filled)
        texts = lax.dynamic_update_slice(texts, state.tokens[:, None], (0, cache.filled))
    logits, cache = model.extend(state.tokens[:, None], cache, positions=positions, valid=valid)
    chosen = choose(logits, sampling, _at_step(key, state.step + 1))
    tokens = jnp.where(state.done, fill, chosen)
    return _State(state.step + 1, tokens, state.done | jnp.isin(chosen, ends), cache, texts)


def _read_anew(
    model: Decoder, texts: jax.Array, padding: jax.Array, valid: jax.Array, filled: jax.Array
) -> KeyValueCache:
    """A cache of all tokens so far, for a text that is one token longer."""
    positions = jnp.arange(texts.shape[1], dtype=jnp.int32)[None] - padding[:, None]
    with with_capture_state(None):
        _, cache = model.extend(
            texts,
            model.new_cache(*texts.shape),
            positions=positions,
            valid=valid,
            text_length=(filled + 1 - padding)[:, None],
        )
    return cache._replace(filled=filled)


def _at_step(key: jax.Array | None, step: int | jax.Array) -> jax.Array | None:
    """The random key of a step; None if nothing is random."""
    return None if key is None else jax.random.fold_in(key, step)


def _valid(padding: jax.Array, slots: int) -> jax.Array:
    return jnp.arange(slots, dtype=jnp.int32)[None] >= padding[:, None]


@nnx.jit(static_argnames=("steps", "fill", "anew"))
def _whole(
    model: Decoder,
    prompt: jax.Array,
    padding: jax.Array,
    *,
    steps: int,
    fill: int,
    sampling: Sampling,
    key: jax.Array | None,
    ends: jax.Array,
    anew: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """All new tokens, and how many of them each row has."""
    first = _start(model, prompt, padding, prompt.shape[1] + steps - 1, sampling, key, ends, anew)

    def go_on(state: _State) -> _State:
        return _step(model, state, padding, sampling, key, ends, fill)

    if capture_state() is None:
        tokens, lengths = _until_done(go_on, first, steps, fill)
    else:

        def body(state: _State, _: None) -> tuple[_State, tuple[jax.Array, jax.Array]]:
            new_state = go_on(state)
            return new_state, (new_state.tokens, state.done)

        _, (later, done) = lax.scan(body, first, length=steps - 1)
        tokens = jnp.concatenate([first.tokens[None], later]).T
        lengths = 1 + (~done).sum(0, dtype=jnp.int32)
    return tokens, lengths


def _until_done(go_on: Callable[[_State], _State], first: _State, steps: int, fill: int) -> tuple[Any, Any]:
    """Generates until every row has met a stop token."""
    batch = first.tokens.shape[0]
    tokens = jnp.full((steps, batch), fill, jnp.int32).at[0].set(first.tokens)

    def goes_on(carry: Any) -> jax.Array:
        state, _, _ = carry
        return (state.step < steps - 1) & ~jnp.all(state.done)

    def body(carry: Any) -> Any:
        state, tokens, lengths = carry
        new_state = go_on(state)
        return new_state, tokens.at[new_state.step].set(new_state.tokens), lengths + ~state.done

    _, tokens, lengths = lax.while_loop(goes_on, body, (first, tokens, jnp.ones((batch,), jnp.int32)))
    return tokens.T, lengths


# ---------------------------------------------------------------------------------------------------------------------
# Streaming
# ---------------------------------------------------------------------------------------------------------------------

_start_alone = nnx.jit(_start, static_argnames=("slots", "anew"))
_step_alone = nnx.jit(_step, static_argnames=("fill",), donate_argnames=("state",))


def _streamed(
    model: Decoder,
    prompt: jax.Array,
    padding: jax.Array,
    *,
    steps: int,
    fill: int,
    show: Callable[[list[int], np.ndarray], None],
    sampling: Sampling,
    key: jax.Array | None,
    ends: jax.Array,
    anew: bool,
) -> tuple[jax.Array, jax.Array]:
    """Generates all new tokens, one call for each, and shows them as they come."""
    slots = prompt.shape[1] + steps - 1
    state = _start_alone(model, prompt, padding, slots=slots, sampling=sampling, key=key, ends=ends, anew=anew)
    columns, lengths = [], np.zeros(prompt.shape[0], np.int32)
    running = np.ones(prompt.shape[0], bool)
    while True:
        tokens, done = np.asarray(state.tokens), np.asarray(state.done)
        columns.append(tokens)
        lengths += running
        show(tokens.tolist(), running)
        running = ~done
        if len(columns) == steps or not running.any():
            break
        state = _step_alone(model, state, padding, sampling=sampling, key=key, ends=ends, fill=fill)
    show([], running)
    columns += [np.full_like(columns[0], fill)] * (steps - len(columns))
    return jnp.asarray(np.stack(columns, 1)), jnp.asarray(lengths)


def _shower(model: Decoder, stream: Stream) -> Callable[[list[int], np.ndarray], None]:
    """A function that shows the text of every row's new tokens; it is called with no tokens at the end."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer: there is no text to stream.")
    rows: list[Iterator[str]] = []
    written: list[list[int]] = []

    def show(tokens: list[int], running: np.ndarray) -> None:
        if not written:
            written.extend([] for _ in tokens)
            rows.extend(_text(model.tokenizer, row) for row in written)
        if not tokens:
            if stream is True:
                sys.stdout.write("\n")
            return
        for row, token, goes_on in zip(written, tokens, running):
            if goes_on:
                row.append(token)
        texts = [next(row) for row in rows]
        if stream is True:
            sys.stdout.write(texts[0])
            sys.stdout.flush()
        elif callable(stream):
            stream(texts)

    return show


def _text(tokenizer: Tokenizer, row: list[int]) -> Iterator[str]:
    """Yields the new text each time the row of tokens has grown; holds incomplete characters back."""
    shown = ""
    while True:
        text = tokenizer.decode(row)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield ""
        else:
            yield text[len(shown) :]
            shown = text
