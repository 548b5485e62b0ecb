"""The kinds of Variables that layers and captures use; filters select by them."""

from __future__ import annotations

from typing import Any, TypeVar

from sonde.nnx.variable.variable import Variable

A = TypeVar("A")


class _AskedByKind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Variable) and value.hijax


class HijaxVariable(metaclass=_AskedByKind):
    """For `isinstance` only: Variables with `hijax=True` count as instances."""


class Param(Variable[A]):
    """A parameter that training changes by gradients."""

    __slots__ = ()


class BatchStat(Variable[A]):
    """A statistic over batches, such as the running mean of a BatchNorm."""

    __slots__ = ()


class Cache(Variable[A]):
    """A cache of earlier steps, such as keys and values of an attention layer while decoding."""

    __slots__ = ()


class Intermediate(Variable[A]):
    """A value seen inside a model while it runs: what `Module.sow` records."""

    __slots__ = ()


class Perturbation(Intermediate[A]):
    """A zero that was added to an intermediate value, so that its gradient is the gradient of that value."""

    __slots__ = ()
