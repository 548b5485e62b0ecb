"""`nnx.custom_vjp`: a function with a backward rule of its own.

The rule is `jax.custom_vjp`'s: the cotangent of a Module is a Module of the same class with cotangents in its
Variables. Variables that the function changes come out; their cotangents reach a backward rule that has an `updates_g`
keyword, as a tuple in the form of the arguments with None where nothing changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.nnx._walk import build, walk
from sonde.nnx.transforms._lifting import Call, Fixed, Left, Outcome, Taken, raw, take
from sonde.nnx.transforms._options import MISSING, as_indices, mode, named_like, positional, refuse_bound_method
from sonde.nnx.transforms._plans import holds_objects
from sonde.nnx.transforms._prefixes import DiffState


def custom_vjp(
    fun: Callable[..., Any] = MISSING,
    *,
    nondiff_argnums: Sequence[int] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.custom_vjp` for functions of Modules and Variables.

    Args:
        fun: the function; leave it out to use `custom_vjp` as a decorator with options.
        nondiff_argnums: positions of arguments without a cotangent. The backward rule gets them first.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: None or False.

    Returns:
        A function with a method `defvjp(fwd, bwd)`: `fwd` takes the same arguments and returns the output and
        residuals; `bwd` takes the arguments of `nondiff_argnums`, the residuals and the cotangent of the output, and
        returns a tuple of cotangents, one for each other argument.

    Raises:
        ValueError: a `DiffState` is given: cotangents have the form of the arguments, so leave a zero in what is not
            differentiated.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> @nnx.custom_vjp
        ... def scaled(model, x):
        ...     return model.w * x
        >>> def bwd(residuals, g):
        ...     model, x = residuals
        ...     return nnx.Dict(w=nnx.Param(10 * g * x)), g * model.w
        >>> scaled.defvjp(lambda model, x: (scaled(model, x), (nnx.clone(model), x)), bwd)
        >>> float(nnx.grad(scaled)(nnx.Dict(w=nnx.Param(jnp.array(3.0))), 2.0).w)
        20.0
    """
    graph = mode("custom_vjp", graph, graph_updates)
    if any(isinstance(x, DiffState) for x in nondiff_argnums):
        raise ValueError(
            f"nnx.custom_vjp: nondiff_argnums={nondiff_argnums} has a DiffState, which needs graph_updates=True. The "
            f"cotangent of a Module is a Module: give it zeros in the Variables that are not differentiated."
        )
    if fun is MISSING:
        return functools.partial(custom_vjp, nondiff_argnums=nondiff_argnums, graph=graph)
    refuse_bound_method("custom_vjp", fun)
    return CustomVjp(fun, tuple(nondiff_argnums), graph)


class CustomVjp:
    """A function with a backward rule; see `nnx.custom_vjp`."""

    def __init__(self, fun: Callable[..., Any], nondiff: tuple[int, ...], graph: bool):
        self._fun = fun
        self._nondiff = nondiff
        self._graph = graph
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._symbolic_zeros = False
        named_like(fun)(self)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False) -> None:
        """Sets the forward and the backward rule.

        Args:
            fwd: returns the output and residuals.
            bwd: returns cotangents of the arguments.
            symbolic_zeros: must be False.
        """
        if symbolic_zeros:
            raise ValueError("nnx.custom_vjp: symbolic_zeros=True is not for functions of Modules; leave it out.")
        self._rules = (fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; under reverse mode, the rules."""
        if self._rules is None:
            raise AttributeError(
                f"No VJP defined for custom_vjp function {getattr(self._fun, '__name__', self._fun)} using defvjp."
            )
        args = positional(self._fun, args, kwargs)
        nondiff = as_indices(self._nondiff, len(args))
        taken = take("custom_vjp", self._graph, [_fixed_or_not(x, i in nondiff) for i, x in enumerate(args)])
        return taken.settle(_Bound(self._fun, self._rules, taken, nondiff).run())


def _fixed_or_not(x: Any, nondiff: bool) -> Any:
    """An argument without cotangent that has no arrays in it, such as a function, is not for JAX to see."""
    if nondiff and not holds_objects(x) and not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x)):
        return Fixed(x)
    return x


class _Bound:
    """A call of a function with a backward rule."""

    def __init__(self, fun: Any, rules: Any, taken: Taken, nondiff: tuple[int, ...]):
        self._fun, (self._fwd, self._bwd) = fun, rules
        self._taken = taken
        self._nondiff = nondiff
        names = {taken.structure.names[i] for i in nondiff}
        self._kept = [i for i, path in enumerate(taken.structure.paths) if path[0] in names]
        self._diff = [i for i in range(len(taken.values)) if i not in set(self._kept)]

    def run(self) -> Left:
        values = self._taken.values
        call = jax.custom_vjp(self._pure)
        call.defvjp(self._forward, self._backward)
        return call([values[i] for i in self._diff], [values[i] for i in self._kept])

    def _enter(self, diff: Sequence[Any], kept: Sequence[Any]) -> Any:
        values = dict(zip([*self._diff, *self._kept], [*diff, *kept]))
        return self._taken.enter([values[i] for i in range(len(values))])

    def _pure(self, diff: list[Any], kept: list[Any]) -> Left:
        entered = self._enter(diff, kept)
        return entered.leave(self._fun(*entered.args))

    def _forward(self, diff: list[Any], kept: list[Any]) -> Any:
        entered = self._enter(diff, kept)
        out = self._fwd(*entered.args)
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise TypeError("nnx.custom_vjp: the forward rule must return a pair of output and residuals.")
        found = walk(Call(("residuals",), (out[1],)), graph=True, who="custom_vjp", numbers=True)
        residuals = ([raw(x) for x in found.leaves], _Kept(found.definition))
        left = entered.leave(out[0])
        return left, (residuals, diff, kept, left[1])

    def _backward(self, saved: Any, cotangent: Left) -> tuple[list[Any], list[Any]]:
        ((leaves, form), diff, kept, outcome) = saved
        (arrays,), _ = cotangent
        n = len(outcome.places)
        g = build(outcome.definition.definition, arrays[:n]).values[0]
        residuals = build(form.definition, leaves).values[0]
        given = [self._enter(diff, kept).args[i] for i in self._nondiff]
        options = {}
        if "updates_g" in inspect.signature(self._bwd).parameters:
            options["updates_g"] = self._updates(outcome, arrays[n:])
        grads = self._bwd(*given, residuals, g, **options)
        return self._cotangents(grads, diff), [None] * len(self._kept)

    def _updates(self, outcome: Outcome, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The cotangents of changed Variables in the form of the arguments, with None elsewhere."""
        kinds: Any = self._taken.structure.kinds
        new = dict(zip(outcome.changed, arrays))
        leaves = [kinds[i][0]._make(new[i], kinds[i][1]) if i in new else None for i in range(len(kinds))]
        return self._taken.rebuild(leaves, recreate=False)

    def _cotangents(self, grads: Any, diff: Sequence[Any]) -> list[Any]:
        """The cotangents that the backward rule returned, one for each differentiable leaf."""
        n_args = self._taken.structure.n_args
        places = [i for i in range(n_args) if i not in self._nondiff]
        if not isinstance(grads, (tuple, list)) or len(grads) != len(places):
            got = f"{len(grads)} values" if isinstance(grads, (tuple, list)) else f"a {type(grads).__name__}"
            raise TypeError(
                f"nnx.custom_vjp: the backward rule must return a tuple of {len(places)} cotangents, one for each "
                f"differentiable argument, got {got}."
            )
        names, paths = self._taken.structure.names, self._taken.structure.paths
        out = dict.fromkeys(self._diff)
        for place, grad in zip(places, grads):
            leaves = [i for i in self._diff if paths[i][0] == names[place]]
            if grad is None:
                continue
            found = walk(Call(("grad",), (grad,)), graph=self._taken.graph, who="custom_vjp", numbers=True)
            if len(found.leaves) != len(leaves):
                raise ValueError(
                    f"nnx.custom_vjp: the backward rule returned a cotangent with {len(found.leaves)} leaves for "
                    f"{names[place]}, which has {len(leaves)}. The cotangent of a Module is a Module of the same form."
                )
            for i, leaf in zip(leaves, found.leaves):
                out[i] = raw(leaf)
        return [_zeros(x) if out[i] is None else out[i] for i, x in zip(self._diff, diff)]


def _zeros(x: Any) -> Any:
    return jax.tree.map(lambda y: jnp.zeros_like(y) if jnp.issubdtype(y.dtype, jnp.inexact) else None, x)


@jax.tree_util.register_static
class _Kept:
    """The form of residuals."""

    __slots__ = ("definition",)

    def __init__(self, definition: Any):
        self.definition = definition

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.definition == other.definition

    def __hash__(self) -> int:
        return hash(_Kept)
