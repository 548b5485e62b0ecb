"""What a capture returns: records, by path.

`Records` is an immutable mapping and one pytree node: it passes through `jit`, `vmap`, `grad` and `scan` like an array.
Its arrays are one flat tuple and everything else is static (`core/records/layout.py`), so it costs a jitted function no
more than its arrays; `Record` objects are made on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.interpret.recording import leaf_indices
from sonde.core.marks.arrays import is_array_like
from sonde.core.marks.axes import Axis
from sonde.core.marks.path import NOTHING_MARKED, no_such_site
from sonde.core.marks.site import Site
from sonde.core.records.layout import ArraysSpec, CallSpec, RecordLayout
from sonde.core.records.loop_rows import CallRow, Cut, cut_call, spec_of_row


@jax.tree_util.register_pytree_node_class
class Record:
    """What a capture recorded at the sites of one path.

    Attributes:
        path: The path.
    """

    __slots__ = ("_arrays", "_calls", "path")

    path: str
    _calls: tuple[CallSpec, ...]
    _arrays: Sequence[Any]

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("a Record comes out of a capture: `sonde.capture(f)(x)[1]['path']`")

    @classmethod
    def of_calls(cls, path: str, calls: tuple[CallSpec, ...], arrays: Sequence[Any]) -> Record:
        """For the engine: a record of the calls under a path, with all their arrays."""
        record = object.__new__(cls)
        record.path = path
        record._calls = calls
        record._arrays = arrays if isinstance(arrays, Cut) else tuple(arrays)
        return record

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The values, one per call, in program order: arrays, or pytrees of arrays where such were marked."""
        return tuple(
            self._put_together(call, call.value, arrays) for call, arrays in self.calls() if call.value.view.is_value
        )

    @property
    def value(self) -> jax.Array:
        """The value, if the site ran exactly once: an array, or a pytree of arrays where one was marked.

        Raises:
            ValueError: The site ran more than once, or only its gradient was recorded.
        """
        return self._only(self.values, "values")

    @property
    def grads(self) -> tuple[jax.Array | None, ...]:
        """The gradients, one for each of `values`; empty if no backward pass went through the site.

        Each has the structure of the value. Parts that the result does not depend on are zeros, as are integers. Parts
        that do not depend on what is differentiated are None; and, in code under `inside=`, arrays that the examples of
        a `vmap` share in a tuple with others that they do not. If several backward passes went through a call, it is
        their sum; if none did, None. Passes in code under `inside=` that cannot be added, each mapped by a `vmap` of
        its own, come last.
        """
        return self.gradients(1)

    @property
    def grad(self) -> jax.Array:
        """The gradient, if the site ran exactly once. Raises ValueError otherwise."""
        return self._only(self.grads, "grads")

    def gradients(self, order: int) -> tuple[jax.Array | None, ...]:
        """The cotangents of the `order`-th differentiation that went through the site, 1 being the innermost.

        One for each of `values`, None where there is none; empty if there is none at all. Gradients of values that were
        computed before the capture began come last.
        """
        gradients = []
        for call, arrays in self.calls():
            if not call.value.view.is_value:
                gradients.append(self._put_together(call, call.value, arrays) if order == 1 else None)
            elif len(call.grads) < order or (call.value.reduced is not None and call.value.view.sums_gradients):
                gradients.append(None)
            else:
                value, _, grads = call.parts(arrays)
                gradients.append(self._gradient(call, *grads[order - 1], value))
        return tuple(gradients) if any(g is not None for g in gradients) else ()

    @property
    def counts(self) -> tuple[jax.Array | None, ...]:
        """Per call, the number of iterations of the `while_loop` around the site; None where there is none."""
        return self._extras("count")

    @property
    def taken(self) -> tuple[jax.Array | None, ...]:
        """Per call, whether the branch with the site was taken; None if the site is in no branch."""
        return self._extras("taken")

    @property
    def axes(self) -> tuple[tuple[Axis, ...], ...]:
        """Per call, the axes in front of the value: loops, outermost first, then mapped ones."""
        return tuple(call.value.view.axes for call in self._calls if call.value.view.is_value)

    def gradient_axes(self, order: int = 1) -> tuple[tuple[Axis, ...] | None, ...]:
        """Per call, the axes in front of what `gradients(order)` has for it; None where there is no gradient.

        A gradient has the axes of its value. It may have more: if all examples of a `vmap` share a value, each has its
        own gradient. Axes of the same size are distinguished by their order, outermost first, and by the names given to
        `vmap`.
        """
        axes_of_calls: list[tuple[Axis, ...] | None] = []
        for call in self._calls:
            spec = call.value
            if spec.view.is_value:
                spec = call.grads[order - 1][1] or spec if len(call.grads) >= order else None
            elif order > 1:
                spec = None
            axes_of_calls.append(None if spec is None else spec.view.axes)
        return tuple(axes_of_calls)

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
        return tuple(call.parts(arrays)[1].get(name) for call, arrays in self.calls() if call.value.view.is_value)

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
            zeros: list[Any] = [jnp.zeros_like(call.value.spread(x, i, gradient_of=i)) for i, x in enumerate(value)]
        else:
            zeros = [jnp.zeros(t.shape, t.dtype) for t in call.types]
        n = sum(call.site.arrays)
        zeros += [None] * (n - len(zeros))  # no value was recorded, so nothing is known about its other parts
        reached = None if spec is None else spec.view.reached
        for i in range(n):
            is_float = i < len(zeros) and zeros[i] is not None and jnp.issubdtype(zeros[i].dtype, jnp.inexact)
            if is_float and reached is not None and i not in reached:
                zeros[i] = None
        return call.site.rebuild([parts.get(i, zeros[i]) for i in range(n)])

    def _only(self, found: tuple[Any, ...], what: str) -> Any:
        if what == "grads" and not found:
            why = "no backward pass went through it; capture a function that differentiates, such as jax.grad(f)"
            if not any(call.site.grads for call in self._calls):
                why = "capture with `grads=True`"
                if any(call.site.in_place for call in self._calls):
                    why += (
                        "; if you did, it is a constant, or a container that something else refers to: it is only read"
                    )
            raise ValueError(f"record {self.path!r} has no gradient: {why}")
        if len(found) != 1:
            raise ValueError(f"record {self.path!r} has {len(found)} {what}, not one: use `.{what}`")
        return found[0]

    if not TYPE_CHECKING:  # a type checker would believe every name

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"'Record' object has no attribute {name!r}")
            raise AttributeError(f"a Record has no {name!r}; ask for its array: record.value.{name}")

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """For JAX."""
        layout = RecordLayout([(self.path, self._calls)])
        return tuple(layout.filled(self._arrays)), layout.whole[0]

    @classmethod
    def tree_unflatten(cls, aux: Any, arrays: Sequence[Any]) -> Record:
        """For JAX."""
        path, calls = aux
        return cls.of_calls(path, calls, arrays)

    def __repr__(self) -> str:
        from sonde.core.records.display import record_line

        return record_line(self)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(f"a Record is not an array; ask for its value: records[{self.path!r}].value[{index!r}]")

    def _no_arithmetic(self, *operands: object) -> NoReturn:
        del operands
        raise TypeError(f"a Record is not an array; compute with its value: records[{self.path!r}].value")

    if not TYPE_CHECKING:  # a type checker finds the mistake by itself
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
        __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __float__ = __int__ = _no_arithmetic

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The value as an array of NumPy; an error if there are several."""
        if len(self.values) != 1:
            raise TypeError(
                f"record {self.path!r} is not one array: it has {len(self.values)} calls; ask for one, "
                "np.asarray(record.values[0])"
            )
        leaves = jax.tree.leaves(self.values[0])
        if len(leaves) != 1:
            raise TypeError(
                f"record {self.path!r} is not one array: its value has {len(leaves)}; ask for record.value, and for a "
                "part of it"
            )
        return np.array(leaves[0], dtype=dtype, copy=None if copy is not True else True)

    def __rich__(self) -> Any:
        from sonde.core.records.display import record_table
        from sonde.display import WholePaths

        return WholePaths(record_table(self))

    def _repr_html_(self) -> str:
        from sonde.core.records.display import record_html

        return record_html(self)


def _type_of(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_like(x) else x


@jax.tree_util.register_pytree_node_class
class Records(Mapping[str, Record]):
    """Records by path, in program order. Immutable, and a pytree.

    The rows of a named loop (see `sonde.scope`) are separate records, `blocks/12/resid`, like those of a Python loop.
    `records["blocks/*/resid"]` is all of them, in one array with an axis for the loop.
    """

    __slots__ = ("_arrays", "_layout", "_made", "_reason", "_rows")

    _layout: RecordLayout
    _arrays: Sequence[Any]
    _made: dict[str, Record] | None
    _rows: dict[str, Record]
    _reason: str

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("Records come out of a capture: `sonde.capture(f)(x)[1]`")

    @classmethod
    def of_layout(cls, layout: RecordLayout, arrays: Sequence[Any]) -> Self:
        """For the engine and for tools: records that are laid out like this, with these arrays."""
        records = object.__new__(cls)
        records._layout = layout
        records._arrays = arrays
        records._made = None
        records._rows = {}
        records._reason = NOTHING_MARKED
        return records

    if not TYPE_CHECKING:  # a type checker would believe every name

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"'Records' object has no attribute {name!r}")
            raise AttributeError(f"Records have no {name!r}; ask for a path: records[{name!r}]")

    def explained(self, why_empty: Callable[[], str]) -> Records:
        """These records; if they are empty, with the reason for that."""
        if not self._layout:  # asking for `len` would look for the rows of all paths
            self._reason = why_empty()
        return self

    @property
    def stacked(self) -> dict[str, Record]:
        """The records with whole loops: those of a named loop have a `*` in place of its number."""
        if self._made is None:
            made, start = {}, 0
            for path, calls in self._layout:
                size = sum(call.size for call in calls)
                made[path] = Record.of_calls(path, calls, self._arrays[start : start + size])
                start += size
            self._made = made
        return self._made

    def __getitem__(self, path: str) -> Record:
        if path in self.stacked:
            return self.stacked[path]
        if path not in self._rows:
            rows = self._layout.table.get(path)
            if rows is None:
                if not len(self):
                    raise KeyError(f"there is no record {path!r}: {self._reason}")
                if not isinstance(path, str):
                    raise KeyError(
                        f"records are asked for by path, such as records[{next(iter(self))!r}], got {path!r}"
                    )
                raise KeyError(str(no_such_site(path, self._layout.table)))
            self._rows[path] = self._row(path, rows)
        return self._rows[path]

    def _row(self, path: str, rows: list[CallRow]) -> Record:
        calls = list(self.stacked[rows[0].path].calls())
        specs = tuple(spec_of_row(calls[row.call][0]) for row in rows)

        def cut() -> list[Any]:
            return [x for row in rows for x in cut_call(*calls[row.call], row.at)]

        return Record.of_calls(path, specs, Cut(cut, sum(spec.size for spec in specs)))

    @property
    def types(self) -> Records:
        """For tools: the same records with types in place of arrays; of these, rows cost nothing."""
        return Records.of_layout(self._layout, [_type_of(x) for x in self._arrays])

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
        return cls.of_layout(layout, arrays)

    def __repr__(self) -> str:
        from sonde.core.records.display import records_text

        return records_text(self)

    def __rich__(self) -> Any:
        from sonde.core.records.display import records_table

        return records_table(self)

    def _repr_html_(self) -> str:
        from sonde.core.records.display import records_html

        return records_html(self)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        from sonde.core.records.display import records_treescope

        return records_treescope(self, path, subtree_renderer)
