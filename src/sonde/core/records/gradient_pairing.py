"""Turns what a handler recorded into calls: one for each time that a site ran, a value with its gradients.

A handler keeps items, as they came out of loops, branches and jitted functions. Here branches are merged, and every
gradient is paired with its value. Records and `nnx.capture` are made of these calls.

A site that was traced once and run once is simple. A function that is compiled once and called twice has one site for
both calls; there the token decides: at once if it is already a number, by a select in the program if it is still
traced. If a site was differentiated and the backward pass ran, but no gradient reached the site, its gradient is zero;
without a backward pass it has none.

The rows of a gradient are put into the order of the value's rows: the gradient of a loop comes from a loop that runs
backward; a gradient taken inside a loop body does not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.interpret.call_tokens import possible_numbers
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import Item, expand
from sonde.core.interpret.recording import leaf_indices
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.marks.axes import Axis, common_axes, either, extra_has, in_row, over_axes, with_leaves, zero_unless
from sonde.core.marks.operands import NO_VALUE, WRITTEN_DOWN
from sonde.core.marks.site import Site
from sonde.core.records.branch_merge import merge_choices, tokens_of
from sonde.errors import CaptureError


@dataclasses.dataclass(slots=True)
class Call:
    """A value and, by order of differentiation, its gradient, or None if that is zero."""

    item: Item
    grads: dict[int, Item | None]


def calls_of(handler: Handler) -> list[Call]:
    """Everything that a handler recorded: each value with its gradients, in program order."""
    return calls_from(expand(handler.items), handler.met)


def calls_from(items: Sequence[Item], met: SeenSites) -> list[Call]:
    """The calls that items make up; `met` is what the handler that recorded them has met."""
    return pair(merge_choices(items), met)


def pair(items: Iterable[Item], met: SeenSites) -> list[Call]:
    """Pairs values with gradients.

    Gradients whose value was not recorded (it was computed before the capture began) become separate calls, the
    orphans.
    """
    items = list(items)
    calls = [Call(item, {}) for item in items if item.view.is_value]
    of_site: dict[Site, list[Call]] = {}
    for call in calls:
        for site in call.item.sites:
            of_site.setdefault(site, []).append(call)
    orphans: list[Call] = []
    gradients = _with_candidates(items, of_site)
    by_run = _by_run(gradients)
    for item, candidates in gradients:
        if id(item) in by_run:
            _add(by_run[id(item)], item, orphans)
        elif candidates.calls:
            if not _give(item, candidates, orphans):
                orphans.append(Call(item, {}))
        elif not any(site in met.sites for site in item.sites):
            orphans.append(Call(item, {}))
    passes = met.passes
    # A backward pass that ran without reaching a site leaves a gradient of zero; where none ran, there is none.
    for call in calls:
        call.grads = {order: _with_axes_of(call.item, item) for order, item in call.grads.items() if item is not None}
        for order in (call.item.view.order - 1 - number for number in passes):
            if order >= 0 and all(site.has_gradient for site in call.item.sites):
                call.grads.setdefault(order, None)
    return calls + orphans


class _Candidates:
    """The calls that a gradient may belong to: all of its sites. They are found by their tokens.

    A training step that is called a thousand times has a thousand calls of each site, and as many gradients.

    Attributes:
        calls: All of them, in program order.
        traced: Whether some token is known only when the program runs.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.traced = any(isinstance(t, _jax.Tracer) for call in calls for t in tokens_of(call.item))

    @functools.cached_property
    def _by_number(self) -> dict[int | None, list[int]]:
        """The positions of the calls that may have a token; under None those that may have any."""
        positions_of: dict[int | None, list[int]] = {}
        for position, call in enumerate(self.calls):
            numbers = [possible_numbers(token) for token in tokens_of(call.item)]
            for number in {n for possible in numbers for n in (possible if possible is not None else (None,))}:
                positions_of.setdefault(number, []).append(position)
        return positions_of

    def with_number(self, number: int) -> list[Call]:
        """The calls that are known to have a token, or may have it."""
        return [self.calls[i] for i in self._by_number.get(number, ())]

    def possible(self, token: Any) -> list[Call]:
        """The calls whose token may be this one, according to the program; the others get nothing."""
        numbers = possible_numbers(token)
        if numbers is None:
            return self.calls
        numbers_or_any = (*(numbers - {0, NO_VALUE}), None)
        return [self.calls[i] for i in sorted({i for n in numbers_or_any for i in self._by_number.get(n, ())})]


def _with_candidates(items: Sequence[Item], of_site: dict[Site, list[Call]]) -> list[tuple[Item, _Candidates]]:
    """The gradients, each with the calls of its sites: if possible, those differentiated often enough."""
    candidates_of: dict[Any, _Candidates] = {}
    gradients = []
    for item in items:
        if not item.view.is_value:
            key = (item.sites, item.view.order)
            if key not in candidates_of:
                calls = list({id(c): c for s in item.sites for c in of_site.get(s, ())}.values())
                candidates_of[key] = _Candidates([c for c in calls if c.item.view.order > item.view.order] or calls)
            gradients.append((item, candidates_of[key]))
    return gradients


def _by_run(gradients: Sequence[tuple[Item, _Candidates]]) -> dict[int, Call]:
    """The calls of gradients whose token is a constant of a program that ran several times, by id of the gradient.

    Every run computes its values and gradients in the same order.
    """
    groups: dict[tuple[int, int], list[tuple[Item, list[Call]]]] = {}
    for gradient, candidates in gradients:
        numbers = (possible_numbers(gradient.extras["token"]) if len(candidates.calls) > 1 else None) or frozenset()
        numbers -= {0}
        if len(numbers) == 1 and min(numbers) <= WRITTEN_DOWN:
            (number,) = numbers
            groups.setdefault((number, gradient.view.order), []).append((gradient, candidates.with_number(number)))
    call_of: dict[int, Call] = {}
    for group in groups.values():
        n = len(group[0][1])
        if n > 1 and len(group) % n == 0:
            call_of.update({id(gradient): calls[i * n // len(group)] for i, (gradient, calls) in enumerate(group)})
    return call_of


def _give(gradient: Item, candidates: _Candidates, orphans: list[Call]) -> bool:
    """Adds a gradient to the calls that it belongs to, element by element. False if its value was not computed.

    The token says which call. With branches it may differ between iterations, or between the elements of a map; it is 0
    where no branch with the site was taken.
    """
    token = gradient.extras["token"]
    if isinstance(token, np.ndarray) and token.size and np.all(token == NO_VALUE):  # a loop of length 0 has none
        return False
    traced = isinstance(token, _jax.Tracer)
    possible = candidates.calls if len(candidates.calls) == 1 else candidates.possible(token)
    if len(possible) == 1 and (traced or candidates.traced or possible is candidates.calls):
        _add(possible[0], gradient, orphans)
        return True
    _check_told_apart(gradient, candidates)
    token = token if traced else _as_numbers(token)
    has = [on and token.ndim > 0 for on in extra_has(gradient.view.axes, "token")]
    for call in possible:
        call_tokens = [_one(token) for token in tokens_of(call.item)]
        if not traced and not any(isinstance(t, _jax.Tracer) for t in call_tokens):
            belongs = np.isin(token, call_tokens) & (token != 0)  # where the token is 0, so is the gradient
            if np.all(belongs | (token == 0)):
                if np.any(belongs):
                    _add(call, gradient, orphans)
                continue
            if not np.any(belongs):
                continue
        else:
            if not _may_be_of(gradient, call.item):
                continue
            belongs = functools.reduce(jnp.logical_or, [token == t for t in call_tokens])
        leaves, leaves_have = zero_unless(belongs, has, gradient.leaves, gradient.has[: len(gradient.leaves)])
        axes = with_leaves(gradient.view.axes, leaves_have)
        _add(call, dataclasses.replace(gradient, leaves=leaves, view=gradient.view.replace(axes=axes)), orphans)
    return True


def _check_told_apart(gradient: Item, candidates: _Candidates) -> None:
    """Raises CaptureError if a gradient has a token that is a constant of a program, and the program ran twice."""
    numbers = possible_numbers(gradient.extras["token"]) or frozenset()
    for number in numbers:
        same = candidates.with_number(number) if number <= WRITTEN_DOWN else ()
        if len(same) > 1:
            site = gradient.site
            raise CaptureError(
                f"the gradient at site {same[0].item.path!r} ({site.line}) belongs to one of {len(same)} calls that "
                "cannot be told apart: it is computed in a while_loop in a rematerialized function that is called "
                "several times; capture without `grads`, or take the gradient outside the loop"
            )


def _may_be_of(gradient: Item, value: Item) -> bool:
    """Whether a gradient has the loops of a value, and its value's maps are those of this one.

    Of the loops nothing but their shapes is known.
    """
    value_loops, gradient_loops = _loops(value), _loops(gradient)
    gradient_loops = gradient_loops[len(gradient_loops) - len(value_loops) :]
    maps = [axis.mapped_by for axis in value.view.axes if axis.kind == "vmap"]
    of_its_value = [a.mapped_by for a in gradient.view.axes if a.mapped_by is not None and a.mapped_by.inherited]
    mapped_alike = None in maps or all(any(m and m[:2] == own[:2] for m in maps) for own in of_its_value)
    same_number = len(value_loops) == len(gradient_loops)
    return mapped_alike and same_number and all(map(Axis.looks_like, value_loops, gradient_loops))


def _loops(item: Item) -> list[Axis]:
    return [axis for axis in item.view.axes if axis.is_loop]


def _as_numbers(token: Any) -> Any:
    is_here = getattr(token, "is_fully_addressable", True)
    return np.asarray(token) if is_here else np.asarray(_one(token))


def _one(token: Any) -> Any:
    """The token of a value. It comes once per iteration and per shard, and is 0 where a branch was not taken."""
    if not np.ndim(token):
        return token
    is_here = not isinstance(token, _jax.Tracer) and getattr(token, "is_fully_addressable", True)
    return np.max(np.asarray(token)) if is_here else jnp.max(token)


def _add(call: Call, gradient: Item, orphans: list[Call]) -> None:
    """Several backward passes through one call add up, as cotangents do.

    Gradients that cannot be added are an error. Under `inside=`, where the user cannot change the code, the gradient is
    recorded as a separate call instead.
    """
    gradient = _in_order_of(call.item, gradient)
    # The cotangent of an axis does not know in which run of a `vmap` it is; its value does.
    axes = tuple(axis.of_value(call.item.view.axes) for axis in gradient.view.axes)
    gradient = dataclasses.replace(gradient, view=gradient.view.replace(axes=axes))
    order = gradient.view.order
    before = call.grads.get(order)
    total = gradient if before is None else _sum(call.item, before, gradient)
    if total is not None:
        call.grads[order] = total
    elif gradient.site.depths is not None and order == 0:
        orphans.append(Call(gradient, {}))
    else:
        raise CaptureError(
            f"site {call.item.path!r} ({call.item.site.line}) has gradients from two backward passes, with the axes "
            f"{before and before.view.axes} and {gradient.view.axes}, which cannot be added: capture the two passes "
            "one by one"
        )


def _sum(value: Item, a: Item, b: Item) -> Item | None:
    """The sum of two gradients of one value, leaf by leaf; None if their axes have nothing in common.

    A gradient without a part for a leaf adds nothing.
    """
    n_loops = len(_loops(value))
    # One of two passes may have run in a loop of its own, once for each iteration: what reaches the value is their sum.
    if len(_loops(a)) != len(_loops(b)):
        a, b = _without_further_loops(a, n_loops), _without_further_loops(b, n_loops)
    common = common_axes(a.view.axes, b.view.axes)
    if common is None or a.tree != b.tree:
        return None
    axes, on_a, on_b = common
    parts: dict[int, tuple[Any, list[bool]]] = {}
    for item, on in ((a, on_a), (b, on_b)):
        indices = leaf_indices(item.view, len(item.leaves)) if item.tree is None else range(len(item.leaves))
        for index, leaf, has in zip(indices, item.leaves, item.has):
            has = in_row(on, has)
            if index in parts:
                before, before_has = parts[index]
                leaf, has = over_axes(jnp.add, [before_has, has])(before, leaf), either(before_has, has)
            parts[index] = leaf, has
    part_indices = sorted(parts)
    has = [parts[i][1] for i in part_indices]
    view = a.view.replace(axes=with_leaves(axes, has))
    if a.tree is None:
        view = view.joined(b.view).replace(gradient_of=tuple(part_indices), order=a.view.order)
    return dataclasses.replace(a, leaves=[parts[i][0] for i in part_indices], view=view, extras={})


def _with_axes_of(value: Item, gradient: Item) -> Item:
    """A gradient that also has the axes of its value; axes that it does not vary over are noted as such."""
    common = common_axes(gradient.view.axes, value.view.axes) if gradient.tree is None else None
    if common is None or all(common[1]):
        return gradient
    axes, on, _ = common
    # Over an axis that it lacks it does not vary; it is not a sum over it.
    axes = [axis if is_own else dataclasses.replace(axis, summed=frozenset()) for axis, is_own in zip(axes, on)]
    has = [in_row(on, has) for has, _ in zip(gradient.has, gradient.leaves)]
    return dataclasses.replace(gradient, view=gradient.view.replace(axes=with_leaves(axes, has)), extras={})


def _without_further_loops(gradient: Item, n_loops: int) -> Item:
    """The sum over the loops that ran whole backward passes: those that a gradient has and its value has not."""
    further = max(0, len(_loops(gradient)) - n_loops)
    leaves = [jnp.sum(x, axis=tuple(range(sum(has[:further])))) for x, has in zip(gradient.leaves, gradient.has)]
    view = gradient.view.replace(axes=gradient.view.axes[further:])
    return dataclasses.replace(gradient, leaves=leaves, view=view, extras={})


def _in_order_of(value: Item, gradient: Item) -> Item:
    """Reverses the loop axes of a gradient whose rows are in the opposite order of the value's."""
    turn = turned_axes(value, gradient)
    if not turn:
        return gradient
    return gradient.map_arrays(lambda x: jax.lax.rev(jnp.asarray(x), [i for i in turn if i < jnp.ndim(x)]))


def turned_axes(value: Item, gradient: Item) -> list[int]:
    """The loop axes of a gradient, by position, along which its rows are in the opposite order of the value's.

    A loop puts the rows of a gradient where the rows of its inputs are, whichever way it runs, so that they are where
    the value's are, except that the value's were put in the order in which they were computed.
    """
    value_loops = [a for a in value.view.axes if a.is_loop]
    loops = [a for a in gradient.view.axes if a.is_loop]
    shared = 0
    while shared < min(len(value_loops), len(loops)) and value_loops[shared].loop is loops[shared].loop:
        shared += 1
    # The value's other loops were transposed; each extra loop in front of the gradient ran a complete backward pass.
    first_transposed = max(shared, len(loops) - (len(value_loops) - shared))
    origins = [*loops[:first_transposed], *value_loops[len(value_loops) - (len(loops) - first_transposed) :]]
    return [i for i, axis in enumerate(origins) if axis.reverse]
