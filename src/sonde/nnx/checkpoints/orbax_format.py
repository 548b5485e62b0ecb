"""Orbax directories, in Flax's layout: nested names, which end in `value` for a Variable.

Sharp edges:

* The arrays are read through orbax's handler for plain pytrees, because the standard one cannot leave anything out. The
  result is the same.
* orbax turns numbers in paths into strings, and keeps lists that are inside a value as lists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from sonde import _extras
from sonde._atomic_files import beside, replace_folder, set_aside
from sonde._key_paths import key_of
from sonde.nnx.checkpoints.damage import readable
from sonde.nnx.checkpoints.entries import Entry, Name
from sonde.nnx.checkpoints.fitting import is_key
from sonde.nnx.checkpoints.placement import sharding_of
from sonde.nnx.states import traversals


def _orbax() -> Any:
    return _extras.load("orbax.checkpoint", extra="checkpoints", purpose="A checkpoint directory")


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def write(path: str, entries: list[Entry], *, pure: bool, overwrite: bool) -> None:
    """Writes a directory and waits until it is complete.

    The old directory stays until the new one is complete; orbax itself would remove it first. In a bucket (`gs://...`),
    where a directory cannot be renamed in one step, it is still removed first.

    Raises:
        FileExistsError: Something exists at the path.
    """
    ocp = _orbax()
    if not overwrite and "://" not in path and os.path.exists(path):
        raise FileExistsError(f"{path} already exists. Pass overwrite=True to replace it.")
    tree: dict[Name, Any] = {}
    for entry in entries:
        tree[(*entry.name, "value") if entry.in_variable and not pure else entry.name] = entry.value
    replaces = overwrite and "://" not in path and os.path.exists(path)
    target = beside(path) if replaces else _absolute(path)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(target, traversals.unflatten_mapping(tree), force=overwrite)
    if replaces:
        if jax.process_index() == 0:
            replace_folder(path)
        ocp.utils.sync_global_processes("sonde: the checkpoint has its name")


@contextlib.contextmanager
def _reader(ocp: ModuleType) -> Iterator[Any]:
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        yield checkpointer
    finally:
        checkpointer.close()


def _tree(path: str, checkpointer: Any) -> Any:
    """The nested dicts and lists of a checkpoint, with descriptions in place of arrays."""
    if "://" not in path and not os.path.exists(os.path.join(path, "_METADATA")):
        raise FileNotFoundError(_not_a_checkpoint(Path(path)))
    with readable(path):
        metadata = checkpointer.metadata(_absolute(path)).item_metadata
        if metadata is None:  # orbax has logged the reason
            raise ValueError("_METADATA, _sharding, manifest.ocdbt or a file in d/ is missing or incomplete")
        return metadata.tree


def _not_a_checkpoint(path: Path) -> str:
    if not path.exists():
        old_folder = set_aside(str(path))
        hint = f" A save that was to replace it was interrupted; the old checkpoint is at {old_folder}: rename it."
        return f"There is no checkpoint at {path}.{hint if os.path.exists(old_folder) else ''}"
    inside = sorted(p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/_METADATA"))
    if not inside:
        return f"{path} is not an orbax checkpoint: it has no file _METADATA."
    hint = f"; it contains {len(inside)} of them, the last is {inside[-1]}"
    return f"{path} is not itself an orbax checkpoint{hint}."


def _leaves(tree: object) -> Iterator[tuple[Name, Any]]:
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield _name(keys), leaf


def describe(path: str) -> dict[Name, jax.ShapeDtypeStruct]:
    """Names, shapes and dtypes of what a checkpoint has; random keys as the numbers inside."""
    with _reader(_orbax()) as checkpointer:
        tree = _tree(path, checkpointer)
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in _leaves(tree)}


def fetch(path: str, wanted: Mapping[Name, Any]) -> dict[Name, Any]:
    """Reads arrays.

    Args:
        path: The directory.
        wanted: Names, each with an array or ShapeDtypeStruct whose sharding the array must get.
    """
    ocp = _orbax()

    def how(keys: tuple[Any, ...], leaf: Any) -> Any:
        target = wanted.get(_name(keys))
        sharding = sharding_of(target)
        if sharding is not None:
            return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=tuple(leaf.shape))
        if is_key(target):
            return ocp.ArrayRestoreArgs(sharding=jax.sharding.SingleDeviceSharding(jax.local_devices()[0]))
        return ocp.RestoreArgs(restore_type=np.ndarray)

    with _reader(ocp) as checkpointer:
        tree = _pruned(_tree(path, checkpointer), wanted)
        args = jax.tree_util.tree_map_with_path(how, tree)
        request = ocp.args.PyTreeRestore(item=tree, restore_args=args, partial_restore=True)
        with readable(path):
            restored = checkpointer.restore(_absolute(path), args=request)
    return {name: leaf for name, leaf in _leaves(restored) if name in wanted}


def _name(keys: tuple[Any, ...]) -> Name:
    return tuple(str(key_of(key)) for key in keys)


def _pruned(tree: object, wanted: Mapping[Name, Any]) -> Any:
    """The branches of a tree that lead to wanted names. A list must stay whole, because orbax counts its items."""
    needed = {name[:i] for name in wanted for i in range(len(name) + 1)}

    def visit(node: object, at: Name) -> Any:
        if isinstance(node, dict):
            return {k: visit(v, (*at, str(k))) for k, v in node.items() if (*at, str(k)) in needed}
        return node

    return visit(tree, ())
