"""A table of the modules of a model: `nn.tabulate`, and their paths: `Module.module_paths`.

The model is run on shapes only, under an interceptor that notes every method call.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax

from sonde._array_text import human_size, indexed, size_and_bytes
from sonde._model_table import estimated_flops, new_table, printed
from sonde.core import shapes_in, split_arrays
from sonde.linen.modules.attach import is_module
from sonde.linen.modules.methods import InterceptorContext, intercept_methods
from sonde.linen.modules.run import ALL_BUT_INTERMEDIATES
from sonde.linen.sharding import meta
from sonde.linen.variables.filters import Filter
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.rng import Rngs

if TYPE_CHECKING:
    from rich.text import Text

    from sonde.linen.modules.module import Module

_NONE: Mapping[str, Any] = MappingProxyType({})
_EMPTY = {dict: "{}", FrozenDict: "{}", list: "[]", tuple: "[]"}


@dataclasses.dataclass
class MethodCall:
    """One call of a module.

    Attributes:
        module: The module, without its scope.
        path: Its path.
        method: The name of the method.
        args: The positional arguments, with shapes for arrays.
        kwargs: The keyword arguments, likewise.
        outputs: What it returned, likewise.
        is_first: Whether no other call of the same path returned before it.
    """

    module: Module
    path: tuple[str, ...]
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None
    is_first: bool = False


def calls_of(
    module: Module, rngs: Rngs, *args: Any, method: Callable[..., Any] | str | None = None, **kwargs: Any
) -> tuple[list[MethodCall], Any]:
    """All calls during an `init`, in the order in which they began, and the shapes of the variables."""
    calls: list[MethodCall] = []
    returned: set[tuple[str, ...]] = set()

    def write_down(
        next_fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], about: InterceptorContext
    ) -> Any:
        scope = about.module.scope
        if about.method_name == "setup" or scope is None:
            return next_fun(*args, **kwargs)
        call = MethodCall(about.module, scope.path, about.method_name, *_kept((args, kwargs)))
        calls.append(call)
        output = next_fun(*args, **kwargs)
        call.outputs = _kept(output)
        # After the call, when the names of its submodules are known.
        call.module = about.module.clone(_deep_clone=True)
        call.is_first = call.path not in returned
        returned.add(call.path)
        return output

    arrays, static_part = split_arrays((rngs, args, kwargs))
    collections: list[str] = []

    def run(arrays: list[Any]) -> Any:
        rngs, args, kwargs = static_part.whole(arrays)
        with intercept_methods(write_down):
            variables = module.init(rngs, *args, method=method, **kwargs)
        collections[:] = variables
        return variables

    variables = jax.eval_shape(run, arrays)
    order = sorted(collections, key=lambda name: name != "params")  # JAX has sorted them by name
    return calls, {name: variables[name] for name in order}


def _kept(tree: object) -> Any:
    """What a table keeps of arguments or outputs: shapes for arrays, and modules without their scopes."""
    return shapes_in(jax.tree.map(lambda x: x.clone(_deep_clone=True) if is_module(x) else x, tree))


def module_paths(module: Module, rngs: Rngs, *args: Any, **kwargs: Any) -> dict[str, Module]:
    """See `Module.module_paths`."""
    calls, _ = calls_of(module, rngs, *args, **kwargs)
    return {"/".join(call.path): call.module for call in calls}


def tabulate(
    module: Module,
    rngs: Rngs,
    depth: int | None = None,
    show_repeated: bool = False,
    mutable: Filter = ALL_BUT_INTERMEDIATES,
    console_kwargs: Mapping[str, Any] | None = None,
    table_kwargs: Mapping[str, Any] = _NONE,
    column_kwargs: Mapping[str, Any] = _NONE,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **kwargs: Any,
) -> Callable[..., str]:
    """Makes a function that describes a model for given inputs, one row per submodule, without computing anything.

    Args:
        module: The model.
        rngs: As for `Module.init`.
        depth: How many levels of submodules are shown; the parameters of deeper ones are counted with their parents.
        show_repeated: Whether further calls of the same module are shown.
        mutable: As for `Module.init`.
        console_kwargs: For `rich.console.Console`.
        table_kwargs: For `rich.table.Table`.
        column_kwargs: For `rich.table.Table.add_column`.
        compute_flops: Whether to show the cost of a call of each module, by XLA's estimate.
        compute_vjp_flops: The same for the call and its backward pass.
        **kwargs: Further arguments for `Module.init`.

    Returns:
        A function of the model's arguments that returns the table as text.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> plain = {"width": 80, "force_terminal": False}
        >>> text = nn.tabulate(nn.Dense(2), jax.random.key(0), console_kwargs=plain)(jnp.ones((1, 3)))
        >>> "Total Parameters: 8 (32 B)" in text
        True
    """

    def describe(*args: Any, **call_kwargs: Any) -> str:
        calls, variables = calls_of(module, rngs, *args, mutable=mutable, **call_kwargs, **kwargs)
        costs = _costs(compute_flops, compute_vjp_flops)
        rows = _rows(calls, variables, rngs, depth, show_repeated, costs)
        return _render(module, rows, variables, costs, console_kwargs, table_kwargs, column_kwargs)

    return describe


def module_table(
    module: Module,
    depth: int | None,
    show_repeated: bool,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
) -> Callable[..., list[Row]]:
    """Makes a function with the arguments of `Module.init` that returns the rows of `tabulate` as data.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> rows = module_table(nn.Dense(2), depth=None, show_repeated=False)(jax.random.key(0), jnp.ones((1, 3)))
        >>> rows[0].inputs.shape, rows[0].outputs.shape, list(rows[0].module_variables["params"])
        ((1, 3), (1, 2), ['bias', 'kernel'])
    """
    costs = _costs(compute_flops, compute_vjp_flops)

    def rows(rngs: Rngs, *args: Any, **kwargs: Any) -> list[Row]:
        return _rows(*calls_of(module, rngs, *args, **kwargs), rngs, depth, show_repeated, costs)

    return rows


def _costs(flops: bool, vjp_flops: bool) -> list[str]:
    return [name for name, is_wanted in (("flops", flops), ("vjp_flops", vjp_flops)) if is_wanted]


@dataclasses.dataclass
class Row:
    """One row of a table: a call of a module.

    Attributes:
        path: Its path.
        module_copy: The module, without its scope.
        method: The name of the method.
        inputs: The positional arguments, then a dict of the others, with shapes for arrays; a single argument as it is.
        outputs: What it returned, likewise.
        module_variables: By collection: the variables that are the module's own.
        counted_variables: By collection: the variables that the row counts.
        flops: The cost of the call, if wanted, by XLA's estimate.
        vjp_flops: The same for the call and its backward pass.
    """

    path: tuple[str, ...]
    module_copy: Module
    method: str
    inputs: Any
    outputs: Any
    module_variables: dict[str, Any]
    counted_variables: dict[str, Any]
    flops: int = 0
    vjp_flops: int = 0


def _at(tree: object, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name, {}) if isinstance(tree, Mapping) else {}
    return tree


def _rows(
    calls: list[MethodCall],
    variables: Mapping[str, Any],
    rngs: Rngs,
    depth: int | None,
    show_repeated: bool,
    costs: list[str],
) -> list[Row]:
    paths = {call.path for call in calls}
    rows = []
    for call in calls:
        repeated = not call.is_first
        if (depth is not None and len(call.path) > depth) or (repeated and not show_repeated):
            continue
        everything = {name: part for name, tree in variables.items() if (part := _at(tree, call.path))}
        own = {c: {} if repeated else _without(tree, call.path, paths) for c, tree in everything.items()}
        hides = depth is not None and len(call.path) == depth and not repeated
        inputs = (*call.args, *((dict(call.kwargs),) if call.kwargs else ()))
        rows.append(
            Row(
                call.path,
                call.module,
                call.method,
                _single(inputs),
                _single(call.outputs),
                own,
                everything if hides else own,
                **{cost: _flops(call, everything, rngs, backward=cost == "vjp_flops") for cost in costs},
            )
        )
    return rows


def _without(tree: object, path: tuple[str, ...], paths: set[tuple[str, ...]]) -> Any:
    """The variables of a module without those of the submodules that were called."""
    if not isinstance(tree, Mapping):
        return tree
    own_variables = {}
    for name, value in tree.items():
        inner = (*path, name)
        if inner in paths:
            continue
        inner_variables = _without(value, inner, paths)
        if not isinstance(value, Mapping) or not value or inner_variables:  # an entry that was empty already is shown
            own_variables[name] = inner_variables
    return own_variables


def _size_text(tree: object) -> Text:
    from rich.text import Text

    count, n_bytes = size_and_bytes(tree)
    if not count:
        return Text("")
    return Text.assemble((f"{count:,} ", "bold"), (f"({human_size(n_bytes)})", "bold dim"))


def _leaf(x: Any) -> Text:
    from rich.text import Text

    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return Text.assemble((str(x.dtype), "dim"), indexed("", x.shape))
    return Text(str(x))


def _box(box: Any) -> Text:
    """A value in a box, with the names of its axes."""
    text = _leaf(meta.unbox(box))
    if not hasattr(box, "names"):
        return text
    names = tuple(map(str, box.names))
    return text.append(f" P({', '.join(names)}{',' if len(names) == 1 else ''})", "dim")


def _lines(value: object) -> list[Text]:
    """The lines of a nested value, one per leaf: keys with their values indented, and a dash for each element."""
    from rich.text import Text

    if meta.is_box(value):
        return [_box(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping) and value:
        lines = []
        for key, inner in sorted(_named(value).items()):
            text = _lines(inner)
            if _is_nested(inner):
                pad = "" if isinstance(inner, (list, tuple)) else "  "
                lines += [Text(f"{key}:"), *(Text(pad) + line for line in text)]
            else:
                lines.append(Text(f"{key}: ") + text[0])
        return lines
    if isinstance(value, (list, tuple)) and value:
        return [Text("  " if i else "- ") + line for inner in value for i, line in enumerate(_lines(inner))]
    return [Text(_EMPTY[type(value)]) if _is_empty(value) else _leaf(value)]


def _named(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key.value if isinstance(key, enum.Enum) else key): inner for key, inner in value.items()}


def _is_empty(value: object) -> bool:
    return type(value) in _EMPTY and not value


def _is_nested(value: object) -> bool:
    if meta.is_box(value):
        return False
    if dataclasses.is_dataclass(value):
        return bool(dataclasses.fields(value))
    return isinstance(value, (Mapping, list, tuple)) and bool(value)


def _single(value: object) -> Any:
    """The element of a list or tuple that has one; other values as they are."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _value_text(value: object) -> Text:
    from rich.text import Text

    return Text("\n").join(_lines(value))


def _module_text(row: Row) -> str:
    name = type(row.module_copy).__name__
    return name if row.method == "__call__" else f"{name} ({row.method})"


def _flops(call: MethodCall, variables: Mapping[str, Any], rngs: Rngs, *, backward: bool) -> int:
    """XLA's estimate of the cost of a call, with the variables it changes; 0 if the module cannot be run by itself."""
    arrays, static_part = split_arrays((variables, call.args, call.kwargs))

    def run(arrays: list[Any], rngs: Rngs) -> Any:
        variables, args, kwargs = static_part.whole(arrays)
        return call.module.apply(variables, *args, rngs=rngs, method=call.method, mutable=True, **kwargs)

    def run_backward(arrays: list[Any], rngs: Rngs) -> Any:
        output, pullback = jax.vjp(lambda arrays: run(arrays, rngs), arrays)
        return pullback(output)

    try:
        return estimated_flops(run_backward if backward else run, arrays, shapes_in(rngs))
    # A module may need its parent, or what its parent passes to it: then its cost alone is unknown.
    except Exception:
        return 0


def _render(
    module: Module,
    rows: list[Row],
    variables: Mapping[str, Any],
    costs: list[str],
    console_kwargs: Mapping[str, Any] | None,
    table_kwargs: Mapping[str, Any],
    column_kwargs: Mapping[str, Any],
) -> str:
    from rich.text import Text

    table = new_table(module, table_kwargs)
    columns = ["path", "module", "inputs", "outputs", *costs]
    for column in columns:
        table.add_column(column, **column_kwargs)
    for collection in variables:
        table.add_column(collection, **column_kwargs)
    for row in rows:
        cells = [
            Text("/".join(row.path)),
            Text(_module_text(row)),
            _value_text(row.inputs) if row.inputs != () else Text(""),
            _value_text(row.outputs),
            *(Text(str(getattr(row, cost))) for cost in costs),
        ]
        for collection in variables:
            own, size = row.module_variables.get(collection), _size_text(row.counted_variables.get(collection))
            shown = _lines(own) if own else []
            cells.append(Text("\n").join([*shown, Text(""), size] if shown else [size]))
        table.add_row(*cells)
    table.columns[len(columns) - 1].footer = Text("Total", justify="right")
    for column, tree in zip(table.columns[len(columns) :], variables.values()):
        column.footer = _size_text(tree)
    table.caption_style = "bold"
    table.caption = Text("\nTotal Parameters: ", style="bold") + _size_text(variables)
    return f"\n{printed(table, {'force_jupyter': False, **(console_kwargs or {})})}\n"
