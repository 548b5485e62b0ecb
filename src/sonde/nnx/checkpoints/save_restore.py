"""`save`, `restore`, `contents` and `read`, the same for both formats."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Literal, TypeVar

import jax

from sonde.nnx.checkpoints import orbax_format, safetensors_format
from sonde.nnx.checkpoints.entries import Entry, Name, Rename, as_state, entries_of, show
from sonde.nnx.checkpoints.fitting import match
from sonde.nnx.checkpoints.placement import like
from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import restore_int_paths
from sonde.nnx.structure import split_merge
from sonde.nnx.structure.update import update
from sonde.nnx.variable.sharding import as_abstract

T = TypeVar("T")
PathLike = str | os.PathLike[str]


def _is_file(path: str) -> bool:
    return path.endswith(".safetensors")


def _format(path: str) -> ModuleType:
    return safetensors_format if _is_file(path) else orbax_format


def _entries(path: str, node: object, only: Filter, rename: Rename | None) -> list[Entry]:
    if _is_file(path):
        new_name = rename or str
        return entries_of(node, only, lambda name: safetensors_format.dotted(new_name(name)))
    return entries_of(node, only, rename)


def save(
    path: PathLike,
    node: object,
    *,
    only: Filter = ...,
    pure: bool = False,
    overwrite: bool = False,
    rename: Rename | None = None,
) -> None:
    """Writes the state of a model, and waits until it is on disk.

    Args:
        path: A file if it ends in `.safetensors`, else a directory.
        node: A Module, an Optimizer, a State, or a pytree of them such as `{"model": ..., "optimizer": ...}`.
        only: Which Variables, such as `nnx.Param`; all by default.
        pure: Write bare arrays, as in `nnx.to_pure_dict`, instead of Variables, as in `nnx.state`. A safetensors file
            always has bare arrays.
        overwrite: Replace what is at the path.
        rename: From `path/of/a/variable` in the model to its name in the checkpoint.

    Raises:
        ModuleNotFoundError: The package for the format is not installed. The message names the extra.
        FileExistsError: Something exists at the path, and `overwrite` is False.
        TypeError: `node` holds nothing to store.
        ValueError: Two Variables get the same name, or the format cannot hold an array.

    Example:
        >>> import tempfile
        >>> from sonde import nnx
        >>> from sonde.nnx import checkpoints
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> checkpoints.save(path, nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> list(checkpoints.contents(path))
        ['bias', 'kernel']
    """
    path = os.fspath(path)
    entries = _entries(path, node, only, rename)
    if _is_file(path):
        safetensors_format.write(path, entries, overwrite=overwrite)
    else:
        orbax_format.write(path, entries, pure=pure, overwrite=overwrite)


def restore(
    path: PathLike,
    node: T,
    *,
    only: Filter = ...,
    missing: Literal["error", "keep"] = "error",
    extra: Literal["error", "ignore"] = "error",
    cast: bool = False,
    rename: Rename | None = None,
) -> T:
    """Puts the arrays of a checkpoint into a model, in place.

    Every array gets the devices and the sharding of the model's own. In an abstract model (`nnx.eval_shape`), these
    come from the Variable's sharding metadata and the current mesh. Nothing is changed if something does not fit.

    Args:
        path: A file if it ends in `.safetensors`, else a directory. Flax's checkpoints can be read, with Variables or
            bare arrays in them.
        node: What to restore: a Module, an Optimizer, a State, or a pytree of them; its values may be
            `jax.ShapeDtypeStruct`.
        only: Which Variables, such as `nnx.Param`; the rest stays.
        missing: What to do about Variables that the checkpoint does not have; "keep" leaves them as they are.
        extra: What to do about arrays that the model does not have.
        cast: Accept another dtype and convert to the model's.
        rename: From `path/of/a/variable` in the model to its name in the checkpoint.

    Returns:
        `node`.

    Raises:
        ModuleNotFoundError: The package for the format is not installed. The message names the extra.
        FileNotFoundError: There is no checkpoint at the path.
        ValueError: The checkpoint is damaged, or does not fit. Names what is missing, what is not expected, and what
            has another shape or dtype.

    Example:
        >>> import tempfile
        >>> from sonde import nnx
        >>> from sonde.nnx import checkpoints
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> trained, fresh = (nnx.Linear(2, 3, rngs=nnx.Rngs(seed)) for seed in (0, 1))
        >>> checkpoints.save(path, trained)
        >>> bool((checkpoints.restore(path, fresh).kernel == trained.kernel).all())
        True
    """
    if missing not in ("error", "keep") or extra not in ("error", "ignore"):
        raise ValueError(
            f"restore takes missing='error' or 'keep' and extra='error' or 'ignore'; got {missing!r}, {extra!r}."
        )
    path = os.fspath(path)
    chosen = _entries(path, as_abstract(split_merge.state(node)), only, rename)
    paths = {entry.path for entry in chosen}
    other_entries = [entry for entry in _entries(path, node, ..., rename) if entry.path not in paths]
    format = _format(path)
    matches = match(
        chosen,
        other_entries,
        format.describe(path),
        where=path,
        missing_ok=missing == "keep",
        extra_ok=extra == "ignore",
        cast=cast,
    )
    read = format.fetch(path, {m.stored: m.wanted for m in matches})
    # Everything is converted before the first Variable is written: a restore is complete or does nothing.
    values = {m.stored: like(read[m.stored], m.wanted, path=show(m.stored)) for m in matches}
    names = {(m.entry.path, m.keys): m.stored for m in matches}
    leaves = {}
    for entry in {m.entry.path: m.entry for m in matches}.values():
        stored = [(part, names.get((entry.path, keys))) for keys, part in entry.parts()]
        leaves[entry.path] = entry.holding([part if name is None else values[name] for part, name in stored])
    update(node, as_state(leaves))
    return node


def contents(path: PathLike) -> dict[str, jax.ShapeDtypeStruct]:
    """What a checkpoint holds: paths with shapes and dtypes. Random keys appear as the numbers inside.

    Args:
        path: A file if it ends in `.safetensors`, else a directory.

    Raises:
        ModuleNotFoundError: The package for the format is not installed. The message names the extra.
        FileNotFoundError: There is no checkpoint at the path.
        ValueError: The checkpoint is damaged.
    """
    path = os.fspath(path)
    stored = _format(path).describe(path)
    return {show(plain): stored[name] for name, plain in _plain_names(stored).items()}


def read(path: PathLike) -> dict[Any, Any]:
    """The arrays of a checkpoint as nested dicts, for when there is no model to restore into.

    Everything is an array of NumPy; random keys are the numbers inside.

    Args:
        path: A file if it ends in `.safetensors`, else a directory.

    Raises:
        ModuleNotFoundError: The package for the format is not installed. The message names the extra.
        FileNotFoundError: There is no checkpoint at the path.
        ValueError: The checkpoint is damaged.

    Example:
        >>> import tempfile
        >>> from sonde import nnx
        >>> from sonde.nnx import checkpoints
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> checkpoints.save(path, nnx.List([nnx.Linear(2, 3, rngs=nnx.Rngs(0))]))
        >>> checkpoints.read(path)[0]["bias"]
        array([0., 0., 0.], dtype=float32)
    """
    path = os.fspath(path)
    format = _format(path)
    stored = format.describe(path)
    arrays = format.fetch(path, dict.fromkeys(stored))
    return restore_int_paths(
        traversals.unflatten_mapping({plain: arrays[name] for name, plain in _plain_names(stored).items()})
    )


def _plain_names(stored: dict[Name, Any]) -> dict[Name, Name]:
    """Maps stored names to a model's names: without the level of the Variable, if all arrays have one."""
    children: dict[Name, set[str]] = {}
    for name in stored:
        for i, key in enumerate(name):
            children.setdefault(name[:i], set()).add(key)
    plain = {}
    for name in stored:
        levels = [i for i, key in enumerate(name) if i and key == "value" and len(children[name[:i]]) == 1]
        if not levels:
            return {name: name for name in stored}
        plain[name] = name[: levels[-1]] + name[levels[-1] + 1 :]
    return plain
