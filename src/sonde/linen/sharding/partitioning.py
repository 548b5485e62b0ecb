"""Axis names of variables, kept in a separate collection: `params_axes` for `params`.

This is older than the boxes of `meta`, but many models still use it. When a module makes a parameter with
`param_with_axes("kernel", ...)`, the names of its axes go to `kernel_axes` in `params_axes`, as an `AxisMetadata`;
`get_axis_names` turns such a collection into PartitionSpecs. Values are constrained by the rules (`axis_rules`), as
`nn.with_logical_constraint` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from sonde.linen.modules.context import context
from sonde.linen.modules.module import Module
from sonde.linen.sharding.logical import (
    RulesFallback,
    get_logical_axis_rules,
    logical_axis_rules,
    set_logical_axis_rules,
    with_logical_constraint,
)
from sonde.linen.sharding.logical import logical_to_mesh as logical_to_mesh
from sonde.linen.sharding.logical import logical_to_mesh_axes as logical_to_mesh_axes
from sonde.linen.transforms.axes import Axes, In, Out
from sonde.linen.transforms.lift import Methods, lift
from sonde.linen.transforms.looped import scan
from sonde.linen.transforms.mapped import vmap
from sonde.linen.transforms.recomputed import remat_options, run_checkpoint
from sonde.linen.transforms.rewritten import map_variables
from sonde.linen.variables.filters import Either, Filter, first_match
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.scope import Scope, Variable

axis_rules = logical_axis_rules
get_axis_rules = get_logical_axis_rules
set_axis_rules = set_logical_axis_rules
with_sharding_constraint = with_logical_constraint
ScanIn = In
ScanOut = Out

_SUFFIX = "_axes"
AxesNames = Sequence[Any] | Mapping[str, Any] | None
"""A name for each axis of a variable, or a tree of such tuples; None for no names."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class AxisMetadata:
    """The names of the axes of a variable: a tuple of names, or a tree of such tuples. A pytree without leaves."""

    names: Any


class PartitionedVariable(Variable[Any]):
    """A variable whose value is constrained by the names of its axes whenever it is read or set.

    Attributes:
        axes: The names.
        fallback: What to do about a name that no rule has.
    """

    __slots__ = ("axes", "fallback")

    def __init__(
        self,
        scope: Scope,
        collection: str,
        name: str,
        axes: AxesNames = None,
        fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
        *,
        unbox: bool = True,
    ) -> None:
        super().__init__(scope, collection, name, unbox=unbox)
        self.axes = axes
        self.fallback = fallback

    def on(self, scope: Scope) -> PartitionedVariable:
        """The same variable in another scope."""
        return PartitionedVariable(scope, self.collection, self.name, self.axes, self.fallback, unbox=self._unbox)

    @property
    def value(self) -> Any:
        """The value."""
        return self._constrained(Variable.value.fget(self))  # pyright: ignore[reportOptionalCall]

    @value.setter
    def value(self, value: Any) -> None:
        Variable.value.fset(self, self._constrained(value))  # pyright: ignore[reportOptionalCall]

    def _constrained(self, value: object) -> Any:
        return _constrained(value, self.axes, self.fallback)


def _constrained(value: object, axes: AxesNames, fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED) -> Any:
    return with_logical_constraint(value, axes, fallback=fallback) if axes else value


def _running(module: Module | None, what: str) -> Module:
    module = context.module_stack[-1] if module is None else module
    if module is None:
        raise ValueError(f"{what} was called outside a module's method; pass module=")
    return module


def _note(module: Module, collection: str, name: str, axes: AxesNames) -> None:
    """Puts the names of a variable's axes into their collection, if that may change."""
    scope = module.bound_scope(f"name the axes of {name!r}")
    collection, name = f"{collection}{_SUFFIX}", f"{name}{_SUFFIX}"
    if not scope.is_mutable(collection):
        return
    metadata, earlier = AxisMetadata(axes), scope.get(collection, name)
    if earlier is not None and earlier != metadata:
        raise ValueError(
            f"module {scope.path_text} names the axes of {name.removesuffix(_SUFFIX)!r} {axes}, but named them "
            f"{getattr(earlier, 'names', earlier)} before"
        )
    scope.put(collection, name, metadata)


def param_with_axes(
    name: str,
    init_fn: Callable[..., Any],
    *init_args: Any,
    axes: AxesNames = None,
    module: Module | None = None,
    **init_kwargs: Any,
) -> Any:
    """A parameter of the module that is running, with names for its axes.

    Args:
        name: The name of the parameter.
        init_fn: Its initializer.
        *init_args: Arguments for the initializer, after the key.
        axes: A name for each axis, or a tree of such tuples for a parameter that is a tree; None for no names.
        module: The module, if it is not the one whose method is running.
        **init_kwargs: Keyword arguments for the initializer.

    Example:
        >>> import jax
        >>> from sonde import linen as nn
        >>> from sonde.linen import partitioning
        >>> class Scale(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x * partitioning.param_with_axes("scale", nn.initializers.ones, (3,), axes=("embed",))
        >>> variables = Scale().init(jax.random.key(0), jax.numpy.ones(3))
        >>> tuple(partitioning.get_axis_names(variables["params_axes"])["scale"])
        ('embed',)
    """
    module = _running(module, "param_with_axes")
    value = module.param(name, init_fn, *init_args, **init_kwargs)
    return value if axes is None else name_axes(module, name, value, axes)


def name_axes(module: Module, name: str, value: object, axes: AxesNames) -> Any:
    """Notes the names of a parameter's axes, and returns its value, constrained by them."""
    value = _constrained(value, axes)
    _note(module, "params", name, axes)
    return value


def variable_with_axes(
    collection: str,
    name: str,
    init_fn: Callable[..., Any] | None,
    *init_args: Any,
    axes: AxesNames = None,
    module: Module | None = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
    **init_kwargs: Any,
) -> PartitionedVariable:
    """A variable of the module that is running, with names for its axes.

    Args:
        collection: The collection.
        name: The name of the variable.
        init_fn: Makes its first value.
        *init_args: Arguments for `init_fn`.
        axes: A name for each axis; None for no names.
        module: The module, if it is not the one whose method is running.
        fallback: What to do about a name that no rule has.
        **init_kwargs: Keyword arguments for `init_fn`.
    """
    module = _running(module, "variable_with_axes")
    made = module.variable(collection, name, init_fn, *init_args, **init_kwargs)
    partitioned = PartitionedVariable(made.scope, collection, name, axes, fallback)
    if axes is not None:
        _note(module, collection, name, axes)
        if partitioned.is_mutable():
            partitioned.value = made.value
    return partitioned


def _is_names(names: object) -> bool:
    return isinstance(names, tuple) and all(name is None or isinstance(name, str) for name in names)


def _map_names(fn: Callable[[tuple[Any, ...]], Any], tree: object) -> Any:
    """Applies a function to the names in every `AxisMetadata` of a tree."""

    def in_box(box: object) -> Any:
        return AxisMetadata(jax.tree.map(fn, box.names, is_leaf=_is_names)) if isinstance(box, AxisMetadata) else box

    return jax.tree.map(in_box, tree, is_leaf=lambda x: isinstance(x, AxisMetadata))


def get_axis_names(axes_metadata: object) -> Any:
    """The names in a collection such as `params_axes` as PartitionSpecs, under the names of the variables."""
    if isinstance(axes_metadata, AxisMetadata):
        return jax.tree.map(lambda names: PartitionSpec(*names), axes_metadata.names, is_leaf=_is_names)
    if isinstance(axes_metadata, Mapping):
        return FrozenDict({key.removesuffix(_SUFFIX): get_axis_names(value) for key, value in axes_metadata.items()})
    return axes_metadata


def _with_axis_name(target: Callable[..., Any], collection: str, axis: int, name: str | None, methods: Methods) -> Any:
    """A lifted target that gives the axis added by the transform the name `name`, in the collection of names."""

    def put_in(names: tuple[Any, ...]) -> tuple[Any, ...]:
        at = axis if axis >= 0 else axis + len(names) + 1
        return (*names[:at], name, *names[at:])

    def take_out(names: tuple[Any, ...]) -> tuple[Any, ...]:
        at = axis % len(names)
        if names[at] != name:
            raise ValueError(
                f"axis {axis} of a variable in {collection!r} must be called {name!r}; its axes are {names}"
            )
        return (*names[:at], *names[at + 1 :])

    return map_variables(
        target,
        f"{collection}{_SUFFIX}",
        lambda tree: _map_names(take_out, tree),
        lambda tree: _map_names(put_in, tree),
        mutable=True,
        methods=methods,
    )


def _axis_of(variable_axes: Mapping[Any, Any], collection: str) -> Any:
    index = first_match(variable_axes, collection)
    axis = None if index is None else list(variable_axes.values())[index]
    return axis.axis if isinstance(axis, (In, Out)) else axis


def scan_with_axes(
    target: Callable[..., Any],
    variable_axes: Mapping[Any, Any] = FrozenDict(),
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] = FrozenDict(),
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    axis_name: str = "layers",
    axes_collections: Sequence[str] = ("params",),
    data_transform: Callable[..., Any] | None = None,
    methods: Methods = None,
) -> Any:
    """`nn.scan` that adds a name for the axis of iterations to the axis names of variables.

    `axis_name` is that name, and `axes_collections` are the collections whose variables have names; the other arguments
    are those of `nn.scan`.
    """
    lifted = scan(
        target,
        variable_axes=variable_axes,
        variable_broadcast=Either((variable_broadcast, tuple(f"{c}{_SUFFIX}" for c in axes_collections))),
        variable_carry=variable_carry,
        split_rngs=split_rngs,
        in_axes=in_axes,
        out_axes=out_axes,
        length=length,
        reverse=reverse,
        unroll=unroll,
        data_transform=data_transform,
        methods=methods,
    )
    for collection in axes_collections:
        axis = _axis_of(variable_axes, collection)
        if axis is not None:
            lifted = _with_axis_name(lifted, collection, axis, axis_name, methods)
    return lifted


def vmap_with_axes(
    target: Callable[..., Any],
    variable_axes: Mapping[Any, Any] = FrozenDict(),
    split_rngs: Mapping[Any, bool] = FrozenDict(),
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    axis_size: int | None = None,
    axis_name: str | None = None,
    partitioning_axis_names: Mapping[Any, str] = FrozenDict(),
    spmd_axis_name: Hashable | None = None,
    methods: Methods = None,
) -> Any:
    """`nn.vmap` that adds a name for the mapped axis to the axis names of variables.

    `partitioning_axis_names` gives that name for each collection whose variables have names; the other arguments are
    those of `nn.vmap`.
    """
    shared = {f"{collection}{_SUFFIX}": None for collection in partitioning_axis_names}
    # The collections of names are shared: names are no arrays, so there is nothing to map.
    lifted = vmap(
        target,
        variable_axes={**variable_axes, **shared},
        split_rngs=split_rngs,
        in_axes=in_axes,
        out_axes=out_axes,
        axis_size=axis_size,
        axis_name=axis_name,
        spmd_axis_name=spmd_axis_name,
        methods=methods,
    )
    for collection, name in partitioning_axis_names.items():
        axis = _axis_of(variable_axes, collection)
        if axis is not None:
            lifted = _with_axis_name(lifted, collection, axis, name, methods)
    return lifted


def remat(
    target: Callable[..., Any],
    variables: Filter = True,
    rngs: Filter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    policy: Callable[..., bool] | None = None,
    methods: Methods = None,
) -> Any:
    """`nn.remat` that counts `static_argnums` without the module: argument 0 is the first after `self`."""
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    options = remat_options(variables, rngs, concrete, prevent_cse, tuple(number + 1 for number in numbers), policy)
    # The label becomes part of automatic names of submodules, so it must be Flax's.
    return lift(target, run_checkpoint, label="core_remat_static", methods=methods, options=options)
