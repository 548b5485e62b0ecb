"""What a checkpoint stores of a model: an entry per Variable or bare array, and a part per array inside.

Nearly every Variable holds one array. A Variable that holds a pytree has a part for each leaf, named by the keys that
lead to it; a Variable that holds None has no parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from sonde._key_paths import key_of
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import State, from_flat_state, to_flat_state
from sonde.nnx.structure import split_merge
from sonde.nnx.variable.array_references import load
from sonde.nnx.variable.variable import Variable, held_in

Name = tuple[str, ...]
Rename = Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A leaf of a model's state.

    Attributes:
        path: Its path in the state; indices are integers.
        name: Its name in a checkpoint.
        leaf: The Variable, or the bare array.
    """

    path: tuple[Any, ...]
    name: Name
    leaf: Any

    @property
    def in_variable(self) -> bool:
        """Whether there is a Variable around the value."""
        return isinstance(self.leaf, Variable)

    @property
    def value(self) -> Any:
        """The value, without running hooks."""
        return load(held_in(self.leaf))

    def parts(self) -> Iterator[tuple[Name, Any]]:
        """The arrays inside, each with the keys that lead to it from the entry."""
        for keys, array in jax.tree_util.tree_leaves_with_path(self.value):
            yield tuple(str(key_of(key)) for key in keys), array

    def holding(self, arrays: list[Any]) -> Any:
        """A leaf like this one with other arrays, in the order of `parts`."""
        value = jax.tree.unflatten(jax.tree.structure(self.value), arrays)
        return self.leaf.replace(value) if isinstance(self.leaf, Variable) else value


def entries_of(node: object, only: Filter = ..., rename: Rename | None = None) -> list[Entry]:
    """The entries of a model, a State, or a pytree of them.

    Args:
        node: What has a state.
        only: Which Variables; all by default.
        rename: From `path/of/the/variable` in the model to its name in a checkpoint.

    Raises:
        TypeError: There is nothing to store.
        ValueError: Two entries would have the same name.
    """
    state = split_merge.state(node)
    if not isinstance(state, State):
        raise TypeError(f"A checkpoint holds Modules, States, or pytrees of them; got a {type(node).__name__}.")
    entries = []
    by_name: dict[Name, Entry] = {}
    for path, leaf in to_flat_state(split_merge.state(state, only)):
        plain = tuple(map(str, path))
        entry = Entry(path, plain if rename is None else _renamed(plain, rename), leaf)
        if entry.name in by_name:
            raise ValueError(
                f"rename gives {show(by_name[entry.name].path)} and {show(path)} the same name, {show(entry.name)}."
            )
        by_name[entry.name] = entry
        entries.append(entry)
    return entries


def _renamed(name: Name, rename: Rename) -> Name:
    new_name = rename("/".join(name))
    if not isinstance(new_name, str) or not all(new_name.split("/")):
        raise ValueError(f"rename must return a name such as 'layer/kernel'; it gave {new_name!r} for {show(name)}.")
    return tuple(new_name.split("/"))


def as_state(leaves: dict[tuple[Any, ...], Any]) -> State[Any, Any]:
    """Leaves by path as a State."""
    return from_flat_state(leaves.items())


def show(path: tuple[Any, ...]) -> str:
    """A path as people read it."""
    return "/".join(map(str, path))
