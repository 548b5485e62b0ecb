"""Edits as part of the program: `sow` applies them where the value is made.

A handler sits at the bottom of the stack of JAX's traces: what reaches it has been differentiated and mapped already.
If it put a new value there, the tangent of the old one would stay. So the new value is computed where `sow` is called,
under every transform of the program, and JAX differentiates and maps it like any other operation.

What is not known there is asked for. Whether an edit applies depends on the whole path, on the call and on the
iteration; and in a jitted function, whose trace is kept, no array of one run may be closed over. A site with the role
`"supply"` asks the handler of the edit, wherever the program is traced or rewritten: for each edit that may apply it
gives whether it does, and the arrays that it needs (`Supply`). The answer has no derivative.

    sow(x, "h")  ->  applies, *arrays = supply(x)          answered by `editing.Editing`
                     x = new(x, *arrays) if applies        differentiated and mapped by JAX
                     x = site(x)                           seen by captures
                     x = gradient(x, applies, *arrays)     the identity; changes what comes back (`gradients.py`)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.edits.gradients import GradientEdit, with_edited_gradient
from sonde.core.edits.hoisting import calling
from sonde.core.edits.new_values import at_positions, checked_leaves
from sonde.core.edits.plan import RunningPlan, Step, Supply
from sonde.core.marks.primitive import site_p
from sonde.core.marks.scopes import RowsName, path_under, scope
from sonde.core.marks.site import Site, View
from sonde.core.session.session import CaptureState, with_capture_state

_SUPPLY = View(role="supply")


class _Gradients(NamedTuple):
    """An edit of a gradient that is to be applied behind the site."""

    edit: GradientEdit
    applies: Any
    arrays: tuple[Any, ...]


class Edited(NamedTuple):
    """The arrays of a site after all edits of its value, and the edits of its gradient."""

    arrays: list[Any]
    gradients: list[_Gradients]

    def behind_site(self, arrays: Sequence[Any]) -> list[Any]:
        """What the program continues with, given what came out of the site."""
        for edit, applies, operands in self.gradients:
            arrays = with_edited_gradient(arrays, applies, operands, edit)
        return list(arrays)


def apply_edits(arrays: Sequence[Any], site: Site, state: CaptureState) -> Edited:
    """Applies the running edits to the arrays of a site, the innermost first."""
    edited = Edited(list(arrays), [])
    for running in reversed(state.plans):
        edited = _apply(running, edited, site)
    return edited


def _apply(running: RunningPlan, edited: Edited, site: Site) -> Edited:
    depth, plan = running.depth, running.plan
    if site.depths is not None and depth not in site.depths:
        return edited
    if site.handlers is not None and depth not in site.handlers:
        return edited
    relative = site.path if running.in_scope else path_under(_jax.name_stack(), "", depth) + site.path
    numbers = plan.may_match(relative)
    if site.in_place:  # there a rule alone may put something, if the value is traced; an edit is an error
        numbers = tuple(number for number in numbers if plan.steps[number].kind == "rule")
    if not numbers:
        return edited
    named = site.at(relative)  # for messages
    supply = Supply(plan, numbers)
    # A site of its own for the question: no capture records it, and the handler of this edit alone answers.
    asking = site.at(site.path)
    asking.supply, asking.grads, asking.handlers = supply, False, range(depth, depth + 1)
    arrays, gradients = edited.arrays, list(edited.gradients)
    supply.names.update({number: RowsName(site.path) for number in numbers if plan.steps[number].function is not None})
    answer = iter(site_p.bind(*arrays, site=asking, view=_SUPPLY))
    for number in numbers:
        step = plan.steps[number]
        applies = next(answer)
        supplied = [[next(answer) for _ in arrays] for _ in range(step.n_supplied)]
        operands = [next(answer) for _ in step.types]
        if not isinstance(applies, _jax.Tracer) and jnp.ndim(applies) == 0 and not bool(applies):
            continue
        n = 0 if step.function is None else len(step.function.types)
        if step.function is not None:
            new_arrays = functools.partial(_new_arrays, step, named, running.outside, supply.names[number])
            arrays = _where_it_applies(new_arrays, applies, arrays, operands, number, supply)
        elif supplied:
            arrays = _replaced(step, applies, supplied, arrays, operands, named)
        if step.gradient is not None:
            edit = GradientEdit(step.gradient, named, step.positions_in, step.axis, plan)
            gradients.append(_Gradients(edit, applies, tuple(operands[n:])))
    return Edited(arrays, gradients)


def _new_arrays(
    step: Step, site: Site, outside: CaptureState | None, name: RowsName, arrays: list[Any], operands: Sequence[Any]
) -> list[Any]:
    """What the function of an edit makes of the arrays. Captures around the edit see what it marks, below the site."""
    assert step.function is not None
    function = step.function.rebuild(operands[: len(step.function.types)])
    with (
        with_capture_state(outside),
        scope(name),
        calling(step.function, site, "the function of an edit"),
    ):  # without captures, no scope is opened
        result = function(site.rebuild(arrays))
    with with_capture_state(None):  # `jax.numpy` may be marked
        new_leaves = checked_leaves(result, arrays, site)
        if step.positions is not None:
            new_leaves = at_positions(new_leaves, arrays, step.positions_in(operands), step.axis, site)
        return [_jax.typed_like(a, b) for a, b in zip(new_leaves, arrays)]


def _where_it_applies(
    new: Callable[..., list[Any]],
    applies: Any,
    arrays: list[Any],
    operands: Sequence[Any],
    number: int,
    supply: Supply,
) -> list[Any]:
    """The new arrays where the edit applies; elsewhere its function is neither run nor differentiated."""
    if not isinstance(applies, _jax.Tracer):
        return new(arrays, operands)
    try:
        return jax.lax.cond(applies, new, lambda arrays, _: arrays, arrays, operands)
    except Exception as error:  # the whole path is not known here: the edit may be meant for another site
        supply.failures[number] = error
        return arrays


def _replaced(
    step: Step, applies: Any, supplied: list[list[Any]], arrays: list[Any], operands: Sequence[Any], site: Site
) -> list[Any]:
    assert step.put is not None
    with with_capture_state(None):
        values = step.put.combine(arrays, *supplied)
        if step.positions is not None:
            values = at_positions(values, arrays, step.positions_in(operands), step.axis, site)
        if isinstance(applies, _jax.Tracer):
            values = [a if a is b else jnp.where(applies, a, b) for a, b in zip(values, arrays)]
        return [_jax.typed_like(a, b) for a, b in zip(values, arrays)]
