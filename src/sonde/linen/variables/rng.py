"""Random keys by path and count instead of by splitting.

A stream is a key and the words to fold into it: the names of the modules on the path to where it is used, and how many
keys were drawn there before. A key is made from them only when it is needed. So two modules get independent keys in
whatever order they are called, and adding a layer does not change the keys of others. Words are hashed one after the
other without a separator, as in Linen, so that initial values are equal to Linen's for the same seed; if Flax's flag
`flax_fix_rng_separator` is set, there is a separator.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.errors import InvalidRngError
from sonde.flax.flags import flag

Word = str | int
Rngs = jax.Array | Mapping[str, jax.Array] | None
"""One key, or keys by the names of streams."""


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """A key and the words still to be folded into it. A pytree with the key as its leaf."""

    root: Any
    words: tuple[Word, ...] = ()

    def at(self, *words: Word) -> Stream:
        """The stream at a path below."""
        return Stream(self.root, (*self.words, *words))

    def key(self) -> jax.Array:
        """The key at this path."""
        if not self.words:
            return self.root
        before = b"\0" if flag("flax_fix_rng_separator") else b""
        digest = hashlib.sha1(b"".join(before + _bytes(word) for word in self.words)).digest()
        return jax.random.fold_in(self.root, jnp.uint32(int.from_bytes(digest[:4], "big")))

    def map_root(self, fn: Callable[[Any], Any]) -> Stream:
        """The same words on another key, or on an array of keys."""
        return Stream(fn(self.root), self.words)

    def tree_flatten(self) -> tuple[tuple[Any], tuple[Word, ...]]:
        """The key as a leaf, the words as structure."""
        return (self.root,), self.words

    @classmethod
    def tree_unflatten(cls, words: tuple[Word, ...], leaves: tuple[Any]) -> Stream:
        """The inverse of `tree_flatten`."""
        return cls(leaves[0], words)


def _bytes(word: Word) -> bytes:
    return word.encode() if isinstance(word, str) else word.to_bytes((word.bit_length() + 7) // 8, "big")


class Counts:
    """How many keys each stream has given at one path of a run, and below it.

    Separate from the scope, so that the counts continue when a module is called again or inside a transform.
    """

    __slots__ = ("_all", "_place")

    def __init__(self, _all: dict[tuple[Any, str], int] | None = None, _place: tuple[str, ...] = ()) -> None:
        self._all = {} if _all is None else _all
        self._place = _place

    def next(self, stream: str) -> int:
        """Counts one more key, from 1."""
        key = (self._place, stream)
        self._all[key] = self._all.get(key, 0) + 1
        return self._all[key]

    def at(self, name: str) -> Counts:
        """The counts of the submodule `name`."""
        return Counts(self._all, (*self._place, name))

    def snapshot(self) -> Snapshot:
        """The counts here and below, by relative path and by stream."""
        n = len(self._place)
        return {(place[n:], stream): count for (place, stream), count in self._all.items() if place[:n] == self._place}

    def restore(self, snapshot: Snapshot) -> None:
        """Sets the counts here and below to those of a snapshot."""
        for place, stream in self.snapshot():
            del self._all[(*self._place, *place), stream]
        for (place, stream), count in snapshot.items():
            self._all[(*self._place, *place), stream] = count


Snapshot = dict[tuple[tuple[str, ...], str], int]


def is_key(value: object) -> bool:
    """Whether a value is one random key, new style or raw."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        return False
    typed = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return value.shape == () if typed else (value.shape, value.dtype) == _form_of_raw_keys()


def _form_of_raw_keys() -> tuple[tuple[int, ...], Any]:
    # Computed each time: the default implementation of random numbers may change at any time.
    raw = jax.eval_shape(jax.random.key_data, jax.eval_shape(jax.random.key, 0))
    return raw.shape, raw.dtype


def streams(rngs: Rngs, *, where: str) -> dict[str, Stream]:
    """Checks the `rngs` argument of init, apply or bind: one key (then called `params`), or keys by name.

    Raises:
        InvalidRngError: Something in it is not a key.
    """
    if rngs is None:
        return {}
    named = rngs if isinstance(rngs, Mapping) else {"params": rngs}
    for name, key in named.items():
        if not isinstance(name, str) or not is_key(key):
            raise InvalidRngError(
                f"{where} takes rngs as one key from jax.random.key or a dict of such keys by stream name; got "
                f"{key!r} of type {type(key).__name__} for stream {name!r}"
            )
    return {name: Stream(key) for name, key in named.items()}
