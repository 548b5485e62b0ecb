"""Splices a dictionary into a program in place of a value: its features become sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core import (
    STAR,
    InsideRequest,
    Pattern,
    Row,
    RowsName,
    Supplied,
    Where,
    capture_state,
    check_patterns,
    edit,
    inside_request,
    matches,
    no_such_site,
    put_by_rule,
    rows_chosen,
    scope,
    sow,
    with_capture_state,
    wrapped_like,
)
from sonde.dictionaries.cross_layer import Coder, CrossLayerTranscoder, Transcoders, coders_of
from sonde.dictionaries.crosscoder import Crosscoder
from sonde.dictionaries.dictionary import Dictionary
from sonde.errors import EditError
from sonde.tools.intervention.patch_values import not_differentiated

P = ParamSpec("P")
R = TypeVar("R")


def splice(
    f: Callable[P, R], dictionaries: Transcoders, *, keep_error: bool = False, inside: object = None
) -> Callable[P, R]:
    """`f` with values replaced by what dictionaries make of them.

    A capture of the result sees the features below the path of each site, as in `blocks/3/out/features`; `ablate`,
    `attribute` and `edit` reach them there.

    Args:
        f: Any callable.
        dictionaries: For each pattern, an autoencoder for the values at its sites; for each pair of patterns, a
            transcoder that reads the value at the first and replaces the value at the second, such as
            `("blocks/3/norm2", "blocks/3/mlp/out")`. Both must be in the same jitted function or loop body. For a pair
            of tuples of patterns, a `CrossLayerTranscoder`, in models whose layers are a list.
        keep_error: Whether to add the reconstruction error back, so that the result stays the same until features are
            changed. No gradient flows through the error, which is a site too, as in `blocks/3/out/error`,
            unless features write to several layers.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        ValueError: An autoencoder has two patterns, or a transcoder one.
        EditError: When called: a transcoder replaces a value before or outside the code that computes what it reads, or
            one that the program itself differentiates.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, splice
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h").sum()
        >>> autoencoder = Dictionary(4, 8, rngs=nnx.Rngs(0))
        >>> _, records = sonde.capture(splice(f, {"h": autoencoder}), "**/features")(jnp.ones((3, 4)))
        >>> records["h/features"].value.shape
        (3, 8)
    """
    edits: dict[Pattern, Callable[[Any], Any]] = {}
    transcoders: list[_Transcoder | _CrossLayer] = []
    for place, dictionary in dictionaries.items():
        if isinstance(dictionary, CrossLayerTranscoder):
            transcoders.append(_CrossLayer(coders_of({place: dictionary}, "splice"), keep_error))
            continue
        if isinstance(dictionary, Crosscoder):
            raise ValueError(
                f"splice: the dictionary for {place!r} is a crosscoder, which reads all its sites before it writes the "
                "first: encode the values of a capture"
            )
        is_pair = isinstance(place, tuple)
        if is_pair != (dictionary.kind != "autoencoder"):
            named = "one pattern" if is_pair else "a pair of patterns, what it reads and what it replaces"
            raise ValueError(
                f"splice: the dictionary for {place!r} is of the kind {dictionary.kind}, from {dictionary.d_in} to "
                f"{dictionary.d_out}: it goes with {named}"
            )
        if isinstance(place, tuple):
            reads, writes = check_patterns(place, "splice")
            transcoders.append(_Transcoder(reads, writes, dictionary, keep_error))
        else:
            edits[place] = lambda x, dictionary=dictionary: _replaced(dictionary, x, x, keep_error)
    spliced = edit(f, edits, inside=inside) if edits or not transcoders else f
    for transcoder in transcoders:
        spliced = transcoder.in_place(spliced, inside_request(inside))
    return wrapped_like(spliced, f)


def _replaced(dictionary: Dictionary, read: jax.Array, old: jax.Array, keep_error: bool) -> Any:
    """What a dictionary makes of a value that it reads, in place of another."""
    # Not `dictionary(read)`: in a model, a module that is not part of it has a scope of its own.
    wide = read.astype(jnp.float32)
    features = dictionary.activate(dictionary.pre_activations(wide))
    skipped = dictionary.skipped(wide)
    new = dictionary.decode(sow(features, "features")) + skipped
    if keep_error:
        new = new + sow(jax.lax.stop_gradient(old - dictionary.decode(features) - skipped), "error")
    return new.astype(old.dtype)


class _Transcoder(NamedTuple):
    """A transcoder at its place."""

    reads: Pattern
    writes: Pattern
    dictionary: Dictionary
    keep_error: bool

    def in_place(self, f: Callable, inside: InsideRequest | None) -> Callable:
        """`f` with what the transcoder predicts in place of the value that it replaces."""

        def spliced(*args: P.args, **kwargs: P.kwargs) -> Any:
            outside = capture_state()
            met: set[str] = set()
            replaced: list[str] = []
            waiting: list[tuple[Any, list[Row]]] = []  # what was read last

            def rule(values: Sequence[Any], where: Where) -> Supplied | None:
                met.add(where.path)
                new, supplied = values[0], None
                rows = _rows(self.writes, where)
                if rows:
                    not_differentiated(where, "splice")
                    if not waiting or waiting[0][1] != rows or _jax.has_ended(waiting[0][0]):
                        raise EditError(self._too_early(where))
                    with with_capture_state(outside):  # the features are sites for captures around this one
                        new = self._written(waiting.pop()[0], values[0], where, rows)
                    supplied = Supplied([[new, *values[1:]]])
                    replaced.append(where.path)
                rows = _rows(self.reads, where)
                if rows:
                    not_differentiated(where, "splice")
                    waiting[:] = [(new, rows)]
                return supplied

            result = put_by_rule(f, rule, inside=inside)(*args, **kwargs)
            if not replaced:
                raise no_such_site(self.writes, met)
            return result

        return spliced

    def _written(self, read: jax.Array, old: jax.Array, where: Where, rows: list[Row]) -> Any:
        name = RowsName(where.name)
        if STAR in where.path.split("/"):
            name.rows = frozenset(rows)
        with scope(name):
            new = _replaced(self.dictionary, read, old, self.keep_error)
        if new.shape != old.shape:
            raise EditError(f"splice: {where.path!r} has the shape {old.shape}, the transcoder writes {new.shape}")
        is_row = where.is_in(rows) if where.named else None
        return new if is_row is None else jnp.where(is_row, new, old)

    def _too_early(self, where: Where) -> str:
        return (
            f"splice: a transcoder reads {self.reads!r} and replaces {where.path!r} ({where.site.line}), which is "
            "computed before what it reads, or in another jitted function or another row of a loop: name two sites of "
            "the same code, the one that is read first"
        )


@dataclasses.dataclass(frozen=True)
class _CrossLayer:
    """A cross-layer transcoder at its places."""

    parts: Sequence[Coder]
    keep_error: bool

    def in_place(self, f: Callable, inside: InsideRequest | None) -> Callable:
        """`f` with the sums of what all layers so far predict in place of the values."""

        def spliced(*args: P.args, **kwargs: P.kwargs) -> Any:
            outside = capture_state()
            met: set[str] = set()
            read: dict[int, Any] = {}
            features: dict[int, Any] = {}
            unchanged: dict[int, Any] = {}  # the features before edits: what they miss is the error

            def rule(values: Sequence[Any], where: Where) -> Supplied | None:
                met.add(where.path)
                supplied, value = None, values[0]
                for j, part in enumerate(self.parts):
                    if self._is_at(part.writes[0], where):
                        if j not in read or set(features) != {*range(j)} or _jax.has_ended(read[j]):
                            raise EditError(self._too_early(where, part))
                        wide = read[j].astype(jnp.float32)
                        with with_capture_state(outside), scope(where.name):
                            unchanged[j] = part.dictionary.activate(part.dictionary.pre_activations(wide))
                            features[j] = sow(unchanged[j], "features")
                        value = self._written(j, features, unchanged, value, where)
                        supplied = Supplied([[value, *values[1:]]])
                for i, part in enumerate(self.parts):
                    if self._is_at(part.reads, where):
                        read[i] = value
                return supplied

            result = put_by_rule(f, rule, inside=inside)(*args, **kwargs)
            for j, part in enumerate(self.parts):
                if j not in features:
                    raise no_such_site(part.writes[0], met)
            return result

        return spliced

    def _written(
        self, j: int, features: Mapping[int, Any], unchanged: Mapping[int, Any], old: Any, where: Where
    ) -> Any:
        """The sum of what features write to value number `j`; with `keep_error`, and what unchanged ones miss."""

        def total(of: Mapping[int, Any]) -> Any:
            parts = (self.parts[i] for i in range(j + 1))
            outputs = (jnp.split(part.dictionary.decode(of[i]), len(part.writes), -1) for i, part in enumerate(parts))
            return sum((found[j - i] for i, found in enumerate(outputs)), jnp.zeros(()))

        new = total(features)
        if new.shape != old.shape:
            raise EditError(f"splice: {where.path!r} has the shape {old.shape}, the transcoder writes {new.shape}")
        if self.keep_error:
            new = new + jax.lax.stop_gradient(old - total(unchanged))
        return new.astype(old.dtype)

    def _is_at(self, pattern: Pattern, where: Where) -> bool:
        rows = _rows(pattern, where)
        if rows:
            not_differentiated(where, "splice")
            if rows != [()]:
                raise EditError(
                    f"splice: {where.path!r} ({where.site.source}) is in a loop, and features of a cross-layer "
                    "transcoder go on to later iterations: use a model whose layers are a list"
                )
        return bool(rows)

    def _too_early(self, where: Where, part: Coder) -> str:
        return (
            f"splice: {where.path!r} ({where.site.source}) is computed before {part.reads!r}, which its features read, "
            "or before the values of earlier layers, or in another jitted function: a cross-layer transcoder needs all "
            "its sites in one function, in the order of the layers"
        )


def _rows(pattern: Pattern, where: Where) -> list[Row]:
    """The rows of named loops in which a pattern chooses a site; one without numbers if it is in no loop."""
    if STAR in where.path.split("/"):
        return rows_chosen((pattern,), where.site, where.path, where.lengths)
    return [()] if matches(pattern, where.site) else []
