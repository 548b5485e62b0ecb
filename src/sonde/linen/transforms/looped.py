"""`nn.scan`, `nn.remat_scan` and `nn.while_loop`.

`nn.scan` runs the body twice in Python: first outside the loop, without computing, to make the variables that all
iterations share (and to check that they do not depend on the iteration), then as the loop's body. Random keys in the
loop are those of the second run; a body that JAX traces once more gets the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sonde._key_paths import key_of
from sonde.linen.modules.attach import describe
from sonde.linen.modules.module import Module
from sonde.linen.sharding import meta
from sonde.linen.transforms.axes import Axes, axes_of_leaves, broadcast, common_size, group, split_streams
from sonde.linen.transforms.lift import (
    Body,
    Bridge,
    Groups,
    Lifting,
    Methods,
    ignore_keywords,
    keeps_structure,
    lift_with,
)
from sonde.linen.transforms.recomputed import run_checkpoint
from sonde.linen.variables import sites
from sonde.linen.variables.filters import Filter, first_match, matches, may_overlap
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.rng import is_key
from sonde.linen.variables.scope import Scope


def scan(
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
    data_transform: Callable[..., Any] | None = None,
    metadata_params: Mapping[Any, Any] = FrozenDict(),
    methods: Methods = None,
    _split_transpose: bool = False,
    check_constancy_invariants: bool = True,
) -> Any:
    """A module class or function `(module, carry, *xs) -> (carry, ys)` that runs in a loop.

    Args:
        target: The module class, or a function whose first argument is a module.
        variable_axes: For each collection the axis along which iterations have their own variables.
        variable_broadcast: Collections that all iterations share.
        variable_carry: Collections that are carried from iteration to iteration.
        split_rngs: For each random stream whether every iteration gets its own keys.
        in_axes: For the arguments after the carry, the axis that is looped over, or `nn.broadcast`.
        out_axes: For the second output, the axis along which iterations are stacked, or `nn.broadcast`.
        length: The number of iterations, if no argument determines it.
        reverse: As in `jax.lax.scan`.
        unroll: As in `jax.lax.scan`.
        data_transform: Applied to the groups of variables and of random streams at the start of each iteration.
        metadata_params: Passed to boxes around variables that gain or lose an axis.
        methods: For a class, the methods to transform.
        _split_transpose: As in `jax.lax.scan`.
        check_constancy_invariants: Whether to make sure that shared variables do not depend on the iteration. If not,
            the body runs once in Python, and variables of `variable_broadcast` cannot be made in it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> class Residual(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, stream, scale):
        ...         return stream + scale * nn.Dense(stream.shape[-1])(stream), stream.mean()
        >>> Tower = nn.scan(Residual, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> (stream, means), variables = Tower().init_with_output(jax.random.key(1), jnp.ones(5), jnp.array([1.0, 0.5]))
        >>> means.shape, variables["params"]["Dense_0"]["bias"].shape
        ((2,), (2, 5))
    """
    return lift_with(_scan, locals(), label="scan")


def _scan(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    variable_axes: Mapping[Any, Any],
    variable_broadcast: Filter,
    variable_carry: Filter,
    split_rngs: Mapping[Any, bool],
    in_axes: Axes,
    out_axes: Axes,
    length: int | None,
    reverse: bool,
    unroll: int,
    data_transform: Callable[..., Any] | None,
    metadata_params: Mapping[Any, Any],
    _split_transpose: bool,
    check_constancy_invariants: bool,
) -> Any:
    ignore_keywords(kwargs, "scan", bridge.module)
    where = f"nn.scan of {describe(bridge.module)}"
    if not args:
        raise TypeError(f"{where} needs a carry as its first argument")
    by = group(variable_axes)

    def keeps_sown(scope: Scope, collection: str, name: str, grows: bool) -> bool:
        if matches(variable_broadcast, collection):
            return False
        if matches(variable_carry, collection):
            return keeps_structure(scope, collection, name, grows)
        return first_match(by.filters_out, collection) is not None

    lifting = Lifting(
        bridge.scopes,
        "scan",
        variables=(variable_broadcast, variable_carry, *by.filters_in),
        changes=(variable_broadcast, variable_carry, *by.filters_out),
        rngs=tuple(split_rngs),
        keeps_sown=keeps_sown,
    )
    shared, carried, *stacked = lifting.variables
    carry, xs = args[0], args[1:]
    n = common_size(in_axes, xs, given=length, what="scan lengths", where=where, option="length")
    splits = tuple(split_rngs.values())
    streams = split_streams(lifting.rngs, splits, n)
    inputs = Mixed(in_axes, xs)
    stacked = tuple(_move(0, axis, meta.remove_axis(g, axis, metadata_params)) for axis, g in zip(by.axes_in, stacked))
    sliced = (stacked, tuple(g for g, split in zip(streams, splits) if split), inputs.in_front())

    def step(
        shared: tuple[dict[str, Any], ...], carry: tuple[Any, Any], sliced: tuple[Any, ...], *, mutable: Filter = True
    ) -> Any:
        (carried, value), (stacked, split, mapped) = carry, sliced
        groups: Groups = (shared, carried, *stacked)
        remaining = iter(split)
        rngs: Groups = tuple(next(remaining) if is_split else g for g, is_split in zip(streams, splits))
        if data_transform is not None:
            groups, rngs = data_transform(groups, rngs)
        output, changes = lifting.call(body, groups, rngs, value, *inputs.with_mapped(mapped), mutable=mutable)
        value, y = _pair(output, where)
        return changes[0], (_carried_on(carried, changes[1], where), value), (Mixed(out_axes, y), changes[2:])

    constant_outputs = None
    if check_constancy_invariants and n > 0:
        first = functools.partial(step, shared)
        # Before the loop, because `lax.scan` can neither make variables nor return what is not stacked.
        made, constant_outputs = _first_run(
            first, (carried, carry), sliced, lifting, variable_broadcast, out_axes, where
        )
        # In the loop, the variables that the first run made are there from the start.
        shared = tuple({**before, **after} for before, after in zip(shared, made))
    counts = lifting.counts()
    structure: list[Mixed] = []

    def loop_body(carry: tuple[Any, Any], sliced: tuple[Any, ...]) -> Any:
        # JAX may trace the body more than once: each time it must draw the same keys.
        lifting.restore_counts(counts)
        _, carry, (y, changes) = step(shared, carry, sliced)
        structure[:] = [y.structure()]  # the leaves belong to the loop
        return carry, (y.mapped, changes)

    extra = {"_split_transpose": True} if _split_transpose else {}
    (carried, carry), (ys, changes) = lax.scan(
        loop_body, (carried, carry), sliced, length=n, reverse=reverse, unroll=unroll, **extra
    )
    changed = [meta.add_axis(_move(axis, 0, g), axis, metadata_params) for axis, g in zip(by.axes_out, changes)]
    lifting.publish((_only(shared, lifting.mutable), _only(carried, lifting.mutable), *changed))
    return carry, structure[0].stacked(ys, constant_outputs)


def _first_run(
    step: Callable[..., Any],
    carry: tuple[Any, Any],
    sliced: tuple[Any, ...],
    lifting: Lifting,
    shared: Filter,
    out_axes: Axes,
    where: str,
) -> tuple[Any, Any]:
    """Runs the body outside the loop, for the variables and outputs that all iterations share.

    Everything that differs between iterations gets an axis of length 1, over which the body is mapped: what does not
    depend on the iteration comes out unmapped, and anything else is an error. No capture sees this run.
    """

    def constants(carry: tuple[Any, Any], sliced: tuple[Any, ...]) -> Any:
        made, _, (y, _) = step(carry, sliced)
        return made, y.constant

    with_axis = lambda x: jnp.asarray(x)[None]  # noqa: E731
    rows = (jax.tree.map(with_axis, carry), jax.tree.map(lambda x: x[:1], sliced))
    has_constants = may_overlap(lifting.mutable, shared) or any(a is broadcast for a in jax.tree.leaves(out_axes))
    with sites.silence():
        if not has_constants:  # Only names and random keys are needed.
            jax.eval_shape(jax.vmap(lambda *row: (constants(*row), None)[1], axis_size=1), *rows)
            return tuple({} for _ in lifting.packed), []
        try:
            return jax.vmap(constants, out_axes=None, axis_size=1)(*rows)
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            raise ValueError(
                f"{where}: a variable of variable_broadcast={shared!r}, or an output that is broadcast, depends "
                "on the carry or on the iteration, but is shared by all iterations; use variable_carry or "
                "variable_axes for it"
            ) from error


def _pair(output: object, where: str) -> tuple[Any, Any]:
    if not isinstance(output, (tuple, list)) or len(output) != 2:
        raise TypeError(
            f"{where}: the body must return a pair (carry, output of the iteration), got {type(output).__name__}"
        )
    return output[0], output[1]


def _carried_on(before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...], where: str) -> Any:
    """The carried variables after an iteration: new values of those that may change, old values of the others."""
    result = tuple({**earlier, **later} for earlier, later in zip(before, after))
    for earlier, later in zip(before, result):
        made = set(_names(later)) - set(_names(earlier))
        if made:
            raise TypeError(
                f"{where}: variables {sorted(made)} of a carried collection were made inside the loop; what is "
                "carried must exist before the first iteration: make them before, or use variable_axes"
            )
    return result


def _names(tree: object) -> list[str]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return ["/".join(str(key_of(key)) for key in path) for path, _ in paths]


def _only(groups: tuple[dict[str, Any], ...], mutable: Filter) -> Any:
    return tuple({name: tree for name, tree in group.items() if matches(mutable, name)} for group in groups)


def _move(to: int, axis: int, tree: object) -> Any:
    """Moves an axis of every leaf: from `axis` to the front if `to` is 0, else back."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, axis, to), tree)


class Mixed:
    """A tree with some leaves that are looped over and others that are the same in every iteration.

    Attributes:
        mapped: The leaves that are looped over.
        constant: The leaves that are not.
    """

    def __init__(self, axes: Axes, tree: Any) -> None:
        self._axes = axes_of_leaves(axes, tree)
        leaves, self._tree = jax.tree.flatten(tree)
        self.mapped = [leaf for axis, leaf in zip(self._axes, leaves) if axis is not broadcast]
        self.constant = [leaf for axis, leaf in zip(self._axes, leaves) if axis is broadcast]

    def structure(self) -> Mixed:
        """The same without leaves."""
        copy = object.__new__(Mixed)
        copy._axes, copy._tree, copy.mapped, copy.constant = self._axes, self._tree, [], []
        return copy

    def in_front(self) -> list[Any]:
        """The leaves that are looped over, with the loop's axis in front."""
        axes = [axis for axis in self._axes if axis is not broadcast]
        return [jnp.moveaxis(x, axis, 0) for x, axis in zip(self.mapped, axes)]

    def with_mapped(self, mapped: Sequence[Any], constant: Sequence[Any] | None = None) -> Any:
        """The tree with other leaves."""
        first, second = iter(mapped), iter(self.constant if constant is None else constant)
        leaves = [next(second) if axis is broadcast else next(first) for axis in self._axes]
        return jax.tree.unflatten(self._tree, leaves)

    def stacked(self, mapped: Sequence[Any], constant: Sequence[Any] | None) -> Any:
        """The tree of all iterations, from the stacked leaves with the loop's axis in front."""
        axes = [axis for axis in self._axes if axis is not broadcast]
        return self.with_mapped([jnp.moveaxis(x, 0, axis) for x, axis in zip(mapped, axes)], constant)


def remat_scan(
    target: Callable[..., Any],
    lengths: Sequence[int] | None = (),
    policy: Callable[..., bool] | None = None,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    variable_axes: Mapping[Any, Any] = FrozenDict({True: 0}),
    split_rngs: Mapping[Any, bool] = FrozenDict({True: True}),
    methods: Methods = None,
) -> Any:
    """A module class or function `(module, carry) -> carry` in nested loops, with each iteration rematerialized.

    With lengths (a, b) there are a * b iterations, and memory for a + b of them.

    Args:
        target: The module class, or a function whose first argument is a module.
        lengths: The length of each loop, outermost first.
        policy: As in `jax.checkpoint`.
        variable_broadcast: As in `nn.scan`.
        variable_carry: As in `nn.scan`.
        variable_axes: As in `nn.scan`.
        split_rngs: As in `nn.scan`.
        methods: For a class, the methods to transform.
    """
    return lift_with(_remat_scan, locals(), label="remat_scan")


def _remat_scan(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    lengths: Sequence[int] | None,
    policy: Callable[..., bool] | None,
    **options: Any,
) -> Any:
    if not lengths:
        raise ValueError(f"nn.remat_scan of {describe(bridge.module)} needs at least one length")
    if kwargs:
        raise TypeError(
            f"nn.remat_scan of {describe(bridge.module)} was called with keyword arguments {sorted(kwargs)}: it takes "
            "only the carry"
        )

    def iteration(scopes: Sequence[Scope], carry: object) -> Any:
        inner = bridge.on(scopes)
        if len(lengths) > 1:
            carry = _remat_scan(inner, body, (carry,), {}, lengths=lengths[1:], policy=policy, **options)
        else:
            carry = run_checkpoint(inner, body, (carry,), {}, prevent_cse=False, policy=policy)
        return carry, None

    def rematerialized(scopes: Sequence[Scope], carry: object) -> Any:
        if len(lengths) == 1:  # the innermost iteration is rematerialized already
            return iteration(scopes, carry)
        return run_checkpoint(bridge.on(scopes), iteration, (carry,), {}, prevent_cse=False, policy=policy)

    scan_options = {
        "in_axes": 0,
        "out_axes": 0,
        "length": lengths[0],
        "reverse": False,
        "unroll": 1,
        "data_transform": None,
        "metadata_params": FrozenDict(),
        "_split_transpose": False,
        "check_constancy_invariants": True,
    }
    return _scan(bridge, rematerialized, args, {}, **scan_options, **options)[0]


def while_loop(
    cond_fn: Callable[[Any, Any], Any],
    body_fn: Callable[[Any, Any], Any],
    mdl: Module,
    init: object,
    carry_variables: Filter = False,
    broadcast_variables: Filter = True,
    split_rngs: Mapping[Any, bool] = FrozenDict(),
) -> Any:
    """`jax.lax.while_loop` with functions of a module.

    Args:
        cond_fn: `(module, carry) -> bool`.
        body_fn: `(module, carry) -> carry`.
        mdl: The module.
        init: The first carry.
        carry_variables: Collections that are carried from iteration to iteration.
        broadcast_variables: Collections that the functions see and do not change.
        split_rngs: For each random stream whether every iteration gets its own keys.

    Returns:
        The last carry.
    """
    bridge = Bridge(mdl)
    where = f"nn.while_loop of {describe(mdl)}"
    lifting = Lifting(
        bridge.scopes,
        "while_loop",
        variables=(carry_variables, broadcast_variables),
        changes=(carry_variables,),
        rngs=tuple(split_rngs),
        keeps_sown=keeps_structure,
    )
    carried, shared = lifting.variables
    cond, body = bridge.body(cond_fn), bridge.body(body_fn)
    counts = lifting.counts()

    def rngs_of(i: int | jax.Array) -> Groups:
        # Both functions get their own keys in each iteration: the condition's are numbered downwards.
        fold = lambda group: jax.tree.map(lambda key: jax.random.fold_in(key, i), group, is_leaf=is_key)  # noqa: E731
        return tuple(fold(g) if split else g for g, split in zip(lifting.rngs, split_rngs.values()))

    def cond_step(state: tuple[Any, Any, Any]) -> Any:
        lifting.restore_counts(counts)
        i, carried, carry = state
        return lifting.call(cond, (carried, shared), rngs_of(-i), carry, mutable=False)[0]

    def body_step(state: tuple[Any, Any, Any]) -> Any:
        lifting.restore_counts(counts)
        i, carried, carry = state
        carry, changes = lifting.call(body, (carried, shared), rngs_of(i), carry)
        return i + 1, _carried_on(carried, changes[0], where), carry

    _, carried, carry = lax.while_loop(cond_step, body_step, (0, carried, init))
    lifting.publish((_only(carried, lifting.mutable),))
    return carry
