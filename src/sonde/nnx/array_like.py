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


def plain(other: Any) -> Any:
    """The value of a Variable; anything else as it is."""
    return other.get_value() if isinstance(other, ArrayLike) else other


def _refuse_in_place(name: str) -> Callable[[Any, Any], NoReturn]:
    def refuse(self: Any, other: Any) -> NoReturn:
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
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

    def __eq__(self, other: object) -> Any:
        return self.get_value() == plain(other)

    def __ne__(self, other: object) -> Any:
        return self.get_value() != plain(other)

    def __lt__(self, other: Any) -> Any:
        return self.get_value() < plain(other)

    def __le__(self, other: Any) -> Any:
        return self.get_value() <= plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.get_value() > plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.get_value() >= plain(other)

    def __add__(self, other: Any) -> Any:
        return self.get_value() + plain(other)

    def __radd__(self, other: Any) -> Any:
        return plain(other) + self.get_value()

    def __sub__(self, other: Any) -> Any:
        return self.get_value() - plain(other)

    def __rsub__(self, other: Any) -> Any:
        return plain(other) - self.get_value()

    def __mul__(self, other: Any) -> Any:
        return self.get_value() * plain(other)

    def __rmul__(self, other: Any) -> Any:
        return plain(other) * self.get_value()

    def __matmul__(self, other: Any) -> Any:
        return self.get_value() @ plain(other)

    def __rmatmul__(self, other: Any) -> Any:
        return plain(other) @ self.get_value()

    def __truediv__(self, other: Any) -> Any:
        return self.get_value() / plain(other)

    def __rtruediv__(self, other: Any) -> Any:
        return plain(other) / self.get_value()

    def __floordiv__(self, other: Any) -> Any:
        return self.get_value() // plain(other)

    def __rfloordiv__(self, other: Any) -> Any:
        return plain(other) // self.get_value()

    def __mod__(self, other: Any) -> Any:
        return self.get_value() % plain(other)

    def __rmod__(self, other: Any) -> Any:
        return plain(other) % self.get_value()

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.get_value(), plain(other))

    def __rdivmod__(self, other: Any) -> Any:
        return divmod(plain(other), self.get_value())

    def __pow__(self, other: Any) -> Any:
        return self.get_value() ** plain(other)

    def __rpow__(self, other: Any) -> Any:
        return plain(other) ** self.get_value()

    def __lshift__(self, other: Any) -> Any:
        return self.get_value() << plain(other)

    def __rlshift__(self, other: Any) -> Any:
        return plain(other) << self.get_value()

    def __rshift__(self, other: Any) -> Any:
        return self.get_value() >> plain(other)

    def __rrshift__(self, other: Any) -> Any:
        return plain(other) >> self.get_value()

    def __and__(self, other: Any) -> Any:
        return self.get_value() & plain(other)

    def __rand__(self, other: Any) -> Any:
        return plain(other) & self.get_value()

    def __xor__(self, other: Any) -> Any:
        return self.get_value() ^ plain(other)

    def __rxor__(self, other: Any) -> Any:
        return plain(other) ^ self.get_value()

    def __or__(self, other: Any) -> Any:
        return self.get_value() | plain(other)

    def __ror__(self, other: Any) -> Any:
        return plain(other) | self.get_value()

    def __neg__(self) -> Any:
        return -self.get_value()

    def __pos__(self) -> Any:
        return +self.get_value()

    def __abs__(self) -> Any:
        return abs(self.get_value())

    def __invert__(self) -> Any:
        return ~self.get_value()

    def __complex__(self) -> complex:
        return complex(self.get_value())

    def __int__(self) -> int:
        return int(self.get_value())

    def __float__(self) -> float:
        return float(self.get_value())

    def __index__(self) -> int:
        return operator.index(self.get_value())

    def __round__(self, ndigits: int = 0) -> Any:
        return round(self.get_value(), ndigits)

    def __trunc__(self) -> Any:
        return math.trunc(self.get_value())

    def __floor__(self) -> Any:
        return math.floor(self.get_value())

    def __ceil__(self) -> Any:
        return math.ceil(self.get_value())

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
