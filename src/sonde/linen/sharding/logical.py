"""Logical axis names (`batch`, `heads`), and rules that map each name to a mesh axis.

Rules are pairs in order of precedence. A rule applies if its name is among the axes of an array and its mesh axis is
still free; an axis without a rule stays unsharded.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sonde.flax.serialization import register_box
from sonde.linen.sharding.meta import Names, Partitioned, boxing, mesh_is_set

Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]
_rules: contextvars.ContextVar[Rules] = contextvars.ContextVar("sonde_logical_axis_rules", default=())


class RulesFallback(enum.Enum):
    """What a constraint does about an axis that no rule names."""

    AXIS_IS_UNSHARDED = "axis_is_unsharded"
    RAISE_ERROR = "raise_error"
    NO_CONSTRAINT = "no_constraint"


def set_logical_axis_rules(rules: Rules) -> None:
    """Sets the rules permanently."""
    _rules.set(rules)


def get_logical_axis_rules() -> Rules:
    """The rules that are in force."""
    return _rules.get()


@contextlib.contextmanager
def logical_axis_rules(rules: Rules) -> Iterator[None]:
    """Sets the rules for a block."""
    token = _rules.set(rules)
    try:
        yield
    finally:
        _rules.reset(token)


def _mesh_axes(entry: object) -> set[Any]:
    """The mesh axes in one entry of a PartitionSpec, or in several."""
    return set(jax.tree.leaves(entry)) - {PartitionSpec.UNCONSTRAINED}


def _placed(names: Sequence[Any], rules: Rules | None) -> dict[str, Any]:
    """The mesh axes that the rules give to the named axes; a name that no rule places is not in the dict.

    An entry of `names` may also be mesh axes, None or UNCONSTRAINED instead of a name: it is left as it is, and its
    mesh axes are no longer free.
    """
    rules = _rules.get() if rules is None else rules
    if not isinstance(rules, (list, tuple)):
        raise ValueError(f"logical axis rules must be a sequence of (name, mesh axis) pairs, got {rules!r}")
    unplaced = [name for name in names if isinstance(name, str)]
    twice = sorted({name for name in unplaced if unplaced.count(name) > 1})
    if twice:
        raise ValueError(f"axis names {twice} occur more than once in {tuple(names)}")
    used = _mesh_axes([name for name in names if not isinstance(name, str)])
    placed: dict[str, Any] = {}
    # In the order of the rules, not of the axes: an earlier rule may take a mesh axis from a later one.
    for name, mesh_axes in rules:
        if name in unplaced and used.isdisjoint(_mesh_axes(mesh_axes)):
            unplaced.remove(name)
            placed[name] = mesh_axes
            used |= _mesh_axes(mesh_axes)
    return placed


def _spec(names: Sequence[Any], placed: dict[str, Any]) -> PartitionSpec:
    return PartitionSpec(*(placed.get(name) if isinstance(name, str) else name for name in names))


def logical_to_mesh_axes(array_dim_names: Sequence[Any] | None, rules: Rules | None = None) -> PartitionSpec | None:
    """The PartitionSpec that the rules give for the named axes of an array.

    Example:
        >>> rules = [("vocab", "model"), ("embed", "model"), ("embed", "data")]
        >>> tuple(logical_to_mesh_axes(("embed", "vocab"), rules)), tuple(logical_to_mesh_axes(("embed", "kv"), rules))
        (('data', 'model'), ('model', None))
    """
    return None if array_dim_names is None else _spec(array_dim_names, _placed(array_dim_names, rules))


def _is_spec(x: object) -> bool:
    return isinstance(x, PartitionSpec)


def logical_to_mesh(tree: object, rules: Rules | None = None) -> Any:
    """`logical_to_mesh_axes` on every PartitionSpec in a tree."""
    return jax.tree.map(lambda spec: logical_to_mesh_axes(tuple(spec), rules), tree, is_leaf=_is_spec)


def logical_to_mesh_sharding(tree: object, mesh: Mesh, rules: Rules | None = None) -> Any:
    """Shardings on a mesh for a tree of logical PartitionSpecs."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), logical_to_mesh(tree, rules), is_leaf=_is_spec)


def _constrain(names: Any, x: Any, *, rules: Rules, mesh: Mesh | None, fallback: RulesFallback) -> Any:
    sharding: Any = None
    if names is not None:
        placed = _placed(names, rules)
        without = [name for name in names if isinstance(name, str) and name not in placed]
        if without and fallback is RulesFallback.RAISE_ERROR:
            raise ValueError(f"no rule places {without} of the axes {names}; the rules are {tuple(rules)}")
        if without and fallback is RulesFallback.NO_CONSTRAINT:
            return x
        spec = _spec(names, placed)
        sharding = spec if mesh is None else NamedSharding(mesh, spec)
    return x if mesh is None and not mesh_is_set() else jax.lax.with_sharding_constraint(x, sharding)


def with_logical_constraint(
    x: object,
    logical_axis_resources: object,
    rules: Rules | None = None,
    mesh: Mesh | None = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
) -> Any:
    """Constrains the sharding of arrays by the names of their axes; does nothing without rules or without a mesh."""
    rules = get_logical_axis_rules() if rules is None else rules
    if not rules or logical_axis_resources is None:
        return x

    def is_names(names: object) -> bool:
        axis = lambda a: a is None or isinstance(a, str) or a is PartitionSpec.UNCONSTRAINED  # noqa: E731
        return names is None or (isinstance(names, tuple) and all(map(axis, names)))

    constrain = functools.partial(_constrain, rules=rules, mesh=mesh, fallback=fallback)
    return jax.tree.map(constrain, logical_axis_resources, x, is_leaf=is_names)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class LogicallyPartitioned(Partitioned[Any]):
    """A value whose axes have logical names; `rules` map them to mesh axes, None for the rules in force."""

    rules: Rules | None = None

    def unbox(self, apply_constraint: bool = True) -> Any:
        """The value, constrained by the rules if there is a mesh."""
        if not apply_constraint or not (self.mesh is not None or mesh_is_set()):
            return self.value
        return with_logical_constraint(self.value, tuple(self.names), rules=self.rules, mesh=self.mesh)


register_box(LogicallyPartitioned)


def with_logical_partitioning(
    fn: Callable[..., Any], names: Names, mesh: Mesh | None = None, rules: Rules | None = None
) -> Callable[..., Any]:
    """An initializer that puts the value of `fn` into a `LogicallyPartitioned` box."""
    return boxing(fn, lambda value: LogicallyPartitioned(value, names, mesh=mesh, rules=rules))
