"""What the page must know about a language model to show words: its tokens, its logits, and what it writes and reads.

For a `models.Decoder` all of it is known. For another program `sonde.view(f, tokens, tokenizer=..., readout=...)` says
what it can; a view that needs more is not offered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import nnx
from sonde.core import edit
from sonde.models.decoder import Decoder
from sonde.models.sites import SITES
from sonde.tools.reading.token_labels import TokenNames, shown_by

EXAMPLE = "The Eiffel Tower is in the city of"
_NUMBER = "12"  # the layer's number in `models.SITES`


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """How a program reads tokens and what its result says.

    Attributes:
        tokenizer: Turns token ids into texts, and texts into ids if it has `encode`; None shows numbers.
        vocabulary: Whether prompts may be typed: the first argument of the program is `(1, length)` token ids.
        logits: Takes the logits, `(batch, length, tokens)`, from the result of the program.
        readout: Of the program and a residual stream, the logits: the last norm and the output layer. None if it is not
            known.
        stream: Patterns of the sites of the residual stream, for the logit lens.
        residual: The path of the stream before the last norm, for attribution; empty if it is not known.
        components: Patterns of what is added to the stream.
        writes: Of the program, how units get into the stream, as in `tools.logit_attribution`.
        readout_code: Python for the output layer, if `model` is the program.
        writes_code: Python for the items of `writes`.
        axes: For a path, the names of the axes of its value.
        unembed: Of a vector of the stream, the logits that it adds, and those of biases: the output layer without what
            makes it nonlinear.
        model: The model, if it can generate text.
    """

    tokenizer: TokenNames | None = None
    vocabulary: bool = True
    logits: Callable[[Any], jax.Array] | None = None
    readout: Callable[[Any, Any], Any] | None = None
    stream: tuple[str, ...] = ()
    residual: str = ""
    components: tuple[str, ...] = ()
    writes: Callable[[Any], Mapping[str, Any]] = lambda program: {}
    readout_code: str = "readout"
    writes_code: str = ""
    axes: Callable[[str], tuple[str, ...]] = lambda path: ()
    unembed: Callable[[Any], Any] | None = None
    model: Decoder | None = None

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        show = shown_by(self.tokenizer)
        return [show(int(token)) for token in token_ids]

    def encoded(self, prompt: str) -> list[int]:
        """The token ids of a prompt.

        Raises:
            ValueError: It has a word that is not a token, or no token at all.
        """
        encode = getattr(self.tokenizer, "encode", None)
        if encode is not None:
            ids = [int(token) for token in encode(prompt)]
        else:
            ids = [self._token(word) for word in prompt.replace(",", " ").split()]
        if not ids:
            raise ValueError("the prompt has no tokens: type at least one")
        return ids

    def one_token(self, text: str) -> int:
        """The token that a text is, or that it begins with."""
        ids = getattr(self.tokenizer, "encode", None)
        if ids is None:
            return self._token(text.strip())
        special = getattr(self.tokenizer, "one", None)
        tokens = self.tokenizer.encode(text, special=False) if special else ids(text)  # pyright: ignore
        if not tokens:
            raise ValueError(f"{text!r} has no token")
        return int(tokens[0])

    def _token(self, word: str) -> int:
        if isinstance(self.tokenizer, Sequence) and word in self.tokenizer:
            return list(self.tokenizer).index(word)
        if word.isdigit():
            return int(word)
        raise ValueError(f"{word!r} is not a token: this program has no tokenizer, so type token ids, such as 3 14 15")


def check_token(token: int, size: int) -> None:
    """Raises ValueError for a token that the model does not have: JAX would take the nearest that it has."""
    if not 0 <= token < size:
        raise ValueError(f"the model has tokens 0 to {size - 1}, and no token {token}")


def language_of_decoder(model: Decoder) -> Language:
    """What is known about a language model of `sonde.models`."""
    layers = model.config.layers
    style = model.config.style
    components: tuple[str, ...] = ()
    by_head = False
    if style == "sandwich":  # what heads write goes through a norm together
        components = ("embedded", "blocks/*/attn_norm", "blocks/*/mlp_norm")
    elif style != "post":
        components = ("embedded", "blocks/*/attn/heads", "blocks/*/mlp/out")
        by_head = True
    return Language(
        tokenizer=model.tokenizer,
        logits=lambda result: result,
        readout=lambda program, stream: program.readout(stream),
        stream=("embedded", "blocks/*/out"),
        residual=f"blocks/{layers - 1}/out" if components else "",
        components=components,
        writes=_outputs_of_heads if by_head else lambda program: {},
        readout_code="model.readout",
        writes_code=_writes_code(model) if by_head else "",
        axes=decoder_axes,
        unembed=_unembedding(model) if model.config.logit_cap is None else None,
        model=model,
    )


def _unembedding(model: Decoder) -> Callable[[Any], Any]:
    """The output layer with the last norm held at a scale of one, so that it is linear but for biases."""
    return edit(model.readout, {"**/factor": jnp.ones_like})


def _outputs_of_heads(model: Decoder) -> dict[str, Any]:
    """The output matrices of the heads, `(heads, depth, width)`, by path."""

    def matrix(path: str) -> jax.Array:
        layer = int(path.split("/")[1])
        blocks: Any = model.blocks
        kernels = blocks[layer].attn.o.kernel[...] if isinstance(blocks, nnx.List) else blocks.attn.o.kernel[layer]
        return kernels.reshape(model.config.heads, -1, kernels.shape[-1])

    return {"blocks/*/attn/heads": matrix}


def _writes_code(model: Decoder) -> str:
    kernel = (
        "model.blocks[layer].attn.o.kernel[...]"
        if isinstance(model.blocks, nnx.List)
        else "model.blocks.attn.o.kernel[layer]"
    )
    matrix = kernel.replace("layer", 'int(path.split("/")[1])')
    shape = f"({model.config.heads}, -1, {model.config.width})"
    return f'"blocks/*/attn/heads": lambda path: {matrix}.reshape{shape}'


_AXES = {
    tuple(names.site.split("/")): tuple(word.replace("key-heads", "key heads") for word in names.shape.split())
    for names in SITES
}


def decoder_axes(path: str) -> tuple[str, ...]:
    """The names of the axes of a site of a `models.Decoder`; empty for a site that is not one of `models.SITES`.

    Example:
        >>> decoder_axes("blocks/3/attn/weights")
        ('batch', 'heads', 'length', 'keys')
    """
    return _AXES.get(tuple(_NUMBER if part.isdigit() else part for part in path.split("/")), ())


def guessed_axes(shape: Sequence[int], length: int) -> tuple[str, ...]:
    """Names of the axes of a value of a program that says nothing about it.

    Args:
        shape: The shape of the value.
        length: The number of tokens or positions; 0 if there are none.

    Example:
        >>> guessed_axes((2, 4, 7, 7), 7), guessed_axes((1, 7, 64), 7)
        (('batch', 'heads', 'length', 'keys'), ('batch', 'length', 'units'))
    """
    names = ["batch" if i == 0 and len(shape) > 1 else f"axis {i}" for i in range(len(shape))]
    if names and (len(shape) < 2 or names[-1] != "batch"):
        names[-1] = "units"
    if length > 1 and len(shape) >= 2 and shape[-2:] == (length, length):
        names[-2:] = ["length", "keys"]
        if len(shape) >= 3:
            names[-3] = "heads"
        return tuple(names)
    positions = [i for i, size in enumerate(shape[:-1]) if size == length and length > 1]
    if positions:
        names[positions[0]] = "length"
    if len(shape) == 4:
        middle = [i for i in range(1, 3) if names[i] != "length"]
        if len(middle) == 1:
            names[middle[0]] = "heads"
    return tuple(names)


def as_batch(token_ids: Sequence[int]) -> np.ndarray:
    """Token ids as a batch of one."""
    return np.asarray([list(token_ids)], np.int32)
