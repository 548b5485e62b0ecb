"""`make_records`: turns what a handler recorded into records.

Items become calls (`core/records/gradient_pairing.py`), and all their arrays go into one flat tuple.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.interpret.items import Bundle, Extra, Item, build_items, expand, flat_arrays, flat_specs
from sonde.core.interpret.recording import Reduce, reduce_at
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.marks.axes import repeated_along
from sonde.core.records.gradient_pairing import Call, calls_from
from sonde.core.records.layout import ArraysSpec, CallSpec, RecordLayout
from sonde.core.records.loop_rows import with_rows
from sonde.core.records.record import Record, Records
from sonde.core.session.caches import by_identity


class _NeedsArrays(Exception):
    """Raised when a program computes with a `_Placeholder`."""


@dataclasses.dataclass(frozen=True)
class _Placeholder:
    """A placeholder for the array at some position, to find out where arrays go before they exist."""

    position: int
    ndim: int

    def __getattr__(self, name: str) -> Any:
        raise _NeedsArrays

    def __add__(self, other: object) -> Any:
        raise _NeedsArrays


def make_records(items: Sequence[Item | Bundle], met: SeenSites, *, reduce: Reduce | None = None) -> Records:
    """The records of what a handler saw.

    If everything came out of jitted calls, the compiled functions alone decide where the arrays go, and that is cached
    with them, unless gradients have to be added or reversed.

    Args:
        items: What was recorded, in program order.
        met: What the handler has met.
        reduce: The reduce function, applied to the zeros of a missing gradient.
    """
    # A training step that is called often is one bundle with known specs: only its arrays are new.
    if {*map(type, items)} == {Bundle}:
        bundles: Any = items
        layouts = bundles[0].cache
        specs = [bundle.specs for bundle in bundles]
        key = ("records", *map(id, specs), met.passes, by_identity(reduce))
        if key not in layouts:
            # With the specs, to keep them alive: their ids are in the key.
            layouts[key] = (specs, _layout_of(items, met, reduce))
        known_layout = layouts[key][1]
        if known_layout is not None:
            layout, positions = known_layout
            arrays = flat_arrays(items) if len(items) > 1 else bundles[0].arrays
            return Records.of_layout(layout, arrays if positions is None else [arrays[i] for i in positions])
    return Records.of_layout(*_arrange(expand(items), met, reduce))


def _layout_of(items: Any, met: SeenSites, reduce: Reduce | None) -> tuple[RecordLayout, list[int] | None] | None:
    """The layout of records, and which arrays of bundles go into it (None: all, as they are).

    None if arrays also have to be computed.
    """
    stand_ins = [_Placeholder(i, np.ndim(x)) for i, x in enumerate(flat_arrays(items))]
    specs = flat_specs(items)
    try:
        layout, arranged = _arrange(build_items(specs, stand_ins), met, reduce)
    except _NeedsArrays:
        return None
    if not all(isinstance(x, _Placeholder) for x in arranged):  # zeros in place of a gradient
        return None
    positions = [x.position for x in arranged]
    return layout, None if positions == list(range(len(stand_ins))) else positions


def _arrange(items: list[Item], met: SeenSites, reduce: Reduce | None) -> tuple[RecordLayout, list[Any]]:
    by_path: dict[str, list[Call]] = {}
    for call in map(with_rows, calls_from(items, met)):
        by_path.setdefault(call.item.path, []).append(call)
    layout, arrays, repeat = [], [], _Repeat()
    for path, calls in by_path.items():
        specs = []
        for call in calls:
            spec, call_arrays = _call_spec(call, reduce, repeat)
            specs.append(spec)
            arrays += call_arrays
        layout.append((path, tuple(specs)))
    return RecordLayout(layout), arrays


class _Repeat:
    """`repeated_along`, once for each array: the calls of a loop have one count, those of a branch one flag."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any]] = {}  # holds the array too, so that its id is not reused

    def __call__(self, array: Any, size: Any, position: int) -> Any:
        key = id(array), size, position
        if key not in self._known:
            self._known[key] = array, repeated_along(array, size, position)
        return self._known[key][1]


def _call_spec(call: Call, reduce: Reduce | None, repeat: _Repeat) -> tuple[CallSpec, list[Any]]:
    item = call.item
    item, extras = _with_whole_extras(item, repeat)
    arrays = [*item.leaves, *extras.values()]
    grads: list[tuple[int, ArraysSpec | None]] = []
    for order, gradient in sorted(call.grads.items()):
        if gradient is None and reduce is not None:
            gradient = _reduced_zeros(reduce, item)
        if gradient is None:
            grads.append((order, None))
        else:
            grads.append((order, _arrays_spec(gradient)))
            arrays += gradient.leaves
    return CallSpec(item.site, _arrays_spec(item), tuple(extras), tuple(grads), item.types), arrays


def record_of(call: Call) -> Record:
    """A record of one call alone."""
    spec, arrays = _call_spec(call, None, _Repeat())
    return Record.of_calls(call.item.path, (spec,), arrays)


def _with_whole_extras(item: Item, repeat: _Repeat) -> tuple[Item, dict[Extra, Any]]:
    """An item, and its flags and counts with the axes that they lacked."""
    view, extras = item.view, {name: x for name, x in item.extras.items() if name != "token"}
    if not extras:
        return item, extras
    for name in extras:
        gets_axis = [axis.on_extra(name) or name != "count" or axis.kind != "while" for axis in view.axes]
        position = 0
        for i, axis in enumerate(view.axes):
            if gets_axis[i] and not axis.on_extra(name):
                extras[name] = repeat(extras[name], _size_of(item, i), position)
            position += gets_axis[i]
        view = view.extra_on(name, gets_axis)
    return dataclasses.replace(item, view=view), extras


def _size_of(item: Item, index: int) -> int:
    """The length of an axis of an item; that of a mesh axis is known only with an array."""
    if (size := item.view.axes[index].size) is not None:
        return size
    return next(x.shape[sum(has[:index])] for x, has in zip(item.leaves, item.has) if has[index])


def _arrays_spec(item: Item) -> ArraysSpec:
    view = item.view.replace(gates=frozenset()) if item.view.gates else item.view
    return ArraysSpec(view, tuple(map(np.ndim, item.leaves)), item.tree)


def _reduced_zeros(reduce: Reduce, item: Item) -> Item:
    """The result of a reduce function for a gradient that is zero."""
    axes, types = item.view.axes, item.types
    if any(axis.kind == "mesh" for axis in axes):  # what the types say of the mesh is true on each device alone
        types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    mapped = tuple(axis for axis in axes if axis.kind == "vmap")
    zeros = [_jax.zeros_of_type(t) for t in types]
    leaves, tree = jax.tree.flatten(reduce_at(reduce, zeros, item.site, item.view.replace(axes=mapped)))
    around = tuple(_size_of(item, i) for i, axis in enumerate(axes) if axis.kind != "vmap")
    leaves = [jnp.broadcast_to(x, (*around, *jnp.shape(x))) for x in leaves]
    return Item(item.sites, item.path, item.view.replace(gradient_of=()), leaves, {}, tree, item.types)
