"""What a tool reads of a call, as one compiled program.

Models of Python loops over layers take seconds if each operation is dispatched alone. A program that cannot be traced,
because it looks at numbers in Python, runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sonde.core import Hoisted, InsideRequest, JitByStaticPart, StaticPart, hoist, static_and_arrays

_LOOKS_AT_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class CompiledReading:
    """Runs a function that captures a call.

    Args:
        read: A function of `functions`, and then of `f`, its arguments and its keyword arguments. What it returns, such
            as records, is what a call returns.
        f: What is called.
        functions: Other functions of the user, such as a readout: their arrays are inputs of the program.
        inside: As in `sonde.capture`.
    """

    def __init__(
        self,
        read: Callable[..., Any],
        f: Callable[..., Any],
        *functions: Callable[..., Any],
        inside: InsideRequest | None,
    ) -> None:
        self._read, self._functions, self._inside = read, functions, inside
        self._compiled = JitByStaticPart.shared(functools.partial(_run, read), f, *functions)

    def __call__(self, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What is read of a call."""
        static, arrays = static_and_arrays((f, args, kwargs), self._inside)
        hoisted = [hoist(function) for function in self._functions]
        try:
            key = static, tuple([function for function, _ in hoisted])
            return self._compiled(key, arrays, [own for _, own in hoisted])
        except _LOOKS_AT_NUMBERS:
            return self._read(*self._functions, f, args, kwargs)


def _run(
    read: Callable[..., Any],
    key: tuple[StaticPart, tuple[Hoisted, ...]],
    arrays: list[Any],
    of_functions: Sequence[Sequence[Any]],
) -> Any:
    static, hoisted = key
    rebuilt = [function.rebuild(own) for function, own in zip(hoisted, of_functions)]
    return read(*rebuilt, *static.whole(arrays))
