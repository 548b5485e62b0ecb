"""`nnx.while_loop` and `nnx.fori_loop`.

The carry of a loop keeps its form: it ends with the Variables it started with, which hold the values of the last
iteration. Only Variables that the body changes are carried from one iteration to the next; to find them, the body is
traced once before the loop is made, and the loop reuses that trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from jax.typing import ArrayLike

from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import NamedValues
from sonde.nnx.structure.value_kinds import is_object
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.leaf_values import same_form
from sonde.nnx.transforms.lifting import Entered, Taken, raw, take
from sonde.nnx.transforms.options import mode
from sonde.nnx.transforms.outcome import Outcome
from sonde.nnx.variable.variable import Variable

T = TypeVar("T")


def while_loop(
    cond_fun: Callable[[T], Any],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """`jax.lax.while_loop` for values with Modules and Variables in them.

    Args:
        cond_fun: From the current value, whether to continue. Its changes of Variables are dropped.
        body_fun: From the current value, the next; it must have the same form and the same Variables.
        init_val: The first value. Its Variables are changed.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Returns:
        The last value, made of the Variables of `init_val`; with graph updates, of its Modules too.

    Raises:
        ValueError: The body returns something of another form, or other Variables; or `graph` is False and a Variable
            occurs twice.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(0))
        >>> def body(count):
        ...     count[...] += 1
        ...     return count
        >>> nnx.while_loop(lambda count: count[...] < 3, body, count) is count
        True
        >>> int(count)
        3
    """
    taken = take("while_loop", mode(graph, graph_updates), (init_val,), names=("init_val",))
    loop = Carried(taken, lambda entered: body_fun(entered.args[0]))

    def go_on(carry: list[Any]) -> Any:
        out = cond_fun(taken.enter(loop.values(carry)).args[0])
        return raw(out)

    return loop.finish(jax.lax.while_loop(go_on, loop.body, loop.first))


def fori_loop(
    lower: ArrayLike | Variable[Any],
    upper: ArrayLike | Variable[Any],
    body_fun: Callable[[Any, T], T],
    init_val: T,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """`jax.lax.fori_loop` for values with Modules and Variables in them.

    Args:
        lower: The first index.
        upper: The index after the last.
        body_fun: From the index and the current value, the next; it must have the same form and the same Variables.
        init_val: The first value. Its Variables are changed.
        unroll: See `jax.lax.fori_loop`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Returns:
        The last value, made of the Variables of `init_val`; with graph updates, of its Modules too.

    Raises:
        ValueError: See `nnx.while_loop`.
    """
    taken = take("fori_loop", mode(graph, graph_updates), (init_val,), names=("init_val",))
    lower, upper = raw(lower), raw(upper)
    loop = Carried(taken, lambda entered, i: body_fun(i, entered.args[0]), lower)
    return loop.finish(jax.lax.fori_loop(lower, upper, lambda i, carry: loop.body(carry, i), loop.first, unroll=unroll))


class Carried:
    """The carry of a loop, as a flat list of what changes.

    Attributes:
        first: What the loop starts with: values of Variables that the body changes, and of all other leaves.
    """

    def __init__(self, taken: Taken, body: Callable[..., Any], *more: Any):
        self._taken = taken
        self._step = self._traced(body)
        _, outcome = jax.eval_shape(self._step, taken.values, *more)
        kinds = taken.structure.kinds
        # A Variable that no iteration changes is closed over: carrying it would copy it in every iteration.
        self._moving = [i for i, kind in enumerate(kinds) if kind is None or i in outcome.changed]
        self.first = [taken.values[i] for i in self._moving]

    def _traced(self, body: Callable[..., Any]) -> Callable[..., Any]:
        taken = self._taken

        def step(values: Sequence[Any], *more: Any) -> tuple[list[Any], Outcome]:
            entered = taken.enter(values)
            out = body(entered, *more)
            # Flax lets the body of `fori_loop` replace Variables, but not that of `while_loop`.
            if taken.verb == "fori_loop":
                entered.put_back(range(len(values)))
            leaves = returned(entered, out, range(len(values)), "init_val")
            _, outcome = entered.leave(None, separately=True)
            return [raw(x) for x in leaves], outcome

        return jax.jit(step, inline=True)  # jit caches the trace, so the user's function runs once

    def values(self, carry: Sequence[Any]) -> list[Any]:
        """The values of all leaves."""
        values = list(self._taken.values)
        for i, value in zip(self._moving, carry):
            values[i] = value
        return values

    def body(self, carry: list[Any], *more: Any) -> list[Any]:
        """One iteration."""
        new_values, _ = self._step(self.values(carry), *more)
        return [new_values[i] for i in self._moving]

    def finish(self, carry: list[Any]) -> Any:
        """Writes to the caller's Variables and returns the last value, which is made of them."""
        return self._taken.renewed(dict(zip(self._moving, carry)))[0]


def _objects(tree: object) -> list[int]:
    """The identities of the Modules and Variables in a pytree, but not of those inside them."""
    return [id(x) for x in jax.tree.leaves(tree, is_leaf=is_object) if is_object(x)]


def returned(entered: Entered, out: object, carried: Sequence[int], name: str) -> list[Any]:
    """The leaves of what an iteration returned.

    Args:
        entered: What the iteration was given.
        out: What it returned.
        carried: Which leaves of the arguments are carried.
        name: The argument that is carried.

    Raises:
        ValueError: It has another form, or other Variables, than the carry that the iteration was given.
        TypeError: It has another form, with graph updates: in `fori_loop`, and in `scan` unless it is another object.
    """
    verb, mode = entered.verb, entered.mode
    walked = walk(NamedValues((name,), (out,)), graph=mode.graph, verb=verb, numbers=True)
    # the structure of what `scan` carries may change as long as its arrays do not; edits return it
    keeps_static = not (verb == "scan" and mode.updates)
    difference = same_form(entered.structure.definition, walked.definition, name, static=keeps_static)
    if difference:
        carry_before = entered.args[entered.structure.names.index(name)]
        changed = verb == "fori_loop" or (verb == "scan" and _objects(carry_before) == _objects(out))
        raise (TypeError if changed and mode.updates else ValueError)(
            f"nnx.{verb}: the carry must keep its form, but the body returns another one: "
            f"{difference}. Static attributes, keys and classes may not change in a loop."
        )
    for i, leaf in zip(carried, walked.leaves):
        before = entered.leaves[i]
        if isinstance(before, Variable) and leaf is not before:
            raise ValueError(
                f"nnx.{verb}: every iteration must return the Variables it was given, but the body returns "
                f"a different {type(before).__name__} at {show_path(entered.structure.paths[i])}. Change "
                f"its value in place, `variable[...] = value`, and return the same Variable."
            )
    return walked.leaves
