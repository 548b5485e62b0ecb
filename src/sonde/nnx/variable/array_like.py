"""Lets a Variable be used as an array: arithmetic, conversion, iteration.

Everything acts on the value that `get_value` returns, so hooks and subclasses that override `get_value` are respected.
In-place operators are refused on purpose: `v += 1` would silently rebind the name to an array.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike


def plain(other: object) -> Any:
    """The value of a Variable; anything else as it is."""
    return other.get_value() if isinstance(other, ArrayLike) else other


def _unary(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: fn(self.get_value())


def _binary(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: fn(self.get_value(), plain(other))


def _reflected(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: fn(plain(other), self.get_value())


def _refuse_in_place(name: str) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, other: object) -> NoReturn:
        del other
        raise NotImplementedError(
            f"`variable {name} x` would rebind the name to an array and leave the {type(self).__name__} unchanged. "
            f"Write `variable[...] {name} x` to change its value."
        )

    return refuse


class ArrayLike:
    """Operators that act on what `get_value()` returns."""

    __slots__ = ()
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]  # `==` compares values

    def get_value(self) -> Any:
        """The value that the operators act on."""
        raise TypeError(f"{type(self).__name__} has no value")

    def __jax_array__(self) -> Any:
        return self.get_value()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.get_value(), dtype=dtype) if copy else np.asarray(self.get_value(), dtype=dtype)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the value, for Variables that hold a function."""
        return self.get_value()(*args, **kwargs)

    def __len__(self) -> int:
        return len(self.get_value())

    def __bool__(self) -> bool:
        # As in Flax, a non-scalar array is true if it is not empty: `if self.bias:` asks whether there is one.
        value = self.get_value()
        return bool(value) if getattr(value, "ndim", None) == 0 or not hasattr(value, "__len__") else len(value) > 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_value())

    def __contains__(self, item: Any) -> bool:
        return plain(item) in self.get_value()

    def __round__(self, ndigits: int = 0) -> Any:
        return round(self.get_value(), ndigits)

    __eq__ = _binary(operator.eq)
    __ne__ = _binary(operator.ne)
    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)
    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
    __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
    __xor__, __rxor__ = _binary(operator.xor), _reflected(operator.xor)
    __or__, __ror__ = _binary(operator.or_), _reflected(operator.or_)
    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)
    __complex__ = _unary(complex)
    __int__ = _unary(int)
    __float__ = _unary(float)
    __index__ = _unary(operator.index)
    __trunc__ = _unary(math.trunc)
    __floor__ = _unary(math.floor)
    __ceil__ = _unary(math.ceil)
    __iadd__ = _refuse_in_place("+=")
    __isub__ = _refuse_in_place("-=")
    __imul__ = _refuse_in_place("*=")
    __imatmul__ = _refuse_in_place("@=")
    __itruediv__ = _refuse_in_place("/=")
    __ifloordiv__ = _refuse_in_place("//=")
    __imod__ = _refuse_in_place("%=")
    __ipow__ = _refuse_in_place("**=")
    __ilshift__ = _refuse_in_place("<<=")
    __irshift__ = _refuse_in_place(">>=")
    __iand__ = _refuse_in_place("&=")
    __ixor__ = _refuse_in_place("^=")
    __ior__ = _refuse_in_place("|=")
