"""`edit`: replaces values while a program runs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._renames import with_old_attributes
from sonde.core.edits.hoisting import hoist
from sonde.core.edits.new_values import Loop, given_arrays, recorded_arrays, rows_along
from sonde.core.edits.plan import EditPlan, Step, Supply
from sonde.core.interpret.handler import Handler
from sonde.core.marks.named_loops import Row, starred
from sonde.core.marks.operands import operands_of
from sonde.core.marks.path import Pattern, check_pattern, glob_matches
from sonde.core.marks.site import Site, View, naming
from sonde.core.modules.roots import ModelsOfCall, models_of_call
from sonde.core.records.record import Record, Records
from sonde.core.session.caches import Meter, by_identity, kept_with
from sonde.core.session.inside_protocol import InsideRequest, inside_request
from sonde.core.session.run import run_with
from sonde.core.verbs.capture import check_callable, like_jitted, wrapped_like
from sonde.errors import EditError

P = ParamSpec("P")
R = TypeVar("R")


class _Keep:
    """The value of an `Edit` that changes the gradient alone."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP = _Keep()


@with_old_attributes("sonde.Edit")
@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """What to put in place of the value at a site, and when.

    Attributes:
        new: A function of the value that returns the new one, the new value itself, or a record of another run. In a
            loop, a value with the axis of the loop in front, such as that of a record, gives each iteration its part.
        calls: Which calls of the site, counted per path from 0 in program order as in `Record.values`: a number or
            several. All, if None.
        iterations: Which iterations of the innermost loop around the site, counted from 0 in the order in which they
            run: a number or several; or a function of the numbers of all loops around it, outermost first, that returns
            a boolean array. All, if None. Named loops (see `sonde.scope`) do not count, unless there are no others: the
            pattern chooses their rows.
        positions: Which indices along `position_axis` of the value: a number or several; negative ones count from the
            end. All, if None. Under `vmap` a value is one example.
        position_axis: The axis of the positions, in the arrays as they were marked; by default the last but one.
        grad: A function of the gradient at the site, in the form of the value, that returns the gradient to continue
            with: it sees what comes back from the value that the program uses. Alone, or beside a new value. Only
            reverse mode has a gradient there; a value that does not reach the result has none.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def f(x):
        ...     step = lambda c, _: (sonde.sow(c + 1, "c"), None)
        ...     return jax.lax.scan(step, x, length=4)[0]
        >>> print(sonde.edit(f, {"c": sonde.Edit(lambda c: c * 10, iterations=2)})(0))
        31
        >>> loss = lambda x: (sonde.sow(x * 3, "h") ** 2).sum()
        >>> print(sonde.edit(jax.grad(loss), {"h": sonde.Edit(grad=lambda g: g.clip(-9, 9))})(jnp.array([1.0, 5.0])))
        [18. 27.]
    """

    new: Any = KEEP
    calls: int | Collection[int] | None = None
    iterations: int | Collection[int] | Callable[..., Any] | None = None
    positions: int | Collection[int] | None = None
    position_axis: int = -2
    grad: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.grad is not None and not callable(self.grad):
            raise TypeError(f"Edit(grad=...) takes a function of the gradient, got {self.grad!r}")
        if self.new is KEEP and self.grad is None:
            raise TypeError("Edit takes a new value, a function of the gradient (grad=), or both")
        if self.positions is not None:
            positions = _several(self.positions)
            if isinstance(self.positions, str) or not all(hasattr(p, "__index__") for p in positions):
                raise TypeError(f"Edit(positions=...) takes numbers, one or several, got {self.positions!r}")
            object.__setattr__(self, "positions", tuple(map(int, positions)))
        for name in ("calls", "iterations"):
            chosen = getattr(self, name)
            if chosen is None or (name == "iterations" and callable(chosen)):
                continue
            if isinstance(chosen, str) or not all(map(_is_count, _several(chosen))):
                raise TypeError(f"Edit({name}=...) takes numbers counted from 0, one or several, got {chosen!r}")
            object.__setattr__(self, name, tuple(map(int, _several(chosen))))


def edit(f: Callable[P, R], edits: Mapping[str, Any] | Mapping[Pattern, Any], *, inside: Any = None) -> Callable[P, R]:
    """A function that runs `f` with the values at some sites replaced.

    Works in every transform and composes with `capture`, which sees the new values both inside and outside the edit.

    Args:
        f: Any callable.
        edits: For each pattern, a function of the value that returns a new one, a new value, a record, or an `Edit`
            that also says at which calls and iterations. If several match, they are applied in order. Under `vmap` a
            function sees one example. The records of a capture can be used as edits: `edit(f, records)`.
        inside: Code without sites whose values to replace, as in `capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        TypeError: `f` is not callable, or `edits` is not a mapping from patterns.
        NoSuchSiteError: When called: a pattern matches no site.
        EditError: When called: a new value differs from the value at the site in structure, shape or dtype.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h") + 1
        >>> print(sonde.edit(f, {"h": jnp.zeros_like})(jnp.ones(3)))
        [1. 1. 1.]
    """
    check_callable(f, "edit")
    if not isinstance(edits, Mapping):
        raise TypeError(
            f"edit takes a mapping from patterns to new values, got {edits!r} of type {type(edits).__name__}"
        )
    asked = inside_request(inside)
    if isinstance(edits, Records):
        given: Mapping[Any, Any] = edits.stacked
    else:
        given = edits
    chosen = {check_pattern(p): e if isinstance(e, Edit) else Edit(e) for p, e in given.items()}
    plan, values = _plan_of(chosen)
    jitted = _jax.jit_options(f)
    if jitted is None:
        return wrapped_like(lambda *args, **kwargs: _edit_now(plan, values, f, asked, args, kwargs), f)
    return _compiled_edit(f, *jitted, plan, values, asked)


def _edit_now(
    plan: EditPlan, values: tuple[StepValues, ...], f: Callable, inside: InsideRequest | None, args: Any, kwargs: Any
) -> Any:
    def make(depth: int) -> Editing:
        return Editing(plan, values, depth=depth)

    return run_with(make, f, args, kwargs, edits=True, plan=plan, inside=inside)[0]


_ARRAYS = "__sonde_arrays_of_edits__"


def _is_argument(leaf: Any) -> bool:
    """Whether a part of an edit is an argument of compiled programs."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, float)) or type(leaf) is int


def _compiled_edit(
    f: Any,
    fn: Callable,
    options: dict[str, Any],
    plan: EditPlan,
    values: tuple[StepValues, ...],
    asked: InsideRequest | None,
) -> Callable:
    """One `jax.jit` of the edited function for each structure of edits; their arrays are arguments."""
    leaves, tree = jax.tree.flatten(values)
    is_argument = [*map(_is_argument, leaves)]
    arrays = [x for x, on in zip(leaves, is_argument) if on]
    fixed = tuple(x for x, on in zip(leaves, is_argument) if not on)

    def make(models: ModelsOfCall | None, meter: Meter) -> Any:
        def edited(*args: Any, **kwargs: Any) -> Any:
            given, others = iter(kwargs.pop(_ARRAYS)), iter(fixed)
            now = jax.tree.unflatten(tree, [next(given) if on else next(others) for on in is_argument])
            inside = asked if models is None else models.inside(args, kwargs)
            return _edit_now(plan, now, fn, inside, args, kwargs)

        return meter.jit(wrapped_like(edited, fn), **options)

    has_models = bool(asked and asked.known_models())
    # The program depends on what its functions read, as a capture's does; what cannot be compared is by identity.
    key = ("edit", plan, by_identity(tree), tuple(is_argument), tuple(map(by_identity, fixed)))

    def compiled(args: Any, kwargs: Any) -> Any:
        models = models_of_call(asked, args, kwargs) if asked is not None and has_models else None
        return kept_with(f, (*key, models or asked), functools.partial(make, models))

    def call(*args: Any, **kwargs: Any) -> Any:
        return compiled(args, kwargs)(*args, **{_ARRAYS: arrays}, **kwargs)

    def method(name: str, *args: Any, **kwargs: Any) -> Any:
        more = {} if name == "clear_cache" else {_ARRAYS: arrays}
        return getattr(compiled(args, kwargs), name)(*args, **more, **kwargs)

    return like_jitted(call, fn, method)


class StepValues(NamedTuple):
    """What belongs to a step of a plan in one run.

    Attributes:
        new: The new value or the record, if it is not a function.
        arrays: The arrays of its functions.
    """

    new: Any
    arrays: tuple[Any, ...]


def _plan_of(edits: Mapping[Pattern, Edit]) -> tuple[EditPlan, tuple[StepValues, ...]]:
    """The edits without their arrays, and the arrays."""
    steps: list[Step] = []
    values: list[StepValues] = []
    for pattern, wanted in edits.items():
        new: Any = wanted.new
        function, arrays, absent = None, [], False
        if new is KEEP:
            kind, new = "keep", None
        elif isinstance(new, Record):
            kind, absent = "record", any(taken is not None for taken in new.taken)
        elif callable(new):
            kind = "function"
            function, arrays = hoist(new)
            new = None
        else:
            kind = "value"
        gradient, more = (None, []) if wanted.grad is None else hoist(wanted.grad)
        calls: Any = wanted.calls  # tuples, since `Edit` has checked them
        positions: Any = wanted.positions
        steps.append(
            Step(pattern, kind, calls, wanted.iterations, positions, wanted.position_axis, function, gradient, absent)
        )
        values.append(StepValues(new, (*arrays, *more)))
    return EditPlan.of(steps), tuple(values)


class InLoops(Handler):
    """A handler that knows the numbers of the iterations of the loops around it.

    Attributes:
        indices: The number of the iteration of each loop, outermost first.
        lengths: How many iterations each has; None for a `while_loop`.
    """

    counts_iterations = True

    def __init__(self, patterns: tuple[Pattern, ...], *, depth: int = 1) -> None:
        super().__init__(None, patterns, depth=depth)
        self._named_at: tuple[int, ...] = ()  # which of the loops around are the named ones
        self.indices: tuple[Any, ...] = ()
        self.lengths: tuple[int | None, ...] = ()
        self._length: int | None = None  # of the loop that is entered next

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside; in a loop, it knows the number of the iteration."""
        new = super().child(base, steps, prefix)
        new.indices = (*self.indices, *steps)
        new.lengths = (*self.lengths, *[self._length] * len(steps))
        return new

    def entering(self, length: int | None = None) -> Self:
        """The handler whose child is about to run; if the child takes the name of a loop, it is the next one."""
        new = super().entering(length)
        new._length = length
        if len(new.named_loops) > len(self.named_loops):
            new._named_at = (*self._named_at, len(self.indices))
        return new


class Editing(InLoops):
    """Answers where edits apply, and with which arrays; `sow` applies them (`edits/plan.py`)."""

    def __init__(self, plan: EditPlan, values: tuple[StepValues, ...], *, depth: int = 1) -> None:
        super().__init__(tuple(step.pattern for step in plan.steps), depth=depth)
        self.plan = plan
        self.values = values
        self._hit: dict[Pattern, set[int]] = {}  # which calls were replaced; shared with all children
        self._by_call = any(step.calls is not None or step.kind == "record" for step in plan.steps)
        leaves, tree = jax.tree.flatten(values)
        fixed = tuple(by_identity(x) for x in leaves if not _is_argument(x))
        types = tuple(_jax.plain_type_of(x) if _is_argument(x) else None for x in leaves)
        self.key = ("edit", plan, by_identity(tree), fixed, types, depth)

    def entering(self, length: int | None = None) -> Self:
        """The handler whose child is about to run."""
        new = super().entering(length)
        if new.named_loops and self.outside is not None:
            new.key = None  # what functions of the edit mark has the rows of this run
        elif new.key is not None and length is not None:
            new.key = (new.key, length, new._named_at)
        return new

    def arrays(self) -> list[Any]:
        """The arrays of the edits."""
        return [jnp.asarray(x) for x in jax.tree.leaves(self.values) if _is_argument(x)]

    def with_arrays(self, arrays: Sequence[Any]) -> Self:
        """The handler with other arrays."""
        new, remaining = self.__copy__(), iter(arrays)
        new.values = jax.tree.map(lambda x: next(remaining) if _is_argument(x) else x, self.values)
        return new

    def carried(self) -> list[Any]:
        """The traced values that the handler holds."""
        return [*super().carried(), *[x for x in jax.tree.leaves(self.values) if isinstance(x, _jax.Tracer)]]

    def carrying(self, values: Sequence[Any]) -> Self:
        """A handler with these values in place of those that `carried` returned."""
        n = len(super().carried())
        new, remaining = super().carrying(values[:n]), iter(values[n:])
        new.values = jax.tree.map(lambda x: next(remaining) if isinstance(x, _jax.Tracer) else x, self.values)
        return new

    def calls(self) -> Any:
        """How often each site ran, if an edit depends on that."""
        return tuple(sorted(self.counts.items())) if self._by_call else None

    def calls_since(self, calls: Any) -> Any:
        """How often each site has run since then, and which calls were replaced so far."""
        before = dict(calls or ())
        more = {path: n - before.get(path, 0) for path, n in self.counts.items()} if self._by_call else {}
        return more, {pattern: frozenset(numbers) for pattern, numbers in self._hit.items()} if self._by_call else {}

    def count_again(self, since: Any) -> None:
        """Counts what a program that was rewritten before has in it."""
        more, replaced = since
        for path, n in more.items():
            for _ in range(n):
                self.counts.next(path)
        for pattern, numbers in replaced.items():
            self._hit.setdefault(pattern, set()).update(numbers)

    def finish(self) -> None:
        """Raises an error for a pattern, or a call number, that matched nothing."""
        super().finish()
        for step in self.plan.steps:
            missed = set(step.calls or ()) - self._hit.get(step.pattern, set())
            if missed:
                most = max(self._hit_counts(step.pattern), default=0)
                raise EditError(
                    f"edit of {step.pattern!r}: it names call {sorted(missed)}, counted from 0, but the site runs "
                    f"{most} times"
                )

    def _hit_counts(self, pattern: Pattern) -> list[int]:
        return [n for path, n in self.counts.items() if not isinstance(pattern, str) or glob_matches(pattern, path)]

    def replace(self, arrays: list[Any], site: Site, path: str, view: View) -> list[Any]:
        """The arrays as they are, unless the program does not continue with what the site returns."""
        if site.in_place and view.is_value:
            call = self.counts.next(path)
            for step in self.plan.steps:
                if step.pattern in self.chosen(site, path) and (step.calls is None or call in step.calls):
                    instead = "edit an array that it is made of, or that is computed from it"
                    if site.depths is None:
                        instead = "use `sonde.sow` and its result there, or edit the output of a method"
                    raise EditError(f"edit of {path!r} ({site.source}): {site.why_in_place}; {instead}")
        return arrays

    def supply(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Answers what a site asks of this edit: for each step whether it applies, and its arrays."""
        supply = site.supply
        if supply.plan is not self.plan or not self.sees(site):
            return super().supply(args, site, view)
        arrays = operands_of(args, site, view).arrays
        names = _jax.names_since(self._names_before)
        path, _ = starred(self.here(names) + site.path, self.named_loops)
        self._within_here = self._within(names)
        call = -1 if supply.run == "again" else self.counts.next(path)
        chosen = self.chosen(site, path)
        named = site.at(path)  # the whole path, for the messages
        answer: list[Any] = []
        for number in supply.numbers:
            step, values = self.plan.steps[number], self.values[number]
            if supply.run == "again" and (step.calls is not None or step.kind == "record"):
                raise EditError(
                    f"edit of {path!r} ({site.source}): it depends on the call, but the site is in a while_loop that "
                    "jax.checkpoint computes again; edit all calls, or leave out jax.checkpoint"
                )
            applies = step.pattern in chosen and (step.calls is None or call in step.calls)
            if not applies:
                answer += Supply(self.plan, (number,)).nothing(arrays, view)
                continue
            self._hit.setdefault(step.pattern, set()).add(call)
            if number in supply.failures:
                raise supply.failures[number]
            rows = self._rows(step, values, named, path)
            if number in supply.names:
                supply.names[number].rows = frozenset(rows) if self.lengths_at(path) else None
            answer += self._answer(step, values, rows, call, arrays, named, view, path)
        return answer

    def _answer(
        self,
        step: Step,
        values: StepValues,
        rows: list[Row],
        call: int,
        arrays: list[Any],
        site: Site,
        view: View,
        path: str,
    ) -> Iterator[Any]:
        """Whether a step applies in this iteration, and its arrays."""
        conditions = list(self._conditions(step, rows, site, path))
        new: list[Any] = []
        if step.kind == "record":
            new, taken = recorded_arrays(values.new, call, arrays, site, view, self._loops(rows, path), self.mesh_axes)
            conditions += [] if taken is None else [taken]
        elif step.kind == "value":
            new = given_arrays(values.new, arrays, site, view, self._loops(rows, path), self.mesh_axes)
        applies: Any = functools.reduce(jnp.logical_and, conditions) if conditions else np.bool_(True)
        if step.may_be_absent:
            shape = tuple(axis.size for axis in view.axes)
            applies = jnp.broadcast_to(applies, shape) if shape else applies
        yield applies
        yield from new
        yield from values.arrays

    def _rows(self, step: Step, values: StepValues, site: Site, path: str) -> list[Row]:
        """The rows of the named loops around a site that an edit applies to."""
        lengths = self.lengths_at(path)
        rows = self.rows_at(site, path, [step.pattern]) if lengths else []
        if step.kind == "record":  # it may have been recorded for some rows only
            recorded = next(call.value.view for call, _ in values.new.calls() if call.value.view.is_value)
            rows = [row for row in rows if recorded.has_row(row)]
        return rows

    def _loops(self, rows: Sequence[Row], path: str) -> list[Loop]:
        """The loops around a site, with the rows that an edit applies to."""
        loops = [Loop(index, length) for index, length in zip(self.indices, self.lengths)]
        for k, number in enumerate(self.loops_at(path)):
            at = self._named_at[number]
            loops[at] = Loop(self.indices[at], self.named_loops[number].length, rows_along(rows, k))
        return loops

    def _conditions(self, step: Step, rows: Sequence[Row], site: Site, path: str) -> Iterator[Any]:
        """The conditions under which an edit applies in an iteration."""
        lengths = self.lengths_at(path)
        if len(rows) < math.prod(lengths) and lengths:
            chosen = np.zeros(lengths, bool)
            chosen[tuple(np.asarray(rows, int).reshape(-1, len(lengths)).T)] = True
            yield jnp.asarray(chosen)[tuple(self.indices[self._named_at[i]] for i in self.loops_at(path))]
        if step.iterations is not None:
            yield self._is_now(step.iterations, site, path)

    def _is_now(self, iterations: Any, site: Site, path: str) -> Any:
        if not self.indices:
            raise EditError(f"edit of {site.path!r} ({site.source}): it names iterations, but the site is in no loop")
        named = {self._named_at[i] for i in self.loops_at(path)}
        own = [i for i in range(len(self.indices)) if i not in named] or list(range(len(self.indices)))
        if callable(iterations):
            with naming(site, "the iterations of an edit"):
                return jnp.asarray(iterations(*(self.indices[i] for i in own)), bool)
        length = self.lengths[own[-1]]
        if length is not None and (beyond := [n for n in iterations if n >= length]):
            raise EditError(
                f"edit of {site.path!r} ({site.source}): it names iteration {beyond}, counted from 0, but the loop has "
                f"{length}"
            )
        return jnp.isin(self.indices[own[-1]], jnp.asarray(sorted(iterations)))


def _is_count(number: Any) -> bool:
    return not isinstance(number, bool) and hasattr(number, "__index__") and int(number) >= 0


def _several(numbers: int | Collection[int]) -> Collection[int]:
    is_one = not isinstance(numbers, Collection) or getattr(numbers, "ndim", 1) == 0
    return (numbers,) if is_one else numbers  # pyright: ignore[reportReturnType]
