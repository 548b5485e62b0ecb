"""`nnx.custom_vjp`: a function with a custom backward rule.

With graph updates, the default, the backward rule gets a pair in place of the output's cotangent: the cotangents of
the arguments' Variables after the call, and the cotangent of the output. In both, and in what the rule returns, States
take the place of nodes.

Without graph updates the rule is `jax.custom_vjp`'s: the cotangent of a Module is a Module of the same class with
cotangents in its Variables. The cotangents of Variables that the function changes reach a backward rule with an
`updates_g` keyword, as a tuple in the form of the arguments with None where nothing changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.nnx.states.filters import Predicate, to_predicate
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.build import build
from sonde.nnx.structure.definitions import NamedValues
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import is_object
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.derivatives import as_state
from sonde.nnx.transforms.jit.arguments import holds_objects
from sonde.nnx.transforms.leaf_values import each_leaf
from sonde.nnx.transforms.lifting import Fixed, Taken, raw, take
from sonde.nnx.transforms.options import (
    MISSING,
    Mode,
    also_decorator,
    as_indices,
    named_like,
    positional,
)
from sonde.nnx.transforms.outcome import Outcome, PureResult
from sonde.nnx.transforms.prefixes import DiffState, prepare


@also_decorator
def custom_vjp(
    fun: Callable[..., Any] = MISSING,
    *,
    nondiff_argnums: Sequence[int] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.custom_vjp` for functions of Modules and Variables.

    Args:
        fun: The function; leave it out to use `custom_vjp` as a decorator with options.
        nondiff_argnums: Positions of arguments without a cotangent, which the backward rule gets first. With graph
            updates, `DiffState(position, filter)` gives a cotangent to only some Variables of an argument.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Returns:
        A function with a method `defvjp(fwd, bwd)`: `fwd` takes the same arguments and returns the output and
        residuals; `bwd` takes the arguments of `nondiff_argnums`, the residuals and the cotangent of the output, and
        returns a tuple of cotangents, one for each other argument.

    Raises:
        ValueError: A `DiffState` is given without graph updates.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> @nnx.custom_vjp
        ... def scaled(model, x):
        ...     return model.w * x
        >>> def bwd(residuals, g):
        ...     model, x = residuals
        ...     (model_g, _), out_g = g
        ...     model_g["w"][...] = 10 * out_g * x
        ...     return model_g, out_g * model.w
        >>> scaled.defvjp(lambda model, x: (scaled(model, x), (model, x)), bwd)
        >>> float(nnx.grad(scaled)(nnx.Dict(w=nnx.Param(jnp.array(3.0))), 2.0)["w"])
        20.0
    """
    run_mode = prepare("custom_vjp", fun, graph, graph_updates, nondiff_argnums=nondiff_argnums)
    return CustomVjp(fun, tuple(nondiff_argnums), run_mode)


class CustomVjp:
    """A function with a backward rule; see `nnx.custom_vjp`."""

    def __init__(self, fun: Callable[..., Any], nondiff: tuple[int | DiffState, ...], run_mode: Mode):
        self._fun = fun
        self._nondiff = tuple(x for x in nondiff if not isinstance(x, DiffState))
        self._partly = {x.argnum: to_predicate(x.filter) for x in nondiff if isinstance(x, DiffState)}
        self._mode = run_mode
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        named_like(fun)(self)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False) -> None:
        """Sets the forward and the backward rule.

        Args:
            fwd: Returns the output and residuals.
            bwd: Returns cotangents of the arguments.
            symbolic_zeros: Must be False.
        """
        if symbolic_zeros:
            raise ValueError("nnx.custom_vjp: symbolic_zeros=True is not supported; leave it out.")
        self._rules = (fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; under reverse-mode differentiation, the rules."""
        if self._rules is None:
            raise AttributeError(
                f"No VJP defined for custom_vjp function {getattr(self._fun, '__name__', self._fun)} using defvjp."
            )
        args = positional(self._fun, args, kwargs)
        nondiff = as_indices(self._nondiff, len(args))
        arguments = [_fixed_or_not(x, i in nondiff) for i, x in enumerate(args)]
        if not self._mode.updates:
            take("custom_vjp", Mode(False, False), arguments)  # cotangents have the form of the arguments: trees only
        taken = take("custom_vjp", self._mode, arguments)
        return taken.settle(_Bound(self._fun, self._rules, taken, nondiff, self._partly).run())


def _fixed_or_not(x: object, nondiff: bool) -> Any:
    """Hides an argument from JAX that has no cotangent and no arrays, such as a function."""
    if nondiff and not holds_objects(x) and not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x)):
        return Fixed(x)
    return x


class _Bound:
    """A call of a function with a backward rule."""

    def __init__(
        self,
        fun: Callable[..., Any],
        rules: tuple[Callable[..., Any], Callable[..., Any]],
        taken: Taken,
        nondiff: tuple[int, ...],
        partly: Mapping[int, Predicate],
    ):
        self._fun, (self._fwd, self._bwd) = fun, rules
        self._taken = taken
        self._nondiff = nondiff
        self._updates = taken.mode.updates
        structure = taken.structure
        names = {structure.names[i] for i in nondiff}
        filtered = {structure.names[i]: predicate for i, predicate in partly.items()}
        without_cotangent = {i for i, path in enumerate(structure.paths) if path[0] in names}
        for path, below, _, i in each_leaf(structure.definition):
            if path[0] in filtered and below and not filtered[path[0]](below, taken.leaves[i]):
                without_cotangent.add(i)
        self._kept = sorted(without_cotangent)
        self._diff = [i for i in range(len(taken.values)) if i not in without_cotangent]
        # with graph updates, all Variables are outputs, so that the rule gets their cotangents
        self._always = [i for i, kind in enumerate(structure.kinds) if kind is not None] if self._updates else []

    def run(self) -> PureResult:
        values = self._taken.values
        # A new function for each call: the rules close over the structure of these arguments.
        call = jax.custom_vjp(self._pure)
        call.defvjp(self._forward, self._backward)
        return call([values[i] for i in self._diff], [values[i] for i in self._kept])

    def _enter(self, diff: Sequence[Any], kept_values: Sequence[Any]) -> Any:
        values = dict(zip([*self._diff, *self._kept], [*diff, *kept_values]))
        return self._taken.enter([values[i] for i in range(len(values))])

    def _pure(self, diff: list[Any], kept_values: list[Any]) -> PureResult:
        entered = self._enter(diff, kept_values)
        return entered.leave(self._fun(*entered.args), always=self._always)

    def _forward(self, diff: list[Any], kept_values: list[Any]) -> Any:
        entered = self._enter(diff, kept_values)
        out = self._fwd(*entered.args)
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise TypeError("nnx.custom_vjp: the forward rule must return a pair of output and residuals.")
        walked = walk(NamedValues(("residuals",), (out[1],)), graph=True, verb="custom_vjp", numbers=True)
        residuals = ([raw(x) for x in walked.leaves], GraphDef(walked.definition))
        result = entered.leave(out[0], always=self._always)
        return result, (residuals, diff, kept_values, result[1])

    def _backward(self, saved: tuple[Any, ...], cotangent: PureResult) -> tuple[list[Any], list[Any]]:
        ((leaves, form), diff, kept_values, outcome) = saved
        # The rule works on objects, so the cotangents, arguments and residuals are rebuilt in its trace.
        built, news = outcome.split(cotangent[0])
        entered = self._enter(diff, kept_values)
        objects_by_index = dict(entered.known)
        out = build(outcome.definition.definition, built[outcome.n_edited :], known=objects_by_index).values[0]
        residuals = build(form.definition, leaves).values[0]
        nondiff_args = [entered.args[i] for i in self._nondiff]
        options: dict[str, Any] = {}
        g = out
        if self._updates:
            g = self._as_states(outcome, news, out, entered.known.values())
        elif "updates_g" in inspect.signature(self._bwd).parameters:
            options["updates_g"] = self._changes(outcome, news)
        grads = self._bwd(*nondiff_args, residuals, g, **options)
        return self._cotangents(grads, diff), [None] * len(self._kept)

    def _as_states(self, outcome: Outcome, news: Sequence[Any], out: object, came_in: Iterable[Any]) -> tuple[Any, Any]:
        """The cotangents of the arguments' Variables and of the output, with States in place of nodes."""
        inputs = self._changes(outcome, news)
        state_leaves: set[int] = set()
        inputs = tuple(
            jax.tree.map(lambda x: as_state(x, state_leaves) if is_object(x) else None, x, is_leaf=is_object)
            for i, x in enumerate(inputs)
            if i not in self._nondiff
        )
        state_leaves |= {id(x) for x in came_in}
        return inputs, jax.tree.map(lambda x: as_state(x, state_leaves) if is_object(x) else x, out, is_leaf=is_object)

    def _changes(self, outcome: Outcome, news: Sequence[Any]) -> tuple[Any, ...]:
        """The cotangents of changed Variables in the form of the arguments, with None elsewhere."""
        kinds: Any = self._taken.structure.kinds
        new_values = dict(zip(outcome.changed, news))
        leaves = [kinds[i][0]._make(new_values[i], kinds[i][1]) if i in new_values else None for i in range(len(kinds))]
        # None stays None: a Variable around it would look like a cotangent.
        return self._taken.rebuild(leaves, recreate=False)

    def _cotangents(self, grads: object, diff: Sequence[Any]) -> list[Any]:
        """The cotangents that the backward rule returned, one for each differentiable leaf."""
        n_args = self._taken.structure.n_args
        differentiable = [i for i in range(n_args) if i not in self._nondiff]
        if not isinstance(grads, (tuple, list)) or len(grads) != len(differentiable):
            returned = f"{len(grads)} values" if isinstance(grads, (tuple, list)) else f"a {type(grads).__name__}"
            raise TypeError(
                f"nnx.custom_vjp: the backward rule must return a tuple of {len(differentiable)} cotangents, one for "
                f"each differentiable argument, got {returned}."
            )
        names, paths = self._taken.structure.names, self._taken.structure.paths
        out: dict[int, Any] = {}
        for argument, grad in zip(differentiable, grads):
            leaves = {paths[i][1:]: i for i in self._diff if paths[i][0] == names[argument]}
            if grad is None:
                continue
            walked = walk(
                NamedValues(("grad",), (grad,)), graph=self._taken.mode.graph, verb="custom_vjp", numbers=True
            )
            grad_leaves = {path[1:]: raw(leaf) for path, leaf in walked.flat()}
            surplus = [path for path in grad_leaves if path not in leaves]
            missing = [path for path in leaves if path not in grad_leaves]
            # With graph updates a State may leave Variables out; they have zeros as their cotangents.
            if surplus or (missing and not self._updates):
                raise TypeError(
                    f"nnx.custom_vjp: the backward rule returned a cotangent with {len(grad_leaves)} leaves for "
                    f"{names[argument]}, which has {len(leaves)}"
                    + "".join(f"; {show_path(path)} is not in it" for path in surplus[:1])
                    + ". The cotangent has the form of the argument; with graph updates, with a State in place of a "
                    "Module."
                )
            out.update({leaves[path]: value for path, value in grad_leaves.items()})
        return [_zeros(x) if out.get(i) is None else out[i] for i, x in zip(self._diff, diff)]


def _zeros(x: object) -> Any:
    return jax.tree.map(lambda y: jnp.zeros_like(y) if jnp.issubdtype(y.dtype, jnp.inexact) else None, x)
