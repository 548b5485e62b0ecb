"""What a capture returns: records, by path.

`Records` is an immutable mapping and one pytree node: it crosses `jit`, `vmap`, `grad` and `scan` like an array does.
Its arrays are one flat tuple and everything else is static, so it costs a jitted function no more than its arrays;
`Record` objects are made when they are asked for.

An array that does not vary over an axis which other arrays of its site have is stored without that axis. As a leaf of
the pytree it has the axis: what `jax.tree.map` does along an axis, it does along the same one of all values and
gradients. Flags and counts are stored with all axes, but for that of the `while_loop` whose iterations are counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.axes import Axis, leaf_has, repeated_along, spread
from sonde.core.choices import merge_choices
from sonde.core.collect import Reduce, leaf_indices, reduce_at
from sonde.core.handler import Met
from sonde.core.item import Bundle, Extra, Item, build_items, expand, flat_arrays, flat_specs
from sonde.core.keeping import by_identity
from sonde.core.pairing import Call, pair
from sonde.core.row_records import CallRow, Cut, cut_call, row_table, spec_of_row, with_rows
from sonde.core.site import Site, View


@dataclasses.dataclass(frozen=True, slots=True)
class ArraysSpec:
    """How a value or gradient is put together from its arrays."""

    view: View
    ranks: tuple[int, ...]  # of the arrays; a transform that the records cross may put axes in front of them
    reduced: Any  # the structure that a reduce function returned, or None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraysSpec) or (self.view, self.ranks) != (other.view, other.ranks):
            return False
        if self.reduced is None or other.reduced is None:  # JAX does not compare a structure with None
            return self.reduced is other.reduced
        return self.reduced == other.reduced

    def __hash__(self) -> int:
        return hash((self.view, self.ranks, self.reduced))

    @property
    def n(self) -> int:
        """How many arrays there are."""
        return len(self.ranks)

    def spread(self, array: Any, index: int) -> Any:
        """An array, or what says of which type one is, with all the axes of the view."""
        if isinstance(array, jax.ShapeDtypeStruct):
            return jax.eval_shape(lambda x: self.spread(x, index), array)
        return spread(array, self.view.axes, index, skip=jnp.ndim(array) - self.ranks[index])

    def lacks_axes(self, index: int) -> bool:
        """Whether an array is stored without some of the axes."""
        return self.reduced is None and not all(axis.on_leaf(index) for axis in self.view.axes)

    @property
    def whole(self) -> ArraysSpec:
        """The same for arrays with all axes."""
        if not any(map(self.lacks_axes, range(self.n))):
            return self
        axes = tuple(dataclasses.replace(axis, leaves=None) for axis in self.view.axes)
        more = [sum(not axis.on_leaf(i) for axis in self.view.axes) for i in range(self.n)]
        return ArraysSpec(self.view.replace(axes=axes), tuple(map(sum, zip(self.ranks, more))), self.reduced)


@dataclasses.dataclass(frozen=True, slots=True)
class CallSpec:
    """The static part of one value: the pytree it was, and the arrays that go with it."""

    site: Site
    value: ArraysSpec
    extras: tuple[Extra, ...]
    grads: tuple[tuple[int, ArraysSpec | None], ...]
    types: tuple[Any, ...]

    @property
    def size(self) -> int:
        """How many arrays it has in all."""
        return self.value.n + len(self.extras) + sum(spec.n for _, spec in self.grads if spec is not None)

    @property
    def whole(self) -> CallSpec:
        """The same for arrays with all axes."""
        grads = tuple((order, spec and spec.whole) for order, spec in self.grads)
        return dataclasses.replace(self, value=self.value.whole, grads=grads)

    def lacking(self) -> list[tuple[ArraysSpec, int] | None]:
        """For each array how it gets the axes that it is stored without; None if it is not."""
        found = [(self.value, i) for i in range(self.value.n)]
        grads = [(spec, i) for _, spec in self.grads if spec is not None for i in range(spec.n)]
        of_all = [*found, *[None] * len(self.extras), *grads]
        return [one if one is not None and one[0].lacks_axes(one[1]) else None for one in of_all]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallSpec):
            return NotImplemented
        return self is other or (self._static == other._static and _same(self.site.statics, other.site.statics))

    def __hash__(self) -> int:
        return hash(self._static)

    @property
    def _static(self) -> tuple[Any, ...]:
        # Not the site itself: the records of two runs of one program have one structure.
        return self.site.tree, self.site.arrays, self.value, self.extras, self.grads


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y or (type(x) is type(y) and bool(x == y)) for x, y in zip(a, b))


class RecordLayout(tuple[tuple[str, tuple[CallSpec, ...]], ...]):
    """The static part of records: paths and the calls under each. Its hash is computed once."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = super().__hash__()
            return self._hash

    @property
    def whole(self) -> RecordLayout:
        """The layout of the same records if all arrays have all axes; itself, if they have. Made once."""
        try:
            return self._whole
        except AttributeError:
            self._lacking = [one for _, calls in self for call in calls for one in call.lacking()]
            new = [(path, tuple(call.whole for call in calls)) for path, calls in self]
            self._whole = RecordLayout(new) if any(self._lacking) else self
            return self._whole

    def filled(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Arrays for `whole`, from those for this layout."""
        return arrays if self.whole is self else _filled(arrays, self._lacking)

    @property
    def table(self) -> dict[str, list[CallRow]]:
        """The calls of every path; the rows of named loops have paths of their own. Made once."""
        try:
            return self._table
        except AttributeError:
            self._table = row_table(self)
            return self._table


def _filled(arrays: Sequence[Any], lacking: Sequence[tuple[ArraysSpec, int] | None]) -> list[Any]:
    def one(array: Any, how: tuple[ArraysSpec, int] | None) -> Any:
        if how is None or not hasattr(array, "shape"):  # JAX puts other objects in place of arrays now and then
            return array
        return how[0].spread(array, how[1])

    return [one(array, how) for array, how in zip(arrays, lacking, strict=True)]


@jax.tree_util.register_pytree_node_class
class Record:
    """What was seen at the sites of one path.

    Attributes:
        path: The path.
    """

    __slots__ = ("_arrays", "_calls", "path")

    def __init__(self, path: str, calls: tuple[CallSpec, ...], arrays: Sequence[Any]) -> None:
        self.path = path
        self._calls = calls
        self._arrays: Sequence[Any] = arrays if isinstance(arrays, Cut) else tuple(arrays)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, one per call, in program order."""
        return tuple(
            self._put_together(call, call.value, arrays) for call, arrays in self.calls() if call.value.view.is_value
        )

    @property
    def value(self) -> Any:
        """The value, if the site ran exactly once.

        Raises:
            ValueError: The site ran more than once, or only its gradient was recorded.
        """
        return self._only(self.values, "values")

    @property
    def grads(self) -> tuple[Any, ...]:
        """The gradients, one for each of `values`; empty if no backward pass went through the site.

        Each has the structure of the value; parts that cannot have a gradient are zeros. Where several backward passes
        went through one call, it is their sum; where none did, None.
        """
        return self.gradients(1)

    @property
    def grad(self) -> Any:
        """The gradient, if the site ran exactly once. Raises ValueError otherwise."""
        return self._only(self.grads, "grads")

    def gradients(self, order: int) -> tuple[Any, ...]:
        """The cotangents of the `order`-th differentiation that went through the site, 1 being the innermost.

        One for each of `values`, None where there is none; empty if there is none at all. Gradients of values that were
        computed before the capture began come last.
        """
        found = []
        for call, arrays in self.calls():
            if not call.value.view.is_value:
                found.append(self._put_together(call, call.value, arrays) if order == 1 else None)
            elif len(call.grads) < order:
                found.append(None)
            else:
                sizes = [0 if spec is None else spec.n for _, spec in call.grads]
                start = call.value.n + len(call.extras) + sum(sizes[: order - 1])
                spec = call.grads[order - 1][1]
                found.append(self._gradient(call, spec, arrays[start : start + sizes[order - 1]], arrays))
        return tuple(found) if any(g is not None for g in found) else ()

    @property
    def counts(self) -> tuple[Any, ...]:
        """Per call, the number of iterations of the `while_loop` around the site; None where there is none."""
        return self._extras("count")

    @property
    def taken(self) -> tuple[Any, ...]:
        """Per call, whether the branch with the site was taken; None where there was no other way."""
        return self._extras("taken")

    @property
    def axes(self) -> tuple[tuple[Axis, ...], ...]:
        """Per call, the axes in front of the value: loops, outermost first, then mapped ones."""
        return tuple(call.value.view.axes for call in self._calls if call.value.view.is_value)

    def gradient_axes(self, order: int = 1) -> tuple[tuple[Axis, ...] | None, ...]:
        """Per call, the axes in front of what `gradients(order)` has for it; None where there is no gradient.

        A gradient has the axes of its value. It may have more: that of a value which all examples of a `vmap` share is
        another for each of them. Axes of one size are told apart by their order, the outermost first, and by the names
        that were given to `vmap`.
        """
        found: list[tuple[Axis, ...] | None] = []
        for call in self._calls:
            spec = call.value
            if spec.view.is_value:
                spec = call.grads[order - 1][1] or spec if len(call.grads) >= order else None
            elif order > 1:
                spec = None
            found.append(None if spec is None else spec.view.axes)
        return tuple(found)

    @property
    def source(self) -> str:
        """The line of the user's code on which the value was marked, as `file:line`."""
        return self._calls[0].site.source

    @property
    def tag(self) -> Any:
        """What the layer above attached to the site."""
        return self._calls[0].site.tag

    @property
    def sites(self) -> tuple[Site, ...]:
        """Per call, the site."""
        return tuple(call.site for call in self._calls if call.value.view.is_value)

    def calls(self) -> Iterator[tuple[CallSpec, tuple[Any, ...]]]:
        """For tools: the static part of every call, with all its arrays."""
        start = 0
        for call in self._calls:
            yield call, tuple(self._arrays[start : start + call.size])
            start += call.size

    def _extras(self, name: str) -> tuple[Any, ...]:
        return tuple(
            arrays[call.value.n + call.extras.index(name)] if name in call.extras else None
            for call, arrays in self.calls()
            if call.value.view.is_value
        )

    def _put_together(self, call: CallSpec, spec: ArraysSpec, arrays: Sequence[Any]) -> Any:
        if spec.reduced is not None:
            return jax.tree.unflatten(spec.reduced, arrays[: spec.n])
        if not spec.view.is_value:
            return self._gradient(call, spec, arrays[: spec.n], ())
        return call.site.rebuild([spec.spread(x, i) for i, x in enumerate(arrays[: spec.n])])

    def _gradient(self, call: CallSpec, spec: ArraysSpec | None, arrays: Sequence[Any], value: Sequence[Any]) -> Any:
        if spec is not None and spec.reduced is not None:
            return jax.tree.unflatten(spec.reduced, arrays)
        parts: dict[int, Any] = {}
        if spec is not None:
            indices = leaf_indices(spec.view, spec.n)
            parts = {index: spec.spread(x, i) for i, (index, x) in enumerate(zip(indices, arrays))}
        if call.value.reduced is None and value:
            zeros = [jnp.zeros_like(call.value.spread(x, i)) for i, x in enumerate(value[: call.value.n])]
        else:
            zeros = [jnp.zeros(t.shape, t.dtype) for t in call.types]
        whole = [parts.get(i, zeros[i]) if i < len(zeros) else parts[i] for i in range(sum(call.site.arrays))]
        return call.site.rebuild(whole)

    def _only(self, found: tuple[Any, ...], what: str) -> Any:
        if what == "grads" and not found:
            wanted = any(call.site.grads for call in self._calls)
            raise ValueError(
                f"record {self.path!r} has no gradient: "
                + ("no backward pass went through it" if wanted else "capture with `grads=True`")
            )
        if len(found) != 1:
            raise ValueError(f"record {self.path!r} has {len(found)} {what}, not one: use `.{what}`")
        return found[0]

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """For JAX."""
        lacking = [one for call in self._calls for one in call.lacking()]
        if not any(lacking):
            return tuple(self._arrays), (self.path, self._calls)
        return tuple(_filled(self._arrays, lacking)), (self.path, tuple(call.whole for call in self._calls))

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Sequence[Any]) -> Record:
        """For JAX."""
        path, calls = aux
        return cls(path, calls, arrays)

    def __repr__(self) -> str:
        from sonde.core.display import record_line

        return record_line(self)

    def _repr_html_(self) -> str:
        from sonde.core.display import in_notebook, record_table

        return in_notebook(record_table(self))


@jax.tree_util.register_pytree_node_class
class Records(Mapping[str, Record]):
    """Records by path, in program order. Immutable, and a pytree.

    The rows of a loop that has a name (see `sonde.scope`) are records of their own, `blocks/12/resid`, as those of a
    Python loop are. `records["blocks/*/resid"]` is all of them, in one array with an axis for the loop.
    """

    __slots__ = ("_arrays", "_layout", "_made", "_rows")

    def __init__(self, layout: RecordLayout, arrays: Sequence[Any]) -> None:
        self._layout = layout
        self._arrays = arrays
        self._made: dict[str, Record] | None = None
        self._rows: dict[str, Record] = {}

    @property
    def stacked(self) -> dict[str, Record]:
        """The records as loops left them: those of a loop that has a name have a `*` in place of its number."""
        if self._made is None:
            made, start = {}, 0
            for path, calls in self._layout:
                size = sum(call.size for call in calls)
                made[path] = Record(path, calls, self._arrays[start : start + size])
                start += size
            self._made = made
        return self._made

    def __getitem__(self, path: str) -> Record:
        if path in self.stacked:
            return self.stacked[path]
        if path not in self._rows:
            rows = self._layout.table.get(path)
            if rows is None:
                from sonde.core.path import no_such_site

                raise KeyError(str(no_such_site(path, self._layout.table)))
            self._rows[path] = self._row(path, rows)
        return self._rows[path]

    def _row(self, path: str, rows: list[CallRow]) -> Record:
        calls = list(self.stacked[rows[0].path].calls())
        specs = tuple(spec_of_row(calls[row.call][0]) for row in rows)

        def cut() -> list[Any]:
            return [x for row in rows for x in cut_call(*calls[row.call], row.places)]

        return Record(path, specs, Cut(cut, sum(spec.size for spec in specs)))

    def rows(self, path: str) -> list[CallRow]:
        """For tools: where the calls of a path are in `stacked`."""
        return self._layout.table[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.table)

    def __len__(self) -> int:
        return len(self._layout.table)

    def tree_flatten(self) -> tuple[Sequence[Any], RecordLayout]:
        """For JAX."""
        return self._layout.filled(self._arrays), self._layout.whole

    @classmethod
    def tree_unflatten(cls, layout: RecordLayout, arrays: Sequence[Any]) -> Records:
        """For JAX."""
        return cls(layout, arrays)

    def __repr__(self) -> str:
        from sonde.core.display import records_text

        return records_text(self)

    def __rich__(self) -> Any:
        from sonde.core.display import records_table

        return records_table(self)

    def _repr_html_(self) -> str:
        from sonde.core.display import in_notebook

        return in_notebook(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        from sonde.core.display import records_treescope

        return records_treescope(self, path, subtree_renderer)


@jax.tree_util.register_pytree_node_class
class AsStored:
    """Records as an output of a jitted function of ours: they come out with their arrays as they are stored."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def tree_flatten(self) -> tuple[Sequence[Any], RecordLayout]:
        """For JAX."""
        return self.records._arrays, self.records._layout

    @classmethod
    def tree_unflatten(cls, layout: RecordLayout, arrays: Sequence[Any]) -> Records:
        """For JAX: the records themselves."""
        return Records(layout, arrays)


def _rank(array: Any) -> int:
    return array.rank if isinstance(array, _Slot) else jnp.ndim(array)


class _NeedsArrays(Exception):
    """Raised when a program computes with a `_Slot`."""


@dataclasses.dataclass(frozen=True)
class _Slot:
    """A placeholder for the array at some position, to find out where arrays go without having them."""

    position: int
    rank: int

    def __getattr__(self, name: str) -> Any:
        raise _NeedsArrays

    def __add__(self, other: object) -> Any:
        raise _NeedsArrays


def make_records(items: Sequence[Item | Bundle], met: Met, *, reduce: Reduce | None = None) -> Records:
    """The records of what a handler saw.

    If all of it came out of jitted calls, where the arrays go depends on the compiled functions alone and is remembered
    with them, unless gradients have to be added up or turned round.

    Args:
        items: What was recorded, in program order.
        met: What the handler has met.
        reduce: The reduce function, for zeros that stand for a gradient.
    """
    bundles = [item for item in items if isinstance(item, Bundle)]
    if bundles and len(bundles) == len(items):
        known = bundles[0].cache
        specs = [bundle.specs for bundle in bundles]
        key = ("records", tuple(map(id, specs)), met.passes, by_identity(reduce))
        if key not in known:
            known[key] = (specs, _places(items, met, reduce))  # holding the specs: their ids stay theirs
        places = known[key][1]
        if places is not None:
            layout, positions = places
            arrays = flat_arrays(items) if len(items) > 1 else items[0].arrays
            return Records(layout, arrays if positions is None else [arrays[i] for i in positions])
    return Records(*_arrange(expand(items), met, reduce))


def _places(items: Any, met: Met, reduce: Reduce | None) -> tuple[RecordLayout, list[int] | None] | None:
    """The layout of records, and which arrays of bundles go into it (None: all, as they are).

    None if placing them is not all there is to do.
    """
    slots = [_Slot(i, jnp.ndim(x)) for i, x in enumerate(flat_arrays(items))]
    specs = flat_specs(items)
    try:
        layout, placed = _arrange(build_items(specs, slots), met, reduce)
    except _NeedsArrays:
        return None
    if not all(isinstance(x, _Slot) for x in placed):  # zeros in place of a gradient
        return None
    positions = [slot.position for slot in placed]
    return layout, None if positions == list(range(len(slots))) else positions


def _arrange(items: list[Item], met: Met, reduce: Reduce | None) -> tuple[RecordLayout, list[Any]]:
    by_path: dict[str, list[Call]] = {}
    for call in map(with_rows, pair(merge_choices(items), met)):
        by_path.setdefault(call.item.path, []).append(call)
    layout, arrays = [], []
    for path, calls in by_path.items():
        specs = []
        for call in calls:
            spec, mine = _call_spec(call, reduce)
            specs.append(spec)
            arrays += mine
        layout.append((path, tuple(specs)))
    return RecordLayout(layout), arrays


def _call_spec(call: Call, reduce: Reduce | None) -> tuple[CallSpec, list[Any]]:
    item = call.item
    item, extras = _with_whole_extras(item)
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
    spec, arrays = _call_spec(call, None)
    return Record(call.item.path, (spec,), arrays)


def _with_whole_extras(item: Item) -> tuple[Item, dict[Extra, Any]]:
    """An item, and its flags and counts with the axes that they lacked."""
    view, extras = item.view, {name: x for name, x in item.extras.items() if name != "token"}
    for name in extras:
        wanted = [axis.on_extra(name) or name != "count" or axis.kind != "while" for axis in view.axes]
        position = 0
        for i, axis in enumerate(view.axes):
            if wanted[i] and not axis.on_extra(name):
                extras[name] = repeated_along(extras[name], _size_of(item, i), position)
            position += wanted[i]
        view = view.extra_on(name, wanted)
    return dataclasses.replace(item, view=view), extras


def _size_of(item: Item, index: int) -> int:
    """The length of an axis of an item; that of a mesh axis is known only with an array."""
    axes = item.view.axes
    if (size := axes[index].size) is not None:
        return size
    having = ((x, leaf_has(axes, i)) for i, x in enumerate(item.leaves))
    return next(x.shape[sum(on[:index])] for x, on in having if on[index])


def _arrays_spec(item: Item) -> ArraysSpec:
    view = item.view.replace(gates=frozenset()) if item.view.gates else item.view
    return ArraysSpec(view, tuple(map(_rank, item.leaves)), item.tree)


def _reduced_zeros(reduce: Reduce, item: Item) -> Item:
    """What a reduce function makes of a gradient that is zero."""
    mapped = tuple(a for a in item.view.axes if not a.is_loop)
    view = item.view.replace(axes=mapped)
    zeros = [_jax.zeros_of_type(t) for t in item.types]
    leaves, tree = jax.tree.flatten(reduce_at(reduce, zeros, item.site, view))
    loops = tuple(a.size for a in item.view.axes if a.is_loop)
    leaves = [jnp.broadcast_to(x, (*loops, *jnp.shape(x))) for x in leaves]
    return Item(item.sites, item.path, item.view.replace(gradient_of=()), leaves, {}, tree, item.types)
