"""Where Modules meet captures. Outside of a capture every function here steps aside."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any


def sow(
    module: Any,
    variable_type: type,
    name: str,
    value: Any,
    reduce_fn: Callable[[Any, Any], Any],
    init_fn: Callable[[], Any],
) -> bool | None:
    """Records a value if a capture runs; None if none does."""
    del module, variable_type, name, value, reduce_fn, init_fn
    return None


def perturb(module: Any, name: str, value: Any, variable_type: type) -> Any | None:
    """The value to go on with if a capture runs; None if none does."""
    del module, name, value, variable_type
    return None


def observed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a capture can see; called once per method, when its class is made."""
    del name
    return fn


def carry(original: Any, copy: Any) -> None:
    """Says that a transform made `copy` to stand for `original` inside a trace; called only while a capture runs."""
    del original, copy


def labels(nodes: Sequence[Any]) -> Hashable:
    """What the running capture calls these nodes: jitted calls that differ in it do not share a trace."""
    del nodes
    return None
