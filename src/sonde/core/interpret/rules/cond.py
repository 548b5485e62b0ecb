"""`cond` and `switch`. Every branch must return the same arrays, so each site has a slot that all branches fill.

Sites of two branches with the same path and the same types share a slot. A branch that lacks the site fills it
with zeros, and a flag says whether the branch that was taken has the site.

Under `vmap` with a mapped predicate JAX runs all branches and selects. Then a gate, true where the branch is taken,
goes with every site inside: the flag is there per element, and elements that took another branch are zeros here too.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from sonde import _jax
from sonde._jax import batching
from sonde.core.interpret.items import Item, build_items
from sonde.core.interpret.rebinding import Rebinding, rebound
from sonde.core.interpret.rewrite import Deduplicated, Rewritten, deduplicated, rewrite
from sonde.core.interpret.rules.mapped_alike import mapped_alike
from sonde.core.interpret.trace import RULES, SiteTrace
from sonde.core.marks.batch_like import along, returns_selectable, selectable
from sonde.core.marks.operands import TOKEN_TYPE, operands_of
from sonde.core.marks.primitive import bind_site
from sonde.core.marks.scopes import ChoiceName
from sonde.core.marks.site import Gate, Site, View
from sonde.core.marks.site_search import has_sites
from sonde.core.session.session import with_capture_state


def cond_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A cond or switch; the first argument is the index of the branch."""
    handler, branches = trace.handler, params["branches"]
    index, operands = args[0], args[1:]
    before = handler.counts.mark()
    rewritten, marks = [], []
    for branch in branches:
        handler.counts.return_to(before)  # one of them runs, so each counts from here
        rewritten.append(rewrite(branch, handler))
        marks.append(handler.counts.mark())
    handler.counts.join(marks)
    slots, once = _slots_of(rewritten, branches, _jax.varying_axes(index))
    base = handler.allot(max(b.span for b in rewritten))  # one of them runs: they share the tokens
    consts = [x for b in rewritten for x in b.front(handler)]
    front = [base, *consts] if slots.takes_base else consts
    wider = {**params, "branches": tuple(branch.jaxpr for branch in once)}
    outs = once[0].spread(_jax.cond_p.bind(index, *front, *operands, **wider))
    items = build_items(slots.specs, outs[slots.n_outs :])
    chosen = jnp.clip(index, 0, len(branches) - 1)  # as JAX does with an index that is out of range
    is_filled = functools.cache(lambda filled: jnp.asarray(filled)[chosen])  # many sites have one flag
    for item, filled in zip(items, slots.filled):
        if all(filled):
            continue
        if "taken" not in item.extras:
            item.extras["taken"] = is_filled(tuple(filled))
            item.view = item.view.extra_on("taken", [False] * len(item.view.axes))
        elif item.view.gates:  # from now on the flag also covers this cond, not only the branches inside
            outer = Gate(slots, branch=0, branches=2)
            item.view = item.view.replace(gates=item.view.gates | {outer})
    handler.items += items
    return list(outs[: slots.n_outs])


def _slots_of(new: list[Rewritten], old: Sequence[Any], varying: frozenset[str]) -> tuple[_Slots, list[Deduplicated]]:
    """The slots of the items of all branches, and the branches that fill them; cached.

    JAX compiles a `cond` that is not in a jitted function separately, and compiles again for other jaxprs.
    """
    slots_before, key = new[0].cache, ("cond", tuple(map(id, new)), varying)
    if key not in slots_before:
        slots = _Slots(new, varying)
        once = deduplicated(slots.branches(old), slots.n_outs)
        slots_before[key] = slots, once  # keeps the new ones alive, so that their ids stay valid
    return slots_before[key]


class _Slots:
    """Where the items of several branches go in their common outputs."""

    def __init__(self, new: list[Rewritten], varying: frozenset[str]) -> None:
        self.new = new
        self.varying = varying
        self.n_outs = new[0].n_outs
        self.takes_base = any(b.takes_base for b in new)
        slots: dict[Any, tuple[Item, list[Any]]] = {}
        self.starts: list[dict[Any, int]] = []
        for branch in new:
            starts: dict[Any, int] = {}
            position, types = 0, branch.types
            for spec in branch.specs:
                own_types = types[position : position + spec.size]
                key = self._free_key(spec, own_types, starts)
                # The first spec of a slot stands for all, with the sites of all branches: a gradient may be of any.
                first = slots[key][0] if key in slots else dataclasses.replace(spec, sites=())
                view = first.view.joined(spec.view) if first.sites else spec.view
                slots[key] = (dataclasses.replace(first, sites=(*first.sites, *spec.sites), view=view), own_types)
                starts[key] = position
                position += spec.size
            self.starts.append(starts)
        self.keys = _in_order(list(starts) for starts in self.starts)
        self.specs = [slots[k][0] for k in self.keys]
        self.types = [slots[k][1] for k in self.keys]
        self.spread = [self._spread(k, spec) for k, spec in zip(self.keys, self.specs)]
        self.filled = [[k in starts for starts in self.starts] for k in self.keys]

    def _spread(self, key: Any, spec: Item) -> list[frozenset[str]]:
        """The mesh axes that each array of a slot varies over: JAX requires the same in all branches."""
        types_by_branch = [
            b.types[starts[key] :][: spec.size] for b, starts in zip(self.new, self.starts) if key in starts
        ]
        own = [frozenset[str]().union(*map(_jax.varying_axes_of_type, types)) for types in zip(*types_by_branch)]
        # Whether a site was met varies where the choice of the branch does.
        n = len(spec.leaves) + ("token" not in spec.extras) * len(spec.extras)
        return [axes | self.varying if i < n else axes for i, axes in enumerate(own)]

    @staticmethod
    def _free_key(spec: Item, types: Sequence[Any], taken: dict[Any, int]) -> Any:
        shapes = tuple((t.shape, t.dtype) for t in types)
        site = spec.site
        # One branch may be differentiated where another computes with constants.
        view = spec.view.replace(order=0) if spec.view.is_value else spec.view
        kind = (spec.path, site.tag, view, site.tree, site.arrays, tuple(spec.extras), spec.tree, shapes)
        number = 0
        while (kind, number) in taken:
            number += 1
        return kind, number

    def _has_types(self, branch: Rewritten, starts: dict[Any, int]) -> bool:
        """Whether a branch returns the arrays of all slots, in order, as they are."""
        all_axes = [axes for slot in self.spread for axes in slot]
        return list(starts) == self.keys and [_jax.varying_axes_of_type(t) for t in branch.types] == all_axes

    def branches(self, old: Sequence[Any]) -> tuple[Any, ...]:
        """The new branches, which take the base token, the constants of all branches, and the old operands."""
        simple = not any(b.front_types for b in self.new) and len({b.takes_base for b in self.new}) == 1
        simple = simple and not any(_jax.is_in_pieces(t) for slot in self.types for t in slot)
        if simple and all(map(self._has_types, self.new, self.starts)):
            return tuple(b.jaxpr for b in self.new)
        operands = [v.aval for v in _jax.open_jaxpr(old[0]).invars]
        const_types = [t for b in self.new for t in b.front_types]
        base = [TOKEN_TYPE] * self.takes_base
        result, start = [], 0
        for i, branch in enumerate(self.new):
            stop = start + len(branch.front_types)
            result.append(self._branch(i, slice(start, stop), [*base, *const_types, *operands], len(const_types)))
            start = stop
        return tuple(result)

    def _branch(self, i: int, mine: slice, types: list[Any], n_consts: int) -> Any:
        branch, starts = self.new[i], self.starts[i]

        # `cond` gives all branches the same operands, so each gets the constants of all.
        def run(*flat: Any) -> list[Any]:
            base, flat = (flat[:1], flat[1:]) if self.takes_base else ((), flat)
            consts, operands = flat[:n_consts][mine], flat[n_consts:]
            outs = _jax.eval_jaxpr(branch.jaxpr, *consts, *(base if branch.takes_base else ()), *operands)
            extra, filled = outs[self.n_outs :], outs[: self.n_outs]
            zeros = functools.cache(_jax.zeros_of_type)
            for key, slot, axes in zip(self.keys, self.types, self.spread):
                start = starts.get(key)
                arrays = [*map(zeros, slot)] if start is None else extra[start : start + len(slot)]
                filled += map(_jax.varying_over, selectable(arrays), axes)
            return filled

        return _jax.trace_to_closed_jaxpr(run, types)


def _in_order(branches: Iterable[list[Any]]) -> list[Any]:
    """The slots of all branches, in an order that agrees with every branch, if there is one."""
    remaining = [list(reversed(keys)) for keys in branches if keys]
    behind = collections.Counter(
        key for keys in remaining for key in keys[:-1]
    )  # in how many branches it is not the next
    order: dict[Any, None] = {}
    while remaining:
        # The next slot is one that comes first in all remaining branches; if they disagree, that of the first branch.
        heads = [keys[-1] for keys in remaining]
        order[next((head for head in heads if not behind[head]), heads[0])] = None
        for keys in remaining:
            while keys and keys[-1] in order:
                keys.pop()
                if keys:
                    behind[keys[-1]] -= 1
        remaining = [keys for keys in remaining if keys]
    return list(order)


RULES[_jax.cond_p] = cond_rule

# ---------------------------------------------------------------------------------------------------------------------
# Under vmap with a mapped predicate
# ---------------------------------------------------------------------------------------------------------------------


def _gated(branch: _jax.Jaxpr, gate: Gate, gate_type: Any) -> Any:
    """A branch with more operands in front: for every branch, whether it is taken. Its sites get that for this one."""

    def bind_gated(is_taken: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        operands = operands_of(args, site, view)
        operands.gate = jnp.logical_and(operands.gate, is_taken) if view.gates else is_taken
        return bind_site(operands, site, view.replace(gates=view.gates | {gate}))

    def selectable_outputs(outs: list[Any], inputs: Sequence[Any]) -> list[Any]:
        # JAX selects among the outputs of the branches; on a mesh with explicit axes they must be mapped for that.
        return along(outs, [inputs[gate.branch]])

    return rebound(
        branch,
        # A loop that counts its iterations must not run for elements that took another branch.
        lambda *inputs: Rebinding(bind_gated, inputs[gate.branch], stops_loops=True),
        front=[gate_type] * gate.branches,
        then=selectable_outputs,
    )


def _gates(
    choice: object, axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, branches: Sequence[_jax.Jaxpr]
) -> tuple[Any, Any, Any]:
    """The operands of a cond, where they are mapped, and its branches: with a gate for the sites of each."""
    n = len(branches)
    with with_capture_state(None):  # `jax.numpy` may be marked
        index = jnp.clip(args[0], 0, n - 1)
        gates = [index == i for i in range(n)]
    assert dims[0] is not None  # else the branches need no gates
    gate_type = _jax.mapped_type(_jax.typeof(gates[0]), axis_data.size, dims[0])
    gated = tuple(_gated(branch, Gate(choice, i, n), gate_type) for i, branch in enumerate(branches))
    return [args[0], *gates, *args[1:]], [dims[0], *[dims[0]] * n, *dims[1:]], gated


def _whole(branch: _jax.Jaxpr) -> Any:
    """A branch whose outputs are not laid out over a mesh with explicit axes."""
    types = [v.aval for v in _jax.open_jaxpr(branch).invars]

    def run(*operands: Any) -> list[Any]:
        return [_jax.in_one_piece(x) for x in _jax.eval_jaxpr(branch, *operands)]

    return _jax.trace_to_closed_jaxpr(run, types)


def _gating_batcher(plain: Callable) -> Callable:
    """The rule by which a cond is mapped: sites get a gate if the elements may take different branches."""

    def rule(
        axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, *, branches: Sequence[_jax.Jaxpr], **params: Any
    ) -> Any:
        in_choice = contextlib.nullcontext()
        if any(map(has_sites, branches)):
            args, dims, branches = mapped_alike(axis_data, args, dims, branches)
            if dims[0] is not None:
                choice = object()
                args, dims, branches = _gates(choice, axis_data, args, dims, branches)
                in_choice = _jax.open_name(ChoiceName.of(choice))
        with in_choice:
            if dims[0] is None or not any(map(returns_selectable, branches)):
                return plain(axis_data, args, dims, branches=branches, **params)
            # JAX selects among the outputs of the branches, with a predicate that is not laid out over the mesh.
            types = [v.aval for v in _jax.open_jaxpr(branches[0]).outvars]
            outs, out_dims = plain(axis_data, args, dims, branches=tuple(map(_whole, branches)), **params)
            return [_jax.in_pieces_like(x, t, d) for x, t, d in zip(outs, types, out_dims)], out_dims

    return rule


def _change_mapping() -> None:
    """Conds without sites, and all conds while no capture runs, take JAX's own rule at once."""
    rules = batching.fancy_primitive_batchers
    rules[_jax.cond_p] = _gating_batcher(rules[_jax.cond_p])


_jax.at_first_capture(_change_mapping)
