"""Interchange interventions: a run on one input with some values from a run on another one.

If a value holds what a variable of an algorithm holds, then exchanging the value does what exchanging the variable
would do. How often that is so is the interchange accuracy. The variable may be in a subspace of the value: then only
that part is exchanged, and `train` looks for the subspace (distributed alignment search). A subspace that was searched
for fits more than it explains, so `controls` says what other subspaces would have given.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    StaticPart,
    Supplied,
    Where,
    check_callable,
    check_patterns,
    inside_request,
    put_by_rule,
    static_and_arrays,
)
from sonde.tools.execution.record_values import Seen, each_seen
from sonde.tools.intervention.patch_values import in_record, not_differentiated, values_to_place

_VERB = "interchange"
Positions = int | Sequence[int] | Callable[..., Any] | None


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the traced functions depend on, besides the program."""

    patterns: tuple[Pattern, ...]
    positions: Positions
    position_axis: int
    logits: Callable[[Any], Any]
    inside: InsideRequest | None


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Interchange:
    """What `interchange` returns: a function of two inputs, with measures of how it does.

    Attributes:
        f: The program.
        directions: Orthogonal rows of length one that span the subspace that is exchanged, along the last axis of the
            value; None if all of the value is.
        losses: After `train`: the loss at each step.
    """

    f: Callable[..., Any]
    directions: jax.Array | None
    losses: tuple[float, ...]
    _asked: _Asked
    _run: Callable[..., Any]
    _right: Callable[..., Any]

    def __call__(self, base: Any, source: Any) -> Any:
        """The result of the program for `base`, with the values from its run on `source`.

        Args:
            base: The arguments of the run: a tuple, or the only one.
            source: The arguments of the other run, of the same shapes.
        """
        return self._run(*self._split(base, source), self.directions)

    def accuracy(self, batches: Iterable[tuple[Any, Any, ArrayLike]]) -> float:
        """The share of the examples in which the most probable class is the wanted one.

        Args:
            batches: For each batch the arguments of the run, those of the other run, and the class that the algorithm
                would give for each example.

        Raises:
            ValueError: There are no examples.
        """
        right, count = 0.0, 0
        for base, source, wanted in batches:
            found = np.asarray(self._right(*self._split(base, source), self.directions, jnp.asarray(wanted)))
            right, count = right + float(found.sum()), count + found.size
        if not count:
            raise ValueError(f"{_VERB}: there are no examples")
        return right / count

    def train(
        self,
        batches: Sequence[tuple[Any, Any, ArrayLike]],
        *,
        size: int,
        steps: int = 300,
        learning_rate: float = 0.03,
        seed: int = 0,
    ) -> Interchange:
        """Looks for the subspace whose exchange makes the wanted classes most probable.

        Args:
            batches: As for `accuracy`; they are repeated.
            size: How many dimensions the subspace has.
            steps: How many steps to take.
            learning_rate: Of Adam; it falls to zero along a cosine.
            seed: For the subspace to start with.

        Returns:
            The interchange with that subspace. Measure it on other examples than these.

        Raises:
            ValueError: There are no batches, or the value is not that wide.
        """
        examples = [(self._split(base, source), jnp.asarray(wanted)) for base, source, wanted in batches]
        if not examples:
            raise ValueError(f"{_VERB}: there are no batches")
        width = self._width(examples[0][0])
        if not 1 <= size <= width:
            raise ValueError(f"{_VERB}: size is from 1 to {width}, the width of the value, got {size}")
        step = JitByStaticPart.shared(functools.partial(_step, self._asked, learning_rate, steps), self.f)
        free = jax.random.normal(jax.random.key(seed), (width, size)) / width**0.5
        state, losses = _optimizer(learning_rate, steps).init(free), []
        for number in range(steps):
            (static, arrays), wanted = examples[number % len(examples)]
            free, state, loss = step(static, arrays, free, state, wanted)
            losses.append(loss)
        trained = tuple(np.asarray(jnp.stack(losses)).tolist()) if losses else ()
        return dataclasses.replace(self, directions=_orthogonal(free), losses=trained)

    def controls(
        self,
        trained_on: Sequence[tuple[Any, Any, ArrayLike]],
        measured_on: Sequence[tuple[Any, Any, ArrayLike]],
        *,
        seeds: int = 3,
        **training: Any,
    ) -> dict[str, float]:
        """The accuracies that this one must be compared with.

        Args:
            trained_on: The examples that `train` was given.
            measured_on: The examples on which this interchange is measured.
            seeds: How many random subspaces and orders to take the mean of.
            **training: Arguments of `train`.

        Returns:
            By name: `"this"`; `"nothing"`, if nothing is exchanged; `"whole"`, if all of the value is; `"random"`, with
            random subspaces of the same size; and `"shuffled"`, with subspaces that were trained on the same examples
            with their classes in a random order, measured on those: what the search fits without anything to find.

        Raises:
            ValueError: This interchange has no subspace.
        """
        if self.directions is None:
            raise ValueError(f"{_VERB}: controls are for a subspace: give directions=, or train one")
        size, width = self.directions.shape
        random, shuffled = [], []
        for seed in range(seeds):
            normal = jax.random.normal(jax.random.key(seed), (width, size))
            random.append(self._with(_orthogonal(normal)).accuracy(measured_on))
            order = np.random.default_rng(seed)
            mixed = [(base, source, order.permutation(np.asarray(wanted))) for base, source, wanted in trained_on]
            shuffled.append(self.train(mixed, **{"size": size, "seed": seed, **training}).accuracy(mixed))
        return {
            "this": self.accuracy(measured_on),
            "nothing": self._with(jnp.zeros((1, width))).accuracy(measured_on),
            "whole": self._with(None).accuracy(measured_on),
            "random": float(np.mean(random)),
            "shuffled": float(np.mean(shuffled)),
        }

    def _with(self, directions: jax.Array | None) -> Interchange:
        return dataclasses.replace(self, directions=directions, losses=())

    def _split(self, base: Any, source: Any) -> tuple[StaticPart, list[Any]]:
        inputs = [x if isinstance(x, tuple) else (x,) for x in (base, source)]
        return static_and_arrays((self.f, *inputs), self._asked.inside)

    def _width(self, call: tuple[StaticPart, list[Any]]) -> int:
        static, arrays = call
        sources = jax.eval_shape(lambda x: _of_source(self._asked, static, x)[0], arrays)
        widths = {x.shape[-1] for seen in each_seen(sources) for x in jax.tree.leaves(seen.value)}
        if len(widths) != 1:
            raise ValueError(f"{_VERB}: a subspace is of values of one width, these have {sorted(widths)}")
        return widths.pop()

    def __repr__(self) -> str:
        part = "whole values" if self.directions is None else f"{len(self.directions)} dimensions"
        return f"Interchange({part} at {', '.join(map(repr, self._asked.patterns))})"


def interchange(
    f: Callable[..., Any],
    *patterns: Pattern,
    directions: ArrayLike | None = None,
    positions: Positions = None,
    position_axis: int = -2,
    logits: Callable[[Any], Any] | None = None,
    inside: object = None,
) -> Interchange:
    """A function that runs `f` on one input with the values that sites have for another one.

    Args:
        f: Any callable. Models are not changed by the runs.
        *patterns: Sites whose values are exchanged, all at once; at least one.
        directions: Rows that span the part of a value that is exchanged, along its last axis. All of it, if None.
        positions: The positions at which values are exchanged; or a function of the arguments of `f` that returns them,
            as `(batch,)` or `(batch, positions)`, for the run and for the other run alike, so that texts may have what
            matters in different places. All, if None.
        position_axis: The axis of the positions; by default the last but one.
        logits: A function of the result of `f` that returns `(examples, classes)`, for accuracies and training. By
            default the result itself, or its last position if it has three axes.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        An `Interchange`: a function of two inputs, with `accuracy`, `train` and `controls`.

    Raises:
        ValueError: No pattern is given, or the directions are not independent rows; when called: a value does not fit.
        NoSuchSiteError: When called: a pattern matches no site.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import interchange
        >>> def f(x):
        ...     total = sonde.sow(x[:, :2].sum(-1, keepdims=True), "total")
        ...     return total * x[:, 2:]
        >>> print(interchange(f, "total")(jnp.array([[1.0, 2.0, 5.0]]), jnp.array([[3.0, 4.0, 6.0]])))
        [[35.]]
    """
    check_callable(f, _VERB)
    chosen = check_patterns(patterns, _VERB)
    if not chosen:
        raise ValueError(f"{_VERB} needs at least one pattern, such as 'blocks/3/out'")
    rows = None
    if directions is not None:
        rows = jnp.asarray(directions, jnp.float32)
        if rows.ndim != 2 or np.linalg.matrix_rank(np.asarray(rows)) < len(rows):
            raise ValueError(f"{_VERB}: directions= are independent rows of a matrix, got the shape {list(rows.shape)}")
        rows = _orthogonal(rows.T)
    fixed = positions if positions is None or callable(positions) else tuple(np.ravel(positions).tolist())
    asked = _Asked(chosen, fixed, position_axis, logits or _last_logits, inside_request(inside))
    run, right = (JitByStaticPart.shared(functools.partial(traced, asked), f) for traced in (_exchanged, _is_right))
    return Interchange(f, rows, (), asked, run, right)


def _last_logits(result: Any) -> Any:
    return result[:, -1] if result.ndim == 3 else result


def _orthogonal(columns: jax.Array) -> jax.Array:
    """Orthogonal rows of length one that span the columns of a matrix."""
    return jnp.linalg.qr(columns)[0].T


# What runs inside `jax.jit`: the arguments are split into arrays and the rest, which holds the program.


def _of_source(asked: _Asked, static: StaticPart, arrays: list[Any]) -> tuple[Any, Any]:
    """The records of the other run, and its positions."""
    f, _, source = static.whole(arrays)
    _, records = values_to_place(f, *asked.patterns, inside=asked.inside)(*source)
    return records, _positions(asked, source)


def _positions(asked: _Asked, args: tuple[Any, ...]) -> Any:
    """The positions, along one axis, or with an axis for the examples in front; None for all."""
    if asked.positions is None:
        return None
    if not callable(asked.positions):
        return jnp.atleast_1d(jnp.array(asked.positions))
    of_examples = jnp.asarray(asked.positions(*args))
    return of_examples.reshape(len(of_examples), -1)


def _exchanged(asked: _Asked, static: StaticPart, arrays: list[Any], directions: Any) -> Any:
    """The result of the run with values of the other run."""
    records, from_ = _of_source(asked, static, arrays)
    f, base, _ = static.whole(arrays)
    to = _positions(asked, base)
    sources = {(seen.path, seen.call): seen for seen in each_seen(records, stacked=True)}

    def rule(values: Sequence[Any], where: Where) -> Supplied | None:
        seen = sources.get((where.path, where.call))
        if seen is None:
            return None
        not_differentiated(where, _VERB)
        is_there, steps = in_record(where, seen)
        new = []
        for i, (old, recorded) in enumerate(zip(values, jax.tree.leaves(seen.value))):
            other = where.slice_of(recorded, i, steps)
            _check_shapes(asked, seen, where, old, other, directions, i)
            if from_ is not None and to is not None:
                other = _moved(other, from_, old, to, asked.position_axis)
            new.append(old if not jnp.issubdtype(old.dtype, jnp.number) else _in_subspace(old, other, directions))
        return Supplied([new], None if is_there is True else is_there)

    return put_by_rule(f, rule, paths=[path for path, _ in sources], inside=asked.inside)(*base)


def _check_shapes(
    asked: _Asked, seen: Seen, where: Where, old: jax.Array, other: jax.Array, directions: Any, leaf: int
) -> None:
    what = f"{_VERB}: {seen.path!r} ({seen.site.line}) has the shape {list(old.shape)}"
    if jnp.shape(other) != old.shape:
        raise ValueError(f"{what} in this run and {list(jnp.shape(other))} in the other one; both must have the same")
    if directions is not None and (not old.ndim or old.shape[-1] != directions.shape[1]):
        raise ValueError(f"{what}, and the directions are {directions.shape[1]} long: they are along the last axis")
    if asked.positions is not None:
        own = old.ndim - where.mapped(leaf)
        if not -own <= asked.position_axis < own:
            raise ValueError(f"{what}, which has no axis {asked.position_axis} for positions")
        if callable(asked.positions) and where.mapped(leaf):
            raise ValueError(f"{what} under vmap, where positions= cannot differ between examples: give numbers")


def _moved(other: jax.Array, from_: jax.Array, old: jax.Array, to: jax.Array, axis: int) -> Any:
    """The old value with the other one at some positions."""
    axis %= old.ndim
    if from_.ndim == 1:
        at = [slice(None)] * old.ndim
        return old.at[(*at[:axis], to)].set(jnp.take(other, from_, axis))
    examples = jnp.arange(len(from_))[:, None]
    old, other = (jnp.moveaxis(x, axis, 1) for x in (old, other))
    return jnp.moveaxis(old.at[examples, to].set(other[examples, from_]), 1, axis)


def _in_subspace(old: jax.Array, other: jax.Array, directions: Any) -> Any:
    """The old value with the part of the other one that is in the subspace."""
    if directions is None:
        return other
    change = (other - old).astype(jnp.float32)
    return old + (change @ directions.T @ directions).astype(old.dtype)


def _class_logits(
    asked: _Asked, static: StaticPart, arrays: list[Any], directions: Any, wanted: jax.Array
) -> jax.Array:
    found = asked.logits(_exchanged(asked, static, arrays, directions)).astype(jnp.float32)
    if found.ndim != 2 or wanted.shape != found.shape[:1]:
        raise ValueError(
            f"{_VERB}: logits are (examples, classes) with a wanted class for each example, got the shapes "
            f"{list(found.shape)} and {list(wanted.shape)}; see logits="
        )
    return found


def _is_right(asked: _Asked, static: StaticPart, arrays: list[Any], directions: Any, wanted: jax.Array) -> Any:
    return jnp.argmax(_class_logits(asked, static, arrays, directions, wanted), -1) == wanted


def _optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps))


def _step(
    asked: _Asked,
    learning_rate: float,
    steps: int,
    static: StaticPart,
    arrays: list[Any],
    free: jax.Array,
    state: Any,
    wanted: jax.Array,
) -> Any:
    def loss(columns: jax.Array) -> jax.Array:
        logits = _class_logits(asked, static, arrays, _orthogonal(columns), wanted)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, wanted))

    number, slope = jax.value_and_grad(loss)(free)
    updates, state = _optimizer(learning_rate, steps).update(slope, state, free)
    return optax.apply_updates(free, updates), state, number
