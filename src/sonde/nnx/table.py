"""`nnx.tabulate`: a table of the Modules of a model, with the shapes that go in and out and the sizes of Variables.

The model runs once, abstractly (no numbers are computed), as a copy whose Modules belong to recording subclasses of
their classes. Neither the model nor its classes are touched, so it is safe with threads.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import io
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

from sonde.nnx import iteration
from sonde.nnx._walk import build, walk
from sonde.nnx.pytree import Pytree
from sonde.nnx.rendering import human_size, size_and_bytes
from sonde.nnx.rngs import RngState, RngStream
from sonde.nnx.variable import Variable, copied

_EMPTY: Mapping[str, Any] = MappingProxyType({})
#: Where a Module of the copy keeps its path. As a static attribute it survives whatever transforms do with the Module.
_PATH = "_tabulated_at"
_log: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("sonde_tabulate", default=None)
#: Part of the cache key of jit: a function that was jitted and traced before is traced again while somebody records.
_fresh_traces = jax.make_user_context(None)


@dataclasses.dataclass(frozen=True)
class CallInfo:
    """One row of the table: a call of a Module.

    Attributes:
        path: where the Module is.
        type: its class.
        inputs: what it was called with, arrays as `jax.ShapeDtypeStruct`; a pair of args and kwargs.
        outputs: what it returned, in the same form.
        flops: estimated operations of the call, if asked for.
        vjp_flops: estimated operations of the call and its gradient, if asked for.
    """

    path: tuple[Any, ...]
    type: type
    inputs: Any
    outputs: Any
    flops: int | None = None
    vjp_flops: int | None = None


def no_rng_streams(row: CallInfo) -> bool:
    """The default filter of rows: everything but streams of random keys."""
    return not issubclass(row.type, RngStream)


@functools.cache
def _recording(cls: type, method: str) -> type:
    """A subclass whose `method` adds its calls to the current log; made once per class and method."""
    original = getattr(cls, method)

    @functools.wraps(original)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        log = _log.get()
        if log is not None:
            log.append((vars(self)[_PATH], cls, _abstract((args, kwargs)), _abstract(out)))
        return out

    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__slots__": (), method: recorded}
    return type(cls)(cls.__name__, (cls,), namespace)


def _abstract(tree: Any) -> Any:
    def one(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") and hasattr(x, "dtype") else x

    return jax.tree.map(one, tree)


def tabulate(
    obj: Any,
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
        obj: the model.
        *input_args: what to call it with; arrays or `jax.ShapeDtypeStruct`.
        depth: how deep to show Modules; the model itself is at depth 0.
        method: the method to call.
        row_filter: says of a row whether to show it.
        table_kwargs: for `rich.table.Table`.
        column_kwargs: for `rich.table.Table.add_column`.
        console_kwargs: for `rich.console.Console`.
        compute_flops: add a column with the estimated operations of each call; this compiles each of them.
        compute_vjp_flops: the same for the gradient.
        **input_kwargs: what to call it with, by keyword.

    Returns:
        The table as text.
    """
    rows = _rows(obj, method, input_args, input_kwargs, compute_flops, compute_vjp_flops)
    shown = [r for r in rows if row_filter(r) and (depth is None or len(r.path) <= depth)]
    nodes = dict(iteration.iter_nodes(obj, graph=True, who="tabulate"))
    return _render(obj, shown, nodes, table_kwargs, column_kwargs, console_kwargs, compute_flops, compute_vjp_flops)


def _rows(
    obj: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], flops: bool, vjp_flops: bool
) -> list[CallInfo]:
    found = walk(obj, graph=True, who="tabulate")
    originals = dict(found.nodes)
    log: list[Any] = []
    inputs, structure = jax.tree.flatten((args, dict(kwargs)))
    traced = {i: x for i, x in enumerate(inputs) if hasattr(x, "shape") and hasattr(x, "dtype")}

    def run(values: list[Any], traced: dict[int, Any]) -> Any:
        args, kwargs = structure.unflatten([traced.get(i, x) for i, x in enumerate(inputs)])
        model = build(found.definition, _with_values(found.leaves, values))
        for path, node in iteration.iter_nodes(model, graph=True, who="tabulate"):
            if callable(getattr(type(node), method, None)):
                vars(node)[_PATH] = path
                object.__setattr__(node, "__class__", _recording(type(node), method))
        out = getattr(model, method)(*args, **kwargs)
        return jax.tree.map(lambda x: x if hasattr(x, "shape") else None, out)

    if not callable(getattr(type(obj), method, None)):
        return [CallInfo(path, type(node), ((), {}), None) for path, node in reversed(found.nodes)]
    token = _log.set(log)
    try:
        with _fresh_traces(object()):
            jax.eval_shape(run, _values(found.leaves), traced)
    finally:
        _log.reset(token)
    # `log` has inner calls before outer ones; a table reads better the other way round
    rows = []
    for order, (path, cls, inputs, outputs) in enumerate(log):
        if any(r.path == path for _, r in rows):
            continue
        row = CallInfo(path, cls, inputs, outputs)
        if flops or vjp_flops:
            row = _with_flops(row, originals.get(path), method, flops, vjp_flops)
        rows.append((order, row))
    order_of = {row.path: order for order, row in rows}
    first = {row.path: min(o for p, o in order_of.items() if p[: len(row.path)] == row.path) for _, row in rows}
    return [row for _, row in sorted(rows, key=lambda r: (first[r[1].path], len(r[1].path)))]


def _values(leaves: list[Any]) -> list[Any]:
    return [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in leaves]


def _with_values(leaves: list[Any], values: list[Any]) -> list[Any]:
    made = copied(leaves)
    for i, (leaf, value) in enumerate(zip(made, values)):
        if isinstance(leaf, Variable):
            leaf.set_raw_value(value)
        else:
            made[i] = value
    return made


def _with_flops(row: CallInfo, node: Any, method: str, flops: bool, vjp_flops: bool) -> CallInfo:
    if node is None:
        return row
    found = walk(node, graph=True, who="tabulate")
    values = _values(found.leaves)
    is_float = [jax.dtypes.issubdtype(getattr(v, "dtype", int), jax.numpy.floating) for v in values]
    arrays, structure = jax.tree.flatten(row.inputs)
    is_array = [isinstance(a, jax.ShapeDtypeStruct) for a in arrays]

    def call(values: list[Any], inputs: list[Any]) -> Any:
        given = iter(inputs)
        args, kwargs = structure.unflatten([next(given) if known else a for a, known in zip(arrays, is_array)])
        model = build(found.definition, _with_values(found.leaves, values))
        out = getattr(model, method)(*args, **kwargs)
        return [x for x in jax.tree.leaves(out) if hasattr(x, "dtype")]

    inputs = [a for a, known in zip(arrays, is_array) if known]

    def forward_and_back(values: list[Any], inputs: list[Any]) -> Any:
        floats = [v for v, f in zip(values, is_float) if f]

        def of_floats(floats: list[Any]) -> Any:
            given = iter(floats)
            out = call([next(given) if f else v for v, f in zip(values, is_float)], inputs)
            return [x for x in out if jax.dtypes.issubdtype(x.dtype, jax.numpy.floating)]

        out, back = jax.vjp(of_floats, floats)
        return back([jax.numpy.ones_like(x) for x in out])

    return dataclasses.replace(
        row,
        flops=_estimate(call, values, inputs) if flops else None,
        vjp_flops=_estimate(forward_and_back, values, inputs) if vjp_flops else None,
    )


def _estimate(f: Callable[..., Any], *args: Any) -> int:
    cost = jax.jit(f).lower(*args).cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return int((cost or {}).get("flops", 0))


def _column(variable: Variable[Any]) -> str:
    return "RngState" if isinstance(variable, RngState) else type(variable).__name__


def _render(
    obj: Any,
    rows: list[CallInfo],
    nodes: Mapping[tuple[Any, ...], Any],
    table_kwargs: Mapping[str, Any],
    column_kwargs: Mapping[str, Any],
    console_kwargs: Mapping[str, Any],
    flops: bool,
    vjp_flops: bool,
) -> str:
    import rich.console
    import rich.table

    variables = [v for v in walk(obj, graph=True, who="tabulate").leaves if isinstance(v, Variable)]
    columns = sorted({_column(v) for v in variables})
    table = rich.table.Table(
        **{"show_header": True, "show_lines": True, "show_footer": True, "title": f"{type(obj).__name__} Summary"}
        | dict(table_kwargs)
    )
    names = ["path", "type", "inputs", "outputs", *["flops"] * flops, *["vjp_flops"] * vjp_flops]
    for name in names:
        footer: dict[str, Any] = {"footer": "Total"} if name == names[-1] else {}
        table.add_column(name, **footer | dict(column_kwargs))
    for name in columns:
        table.add_column(name, footer=_total([v for v in variables if _column(v) == name]), **dict(column_kwargs))
    for row in rows:
        node = nodes.get(row.path)
        cells = ["/".join(map(str, row.path)), row.type.__name__, _inputs(row.inputs), _shapes(row.outputs)]
        cells += [str(row.flops)] * flops + [str(row.vjp_flops)] * vjp_flops
        table.add_row(*cells, *[_sizes(node, name) for name in columns])
    table.caption = f"\nTotal Parameters: {_total(variables) or '0'}"
    buffer = io.StringIO()
    options: dict[str, Any] = {"force_terminal": True, "width": 240, **console_kwargs, "file": buffer}
    rich.console.Console(**options).print(table)
    return buffer.getvalue()


def _total(variables: list[Variable[Any]]) -> str:
    sizes = [size_and_bytes(v.get_raw_value()) for v in variables]
    size, n_bytes = sum(s for s, _ in sizes), sum(b for _, b in sizes)
    return f"{size:,} ({human_size(n_bytes)})" if size else ""


def _sizes(node: Any, column: str) -> str:
    """The Variables of one type right below a node by name, and the size of all below it."""
    if not isinstance(node, Pytree):
        return ""
    every = [
        v for v in walk(node, graph=True, who="tabulate").leaves if isinstance(v, Variable) and _column(v) == column
    ]
    total = _total(every)
    own = [
        f"{name}: {_shapes(_abstract(child.get_raw_value()))}"
        for name, child in iteration.iter_children(node)
        if isinstance(child, Variable) and _column(child) == column
    ]
    return "\n".join([*own, "", total]) if own else total


def _inputs(inputs: tuple[Any, Any]) -> str:
    args, kwargs = inputs
    return "\n".join([*[_shapes(a) for a in args], *[f"{k}: {_shapes(v)}" for k, v in kwargs.items()]])


def _shapes(tree: Any) -> str:
    """Arrays as `float32[2,3]`, containers line by line, everything else as it is."""
    if isinstance(tree, jax.ShapeDtypeStruct):
        return f"{tree.dtype}[{','.join(map(str, tree.shape))}]"
    if isinstance(tree, Mapping):
        return "\n".join(f"{k}: {_shapes(v)}" for k, v in tree.items())
    if isinstance(tree, (list, tuple)):
        return "\n".join(f"- {_shapes(v)}" for v in tree)
    if isinstance(tree, (Pytree, Variable)):
        return type(tree).__name__
    return repr(tree)
