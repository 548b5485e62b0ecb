"""Checks that a checkpoint fits a model, and names everything that does not in one message."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from sonde.nnx.checkpoints.entries import Entry, Name, show

SHOWN = 8  # of each kind of problem; a wrong model has hundreds


@dataclasses.dataclass(frozen=True)
class Match:
    """A part of an entry that the checkpoint has.

    Attributes:
        entry: The entry of the model.
        keys: Which of its parts.
        wanted: The model's array, or a ShapeDtypeStruct for it.
        stored: The name of the array in the checkpoint.
    """

    entry: Entry
    keys: Name
    wanted: Any
    stored: Name


def is_key(x: Any) -> bool:
    """Whether something is an array of random keys, or a ShapeDtypeStruct of one."""
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def kind_of(x: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype as in a checkpoint; for random keys, those of the numbers inside."""
    if is_key(x):
        x = jax.eval_shape(jax.random.key_data, x)
    if not hasattr(x, "dtype"):
        x = np.asarray(x)
    return tuple(x.shape), np.dtype(x.dtype)


def match(
    entries: list[Entry],
    other_entries: list[Entry],
    stored: Mapping[Name, jax.ShapeDtypeStruct],
    *,
    where: str,
    missing_ok: bool,
    extra_ok: bool,
    cast: bool,
) -> list[Match]:
    """Finds every part of the entries in the checkpoint.

    Args:
        entries: What to restore.
        other_entries: The rest of the model, which the checkpoint may have too.
        stored: What the checkpoint has.
        where: The checkpoint, for messages.
        missing_ok: Whether to leave out what the checkpoint lacks; otherwise that is an error.
        extra_ok: Whether to ignore what the model lacks; otherwise that is an error.
        cast: Accept other dtypes.

    Raises:
        ValueError: Something does not fit. Names all paths.
    """
    matches: list[Match] = []
    missing: list[str] = []
    shapes: list[str] = []
    dtypes: list[str] = []
    for entry in entries:
        for keys, model_array in entry.parts():
            name = _find(entry, keys, stored)
            if name is None:
                missing.append(show((*entry.name, *keys)))
                if missing_ok and isinstance(model_array, jax.ShapeDtypeStruct):
                    # `missing="keep"` needs something to keep, and an abstract model has only shapes.
                    missing[-1] += " (the model has no value to keep)"
                    missing_ok = False
                continue
            shape, dtype = kind_of(model_array)
            stored_shape, stored_dtype = kind_of(stored[name])
            if shape != stored_shape:
                shapes.append(f"{show((*entry.name, *keys))}: the checkpoint has {stored_shape}, the model {shape}")
            elif dtype != stored_dtype and not cast:
                dtypes.append(f"{show((*entry.name, *keys))}: the checkpoint has {stored_dtype}, the model {dtype}")
            matches.append(Match(entry, keys, model_array, name))
    stored_names = {m.stored for m in matches}
    stored_names |= {
        name for e in other_entries for keys, _ in e.parts() if (name := _find(e, keys, stored)) is not None
    }
    extra = [show(name) for name in stored if name not in stored_names]
    problems = [
        *([] if missing_ok else _listed("not in the checkpoint", missing)),
        *([] if extra_ok else _listed("not in the model", extra)),
        *_listed("of another shape", shapes),
        *_listed("of another dtype", dtypes),
    ]
    if problems:
        raise ValueError(
            f"The checkpoint {where} does not fit the model. Nothing was restored.\n"
            + "\n".join(problems)
            + _advice(bool(missing) and not missing_ok, bool(extra) and not extra_ok, bool(dtypes))
        )
    return matches


def _find(entry: Entry, keys: Name, stored: Collection[Name]) -> Name | None:
    """The stored name of a part: with a level for the Variable, as in states, or without."""
    for middle in (("value",), ()) if entry.in_variable else ((),):
        if (name := (*entry.name, *middle, *keys)) in stored:
            return name
    return None


def _listed(what: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = [f"    and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return [f"  {what} ({len(items)}):", *(f"    {item}" for item in items[:SHOWN]), *more]


def _advice(missing: bool, extra: bool, dtypes: bool) -> str:
    ways = [
        *(["missing='keep' keeps the model's own values"] if missing else []),
        *(["extra='ignore' leaves the rest of the checkpoint alone"] if extra else []),
        *(["cast=True converts"] if dtypes else []),
    ]
    return f"\nTo restore anyway: {'; '.join(ways)}." if ways else ""
