"""The handler of edits: says where they apply, and supplies the arrays. `sow` applies them (`applying.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.edits.new_values import given_arrays, recorded_arrays
from sonde.core.edits.plan import TRACED, EditPlan, Step, Supply
from sonde.core.interpret.handler import Handler, is_argument
from sonde.core.interpret.items import Extra
from sonde.core.interpret.where import Loop, Where
from sonde.core.marks.named_loops import Row
from sonde.core.marks.operands import operands_of
from sonde.core.marks.path import Pattern, glob_matches
from sonde.core.marks.site import Site, View, naming
from sonde.core.session.caches import by_identity
from sonde.core.session.session import with_capture_state
from sonde.errors import EditError


class Supplied(NamedTuple):
    """What a rule puts at one place.

    Attributes:
        arrays: One list for each entry of `Put.kinds`, with an array for each array of the value.
        applies: Whether anything is put there: a boolean, or a traced one; None: yes.
    """

    arrays: Sequence[Sequence[Any]]
    applies: Any = None


Rule = Callable[[Sequence[Any], Where], Supplied | None]
"""What to put at a place, given the arrays that are there, which may only be used for their types if the program
differentiates them: what is supplied is a constant. None: nothing."""


class StepValues(NamedTuple):
    """What belongs to a step of a plan in one run.

    Attributes:
        new: The new value or the record, if it is not a function.
        arrays: The arrays of its functions, and its positions if they are traced.
        calls: Which calls, if they are traced.
        iterations: Which iterations, if they are traced.
    """

    new: Any
    arrays: tuple[Any, ...]
    calls: Any = None
    iterations: Any = None


class Editing(Handler):
    """Answers where edits apply, and with which arrays.

    Args:
        plan: The edits.
        values: What belongs to each of them in this run.
    """

    knows_loops = counts_iterations = True

    def __init__(self, plan: EditPlan, values: tuple[StepValues, ...]) -> None:
        patterns = tuple(step.pattern for step in plan.steps if step.pattern is not None)
        super().__init__(None, patterns)
        self.plan = plan
        self.values = values
        self.counts.matter = any(step.is_by_call for step in plan.steps)
        if not plan.has_rules:  # what a rule supplies may be of this run alone
            leaves, tree = jax.tree.flatten(values)
            fixed = tuple(by_identity(x) for x in leaves if not is_argument(x))
            types = tuple(_jax.plain_type_of(x) if is_argument(x) else None for x in leaves)
            self.key: Hashable = ("edit", plan, by_identity(tree), fixed, types)

    @property
    def rule(self) -> Any:
        """The rule, if that is what says what to put."""
        return self.values[0].new if self.plan.has_rules else None

    def entering(self, loop: Loop | None = None) -> Self:
        """The handler whose child is about to run."""
        inner = super().entering(loop)
        if self.outside is not None and any(loop.path is not None for loop in inner.position.loops):
            inner.key = None  # what functions of the edit mark has the rows of this run
        return inner

    def finish(self) -> None:
        """Raises an error for a pattern, or a call number, that matched nothing."""
        super().finish()
        for step in self.plan.steps:
            named = () if step.calls in (None, TRACED) else step.calls
            missed = set(named) - self.counts.replaced.get(step.pattern, set())
            if missed and step.pattern is not None:
                most = max(self._hit_counts(step.pattern), default=0)
                raise EditError(
                    f"edit of {step.pattern!r}: calls={sorted(missed)} is out of range; the site runs {most} times "
                    "(numbered from 0)"
                )

    def _hit_counts(self, pattern: Pattern) -> list[int]:
        return [n for path, n in self.counts.items() if not isinstance(pattern, str) or glob_matches(pattern, path)]

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Raises an error if an edit chooses a value that the program continues with whatever is put there."""
        del arrays, extras
        site, path, view = where.marked, where.path, where.view
        if not site.in_place or not view.is_value or not self.patterns:
            return
        call = self.counts.next(path, view.gates)
        chosen = self.chosen(where)
        for step in self.plan.steps:
            if step.pattern in chosen and (step.calls in (None, TRACED) or call in step.calls):
                instead = "edit an array that it is made of, or that is computed from it"
                if site.depths is None:
                    instead = "use `sonde.sow` and its result there, or edit the output of a method"
                raise EditError(f"edit of {path!r} ({site.line}): {site.why_in_place}; {instead}")

    def supply(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Answers what a site asks of this edit: for each step whether it applies, and its arrays."""
        supply = site.supply
        if supply.plan is not self.plan or not self.sees(site):
            return super().supply(args, site, view)
        arrays = operands_of(args, site, view).arrays
        where = self.locate(site, view, self.position.names)
        where = where._replace(call=self._call(supply, where))
        chosen = self.chosen(where)
        answer: list[Any] = []
        for number in supply.numbers:
            step = self.plan.steps[number]
            is_chosen = step.pattern is None or step.pattern in chosen
            answer_of_step = self._answer(supply, number, arrays, where) if is_chosen else None
            answer += Supply(self.plan, (number,)).nothing(arrays, view) if answer_of_step is None else answer_of_step
        # Where the program is differentiated, JAX has given the other branches of a cond zeros of the types that were
        # announced, and those are laid out over a mesh as the arrays of the site are.
        types = supply.types([*map(_jax.typeof, arrays)], view)
        return [*map(_jax.laid_out_as, answer, types)]

    def _call(self, supply: Supply, where: Where) -> int:
        """The number of the call that asks; in a recomputation that of the call that is computed again."""
        if not self.counts.matter:
            return 0
        if supply.first is None:
            call = self.counts.next(where.path, where.view.gates)
            if any(loop.length is None for loop in where.loops):  # of nothing else is there a recomputation
                self.counts.first_calls.setdefault(supply, set()).add(call)
            return call
        numbers = self.counts.first_calls.get(supply.first, set())
        if len(numbers) != 1:  # several calls of a function share one program: which of them it is cannot be told
            raise EditError(
                f"edit of {where.path!r} ({where.marked.line}): it depends on the call, but the site is in a "
                "while_loop that is computed again for a derivative, of a function that is called several times; edit "
                "all calls, or leave out jax.checkpoint"
            )
        return min(numbers)

    def _answer(self, supply: Supply, number: int, arrays: list[Any], where: Where) -> list[Any] | None:
        """Whether a step that chooses the site applies in this iteration, and its arrays; None if it does not."""
        step, values = self.plan.steps[number], self.values[number]
        conditions: list[Any] = []
        if step.calls == TRACED:
            conditions.append(jnp.isin(where.call, values.calls))
        elif step.calls is not None and where.call not in step.calls:
            return None
        supplied: Sequence[Sequence[Any]] = ()
        if step.kind == "rule":
            if step.paths is not None and not step.paths.have(where.path):
                return None
            with with_capture_state(None):
                from_rule = values.new(arrays, where)
            if from_rule is None:
                return None
            supplied, conditions = from_rule.arrays, [*conditions, from_rule.applies]
        else:
            self.counts.replaced.setdefault(step.pattern, set()).add(where.call)
            if number in supply.failures:
                raise supply.failures[number]
            rows = self._rows(step, values, where)
            if number in supply.names:
                supply.names[number].rows = frozenset(rows) if where.named else None
            conditions.append(where.is_in(rows) if where.named else None)
            if step.iterations is not None:
                conditions.append(self._is_now(step.iterations, values.iterations, where))
            if step.kind == "record":
                recorded, taken = recorded_arrays(values.new, arrays, where.in_rows(rows))
                conditions.append(taken)
                supplied = [recorded]
            elif step.kind == "value":
                supplied = [given_arrays(values.new, arrays, where.in_rows(rows))]
        conditions = [condition for condition in conditions if condition is not None]
        applies: Any = functools.reduce(jnp.logical_and, conditions) if conditions else np.bool_(True)
        if step.may_be_absent:
            shape = tuple(axis.size for axis in where.view.axes)
            applies = jnp.broadcast_to(applies, shape) if shape else applies
        return [applies, *[x for group in supplied for x in group], *values.arrays]

    def _rows(self, step: Step, values: StepValues, where: Where) -> list[Row]:
        """The rows of the named loops around a site that an edit applies to."""
        rows = where.rows([step.pattern]) if where.named and step.pattern is not None else []
        if step.kind == "record":  # it may have been recorded for some rows only
            recorded = next(call.value.view for call, _ in values.new.calls() if call.value.view.is_value)
            rows = [row for row in rows if recorded.has_row(row)]
        return rows

    def _is_now(self, iterations: Any, traced: Any, where: Where) -> Any:
        site = where.site
        if not where.loops:
            raise EditError(f"edit of {site.path!r} ({site.line}): iterations= is given, but the site is in no loop")
        own = [loop for i, loop in enumerate(where.loops) if i not in where.named] or list(where.loops)
        if callable(iterations):
            with naming(site, "the iterations of an edit"):
                return jnp.asarray(iterations(*(loop.index for loop in own)), bool)
        if iterations is TRACED:
            return jnp.isin(own[-1].index, traced)
        length = own[-1].length
        if length is not None and (beyond := [n for n in iterations if n >= length]):
            raise EditError(
                f"edit of {site.path!r} ({site.line}): iterations={beyond} is out of range; the loop has {length} "
                "(numbered from 0)"
            )
        return jnp.isin(own[-1].index, jnp.asarray(sorted(iterations)))
