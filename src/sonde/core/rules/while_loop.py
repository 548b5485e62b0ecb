"""`while_loop`, whose number of iterations nobody knows: the last iteration's values and the number of iterations.

On request the last few iterations are kept, in a ring that is put in order after the loop.

Under `vmap` with a mapped predicate the loop runs until the last element is done. The predicate is then an array, and
values and counts are selected per element: one that has finished keeps what it had.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import _jax
from sonde.core.collect import spread
from sonde.core.handler import Rebinding
from sonde.core.inside import gives_tokens, has_sites
from sonde.core.item import Item, ItemSpec, build_items, flat_arrays
from sonde.core.primitive import TOKEN, n_arrays, site_p
from sonde.core.rewrite import Rewritten, rewrite
from sonde.core.site import Axis, Site, View
from sonde.core.trace import RULES, SiteTrace, run_under

INDEX_TYPE = _jax.typeof(np.zeros((), np.int32))


def while_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A while loop, or a `fori_loop` with bounds known only when it runs."""
    handler = trace.handler
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, init = args[:n_test], args[n_test : n_test + n_body], args[n_test + n_body :]
    steps = [INDEX_TYPE] * handler.counts_iterations
    body = rewrite(params["body_jaxpr"], handler, steps)
    test = rewrite(params["cond_jaxpr"], handler, steps)
    body_in, test_in = body.inputs(handler), test.inputs(handler)
    if not (body.specs or test.specs or handler.counts_iterations):
        # Nothing has to come out: the loop stays the loop it is.
        wider = {
            **params,
            "cond_jaxpr": test.jaxpr,
            "body_jaxpr": body.jaxpr,
            "cond_nconsts": n_test + len(test_in),
            "body_nconsts": n_body + len(body_in),
        }
        return _jax.while_p.bind(*test_in, *test_consts, *body_in, *body_consts, *init, **wider)
    # The test runs once before the loop and once in every iteration; a handler around must see its sites once.
    quiet = handler.quietly()
    first_test = rewrite(params["cond_jaxpr"], quiet, steps)
    first_test_in = first_test.inputs(quiet)
    active_shape = _jax.open_jaxpr(params["cond_jaxpr"]).outvars[0].aval.shape
    keep = _Keep(body.specs, active_shape, handler.last, handler.fold, _unchanging(body, n_body))
    keep_test = _Keep(test.specs, active_shape, 1, handler.fold, _unchanging(test, n_test))

    def numbered(index: Any) -> list[Any]:
        return [index] * handler.counts_iterations

    def run_test(carry: Sequence[Any], index: Any) -> tuple[Any, list[Any]]:
        active, *seen = _jax.eval_jaxpr(test.jaxpr, *test_in, *test_consts, *carry, *numbered(index))
        return active, seen

    def run_first_test(carry: Sequence[Any], index: Any) -> tuple[Any, list[Any]]:
        active, *seen = _jax.eval_jaxpr(first_test.jaxpr, *first_test_in, *test_consts, *carry, *numbered(index))
        return active, seen

    def step(state: Any) -> Any:
        carry, kept, kept_test, index, count, active = state
        outs = _jax.eval_jaxpr(body.jaxpr, *body_in, *body_consts, *carry, *numbered(index))
        carry = [_where(active, new, old) for new, old in zip(outs[: body.n_outs], carry)]
        kept = keep.update(active, index, outs[body.n_outs :], kept)
        count = count + active.astype(jnp.int32)
        still, seen = run_test(carry, index + 1)
        kept_test = keep_test.update(active, index, seen, kept_test)
        return carry, kept, kept_test, index + 1, count, still

    zero = jnp.zeros((), jnp.int32)
    active, seen = run_first_test(init, zero)
    start = (
        list(init),
        keep.empty(body.types, active),
        keep_test.first(seen, active),
        zero,
        active.astype(jnp.int32) * 0,
        active,
    )
    final = lax.while_loop(lambda state: jnp.any(state[5]) if active_shape else state[5], step, start)
    carry, kept, kept_test, _, count, _ = final
    loop = object()
    items = keep_test.items(kept_test, count, loop) + keep.items(kept, count, loop)
    handler.items += items
    return carry


def _where(active: Any, new: Any, old: Any, axis: int = 0) -> Any:
    """`new` where the element is still active; the active axes of the arrays start at `axis`."""
    if not jnp.ndim(active):
        return new
    dims = tuple(range(axis, axis + active.ndim))
    active = _jax.taken_as_varying_like(active, old)
    return lax.select(lax.broadcast_in_dim(active, new.shape, dims), new, old)


def _unchanging(body: Rewritten, n_consts: int) -> list[bool]:
    """For each of the arrays that a loop body records, whether it is just one of the body's constants."""
    jaxpr = _jax.open_jaxpr(body.jaxpr)
    consts = jaxpr.invars[: body.n_inputs + n_consts]
    return [any(x is const for const in consts) for x in jaxpr.outvars[body.n_outs :]]


class _Keep:
    """What a loop carries along for the recorded items, and how an iteration changes it."""

    def __init__(
        self,
        specs: Sequence[ItemSpec],
        active_shape: tuple[int, ...],
        last: int,
        fold: Any,
        unchanging: Sequence[bool] = (),
    ) -> None:
        self.unchanging = unchanging
        self.fold = fold
        self.active_shape = active_shape
        self.last = last
        self.old_specs = specs
        self.specs = [self._with_active_axes(spec) for spec in specs]
        self.axes = [self._active_axis(spec, i) for spec in self.specs for i in range(spec.size)]

    def empty(self, types: Sequence[Any], active: Any) -> list[Any]:
        """What is carried before the first iteration."""
        zeros = self._grown([_jax.zeros_of_type(t) for t in types], active)
        return zeros if self.last == 1 else [jnp.stack([x] * self.last) for x in zeros]

    def first(self, new: Sequence[Any], active: Any) -> list[Any]:
        """What is carried after something that always runs once."""
        return self._grown(new, active)

    def update(self, active: Any, index: Any, new: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """What is carried after an iteration that computed `new`."""
        new = self._grown(new, active)
        if self.fold is not None:
            new = self._folded(new, kept, index)
        if self.last == 1:
            return [self._select(active, x, old, axis) for x, old, axis in zip(new, kept, self.axes)]
        slot = index % self.last
        result = []
        for x, ring, axis in zip(new, kept, self.axes):
            old = lax.dynamic_index_in_dim(ring, slot, keepdims=False)
            result.append(lax.dynamic_update_index_in_dim(ring, self._select(active, x, old, axis), slot, 0))
        return result

    def _folded(self, new: Sequence[Any], kept: Sequence[Any], index: Any) -> list[Any]:
        old = build_items(self.specs, kept)
        for item, before in zip(items := build_items(self.specs, new), old):
            item.leaves = self.fold(before.leaves, item.leaves, index)
        return flat_arrays(items)

    def _active_axes(self, spec: ItemSpec) -> range:
        """Which axes of an item are those of the predicate; none if it does not vary over them."""
        n, axes = len(self.active_shape), spec.view.axes
        loops = sum(a.is_loop for a in axes)
        sizes = tuple(a.size for a in axes)
        starts = (k for k in range(loops, len(axes) - n + 1) if sizes[k : k + n] == self.active_shape)
        start = next(starts, None) if n else None
        return range(0) if start is None else range(start, start + n)

    def _with_active_axes(self, spec: ItemSpec) -> ItemSpec:
        """An item all of whose arrays vary over the predicate: an element that never ran has zeros in each."""
        active = self._active_axes(spec)
        axes = [dataclasses.replace(a, leaves=None) if i in active else a for i, a in enumerate(spec.view.axes)]
        return dataclasses.replace(spec, view=spec.view.replace(axes=tuple(axes)))

    def _grown(self, arrays: Sequence[Any], active: Any) -> list[Any]:
        """Arrays as the loop computes them, made to vary over whatever the predicate varies over."""
        items = build_items(self.old_specs, arrays)
        for item, spec in zip(items, self.old_specs):
            axes = self._active_axes(spec)
            if axes and spec.tree is None:
                run = spec.view.axes[axes.start : axes.stop]
                before = spec.view.axes[: axes.start]
                item.leaves = [
                    spread(x, run, i, skip=sum(a.on_leaf(i) for a in before)) for i, x in enumerate(item.leaves)
                ]
        for item in items:
            item.leaves = [_jax.varying_like(x, active) for x in item.leaves]
            item.extras = {k: x if k == "token" else _jax.varying_like(x, active) for k, x in item.extras.items()}
        return flat_arrays(items)

    def _active_axis(self, spec: ItemSpec, index: int) -> int | None:
        """Where an array of an item has the axes of the predicate."""
        active = self._active_axes(spec)
        if not active or (index >= spec.n_leaves and spec.extras[index - spec.n_leaves] == "token"):
            return None
        if index >= spec.n_leaves or spec.tree is not None:
            return active.start
        return sum(a.on_leaf(index) for a in spec.view.axes[: active.start])

    @staticmethod
    def _select(active: Any, new: Any, old: Any, axis: int | None) -> Any:
        return new if axis is None else _where(active, new, old, axis)

    def items(self, kept: Sequence[Any], count: Any, loop: object) -> list[Item]:
        """The items after the loop."""
        if self.last == 1:
            items = build_items([spec.inside_loop(loop) for spec in self.specs], kept)
        else:
            ordered = [self._in_order(ring, count, axis) for ring, axis in zip(kept, self.axes)]
            axis = Axis("while", self.last, loop=loop)
            items = build_items([spec.inside(axis) for spec in self.specs], ordered)
        flags = build_items(self.specs, self.unchanging) if self.unchanging else items
        for item, flag in zip(items, flags):
            taken = item.extras.get("taken")
            # In a branch that runs beside its siblings, elements that took another one have not run the loop. The
            # choice was made outside the loop if it is the same in every iteration.
            outside = flag.extras.get("taken") is True and taken is not None and taken.shape == count.shape
            item.extras.setdefault("count", count * taken if outside else count)
        return items

    def _in_order(self, ring: Any, count: Any, axis: int | None) -> Any:
        """Turns a ring so that its rows are the last iterations in order; rows that were never filled come last."""

        def turn(ring: Any, count: Any) -> Any:
            oldest = count - jnp.minimum(count, self.last)
            return jnp.take(ring, (oldest + jnp.arange(self.last)) % self.last, axis=0)

        if axis is None:
            return turn(ring, jnp.max(count))
        for _ in self.active_shape:
            turn = jax.vmap(turn, in_axes=(axis + 1, 0), out_axes=axis + 1)
        return turn(ring, count)


RULES[_jax.while_p] = while_rule


# ---------------------------------------------------------------------------------------------------------------------
# Under remat JAX cannot save anything from inside a while loop, not even a token. It cannot differentiate the loop
# backwards either, so its sites are only looked at.
# ---------------------------------------------------------------------------------------------------------------------


class _LookOnly(Rebinding):
    """Divides every site into the value, which goes on as it is, and a look at it."""

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Binds the look."""
        if not view.gives_token(site):
            return site_p.bind(*args, site=site, view=view)
        n, token = n_arrays(args, site, view), np.zeros((), TOKEN)
        if view.role == "site":
            before, gate = args[: n + view.anchored], args[n + view.anchored :]
            site_p.bind(*before, token, *gate, site=site, view=view.replace(role="look"))
        return [*args[:n], token]


class _NoSites(Rebinding):
    """Leaves sites out."""

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """The values, and a token that nobody will use."""
        values = [] if view.role == "look" else list(args[: n_arrays(args, site, view)])
        return [*values, np.zeros((), TOKEN)] if view.gives_token(site) else values


def _rewritten(params: dict[str, Any], handler: Rebinding, wants: Callable[[Any], bool]) -> dict[str, Any] | None:
    new = {}
    for name in ("cond_jaxpr", "body_jaxpr"):
        jaxpr = params[name]
        if wants(jaxpr):
            types = [v.aval for v in _jax.open_jaxpr(jaxpr).invars]
            run = functools.partial(run_under, handler, _jax.eval_jaxpr, jaxpr)
            new[name] = _jax.trace_to_closed_jaxpr(run, types)
    return {**params, **new} if new else None


def _without_tokens(params: dict[str, Any]) -> dict[str, Any] | None:
    return _rewritten(params, _LookOnly(), lambda jaxpr: has_sites(jaxpr) and gives_tokens(jaxpr))


def _met_already(forward: dict[str, Any], again: dict[str, Any]) -> dict[str, Any] | None:
    if not any(has_sites(forward[name]) for name in ("cond_jaxpr", "body_jaxpr")):
        return None
    return _rewritten(again, _NoSites(), has_sites)


_jax.prepare_while_loops_for_remat(_without_tokens, _met_already)
