"""`saved_residuals` lists what a differentiated function keeps for its backward pass, or would under a remat policy.

Nothing is run: the function is traced. What is listed is what JAX keeps; the compiler may still compute some of it
twice instead, such as broadcast constants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde._array_text import indexed, short_place
from sonde.core import Rows, check_callable, two_steps, wrapped_like
from sonde.display import in_notebook
from sonde.programs.flat import Equation, Level, flatten
from sonde.why import place_of

_MARKS = ("reduce_precision", "optimization_barrier", "name")  # what `jax.checkpoint` wraps around what it keeps
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True, slots=True)
class Residual:
    """An array that is kept for the backward pass.

    Attributes:
        argument: For an argument, where it is among the arguments.
        operation: The operation that makes it; `"argument"` or `"constant"` if it is there from the start.
        function: The function it is made in.
        variable: The variable that its line assigns to.
        source: Its line, as `file:line`.
        shape: Its shape, with an axis in front for each loop.
        dtype: Its dtype.
        bytes: Its size.
    """

    argument: str
    operation: str
    function: str
    variable: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def is_computed(self) -> bool:
        """Whether it is memory beyond the arguments."""
        return self.operation not in ("argument", "constant")

    def __str__(self) -> str:
        what = " / ".join(filter(None, (self.argument, self.function, self.variable)))
        where = f", {short_place(self.source)}" if self.source else ""
        return f"{bytes_text(self.bytes):>10}  {indexed(self.dtype, self.shape)}  {self.operation}  {what}{where}"

    def _repr_html_(self) -> str:
        from rich.text import Text

        return in_notebook(Text(str(self)))


class Residuals(Rows[Residual]):
    """What is kept, the largest first."""

    @property
    def bytes(self) -> int:
        """The memory of all that is computed and kept; arguments and constants are there anyway."""
        return sum(residual.bytes for residual in self if residual.is_computed)

    def by_function(self) -> dict[str, int]:
        """The bytes that are computed and kept in each function, the most first."""
        found: dict[str, int] = {}
        for residual in self:
            if residual.is_computed:
                found[residual.function] = found.get(residual.function, 0) + residual.bytes
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))

    def __repr__(self) -> str:
        return "\n".join([f"{bytes_text(self.bytes)} are computed and kept", *map(str, self)])

    def _repr_html_(self) -> str:
        from rich.text import Text

        return in_notebook(Text(repr(self)))


def bytes_text(count: int) -> str:
    """A number of bytes for people.

    Example:
        >>> bytes_text(1000), bytes_text(3 * 2**20)
        ('1000 bytes', '3.0 MiB')
    """
    power = min(int(math.log2(max(count, 1)) // 10), len(_UNITS) - 1)
    return f"{count} bytes" if power == 0 else f"{count / 2 ** (10 * power):.1f} {_UNITS[power]}"


@two_steps
def saved_residuals(
    f: Callable[..., Any], *, policy: Callable[..., bool] | None = None, remat: bool = False
) -> Callable[..., Residuals]:
    """A function that lists what differentiating `f` keeps for the backward pass.

    Args:
        f: A function that is differentiated with respect to all its arguments of floating point, such as a loss.
        policy: A policy of `jax.checkpoint_policies`: what `jax.checkpoint(f, policy=policy)` would keep.
        remat: Whether to list what `jax.checkpoint(f)` keeps, which is nothing but the arguments; with a policy, it is.

    Returns:
        A function with the arguments of `f`, which may be `jax.ShapeDtypeStruct`s. Nothing is computed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde.tools import saved_residuals
        >>> def loss(w, x):
        ...     h = jnp.sin(x @ w)
        ...     return jnp.sum(h * h)
        >>> w, x = jnp.ones((4, 8)), jnp.ones((2, 4))
        >>> saved_residuals(loss)(w, x).bytes
        128
        >>> policy = jax.checkpoint_policies.dots_saveable
        >>> [(r.operation, r.variable) for r in saved_residuals(loss, policy=policy)(w, x) if r.is_computed]
        [('dot_general', 'h')]
    """
    check_callable(f, "saved_residuals")
    program = jax.checkpoint(f, policy=policy) if remat or policy is not None else f

    def listed(*args: Any, **kwargs: Any) -> Residuals:
        named, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
        leaves = [leaf for _, leaf in named]
        chosen = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

        def backward(*floats: Any) -> list[Any]:
            def run(*values: Any) -> Any:
                whole = list(leaves)
                for i, value in zip(chosen, values):
                    whole[i] = value
                new_args, new_kwargs = jax.tree.unflatten(structure, whole)
                result = program(*new_args, **new_kwargs)
                return [x for x in jax.tree.leaves(result) if _is_float(x)]

            return jax.tree.leaves(jax.vjp(run, *floats)[1])

        level = flatten(jax.make_jaxpr(backward)(*(leaves[i] for i in chosen)))
        names = [jax.tree_util.keystr(path[1:]) for path, _ in (named[i] for i in chosen)]
        found = [_described(level, slot, names) for slot in dict.fromkeys(level.outputs)]
        return Residuals(sorted(found, key=lambda residual: -residual.bytes))

    return wrapped_like(listed, f)


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _described(level: Level, slot: int, arguments: list[str]) -> Residual:
    aval = level.types[slot]
    itemsize = getattr(aval.dtype, "itemsize", 8)
    number = level.makers.get(slot)
    size = (tuple(aval.shape), str(aval.dtype), math.prod(aval.shape) * itemsize)
    if number is None:
        is_argument = slot < level.n_inputs
        return Residual(
            arguments[slot] if is_argument else "", "argument" if is_argument else "constant", "", "", "", *size
        )
    equation = _innermost(level, level.equations[number], slot)
    place = place_of(equation)
    return Residual("", equation.name, place.function, place.variable, place.source, *size)


def _innermost(level: Level, equation: Equation, slot: int) -> Equation:
    """The equation that computes what is kept: in the body of a loop that stacks it, before JAX's own marks on it."""
    while equation.name == "scan" or equation.name in _MARKS:
        position = equation.outputs.index(slot)
        inner, slot = level, equation.inputs[min(position, len(equation.inputs) - 1)]
        if equation.name == "scan":
            inner = flatten(_jax.sub_jaxprs(equation.params)[0], equation)
            slot = inner.outputs[position]
        number = inner.makers.get(slot)
        if number is None:  # an input of the loop, stacked
            return equation
        level, equation = inner, inner.equations[number]
    return equation
