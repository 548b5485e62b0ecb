"""`nnx.tabulate`: a table of the Modules of a model, with input and output shapes and the sizes of Variables.

A copy of the model runs once, abstractly (no numbers are computed); its Modules are instances of subclasses that record
calls. Neither the model nor its classes are touched, so this is safe with threads.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

from sonde._array_text import describe, human_size, size_and_bytes
from sonde._model_table import estimated_flops, new_table, printed
from sonde.core import arrays_in, shapes_in, split_arrays
from sonde.nnx.modules.module import Module
from sonde.nnx.modules.pytree import Pytree, attributes
from sonde.nnx.rng.rngs import RngState, RngStream
from sonde.nnx.structure import iteration
from sonde.nnx.structure.build import build
from sonde.nnx.structure.walk import walk
from sonde.nnx.variable.metadata import HOOKS
from sonde.nnx.variable.variable import Variable, copied, held_in

_EMPTY: Mapping[str, Any] = MappingProxyType({})
#: Where a Module of the copy keeps its path. As a static attribute it survives whatever transforms do with the Module.
_PATH = "_tabulated_at"
_log: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("sonde_tabulate", default=None)
#: Part of the cache key of jit: a function that was jitted and traced before is traced again while a table records it.
_fresh_traces = jax.make_user_context(None)


@dataclasses.dataclass(frozen=True)
class CallInfo:
    """One row of the table: a call of a Module.

    Attributes:
        path: The place of the Module.
        type: Its class.
        inputs: What it was called with, arrays as `jax.ShapeDtypeStruct`; a pair of args and kwargs.
        outputs: What it returned, in the same form.
        method: The name of the method.
        flops: Estimated operations of the call, if requested.
        vjp_flops: Estimated operations of the call and its gradient, if requested.
    """

    path: tuple[Any, ...]
    type: type
    inputs: Any
    outputs: Any
    method: str = "__call__"
    flops: int | None = None
    vjp_flops: int | None = None

    @property
    def place(self) -> tuple[Any, ...]:
        """The path, and the name of a method that is not `__call__`."""
        return self.path if self.method == "__call__" else (*self.path, self.method)


def no_rng_streams(row: CallInfo) -> bool:
    """The default filter of rows: everything but streams of random keys."""
    return not issubclass(row.type, RngStream)


@functools.cache
def _recording(cls: type, asked_for: str) -> type:
    """A subclass whose methods add their calls to the current log; made once per class and requested method."""
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__slots__": ()}
    names = {n for k in cls.__mro__ if k not in Module.__mro__ for n in vars(k) if not n.startswith("_")}
    for name in sorted(names | {"__call__", asked_for}):
        method = getattr(cls, name, None)
        if isinstance(method, types.FunctionType) and name not in vars(Module):
            namespace[name] = _recorded(cls, name, method)
    return type(cls)(cls.__name__, (cls,), namespace)


def _recorded(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        log, path = _log.get(), attributes(self).get(_PATH)
        if log is None or path is None:
            return method(self, *args, **kwargs)
        row = [path, name, cls, shapes_in((args, kwargs))]
        log.append(row)  # before the calls inside it, so that the table lists outer calls first
        out = method(self, *args, **kwargs)
        row.append(shapes_in(out))
        return out

    return recorded


def tabulate(
    obj: object,
    *input_args: Any,
    depth: int | None = None,
    method: str = "__call__",
    row_filter: Callable[[CallInfo], bool] = no_rng_streams,
    table_kwargs: Mapping[str, Any] = _EMPTY,
    column_kwargs: Mapping[str, Any] = _EMPTY,
    console_kwargs: Mapping[str, Any] = _EMPTY,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **input_kwargs: Any,
) -> str:
    """A table of the Modules of a model that are called when it runs.

    Args:
        obj: The model.
        *input_args: What to call it with; arrays or `jax.ShapeDtypeStruct`.
        depth: How deep to show Modules; the model itself is at depth 0.
        method: The method to call.
        row_filter: A function of a row that says whether to show it.
        table_kwargs: For `rich.table.Table`.
        column_kwargs: For `rich.table.Table.add_column`.
        console_kwargs: For `rich.console.Console`.
        compute_flops: Add a column with the estimated operations of each call; this compiles each of them.
        compute_vjp_flops: The same for the gradient.
        **input_kwargs: What to call it with, by keyword.

    Returns:
        The table as text.
    """
    rows = _rows(obj, method, input_args, input_kwargs, compute_flops, compute_vjp_flops)
    shown = [r for r in rows if row_filter(r) and (depth is None or len(r.place) <= depth)]
    nodes = dict(iteration.iter_nodes(obj, graph=True, verb="tabulate"))
    return _render(obj, shown, nodes, table_kwargs, column_kwargs, console_kwargs, compute_flops, compute_vjp_flops)


def _rows(
    obj: object, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], flops: bool, vjp_flops: bool
) -> list[CallInfo]:
    walked = walk(obj, graph=True, verb="tabulate")
    originals = dict(walked.nodes)
    log: list[Any] = []
    traced, static_part = split_arrays((args, dict(kwargs)))

    def run(values: list[Any], traced: list[Any]) -> Any:
        args, kwargs = static_part.whole(traced)
        model = build(walked.definition, _with_values(walked.leaves, values))
        for path, node in iteration.iter_nodes(model, graph=True, verb="tabulate"):
            if isinstance(node, Module) and not isinstance(node, RngStream):
                attributes(node)[_PATH] = path
                object.__setattr__(node, "__class__", _recording(type(node), method))
        out = getattr(model, method)(*args, **kwargs)
        return jax.tree.map(lambda x: x if hasattr(x, "shape") else None, out)

    if not callable(getattr(type(obj), method, None)):
        return [CallInfo(path, type(node), ((), {}), ()) for path, node in reversed(walked.nodes)]
    token = _log.set(log)
    try:
        with _fresh_traces(object()):
            jax.eval_shape(run, list(map(held_in, walked.leaves)), traced)
    finally:
        _log.reset(token)
    rows = []
    shown_calls = set()
    for path, name, cls, inputs, outputs in log:
        row = CallInfo(path, cls, inputs, outputs, name)
        key = (row.place, _inputs(inputs))
        if key in shown_calls:
            continue
        shown_calls.add(key)
        if flops or vjp_flops:
            row = _with_flops(row, originals.get(path), flops, vjp_flops)
        rows.append(row)
    return rows


def _with_values(leaves: list[Any], values: list[Any]) -> list[Any]:
    made = copied(leaves)
    for i, (leaf, value) in enumerate(zip(made, values)):
        if isinstance(leaf, Variable):
            leaf.set_raw_value(value)
        else:
            made[i] = value
    return made


def _with_flops(row: CallInfo, node: Module | None, flops: bool, vjp_flops: bool) -> CallInfo:
    if node is None:
        return row
    walked = walk(node, graph=True, verb="tabulate")
    values = list(map(held_in, walked.leaves))
    is_float = [jax.dtypes.issubdtype(getattr(v, "dtype", int), jax.numpy.floating) for v in values]
    inputs, static_part = split_arrays(row.inputs, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def call(values: list[Any], inputs: list[Any]) -> Any:
        args, kwargs = static_part.whole(inputs)
        model = build(walked.definition, _with_values(walked.leaves, values))
        out = getattr(model, row.method)(*args, **kwargs)
        return arrays_in(out)

    def forward_and_back(values: list[Any], inputs: list[Any]) -> Any:
        floats = [v for v, f in zip(values, is_float) if f]

        def of_floats(floats: list[Any]) -> Any:
            remaining_floats = iter(floats)
            out = call([next(remaining_floats) if f else v for v, f in zip(values, is_float)], inputs)
            return [x for x in out if jax.dtypes.issubdtype(x.dtype, jax.numpy.floating)]

        out, back = jax.vjp(of_floats, floats)
        return back([jax.numpy.ones_like(x) for x in out])

    return dataclasses.replace(
        row,
        flops=estimated_flops(call, values, inputs) if flops else None,
        vjp_flops=estimated_flops(forward_and_back, values, inputs) if vjp_flops else None,
    )


def _column(variable: Variable[Any]) -> str:
    return "RngState" if isinstance(variable, RngState) else type(variable).__name__


def _render(
    obj: object,
    rows: list[CallInfo],
    nodes: Mapping[tuple[Any, ...], Any],
    table_kwargs: Mapping[str, Any],
    column_kwargs: Mapping[str, Any],
    console_kwargs: Mapping[str, Any],
    flops: bool,
    vjp_flops: bool,
) -> str:
    import rich.text

    variables = [v for v in walk(obj, graph=True, verb="tabulate").leaves if isinstance(v, Variable)]
    columns = sorted({_column(v) for v in variables})
    table = new_table(obj, table_kwargs)
    names = ["path", "type", "inputs", "outputs", *["flops"] * flops, *["vjp_flops"] * vjp_flops]
    for name in names:
        footer: dict[str, Any] = {"footer": rich.text.Text("Total", justify="right")} if name == names[-1] else {}
        table.add_column(name, **footer | dict(column_kwargs))
    for name in columns:
        table.add_column(name, footer=_total([v for v in variables if _column(v) == name]), **dict(column_kwargs))
    for row in rows:
        node = nodes.get(row.path)
        cells = ["/".join(map(str, row.place)), row.type.__name__, _inputs(row.inputs), _shapes(row.outputs)]
        cells += [str(row.flops)] * flops + [str(row.vjp_flops)] * vjp_flops
        table.add_row(*cells, *[_sizes(node, name) for name in columns])
    table.caption = f"\nTotal Parameters: {_total(variables) or '0'}"
    return printed(table, {"width": 240, **console_kwargs})


def _total(variables: list[Variable[Any]]) -> str:
    sizes = [size_and_bytes(v.get_raw_value()) for v in variables]
    size, n_bytes = sum(s for s, _ in sizes), sum(b for _, b in sizes)
    return f"{size:,} ({human_size(n_bytes)})" if size else ""


def _sizes(node: object, column: str) -> str:
    """The Variables of one type directly below a node, by name, and the total size of all below it."""
    if not isinstance(node, Pytree):
        return ""
    every = [
        v for v in walk(node, graph=True, verb="tabulate").leaves if isinstance(v, Variable) and _column(v) == column
    ]
    total = _total(every)
    own = {
        name: _described(child)
        for name, child in iteration.iter_children(node)
        if isinstance(child, Variable) and _column(child) == column and column != "RngState"
    }
    return "\n".join([*_lines(own), "", total]) if own else total


def _described(variable: Variable[Any]) -> Any:
    """The value, together with the metadata if there is any."""
    value = shapes_in(variable.get_raw_value())
    metadata = variable.get_metadata(exclude_required=True)
    return {**{k: v for k, v in metadata.items() if k not in HOOKS}, "value": value} if metadata else value


def _inputs(inputs: tuple[Any, Any]) -> str:
    args, kwargs = inputs
    if len(args) == 1 and not kwargs:
        return _shapes(args[0])
    return "\n".join([*(_lines(args) if args else []), *(_lines(kwargs) if kwargs else [])])


def _shapes(tree: object) -> str:
    return "\n".join(_lines(tree))


def _lines(tree: object) -> list[str]:
    """Arrays as `float32[2,3]`, containers line by line with what is inside them indented, the rest as it is."""
    if isinstance(tree, jax.ShapeDtypeStruct):
        return [describe(tree)]
    if isinstance(tree, Mapping) and not isinstance(tree, Pytree):
        return _entries(tree) or ["{}"]
    if isinstance(tree, (list, tuple)):
        items = [_lines(item) for item in tree]
        return [line for first, *more_lines in items for line in (f"- {first}", *(f"  {r}" for r in more_lines))] or [
            "[]"
        ]
    if isinstance(tree, (Pytree, Variable)):
        return [f"{type(tree).__name__}(...)"]
    return [str(tree)]


def _entries(mapping: Mapping[Any, Any]) -> list[str]:
    lines = []
    for key, value in sorted(mapping.items(), key=lambda item: str(item[0])):
        inside = _lines(value)
        if isinstance(value, Mapping) and value:
            lines += [f"{key}:", *(f"  {line}" for line in inside)]
        elif isinstance(value, (list, tuple)) and value:
            lines += [f"{key}:", *inside]
        else:
            lines.append(f"{key}: {inside[0]}")
    return lines
