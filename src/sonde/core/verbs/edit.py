"""`edit`: replaces values while a program runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax

from sonde import _jax
from sonde._renames import with_old_attributes
from sonde.core.edits.editing import Editing, Rule, StepValues
from sonde.core.edits.hoisting import Hoisted, NumbersNeeded, hoist, whole
from sonde.core.edits.new_values import check_is_whole
from sonde.core.edits.plan import REPLACED, TRACED, EditPlan, Near, Paths, Put, Step
from sonde.core.interpret.handler import is_argument
from sonde.core.marks.path import Pattern, check_pattern, short_repr
from sonde.core.modules.call_stack import ModuleRequest
from sonde.core.modules.roots import models_of_call
from sonde.core.records.record import Record, Records
from sonde.core.session.caches import Meter, by_identity, kept_with
from sonde.core.session.inside_protocol import InsideRequest, inside_request
from sonde.core.session.run import run_with
from sonde.core.verbs.capture import check_callable, like_jitted, wrapped_like
from sonde.core.verbs.uncalled import explains_arguments

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
            end. All, if None. Under `vmap` a value is one example. Calls, iterations and positions may be traced, as
            where `jax.vmap` maps a function of them: then one program serves all.
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
        if self.positions is not None and not isinstance(self.positions, _jax.Tracer):
            positions = _several(self.positions)
            if isinstance(self.positions, str) or not all(hasattr(p, "__index__") for p in positions):
                raise TypeError(f"Edit(positions=...) takes numbers, one or several, got {self.positions!r}")
            object.__setattr__(self, "positions", tuple(map(int, positions)))
        for name in ("calls", "iterations"):
            chosen = getattr(self, name)
            if chosen is None or isinstance(chosen, _jax.Tracer) or (name == "iterations" and callable(chosen)):
                continue
            if isinstance(chosen, str) or not all(map(_is_count, _several(chosen))):
                raise TypeError(f"Edit({name}=...) takes numbers counted from 0, one or several, got {chosen!r}")
            object.__setattr__(self, name, tuple(map(int, _several(chosen))))


@explains_arguments
def edit(
    f: Callable[P, R], edits: Mapping[str, Any] | Mapping[Pattern, Any], *, inside: object = None
) -> Callable[P, R]:
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
    jitted = _jax.jit_options(f)
    if jitted is None:
        check_callable(f, "edit")
    if not isinstance(edits, Mapping):
        raise TypeError(
            "edit takes a mapping from patterns to new values, such as edit(f, {'h': jnp.zeros_like}); got "
            f"{short_repr(edits)}"
        )
    request = inside_request(inside)
    if isinstance(edits, Records):
        by_pattern: Mapping[Any, Any] = edits.stacked
    else:
        by_pattern = edits
    for pattern, new in by_pattern.items():
        if isinstance(new, str | bytes):
            raise TypeError(
                f"edit of {pattern!r}: a new value is an array, a function, a record or an Edit, got {new!r}"
            )
    chosen = {check_pattern(p, "edit"): e if isinstance(e, Edit) else Edit(e) for p, e in by_pattern.items()}
    if jitted is not None:
        return _compiled_edit(f, *jitted, _wishes(chosen), request)
    wishes = _wishes(chosen)

    def edited(*args: Any, **kwargs: Any) -> Any:
        steps, values = _steps_of(wishes)  # what the functions read may be other values at each call
        plan = EditPlan.of(steps)
        result = _edit_now(plan, values, f, request, args, kwargs)
        if any(function.writes for step in steps for function in step.functions):
            plan.stays_for(_steps_of(wishes)[0])
        return result

    return wrapped_like(edited, f)


def _edit_now(
    plan: EditPlan,
    values: tuple[StepValues, ...],
    f: Callable,
    inside: InsideRequest | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    return run_with(Editing(plan, values), f, args, kwargs, edits=True, plan=plan, inside=inside)


def put_by_rule(
    f: Callable[P, R],
    rule: Rule,
    put: Put = REPLACED,
    *,
    paths: Iterable[str] | Near | None = None,
    inside: InsideRequest | None = None,
) -> Callable[P, R]:
    """`f` with what a rule supplies put at its sites: unlike an edit, it may depend on path, call and iteration.

    Args:
        f: Any callable.
        rule: What to put at each place.
        put: How it is put there.
        paths: Where the rule may put anything, with a `*` or a number for each named loop. Anywhere, if None.
        inside: As in `edit`.
    """

    def with_rule(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_by_rule(f, rule, args, kwargs, put, paths=paths, inside=inside)[0]

    return with_rule


def run_by_rule(
    f: Callable[..., R],
    rule: Rule,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    put: Put,
    *,
    paths: Iterable[str] | Near | None = None,
    counts_calls: bool = True,
    request: ModuleRequest | None = None,
    inside: InsideRequest | None = None,
) -> tuple[R, Editing]:
    """Runs `f` as `put_by_rule` does.

    Args:
        f: Any callable.
        rule: What to put at each place.
        args: The positional arguments.
        kwargs: The keyword arguments.
        put: How it is put there.
        paths: Where the rule may put anything. Anywhere, if None.
        counts_calls: Whether what is put depends on the call of a site.
        request: What is wanted of modules.
        inside: As in `edit`.

    Returns:
        The result of `f`, and the handler, which knows the sites that were met.
    """
    at_paths = paths if paths is None or isinstance(paths, Near) else Paths(paths)
    step = Step(None, "rule", None, None, None, -1, None, None, put=put, paths=at_paths, counts_calls=counts_calls)
    plan = EditPlan.of([step])
    handler = Editing(plan, (StepValues(rule, ()),))
    return run_with(handler, f, args, kwargs, edits=True, plan=plan, request=request, inside=inside), handler


_ARRAYS = "__sonde_arrays_of_edits__"


class _Program(NamedTuple):
    """An edited function that is compiled for some types of arguments, and what tells that it was traced."""

    jitted: Any
    meter: Meter


def _compiled_edit(
    f: Any, fn: Callable, options: dict[str, Any], wishes: tuple[_Wish, ...], asked: InsideRequest | None
) -> Callable:
    """One `jax.jit` of the edited function for each structure of edits; their arrays are arguments."""
    # Functions whose numbers must be known, as an earlier edit has shown.
    whole_functions: set[Hoisted] = kept_with(f, "functions of edits that need numbers", lambda _: set())
    has_models = bool(asked and asked.known_models())

    news, tree = jax.tree.flatten([wish.new for wish in wishes])
    are_arrays = [*map(is_argument, news)]
    new_arrays = [x for x, is_array in zip(news, are_arrays) if is_array]
    # What cannot be compared is by identity.
    fixed = tuple([None if is_array else x for x, is_array in zip(news, are_arrays)])
    key_of_news = by_identity(tree), tuple(are_arrays), tuple(map(by_identity, fixed))

    def program_of(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Hashable, Callable[[Meter], _Program], Any]:
        """What the program depends on, what makes it, and the arrays of the edits."""
        steps, values = _steps_of(wishes, whole_functions)
        plan = EditPlan.of(steps)
        models = models_of_call(asked, args, kwargs) if asked is not None and has_models else None

        def make(meter: Meter) -> _Program:
            def edited(*args: Any, **kwargs: Any) -> Any:
                arrays_of_news, values = kwargs.pop(_ARRAYS)
                given = iter(arrays_of_news)
                filled = [next(given) if is_array else x for x, is_array in zip(fixed, are_arrays)]
                news_of_run = jax.tree.unflatten(tree, filled)
                own = tuple([value._replace(new=new) for value, new in zip(values, news_of_run)])
                inside = asked if models is None else models.inside(args, kwargs)
                return _edit_now(plan, own, fn, inside, args, kwargs)

            return _Program(meter.jit(wrapped_like(edited, fn), **options), meter)

        without_news = [value if value.new is None else value._replace(new=None) for value in values]
        return ("edit", plan, key_of_news, models or asked), make, (new_arrays, without_news)

    def run(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        while True:
            key, make, arrays = program_of(args, kwargs)
            program = kept_with(f, key, make)
            jitted, n_traced = program.jitted, program.meter.programs
            own: dict[str, Any] = {} if name == "clear_cache" else {_ARRAYS: arrays}
            if name in ("lower", "trace"):  # what they return is called with the arguments of `fn` alone
                with_arrays = functools.partial(lambda program, own, *a, **k: program(*a, **own, **k), jitted, own)
                jitted, own = jax.jit(wrapped_like(with_arrays, fn), **options), {}
            try:
                result = getattr(jitted, name)(*args, **own, **kwargs)
            except NumbersNeeded as error:
                are_known = not any(isinstance(x, _jax.Tracer) for x in jax.tree.leaves(arrays))
                if error.function in whole_functions or not are_known:  # they are traced around the edit, too
                    raise
                whole_functions.add(error.function)
                continue
            if program.meter.programs != n_traced:
                # A function that logs what it is called with changes what it reads by being traced. As in `jax.jit`,
                # that asks for no new trace: the next call finds this program.
                kept_with(f, program_of(args, kwargs)[0], lambda _, same=program: same)
            return result

    return like_jitted(lambda *args, **kwargs: run("__call__", args, kwargs), fn, lambda n, *a, **k: run(n, a, k))


class _Wish(NamedTuple):
    """An `Edit` of the sites of a pattern, checked; `new` is what it puts there, unless that is a function's value."""

    pattern: Pattern
    kind: Literal["function", "value", "record", "keep"]
    new: Any
    may_be_absent: bool
    edit: Edit


def _wishes(edits: Mapping[Pattern, Edit]) -> tuple[_Wish, ...]:
    wishes = []
    for pattern, edit_here in edits.items():
        new: Any = edit_here.new
        kind, absent = "value", False
        if new is KEEP:
            kind, new = "keep", None
        elif isinstance(new, Record):
            check_is_whole(new, pattern)
            kind, absent = "record", any(flag is not None for flag in (*new.taken, *new.counts))
            new = jax.tree.map(lambda x: x, new)  # its arrays are made here, not anew under each trace that asks
        elif callable(new):
            kind, new = "function", None
        wishes.append(_Wish(pattern, kind, new, absent, edit_here))
    return tuple(wishes)


def _steps_of(
    wishes: tuple[_Wish, ...], whole_functions: Collection[Hoisted] = ()
) -> tuple[list[Step], tuple[StepValues, ...]]:
    """The edits without their arrays, and the arrays; those of some functions remain in them."""

    def without_arrays(function: object) -> tuple[Hoisted, list[Any]]:
        hoisted, arrays = hoist(function)
        return (whole(function), []) if hoisted in whole_functions else (hoisted, arrays)

    steps: list[Step] = []
    values: list[StepValues] = []
    for pattern, kind, new, may_be_absent, wish in wishes:
        function, arrays = (None, []) if kind != "function" else without_arrays(wish.new)
        gradient, more = (None, []) if wish.grad is None else without_arrays(wish.grad)
        positions: Any = wish.positions  # a tuple, since `Edit` has checked it
        chosen = []
        if isinstance(positions, _jax.Tracer):
            positions, chosen = hoist(positions)
        calls, traced_calls = _static(wish.calls)
        iterations, traced_iterations = _static(wish.iterations)
        when = (calls, iterations, positions, wish.position_axis)
        put = REPLACED if kind in ("value", "record") else None
        steps.append(Step(pattern, kind, *when, function, gradient, may_be_absent, put))
        values.append(StepValues(new, (*arrays, *more, *chosen), traced_calls, traced_iterations))
    return steps, tuple(values)


def _static(numbers: Any) -> tuple[Any, Any]:
    """The part of some numbers that a plan has, and the part that belongs to a run."""
    return (TRACED, numbers) if isinstance(numbers, _jax.Tracer) else (numbers, None)


def _is_count(number: Any) -> bool:
    return not isinstance(number, bool) and hasattr(number, "__index__") and int(number) >= 0


def _several(numbers: int | Collection[int]) -> Collection[int]:
    is_one = not isinstance(numbers, Collection) or getattr(numbers, "ndim", 1) == 0
    return (numbers,) if is_one else numbers  # pyright: ignore[reportReturnType]
