"""`nnx.grad`, `nnx.value_and_grad`, `nnx.vjp` and `nnx.jvp`.

With graph updates, the default, the gradient with respect to a Module is a State with the gradients of its
`nnx.Param`s, or of what a `DiffState` among `argnums` or `wrt=` selects; the other Variables (random keys, batch
statistics) may be of any type. A shared Variable is in the State once, with the sum over all
uses. Without graph updates the gradient has the form of the argument, and everything in it is differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter, Predicate, to_predicate
from sonde.nnx.states.state import State
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import NamedValues, Path, children_of, count_leaves
from sonde.nnx.structure.value_kinds import is_object
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.leaf_values import each_leaf
from sonde.nnx.transforms.lifting import Taken, raw, take
from sonde.nnx.transforms.options import (
    MISSING,
    Mode,
    also_decorator,
    mode,
    named_after,
    named_like,
    refuse_bound_method,
)
from sonde.nnx.transforms.outcome import PureResult
from sonde.nnx.transforms.prefixes import DiffState, prepare
from sonde.nnx.variable.array_references import load
from sonde.nnx.variable.kinds import Param
from sonde.nnx.variable.variable import Variable


@also_decorator
def grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    wrt: Filter = MISSING,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.grad` for functions of Modules and Variables; changes of Variables reach the caller.

    Args:
        f: The function; it returns a scalar, or with `has_aux` a pair of a scalar and anything else. Leave it out to
            use `grad` as a decorator with options.
        argnums: The arguments to differentiate with respect to: positions, or `DiffState(position, filter)`.
        has_aux: Whether the function returns something besides the scalar.
        holomorphic: See `jax.grad`.
        allow_int: See `jax.grad`.
        reduce_axes: Must be empty; accepted because Flax has it, but JAX no longer does.
        wrt: A filter: which Variables of those arguments to differentiate; with graph updates the default is
            `nnx.Param`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Returns:
        A function with the same arguments that returns the gradient, or a pair of gradient and auxiliary output. With
        a sequence of `argnums`, the gradient is a tuple. The gradient with respect to a Module is a State; without
        graph updates and without a filter it is a Module.

    Raises:
        TypeError: A value to differentiate has no gradient, such as a random key; use `wrt`.
        ValueError: `graph` is False and a Variable occurs twice; or an argument is named twice; or a shared Variable is
            differentiated at one of its paths and not at another; or there is a `DiffState` without graph updates.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)), calls=nnx.Variable(jnp.array(0)))
        >>> def loss(model, x):
        ...     model.calls[...] += 1
        ...     return (model.w * x) ** 2
        >>> nnx.grad(loss)(model, 2.0)["w"][...]
        Array(24., dtype=float32, weak_type=True)
        >>> int(model.calls)
        1
    """
    return _differentiated("grad", f, argnums, has_aux, holomorphic, allow_int, reduce_axes, wrt, graph, graph_updates)


@also_decorator
def value_and_grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    wrt: Filter = MISSING,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """As `nnx.grad`, but returns the value too: `(value, gradient)`, or `((value, aux), gradient)`."""
    return _differentiated(
        "value_and_grad", f, argnums, has_aux, holomorphic, allow_int, reduce_axes, wrt, graph, graph_updates
    )


def _differentiated(
    verb: str,
    f: Callable[..., Any],
    argnums: int | DiffState | Sequence[int | DiffState],
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
    reduce_axes: Sequence[Hashable],
    wrt: Filter,
    graph: bool | None,
    graph_updates: bool | None,
) -> Any:
    run_mode = prepare(verb, f, graph, graph_updates, argnums=argnums)
    _refuse_reduce_axes(verb, reduce_axes)
    several = not isinstance(argnums, (int, DiffState))
    requests = [_Target.of(x, wrt, run_mode) for x in (argnums if several else (argnums,))]

    @named_like(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        taken = take(verb, run_mode, args, kwargs)
        targets = [request.counted(verb, len(args)) for request in requests]
        if len({request.argnum for request in targets}) < len(targets):
            raise ValueError(f"nnx.{verb}: an argument is repeated in argnums={argnums}.")
        chosen = _chosen(taken, targets)
        if not (allow_int or holomorphic):
            _check_inexact(taken, chosen)
        constant_leaves = [i for i in range(len(taken.values)) if i not in chosen]

        def pure(diff: list[Any], constants: list[Any]) -> Any:
            values = dict(zip(constant_leaves, constants)) | dict(zip(chosen, diff))
            entered = taken.enter([values[i] for i in range(len(values))])
            out = f(*entered.args, **entered.kwargs)
            if not has_aux:
                return out, entered.leave(None)
            loss, aux = _pair(verb, out)
            return loss, entered.leave(aux, name="out[1]")

        named_after(f, pure)
        run = jax.value_and_grad(pure, has_aux=True, holomorphic=holomorphic, allow_int=allow_int)
        # The array in a reference can be differentiated, the reference cannot.
        diff = [load(taken.values[i]) for i in chosen]
        (value, outcome), grads = run(diff, [taken.values[i] for i in constant_leaves])
        gradients = _gradients(taken, targets, dict(zip(chosen, grads)))
        aux = taken.settle(outcome)
        result: Any = tuple(gradients) if several else gradients[0]
        if verb == "grad":
            return (result, aux) if has_aux else result
        return ((value, aux) if has_aux else value), result

    return differentiated


def _refuse_reduce_axes(verb: str, reduce_axes: Sequence[Hashable]) -> None:
    if reduce_axes:
        raise ValueError(f"nnx.{verb}(reduce_axes={reduce_axes!r}): JAX no longer has this option; leave it out.")


class _Target(NamedTuple):
    """An argument to differentiate with respect to, and which of its Variables; `predicate` is None for everything."""

    argnum: int
    predicate: Predicate | None

    @classmethod
    def of(cls, argnum: int | DiffState, wrt: Filter, run_mode: Mode) -> _Target:
        """From an element of `argnums`."""
        if isinstance(argnum, DiffState):
            return cls(argnum.argnum, to_predicate(argnum.filter))
        if wrt is MISSING:
            return cls(argnum, to_predicate(Param) if run_mode.updates else None)
        return cls(argnum, to_predicate(wrt))

    def selects(self, below: Path, leaf: Any) -> bool:
        """Whether to differentiate with respect to a leaf; leaves outside nodes always are."""
        return self.predicate is None or not below or self.predicate(below, leaf)

    def counted(self, verb: str, n_args: int) -> _Target:
        """The same, with the position counted from the front."""
        argnum = self.argnum + n_args if self.argnum < 0 else self.argnum
        if not 0 <= argnum < n_args:
            raise ValueError(
                f"nnx.{verb} was asked to differentiate with respect to argument {self.argnum}, but was called with "
                f"{n_args} positional arguments. Keyword arguments cannot be differentiated."
            )
        return _Target(argnum, self.predicate)


def _chosen(taken: Taken, targets: list[_Target]) -> list[int]:
    """The leaves to differentiate with respect to.

    Raises:
        ValueError: A shared leaf is chosen at one of its paths and not at another.
    """
    by_name = {taken.structure.names[target.argnum]: target for target in targets}
    chosen: dict[int, tuple[bool | None, Path]] = {}
    for path, below, _, i in each_leaf(taken.structure.definition):
        target = by_name.get(path[0])
        is_selected = None if target is None else target.selects(below, taken.leaves[i])
        # A shared leaf has several paths, and the request must be the same at each.
        before, first = chosen.setdefault(i, (is_selected, path))
        if before is not is_selected:
            instruction = {True: "differentiated", False: "filtered out", None: "not among argnums"}
            raise ValueError(
                f"Inconsistent aliasing detected: nnx.{taken.verb} was given a {type(taken.leaves[i]).__name__} twice, "
                f"with conflicting instructions:\n\n  - {show_path(first)}: {instruction[before]}\n"
                f"  - {show_path(path)}: {instruction[is_selected]}\n\nA shared Variable has one gradient: put both "
                f"arguments in argnums, with one filter, or pass a copy, nnx.clone(...)."
            )
    return [i for i, (target, _) in sorted(chosen.items()) if target]


def _check_inexact(taken: Taken, chosen: list[int]) -> None:
    for i in chosen:
        for x in jax.tree.leaves(taken.values[i]):
            dtype = getattr(x, "dtype", None)
            if dtype is None:
                dtype = jnp.result_type(x) if isinstance(x, (bool, int, float, complex)) else None
            if dtype is not None and not jnp.issubdtype(dtype, jnp.inexact):
                described = f"{show_path(taken.structure.paths[i])}, a {type(taken.leaves[i]).__name__}"
                raise TypeError(
                    f"nnx.{taken.verb}: grad requires real- or complex-valued inputs, but {described}, is of type "
                    f"{dtype}. Choose the Variables to differentiate with respect to, such as nnx.{taken.verb}(..., "
                    f"wrt=nnx.Param), or pass allow_int=True."
                )


def _pair(verb: str, out: object) -> tuple[Any, Any]:
    if isinstance(out, (tuple, list)) and len(out) == 2:
        return out[0], out[1]
    returned = f"{len(out)} values" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
    raise TypeError(f"nnx.{verb}(has_aux=True) needs a function that returns (output, aux), got {returned}.")


def _gradients(taken: Taken, targets: list[_Target], grads: dict[int, Any]) -> list[Any]:
    """Gradients in the form of the arguments; with a filter, States take the place of nodes."""
    whole = taken.rebuild([grads.get(i) for i in range(len(taken.leaves))])
    visited: set[int] = set()

    def states(value: object) -> Any:
        return as_state(value, visited) if is_object(value) else value

    return [
        whole[target.argnum]
        if target.predicate is None
        else jax.tree.map(states, whole[target.argnum], is_leaf=is_object)
        for target in targets
    ]


def as_state(value: object, visited: set[int]) -> Any:
    """The gradients below an object, as a State; parts without a gradient, or visited before, are left out."""
    walked = walk(value, graph=True, verb="grad", numbers=True)
    flat = [(p, leaf) for p, leaf in walked.flat() if raw(leaf) is not None and id(leaf) not in visited]
    visited.update(id(leaf) for _, leaf in flat)
    if isinstance(value, Variable) and flat:
        return value
    return State(traversals.unflatten_mapping(flat), _copy=False)


def vjp(
    f: Callable[..., Any] = MISSING,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.vjp` for functions of Modules and Variables.

    Args:
        f: The function; leave it out to use `vjp` as a decorator with options.
        *primals: Its arguments.
        has_aux: Whether the function returns a pair of an output and something that is not differentiated.
        reduce_axes: Must be empty.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Accepted; the function never changes the structure of its arguments.

    Returns:
        The output and a function from its cotangent to a tuple of the arguments' cotangents; with `has_aux` the
        auxiliary output as the third.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> y, pull = nnx.vjp(lambda w, x: w * x, nnx.Param(jnp.array(3.0)), 2.0)
        >>> [float(g) for g in pull(1.0)]
        [2.0, 3.0]
    """
    run_mode = mode(graph, False)
    _refuse_reduce_axes("vjp", reduce_axes)
    if f is MISSING:
        return functools.partial(_as_decorator, vjp, has_aux=has_aux, graph=run_mode.graph)
    refuse_bound_method("vjp", f)
    taken = take("vjp", run_mode, primals, label="primals")

    pure = _split_output("vjp", f, taken, has_aux)
    diff, pull_flat, ((not_differentiated,), outcome) = jax.vjp(pure, *taken.values, has_aux=True)
    n_diff = len(diff)
    out, aux = taken.settle((([*diff, *not_differentiated],), outcome))

    def pull(cotangent: object) -> tuple[Any, ...]:
        cotangent_walk = walk(NamedValues(("out",), (cotangent,)), graph=run_mode.graph, verb="vjp", numbers=True)
        if len(cotangent_walk.leaves) != n_diff:
            raise ValueError(
                f"The cotangent given to the function that nnx.vjp returned has {len(cotangent_walk.leaves)} leaves, "
                f"but the output of the function has {n_diff}. Pass a cotangent of the same form as the output."
            )
        return taken.rebuild(pull_flat([raw(x) for x in cotangent_walk.leaves]))

    return (out, pull, aux) if has_aux else (out, pull)


def _split_output(verb: str, f: Callable[..., Any], taken: Taken, has_aux: bool) -> Callable[..., Any]:
    """A pure function that returns the leaves of the output, and, separately, everything that is not differentiated."""

    def pure(*values: Any) -> tuple[list[Any], PureResult]:
        entered = taken.enter(values)
        out = f(*entered.args)
        out, aux = _pair(verb, out) if has_aux else (out, None)
        (outs,), outcome = entered.leave((out, aux))
        assert outcome.definition is not None
        (pair,) = children_of(outcome.definition.definition)[1]
        # The auxiliary output follows in the same list, and JAX must not differentiate it.
        n_diff = count_leaves(children_of(pair)[1][0])
        return outs[:n_diff], ((outs[n_diff:],), outcome)

    return named_after(f, pure)


def _as_decorator(transform: Callable[..., Any], f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return named_like(f)(lambda *args: transform(f, *args, **options))


def jvp(
    f: Callable[..., Any] = MISSING,
    primals: Sequence[Any] = MISSING,
    tangents: Sequence[Any] = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.jvp` for functions of Modules and Variables.

    Args:
        f: The function; leave it out to use `jvp` as a decorator with options.
        primals: A tuple of its arguments; leave it out to get a function of primals and tangents.
        tangents: A tuple of their tangents, each of the form of its argument.
        has_aux: Whether the function returns a pair of an output and something that is not differentiated.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Accepted; the function never changes the structure of its arguments.

    Returns:
        The output and its tangent; with `has_aux` the auxiliary output as the third.
    """
    run_mode = mode(graph, False)
    if f is MISSING or primals is MISSING:
        decorate = functools.partial(_as_decorator, jvp, has_aux=has_aux, graph=run_mode.graph)
        return decorate if f is MISSING else decorate(f)
    refuse_bound_method("jvp", f)
    taken = take("jvp", run_mode, tuple(primals), label="primals")
    taken_tangents = take("jvp", run_mode, tuple(tangents), label="tangents")
    if len(taken_tangents.values) != len(taken.values):
        raise ValueError(
            f"nnx.jvp was given primals with {len(taken.values)} leaves but tangents with "
            f"{len(taken_tangents.values)}; the tangents must have the form of the primals."
        )

    pure = _split_output("jvp", f, taken, has_aux)
    diff, tangent, ((not_differentiated,), outcome) = jax.jvp(
        pure, tuple(taken.values), tuple(taken_tangents.values), has_aux=True
    )
    tangent_out, _ = taken.output((([*tangent, *not_differentiated],), outcome))
    out, aux = taken.settle((([*diff, *not_differentiated],), outcome))
    return (out, tangent_out, aux) if has_aux else (out, tangent_out)
