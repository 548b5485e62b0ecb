"""Changes that are made on the page, such as "ablate head 3": as edits of the program, and as Python.

One compiled program serves every choice of units, positions and strength: what is chosen are masks, one for each axis
of the value, which are arguments. In a named loop the layer is an argument too. `ablate`, `steer` and `edit` give the
same numbers, and the Python that the page copies uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import Edit, edit
from sonde.errors import EditError
from sonde.viewer.arrays import Array

Kind = Literal["ablate", "scale", "add", "mean", "patch", "steer", "gradient"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclasses.dataclass(frozen=True)
class Change:
    """One change, as the page sends it.

    Attributes:
        kind: What is done: zero, multiply, add a number, replace by the mean, take the value of another prompt, add a
            direction, or multiply the gradient.
        path: The path of the site.
        chosen: For each axis that is restricted, the indices that are changed: `((2, (3,)),)` is index 3 of axis 2.
        factor: What to multiply by or to add, or how far to steer.
        prompt: The other prompt of a patch or a direction.
        call: Which call of the site.
        part: Which array of it.
    """

    kind: Kind
    path: str
    chosen: tuple[tuple[int, tuple[int, ...]], ...] = ()
    factor: float = 0.0
    prompt: str = ""
    call: int = 0
    part: int = 0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Change:
        """A change from plain data. Raises ValueError if it is none."""
        kind, path = data.get("kind"), data.get("path")
        if kind not in KINDS or not isinstance(path, str):
            raise ValueError(f"a change is one of {', '.join(KINDS)} at a path, got {kind!r} at {path!r}")
        chosen = data.get("chosen") or {}
        indices = tuple(sorted((int(axis), tuple(sorted(map(int, where)))) for axis, where in chosen.items()))
        factor = float(data.get("factor", 0.0))
        if not np.isfinite(factor):
            raise ValueError("the factor of a change must be a finite number")
        call, part = int(data.get("call", 0)), int(data.get("part", 0))
        return cls(kind, path, indices, factor, str(data.get("prompt", "")), call, part)

    @property
    def is_of_gradient(self) -> bool:
        """Whether it changes the gradient and not the value."""
        return self.kind == "gradient"

    def text(self, array: Array | None) -> str:
        """What it does, in words, for the list on the page.

        Args:
            array: What it changes; None if there is no such array.
        """
        axes = () if array is None else array.axes
        parts = [f"call {self.call}"] if array is None or array.calls > 1 else []
        parts += [f"array {self.part}"] if array is None or array.leaf is not None else []
        parts += [f"{axes[axis] if axis < len(axes) else f'axis {axis}'} {_listed(at)}" for axis, at in self.chosen]
        where = ", ".join(parts)
        verb = {
            "ablate": "zero",
            "scale": f"multiply by {self.factor:g}",
            "add": f"add {self.factor:g}",
            "mean": "replace by the mean",
            "patch": f"take from {self.prompt!r}",
            "steer": f"add {self.factor:g} times the difference to {self.prompt!r}",
            "gradient": f"multiply the gradient by {self.factor:g}",
        }[self.kind]
        return f"{self.path}{f', {where}' if where else ''}: {verb}"


def possible(array: Array, kind: str) -> str:
    """Why an array cannot be changed so; empty if it can."""
    is_inexact = array.dtype.startswith(("float", "bfloat", "complex"))
    if array.dtype.startswith("key"):
        return "it holds random keys"
    if kind == "gradient" and not is_inexact:
        return f"its elements are {array.dtype}, which have no gradient"
    if (kind in ("mean", "steer") and not is_inexact) or (kind in ("scale", "add") and array.dtype == "bool"):
        return f"its elements are {array.dtype}"
    if kind == "mean" and all(array.inner_shape[axis] == 1 for axis in array.averaged):
        return "there is nothing to average over: every axis but that of the units has one index"
    if kind in ("patch", "steer") and array.lead:
        return "it is inside a loop or a map without a name"
    return ""


def check_possible(change: Change, array: Array) -> None:
    """Raises EditError if an array cannot be changed so."""
    reason = possible(array, change.kind)
    if not reason and "int" in array.dtype and change.kind in ("scale", "add") and change.factor % 1:
        reason = f"its elements are {array.dtype}, and {change.factor:g} is no whole number"
    if not reason and any(axis < array.lead for axis, _ in change.chosen):
        reason = "iterations of a loop, and examples of a map, cannot be changed one by one here"
    if reason:
        raise EditError(f"{change.text(array)}: this is not possible, as {reason}")


def within(change: Change, array: Array) -> Change:
    """The change with the axes that an edit sees: without those of loops and maps."""
    return dataclasses.replace(change, chosen=tuple((axis - array.lead, at) for axis, at in change.chosen))


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices[:6])) + (", ..." if len(indices) > 6 else "")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a change is put: the static part.

    Attributes:
        kind: What is done.
        pattern: The path, or the path of the named loop that it is a row of.
        is_row: Whether it is a row of a named loop; its number is then an array.
        call: Which call of the site; all, if None.
        leaf: Which leaf of the value; None if the value is an array.
        averaged: The axes that the mean is taken over.
    """

    kind: Kind
    pattern: str
    is_row: bool
    call: int | None
    leaf: int | None
    averaged: tuple[int, ...]


def numbers_of(
    change: Change, shape: Sequence[int], row: int, other: np.ndarray | None, *, loose: bool = False
) -> dict[str, Any]:
    """The arrays of a change: a mask for each axis, the factor, the row, the other value.

    Args:
        change: The change.
        shape: The shape of the value.
        row: Which row of a named loop it is.
        other: What is put in place or added, for `patch` and `steer`.
        loose: Whether axes that are not restricted may have any length, as in generated text.
    """
    chosen = dict(change.chosen)
    masks = []
    for axis, size in enumerate(shape):
        if axis not in chosen:
            masks.append(np.ones(1 if loose else size, bool))
            continue
        outside = [i for i in chosen[axis] if not 0 <= i < size]
        if outside:
            raise EditError(f"{change.path} has shape {list(shape)}: axis {axis} has no index {outside[0]}")
        masks.append(np.isin(np.arange(size), chosen[axis]))
    beyond = [axis for axis in chosen if axis >= len(shape)]
    if beyond:
        raise EditError(f"{change.path} has shape {list(shape)}: there is no axis {beyond[0]}")
    return {
        "masks": masks,
        "factor": np.float32(change.factor),
        "row": np.int32(row),
        "other": np.zeros((), np.float32) if other is None else other,
    }


def changed(
    f: Callable[..., Any], places: Sequence[Place], numbers: Sequence[Mapping[str, Any]], inside: Any = None
) -> Callable[..., Any]:
    """`f` with changes; those of one site are made in their order."""
    edits: dict[str, Edit] = {}
    for place, arrays in zip(places, numbers):
        if place.pattern in edits:  # an edit has one function for a pattern: the next one goes around it
            f, edits = edit(f, edits, inside=inside), {}
        rule = _rule(place, arrays)
        rows = _is_row(arrays["row"]) if place.is_row else None
        when: dict[str, Any] = {"calls": place.call, "iterations": rows}
        edits[place.pattern] = Edit(grad=rule, **when) if place.kind == "gradient" else Edit(rule, **when)
    return edit(f, edits, inside=inside) if edits else f


def _is_row(row: jax.Array) -> Callable[..., Any]:
    """Whether an iteration of a named loop is one row of it."""
    return lambda *iteration: iteration[-1] == row


def _rule(place: Place, arrays: Mapping[str, Any]) -> Callable[[Any], Any]:
    def new_value(x: jax.Array) -> jax.Array:
        mask = jnp.ones((), bool)
        for axis, along in enumerate(arrays["masks"]):
            mask = mask & jnp.asarray(along).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        factor = jnp.asarray(arrays["factor"])
        if place.kind == "ablate":
            new: Any = jnp.zeros_like(x)
        elif place.kind in ("scale", "gradient"):
            new = x * factor.astype(x.dtype)
        elif place.kind == "add":
            new = x + factor.astype(x.dtype)
        elif place.kind == "mean":
            new = jnp.broadcast_to(jnp.mean(x, place.averaged, keepdims=True).astype(x.dtype), x.shape)
        elif place.kind == "patch":
            new = jnp.asarray(arrays["other"]).astype(x.dtype)
        else:
            new = x + (factor * jnp.asarray(arrays["other"])).astype(x.dtype)
        return jnp.where(mask, new, x)

    leaf = place.leaf
    return new_value if leaf is None else lambda value: with_leaf(value, leaf, new_value)


def with_leaf(value: Any, leaf: int, new_value: Callable[[Any], Any]) -> Any:
    """A pytree with one leaf replaced."""
    leaves, tree = jax.tree.flatten(value)
    leaves[leaf] = new_value(leaves[leaf])
    return jax.tree.unflatten(tree, leaves)


def as_python(changes: Sequence[Change], arrays: Sequence[Array], inputs: Mapping[str, str], inside: str) -> str:
    """Python that makes `changed`, with the tools of `sonde`, of the program `f` and its arguments `args`.

    Args:
        changes: The changes.
        arrays: What each of them changes.
        inputs: For each prompt that a change names, Python for the arguments of the program.
        inside: A last argument of all tools, such as `, inside=inside`.
    """
    lines = ["unchanged = changed = f"]
    for change, array in zip(changes, arrays):
        if change.kind in ("patch", "steer"):
            lines.append(f"other = {_recorded(array, inputs[change.prompt], inside)}")
        if change.kind == "steer":
            lines.append(f"value = {_recorded(array, 'args', inside)}")
            means = (f"{name}.mean({array.averaged}, keepdims=True)" for name in ("other", "value"))
            lines.append(f"direction = {' - '.join(means)}")
        lines += _lines(within(change, array), array, inside)
    return "\n".join(lines)


def _recorded(array: Array, arguments: str, inside: str) -> str:
    path = repr(array.path)
    value = f"sonde.capture(f, {path}{inside})(*{arguments})[1][{path}].values[{array.call}]"
    return value if array.leaf is None else f"jax.tree.leaves({value})[{array.leaf}]"


def _lines(change: Change, array: Array, inside: str) -> list[str]:
    """Python that changes `changed` once more; the axes of the change are those that an edit sees."""
    path, chosen, ndim = repr(change.path), dict(change.chosen), len(array.inner_shape)
    unit_axis = array.unit_axis - array.lead
    units = chosen.get(unit_axis)
    beside = {axis: at for axis, at in chosen.items() if axis != unit_axis}
    calls = f", calls={change.call}" if array.calls > 1 else ""
    if change.kind in ("ablate", "mean") and len(beside) <= 1 and array.leaf is None:
        where = f", units={list(units)}" if units is not None else ""
        where += f", unit_axis={unit_axis - ndim}" if units is not None or change.kind == "mean" else ""
        where += "".join(f", positions={list(at)}, position_axis={axis - ndim}" for axis, at in beside.items())
        value = "" if change.kind == "ablate" else ", value='mean'"
        return [f"changed = sonde.tools.ablate(changed, {path}{value}{where}{calls}{inside})"]
    index = ", ".join(_index(chosen.get(axis)) for axis in range(ndim)) or "..."
    if ndim == 1 and chosen:  # a list alone is no index
        index = f"jnp.array({index})"
    if sum(len(at) > 1 for at in chosen.values()) > 1:  # two lists in one index would be taken pairwise
        rows = (f"{list(chosen[axis])}" if axis in chosen else f"np.arange(x.shape[{axis}])" for axis in range(ndim))
        index = f"np.ix_({', '.join(rows)})"
    bound = {"patch": ", other=other", "steer": ", direction=direction"}.get(change.kind, "")
    part = changed_part(change, index, array)
    rule, lines = f"lambda x{bound}: {part}", []
    if array.leaf is not None:
        rule = "new_value"
        lines = [
            f"def new_value(value{bound}):",
            "    leaves, tree = jax.tree.flatten(value)",
            f"    x = leaves[{array.leaf}]",
            f"    leaves[{array.leaf}] = {part}",
            "    return jax.tree.unflatten(tree, leaves)",
        ]
    if change.is_of_gradient or calls:
        name = "grad=" if change.is_of_gradient else ""
        rule = f"sonde.Edit({name}{rule}{calls})"
    return [*lines, f"changed = sonde.edit(changed, {{{path}: {rule}}}{inside})"]


def changed_part(change: Change, index: str, array: Array) -> str:
    """Python for the array `x` with the part at an index changed; it may read `other` or `direction`."""
    factor = repr(int(change.factor) if "int" in array.dtype else change.factor)
    action = {
        "ablate": f"set({False if array.dtype == 'bool' else 0})",
        "scale": f"multiply({factor})",
        "add": f"add({factor})",
        "gradient": f"multiply({factor})",
        "mean": f"set(jnp.broadcast_to(x.mean({array.averaged}, keepdims=True), x.shape)[{index}])",
        "patch": f"set(other[{index}])",
        "steer": f"add(jnp.broadcast_to({factor} * direction, x.shape)[{index}])",
    }[change.kind]
    return f"x.at[{index}].{action}"


def _index(at: Sequence[int] | None) -> str:
    if at is None:
        return ":"
    return f"[{at[0]}]" if len(at) == 1 else str(list(at))
