"""A program of low precision, computed in single precision: what two programs do is then seen through their rounding.

Two programs in bfloat16 that are the same up to rounding are the same up to much less if both compute in float32. What
they were given in low precision is not known any better for that, and this is where it is sharp: a weight is taken from
the other program, if that has one which rounds to it; so is a number in the code. A number that both have in low
precision stays as it is. Any other number is taken for the shortest decimal that rounds to it, and what is longer than
two digits may as well be another number: each `draw` moves those by a part of what rounding may have done to them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.port.layouts import arranged
from sonde.port.parameters import match_parameters
from sonde.port.rounding import Interpreter, run_in_its_scopes
from sonde.programs.traced import Program, from_flat

WIDE = np.dtype(np.float32)
# How far a draw moves a number, relative to half a unit in the last place: what is compared is allowed four times that.
_MOVED = 0.5
_SURE_DIGITS = 2
# Numbers in formulas that people write: of gelu, selu, and of changing the base of a power.
_CONSTANTS = frozenset(
    [math.pi, 2 * math.pi, math.e, math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), math.sqrt(2 * math.pi)]
    + [math.log(2), math.log(10), 1 / math.log(2), 1 / math.log(10), math.log(2 * math.pi), 1 / math.sqrt(math.pi)]
    + [0.044715, 1.702, 1.0507009873554805, 1.6732632423543772, 1.0507009873554805 * 1.6732632423543772]
)
# They look at the bits of a number, or run code that is made for its dtype.
_OPAQUE = frozenset({"bitcast_convert_type", "ffi_call", "pallas_call", "pure_callback", "io_callback"})
_INLINED = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "remat", "checkpoint", "remat2"})


def is_narrow(dtype: Any) -> bool:
    """Whether a dtype is of floating-point numbers of 16 bits."""
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize == 2


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What another program says of the numbers that a program of low precision was given.

    Attributes:
        scalars: The numbers in its code, and one divided by them; those of low precision are not known themselves.
        arrays: The arrays that go into it.
        rounded: The numbers of low precision in its code.
    """

    scalars: frozenset[float] = frozenset()
    arrays: tuple[np.ndarray, ...] = ()
    rounded: frozenset[float] = frozenset()

    @classmethod
    def of(cls, program: Program) -> Known:
        """What a program says."""
        arrays = [np.asarray(x) for x in program.values if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
        numbers: tuple[set[float], set[float]] = (set(), set())  # those of low precision last
        for x in (*_scalars(program.jaxpr), *[x for x in arrays if x.size == 1]):
            numbers[is_narrow(x.dtype)].add(float(x.ravel()[0]))
        # One program divides by what the other multiplies with.
        scalars = numbers[0] | {1 / x for x in numbers[0] if x}
        weights = tuple(x for x in arrays if x.size > 1)
        return cls(frozenset(filter(math.isfinite, scalars)), weights, frozenset(numbers[1]))

    def beside(self, own: Known) -> Known:
        """The same, where `rounded` has only what the program beside it, `own`, has in low precision alone, too."""
        rounded = [x for x in self.rounded & own.rounded if not (self._says(x) or own._says(x))]
        return dataclasses.replace(self, rounded=frozenset(rounded))

    def _says(self, rounded: float) -> bool:
        """Whether a number in the code may be one of low precision before it was rounded."""
        dtypes = (jnp.bfloat16, jnp.float16)
        return any(_rounded(x, dtype) == rounded for x in self.scalars for dtype in dtypes)


def widened(program: Program, known: Known, draw: int | None = None) -> Program:
    """The same program in single precision.

    Args:
        program: The program. It is traced again in the current capture, and then has its sites.
        known: What the other program says.
        draw: Which other values to take for the numbers that are not known exactly; None: the likely ones.
    """
    known = known.beside(Known.of(program))
    widening = _Widening(known, draw)
    # Arguments that nothing is known of are what they are.
    likely, drawn = (wide_arrays(program.values, known, which) for which in (None, draw))
    names = [*program.input_names, *[""] * len(program.constants)]
    values = [a if name else b for name, a, b in zip(names, likely, drawn)]
    return from_flat(lambda *xs: widening.run(program.jaxpr, *xs), values, names, program.output_names)


def wide_arrays(arrays: Sequence[Any], known: Known, draw: int | None) -> list[Any]:
    """Arrays in single precision, with the numbers of the other program where these round to the arrays' own.

    In a `draw`, numbers that are not known are moved by a part of what rounding may have done to them.
    """
    values = list(arrays)
    narrow = {i: np.asarray(x) for i, x in enumerate(arrays) if is_narrow(jnp.result_type(x))}
    exact = _exactly(list(narrow.values()), known.arrays)
    for number, (i, x) in enumerate(narrow.items()):
        if number in exact:
            values[i] = exact[number]
        else:
            values[i] = _likely(x, known, draw) if x.size == 1 else _moved(x, draw)
        values[i] = jnp.asarray(values[i])
    return values


class _Widening(Interpreter):
    """Runs programs in single precision."""

    def __init__(self, known: Known, draw: int | None) -> None:
        super().__init__({}, 0)
        self.known, self.draw = known, draw

    def program_of_call(self, eqn: Any) -> Any | None:
        if eqn.primitive.name in _INLINED:  # its derivatives are not asked for any more
            return _jax.sub_jaxprs(eqn.params)[0]
        return super().program_of_call(eqn)

    def constant(self, value: Any) -> Any:
        if not is_narrow(getattr(value, "dtype", None)):
            return value
        return _likely(value, self.known, self.draw) if np.size(value) == 1 else value.astype(WIDE)

    def aval(self, aval: Any) -> Any:
        return aval.update(dtype=WIDE) if is_narrow(getattr(aval, "dtype", None)) else aval

    def equation(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        name = eqn.primitive.name
        if name == "reduce_precision":
            return list(values)
        if name in _OPAQUE:
            dtypes = [getattr(v.aval, "dtype", None) for v in eqn.invars]
            narrow = [x.astype(dtype) if is_narrow(dtype) else x for x, dtype in zip(values, dtypes)]
            outs = run_in_its_scopes(eqn, eqn.params, narrow)
            return [x.astype(WIDE) if is_narrow(x.dtype) else x for x in outs]
        params = _jax.with_jaxprs(eqn.params, self.inside)
        params = {k: WIDE if isinstance(v, np.dtype | type) and is_narrow(v) else v for k, v in params.items()}
        return run_in_its_scopes(eqn, params, values)


def _exactly(arrays: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """By number, the arrays whose elements are those of other arrays but for rounding, as they were before it."""
    values: dict[int, np.ndarray] = {}
    for dtype in {x.dtype for x in arrays}:
        with np.errstate(over="ignore"):
            rounded = [x.astype(dtype) for x in others]
        for m in match_parameters(arrays, rounded):
            own, other = arrays[m.first], others[m.second].astype(WIDE)
            if not m.of_first:
                values[m.first] = m.of(other, is_first=False)
                continue
            whole = values.setdefault(m.first, np.full(own.shape, np.nan, WIDE))
            assert m.part is not None
            m.part.put(whole, m.layout.inverse(m.part.of(own).shape).of(other))
        values |= _mostly(
            arrays, {i for i, x in enumerate(arrays) if x.dtype == dtype} - values.keys(), others, rounded
        )
    return {i: x for i, x in values.items() if not np.any(np.isnan(x) & ~np.isnan(arrays[i].astype(WIDE)))}


def _mostly(
    arrays: Sequence[np.ndarray], left: set[int], others: Sequence[np.ndarray], rounded: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """The same for arrays with most elements of another one: these are known, so the others are wrong."""
    values = {}
    for i in left:
        own = arrays[i]
        for other, low in zip(others, rounded):
            same = arranged(low, own, lambda x, own=own: float(np.mean(x == own)) > 0.5)
            if same is not None and own.size > 1:
                values[i] = np.where(same[0] == own, same[1].of(other), own).astype(WIDE)
                break
    return values


def _likely(value: Any, known: Known, draw: int | None) -> Any:
    """A number in single precision: what it was before it was rounded, or what it may have been."""
    array = np.asarray(value)
    number = float(array.ravel()[0])
    for candidates in (known.scalars, _CONSTANTS):
        rounding_to_it = [x for x in candidates if _rounded(x, array.dtype) == number]
        if len(rounding_to_it) == 1:
            return np.full(array.shape, rounding_to_it[0], WIDE)
    if number in known.rounded:
        return array.astype(WIDE)
    return _moved(np.full(array.shape, _shortest(number, array.dtype), WIDE), draw, array.dtype)


def _shortest(number: float, dtype: Any) -> float:
    """The shortest decimal that rounds to a number of a dtype."""
    candidates = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    return next((x for x in candidates if _rounded(x, dtype) == number), number)


def _rounded(number: float, dtype: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(number).astype(dtype))


def _moved(array: np.ndarray, draw: int | None, dtype: Any = None) -> np.ndarray:
    """An array in single precision; in a draw, numbers that may have been others moved by a part of their rounding."""
    dtype = dtype or array.dtype
    wide = array.astype(WIDE)
    if draw is None:
        return wide
    numbers, where = np.unique(wide, return_inverse=True)
    sure = [float(x) == float(f"{x:.{_SURE_DIGITS - 1}e}") or abs(math.frexp(x)[0]) == 0.5 for x in numbers]
    signs = np.random.default_rng([draw, array.size, len(numbers)]).choice([-1, 1], wide.shape)
    step = _MOVED * float(jnp.finfo(dtype).eps) / 2 * signs
    return (wide * (1 + np.where(np.asarray(sure)[where].reshape(wide.shape), 0, step))).astype(WIDE)


def _scalars(jaxpr: Any) -> Iterator[np.ndarray]:
    """The floating-point numbers in the code of a program."""
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        values = [v.val for v in eqn.invars if isinstance(v, _jax.Literal)]
        yield from (
            np.asarray(x, jnp.result_type(x)) for x in values if jnp.issubdtype(jnp.result_type(x), jnp.floating)
        )
        for inner in _jax.sub_jaxprs(eqn.params):
            yield from _scalars(inner)
