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
    """

    kind: Kind
    path: str
    chosen: tuple[tuple[int, tuple[int, ...]], ...] = ()
    factor: float = 0.0
    prompt: str = ""
    call: int = 0

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
        return cls(kind, path, indices, factor, str(data.get("prompt", "")), int(data.get("call", 0)))

    @property
    def is_of_gradient(self) -> bool:
        """Whether it changes the gradient and not the value."""
        return self.kind == "gradient"

    def text(self, axes: Sequence[str] = ()) -> str:
        """What it does, in words, for the list on the page.

        Args:
            axes: The names of the axes of the value.
        """
        where = ", ".join(
            f"{axes[axis] if axis < len(axes) else f'axis {axis}'} {_listed(at)}" for axis, at in self.chosen
        )
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
        ndim: The number of axes of the value.
        unit_axis: The axis whose means are kept apart, for `mean`.
    """

    kind: Kind
    pattern: str
    is_row: bool
    call: int | None
    ndim: int
    unit_axis: int


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
            others = tuple(d for d in range(x.ndim - 1) if d != place.unit_axis)
            new = jnp.broadcast_to(jnp.mean(x, others, keepdims=True).astype(x.dtype), x.shape)
        elif place.kind == "patch":
            new = jnp.asarray(arrays["other"]).astype(x.dtype)
        else:
            new = x + (factor * jnp.asarray(arrays["other"])).astype(x.dtype)
        return jnp.where(mask, new, x)

    return new_value


def as_python(changes: Sequence[Change], layouts: Sequence[tuple[int, int]], inputs: Mapping[str, str]) -> str:
    """Python that makes `changed`, with the tools of `sonde`, of the program `f` and its arguments `args`.

    Args:
        changes: The changes.
        layouts: For each, the number of axes of the value, and the axis of its units.
        inputs: For each prompt that a change names, Python for the arguments of the program.
    """
    lines = ["unchanged = changed = f"]
    for change, (ndim, unit_axis) in zip(changes, layouts):
        path = repr(change.path)
        if change.kind in ("patch", "steer"):
            arguments = inputs[change.prompt]
            lines.append(f"other = sonde.capture(f, {path})(*{arguments})[1][{path}].values[{change.call}]")
        if change.kind == "steer":
            lines.append(f"value = sonde.capture(f, {path})(*args)[1][{path}].values[{change.call}]")
            lead = tuple(axis for axis in range(ndim - 1) if axis != unit_axis)
            lines.append(f"direction = other.mean({lead}, keepdims=True) - value.mean({lead}, keepdims=True)")
        lines.append(f"changed = {_expression(change, ndim, unit_axis)}")
    return "\n".join(lines)


def _expression(change: Change, ndim: int, unit_axis: int) -> str:
    path, chosen = repr(change.path), dict(change.chosen)
    units = chosen.get(unit_axis)
    beside = {axis: at for axis, at in chosen.items() if axis != unit_axis}
    calls = f", calls={change.call}" if change.call else ""
    if change.kind in ("ablate", "mean") and len(beside) <= 1:
        where = f", units={list(units)}" if units is not None else ""
        where += f", unit_axis={unit_axis - ndim}" if units is not None or change.kind == "mean" else ""
        where += "".join(f", positions={list(at)}, position_axis={axis - ndim}" for axis, at in beside.items())
        value = "" if change.kind == "ablate" else ", value='mean'"
        return f"sonde.tools.ablate(changed, {path}{value}{where}{calls})"
    index = ", ".join(_index(chosen.get(axis)) for axis in range(ndim)) or "..."
    if sum(len(at) > 1 for at in chosen.values()) > 1:  # two lists in one index would be taken pairwise
        rows = (f"{list(chosen[axis])}" if axis in chosen else f"np.arange(x.shape[{axis}])" for axis in range(ndim))
        index = f"np.ix_({', '.join(rows)})"
    rule = f"lambda x: {changed_part(change, index, ndim, unit_axis)}"
    if change.is_of_gradient or change.call:
        name = "grad=" if change.is_of_gradient else ""
        rule = f"sonde.Edit({name}{rule}{calls})"
    bound = {"patch": ", other=other", "steer": ", direction=direction"}.get(change.kind, "")
    rule = rule.replace("lambda x:", f"lambda x{bound}:")
    return f"sonde.edit(changed, {{{path}: {rule}}})"


def changed_part(change: Change, index: str, ndim: int, unit_axis: int) -> str:
    """Python for the array `x` with the part at an index changed; it may read `other` or `direction`."""
    others = tuple(axis for axis in range(ndim - 1) if axis != unit_axis)
    action = {
        "ablate": "set(0)",
        "scale": f"multiply({change.factor!r})",
        "add": f"add({change.factor!r})",
        "gradient": f"multiply({change.factor!r})",
        "mean": f"set(jnp.broadcast_to(x.mean({others}, keepdims=True), x.shape)[{index}])",
        "patch": f"set(other[{index}])",
        "steer": f"add(jnp.broadcast_to({change.factor!r} * direction, x.shape)[{index}])",
    }[change.kind]
    return f"x.at[{index}].{action}"


def _index(at: Sequence[int] | None) -> str:
    if at is None:
        return ":"
    return f"[{at[0]}]" if len(at) == 1 else str(list(at))
