"""The axes of inputs and outputs of a transform, and how a prefix of axes is spread over a tree."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from sonde.linen.variables.filters import Filter


@dataclasses.dataclass(frozen=True)
class In:
    """An axis for variables that only go into a transform."""

    axis: Any


@dataclasses.dataclass(frozen=True)
class Out:
    """An axis for variables that only come out of a transform."""

    axis: Any


class _Broadcast(enum.Enum):  # its copies, pickled ones too, are the same object
    """The axis of something that is the same in every iteration."""

    BROADCAST = "nn.broadcast"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


broadcast: Any = _Broadcast.BROADCAST

Axes: TypeAlias = "int | _Broadcast | Sequence[Axes] | Mapping[Any, Axes] | None"
"""An axis for everything, or containers of axes that mirror the arguments or the output."""


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Filters and their axes, separately for inputs and outputs."""

    filters_in: tuple[Filter, ...]
    axes_in: tuple[Any, ...]
    filters_out: tuple[Filter, ...]
    axes_out: tuple[Any, ...]


def group(variable_axes: Mapping[Any, Any]) -> Grouped:
    """Splits a `variable_axes` argument into inputs and outputs."""
    ins = [(f, a.axis if isinstance(a, In) else a) for f, a in variable_axes.items() if not isinstance(a, Out)]
    outs = [(f, a.axis if isinstance(a, Out) else a) for f, a in variable_axes.items() if not isinstance(a, In)]
    return Grouped(
        tuple(f for f, _ in ins), tuple(a for _, a in ins), tuple(f for f, _ in outs), tuple(a for _, a in outs)
    )


def axes_of_leaves(axes: Axes, tree: object) -> list[Any]:
    """The axis of every leaf of a tree, where `axes` is a tree prefix of axes, which may include None."""
    axis_of_each: list[Any] = []

    def note(axis: int | _Broadcast | None, part: object) -> None:
        axis_of_each.extend([axis] * len(jax.tree.leaves(part)))

    jax.tree.map(note, axes, tree, is_leaf=lambda a: a is None)
    return axis_of_each


def common_size(axes: Axes, tree: object, *, given: int | None, what: str, where: str, option: str) -> int:
    """The length of the mapped axes of all leaves.

    Raises:
        ValueError: They differ, or there are none and the length is not given.
    """
    leaves = zip(axes_of_leaves(axes, tree), jax.tree.leaves(tree))
    sizes = {jnp.shape(leaf)[axis] for axis, leaf in leaves if isinstance(axis, int)}
    if given is not None:
        sizes.add(given)
    if len(sizes) > 1:
        raise ValueError(f"{where}: inconsistent {what}: {sorted(sizes)}; all mapped axes must be equally long")
    if not sizes:
        raise ValueError(f"{where}: nothing is mapped, so the {what} are unknown; {option} should be specified")
    return sizes.pop()


def split_streams(groups: Sequence[Any], splits: Sequence[bool], n: int) -> tuple[Any, ...]:
    """Gives the streams of split groups one key for each of `n` elements."""

    def split(key: jax.Array) -> Any:
        return jax.random.split(jax.random.clone(key), n)

    return tuple(
        tuple({name: s.map_root(split) for name, s in streams.items()} for streams in scopes) if is_split else scopes
        for scopes, is_split in zip(groups, splits)
    )
