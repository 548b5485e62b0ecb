"""Under `vmap`, sites of two branches that share a slot get the same axes.

The record of the slot has the values of both, so the gradients at both must have a part for each example, not the sum
over examples at one of them. Once JAX has turned the branches of a `cond` into a select, later maps meet the sites one
by one; so each site follows whatever any of them depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sonde import _jax
from sonde.core.interpret.rebinding import Rebinding, rebound
from sonde.core.marks.batch_like import along
from sonde.core.marks.operands import operands_of
from sonde.core.marks.primitive import bind_site, site_p
from sonde.core.marks.scopes import path_under
from sonde.core.marks.site import Site, View
from sonde.core.marks.site_search import sites_inside

# For each array of a site, the operands that it follows; the first is a number that is mapped over the current axis.
_Follows = dict[Site, tuple[tuple[int, ...], ...]]


def _following(branch: _jax.Jaxpr, follows: _Follows, number_type: Any) -> Any:
    """A branch with one more operand in front, in which arrays of some sites are mapped wherever some operands are."""

    def bind_following(inputs: Sequence[Any], args: Sequence[Any], site: Site, view: View) -> list[Any]:
        operands = operands_of(args, site, view)
        for i, followed in enumerate(follows.get(site, ()) if view.is_value else ()):
            (operands.arrays[i],) = along(operands.arrays[i : i + 1], [inputs[j] for j in followed])
        return bind_site(operands, site, view)

    def mapped_outputs(inputs: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """The outputs of a call, mapped in the same way whether or not they go through a site."""
        followed = sorted({j for leaves in follows.values() for operands in leaves for j in operands})
        return along(outs, [inputs[j] for j in followed])

    def following(*inputs: Any) -> Rebinding:
        return Rebinding(bind_following, inputs, of_custom_call=mapped_outputs)

    return rebound(branch, following, front=[number_type])


class _Shared(NamedTuple):
    """A site of a branch, which of its arrays vary over an axis, and the operands that they may depend on."""

    site: Site
    varies: tuple[bool, ...]
    sources: frozenset[int]


def _sources(branch: _jax.Jaxpr) -> Iterator[frozenset[int]]:
    """For every site inside, the operands of the branch that it may depend on."""
    jaxpr = _jax.open_jaxpr(branch)
    reached = {v: frozenset([i]) for i, v in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        inputs = [reached[v] for v in eqn.invars if not isinstance(v, _jax.Literal) and v in reached]
        sources: frozenset[int] = frozenset().union(*inputs)
        inner = 1 if eqn.primitive is site_p else sum(1 for j in _jax.sub_jaxprs(eqn.params) for _ in sites_inside(j))
        yield from [sources] * inner
        reached.update(dict.fromkeys(eqn.outvars, sources))


def _sites_by_slot(branch: _jax.Jaxpr, axis_data: _jax.AxisData, mapped: Sequence[bool]) -> dict[Any, _Shared]:
    """The sites of a branch if these operands are mapped."""
    after = sites_inside(_jax.mapped_jaxpr(branch, axis_data, mapped))
    slots: dict[Any, _Shared] = {}
    for before, mapped_site, sources in zip(sites_inside(branch), after, _sources(branch)):
        site, axes = mapped_site.site, mapped_site.view.axes
        if before.site is not site or not mapped_site.view.is_value or mapped_site.view.role == "supply":
            continue
        types = tuple((t.shape, t.dtype) for t in before.types)
        kind = (path_under(before.names, "", 1) + site.path, site.tag, site.tree, site.arrays, types)
        number = sum(1 for earlier, _ in slots if earlier == kind)
        is_mapped = len(axes) > len(before.view.axes)
        varies = tuple(is_mapped and axes[0].on_leaf(i) for i in range(len(types)))
        slots[kind, number] = _Shared(site, varies, sources)
    return slots


def _follows(found: Sequence[dict[Any, _Shared]], *, chosen_by_each: bool) -> list[_Follows]:
    """For every branch, what the arrays of its sites follow.

    Args:
        found: The sites of each branch, by slot.
        chosen_by_each: Whether the predicate is mapped: an element has the value of the branch that it takes, so all
            arrays vary over the axis.
    """
    of_slot: dict[Any, list[_Shared]] = {}
    for branch in found:
        for slot, shared in branch.items():
            of_slot.setdefault(slot, []).append(shared)
    varies = {
        p: [any(has) or chosen_by_each for has in zip(*[s.varies for s in of_branches])]
        for p, of_branches in of_slot.items()
    }
    sources = {p: frozenset[int]().union(*[s.sources for s in of_branches]) for p, of_branches in of_slot.items()}
    # A function that a branch calls twice has one site for both calls, whose arrays then follow the same operands. A
    # call may share its slot with another site in another branch, so this is repeated until nothing changes.
    one_site: dict[tuple[int, Site], list[Any]] = {}
    for i, branch in enumerate(found):
        for slot, shared in branch.items():
            one_site.setdefault((i, shared.site), []).append(slot)
    before = None
    while before != (varies, sources):
        before = dict(varies), dict(sources)
        for same in one_site.values():
            together = [any(has) for has in zip(*[varies[slot] for slot in same])]
            varies.update(dict.fromkeys(same, together))
            sources.update(dict.fromkeys(same, frozenset[int]().union(*[sources[slot] for slot in same])))
    follows: list[_Follows] = []
    for branch in found:
        shared_sites = {s.site for slot, s in branch.items() if len(of_slot[slot]) > 1}
        follows_of_branch: _Follows = {}
        for slot, shared in branch.items():
            if shared.site in shared_sites and (shared.site.grads or not chosen_by_each):
                later = [i + 1 for i in sorted(sources[slot])] if chosen_by_each else []
                followed = follows_of_branch.get(shared.site, [()] * len(shared.varies))
                lacks = [is_mapped and not has for is_mapped, has in zip(varies[slot], shared.varies)]
                follows_of_branch[shared.site] = tuple(
                    (*[0] * (0 in of_leaf or is_lacking), *later) for of_leaf, is_lacking in zip(followed, lacks)
                )
        follows.append(follows_of_branch)
    return follows


def mapped_alike(
    axis_data: _jax.AxisData, args: Sequence[Any], dims: Sequence[int | None], branches: Sequence[_jax.Jaxpr]
) -> tuple[Any, Any, Any]:
    """The operands of a cond, where they are mapped, and its branches: with the same axes for sites of one slot."""
    slots = [_sites_by_slot(branch, axis_data, [d is not None for d in dims[1:]]) for branch in branches]
    follows = _follows(slots, chosen_by_each=dims[0] is not None)
    if not any(of_leaf for follows_of_branch in follows for leaves in follows_of_branch.values() for of_leaf in leaves):
        return args, dims, branches
    number = next(_jax.numbers_along(x, d) for x, d in zip(args, dims) if d is not None)
    number_type = _jax.mapped_type(_jax.typeof(number), axis_data.size, 0)
    alike = tuple(_following(branch, of_branch, number_type) for branch, of_branch in zip(branches, follows))
    return [args[0], number, *args[1:]], [dims[0], 0, *dims[1:]], alike
