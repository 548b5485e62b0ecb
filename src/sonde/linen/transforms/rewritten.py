"""`nn.map_variables` and `nn.add_metadata_axis`: a module sees its variables in a form other than the stored one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sonde.linen.sharding import meta
from sonde.linen.transforms.axes import In, Out
from sonde.linen.transforms.lift import Body, Bridge, Lifting, Methods, lift_with
from sonde.linen.variables import sites
from sonde.linen.variables.filters import DenyList, Filter, may_overlap
from sonde.linen.variables.frozen_dict import FrozenDict


def _same(variables: object) -> Any:
    return variables


def map_variables(
    target: Callable[..., Any],
    mapped_collections: Filter = True,
    trans_in_fn: Callable[..., Any] = _same,
    trans_out_fn: Callable[..., Any] = _same,
    init: bool = False,
    mutable: bool = False,
    rngs: Filter = True,
    variables: Filter = True,
    methods: Methods = None,
) -> Any:
    """A module class or function whose variables are passed through functions on the way in and out.

    Args:
        target: The module class, or a function whose first argument is a module.
        mapped_collections: The collections that are passed through the functions.
        trans_in_fn: From stored variables to those that the module sees; each is a dict of collections.
        trans_out_fn: The inverse.
        init: Whether to run the module once beforehand to make its variables, if they may change.
        mutable: Whether changes go back through `trans_out_fn`.
        rngs: The random streams that the function sees.
        variables: The other collections that the function sees.
        methods: For a class, the methods to transform.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> double = lambda v: jax.tree.map(lambda x: 2 * x, v)
        >>> Doubled = nn.map_variables(nn.Dense, "params", trans_in_fn=double)
        >>> variables = {"params": {"kernel": jnp.ones((1, 1)), "bias": jnp.ones(1)}}
        >>> float(Doubled(1).apply(variables, jnp.ones(1))[0])
        4.0
    """
    return lift_with(_map_variables, locals(), label="map_variables")


def _map_variables(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    mapped_collections: Filter,
    trans_in_fn: Callable[..., Any],
    trans_out_fn: Callable[..., Any],
    init: bool,
    mutable: bool,
    rngs: Filter,
    variables: Filter,
) -> Any:
    lifting = Lifting(
        bridge.scopes,
        "map_variables",
        variables=(mapped_collections, variables),
        changes=(mapped_collections, variables),
        rngs=(rngs,),
    )
    chosen, other_groups = lifting.variables
    if init and may_overlap(lifting.mutable, True):
        with sites.silence():  # this run only makes the variables
            _, (made, _) = lifting.call(body, (chosen, other_groups), lifting.rngs, *args, **kwargs)
        chosen = tuple({**before, **trans_out_fn(after)} for before, after in zip(chosen, made))
    goes_back = init or mutable
    transformed = tuple(trans_in_fn(group) for group in chosen)
    may_change = True if goes_back else DenyList(mapped_collections)
    output, (of_mapped, of_others) = lifting.call(
        body, (transformed, other_groups), lifting.rngs, *args, mutable=may_change, **kwargs
    )
    lifting.publish((tuple(map(trans_out_fn, of_mapped)) if goes_back else (), of_others))
    return output


def add_metadata_axis(
    target: Callable[..., Any],
    variable_axes: Mapping[Any, Any] = FrozenDict(),
    metadata_params: Mapping[Any, Any] = FrozenDict(),
    methods: Methods = None,
) -> Any:
    """A module class or function in which boxed variables have one axis name fewer than outside.

    Used where a transform outside Linen, such as `jax.vmap` over `init`, gives all variables an axis.

    Args:
        target: The module class, or a function whose first argument is a module.
        variable_axes: For each collection the position of the axis.
        metadata_params: Passed to the boxes.
        methods: For a class, the methods to transform.
    """
    lifted = target
    for filter, axis in variable_axes.items():
        position = axis.axis if isinstance(axis, (In, Out)) else axis

        def take_away(variables: Mapping[str, Any], position: int = position) -> Any:
            return meta.remove_axis(variables, position, metadata_params)

        def put_in(variables: Mapping[str, Any], position: int = position) -> Any:
            return meta.add_axis(variables, position, metadata_params)

        lifted = map_variables(lifted, filter, take_away, put_in, mutable=True, methods=methods)
    return lifted
