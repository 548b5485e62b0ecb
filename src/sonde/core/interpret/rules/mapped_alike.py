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


class _Slot:
    """What the sites of all branches that share a slot have together.

    Attributes:
        varies: Which of its arrays vary over the axis, at any of the sites.
        sources: The operands that any of the sites may depend on.
        n_sites: How many sites there are.
    """

    def __init__(self, n_arrays: int) -> None:
        self.varies = [False] * n_arrays
        self.sources: frozenset[int] = frozenset()
        self.n_sites = 0

    def add(self, varies: Sequence[bool], sources: frozenset[int]) -> bool:
        """Adds a site, or what is known of another slot of its sites; returns whether that is news."""
        before = self.varies, self.sources
        self.varies = [a or b for a, b in zip(self.varies, varies)]
        self.sources |= sources
        return before != (self.varies, self.sources)


def _slots_of(branches: Sequence[dict[Any, _Shared]], *, chosen_by_each: bool) -> dict[Any, _Slot]:
    """The slots of all branches, given the sites of each by slot."""
    slots: dict[Any, _Slot] = {}
    of_site: dict[tuple[int, Site], list[Any]] = {}
    for number, branch in enumerate(branches):
        for key, shared in branch.items():
            slot = slots.setdefault(key, _Slot(len(shared.varies)))
            slot.add([is_mapped or chosen_by_each for is_mapped in shared.varies], shared.sources)
            slot.n_sites += 1
            of_site.setdefault((number, shared.site), []).append(slot)
    # A function that a branch calls twice has one site for both calls, whose arrays then follow the same operands. A
    # call may share its slot with another site in another branch, so this is repeated until nothing changes.
    while any(a.add(b.varies, b.sources) for same in of_site.values() for a in same for b in same):
        pass
    return slots


def _follows(branches: Sequence[dict[Any, _Shared]], *, chosen_by_each: bool) -> list[_Follows]:
    """For every branch, what the arrays of its sites follow.

    Args:
        branches: The sites of each branch, by slot.
        chosen_by_each: Whether the predicate is mapped: an element has the value of the branch that it takes, so all
            arrays vary over the axis.
    """
    slots = _slots_of(branches, chosen_by_each=chosen_by_each)
    follows: list[_Follows] = []
    for branch in branches:
        shared_sites = {shared.site for key, shared in branch.items() if slots[key].n_sites > 1}
        of_branch: _Follows = {}
        for key, (site, varies, _) in branch.items():
            # Where the predicate is mapped, the gate of a site gives its axis to what is recorded: only gradients need
            # arrays that have it.
            if site not in shared_sites or (chosen_by_each and not site.grads):
                continue
            # A later map may reach a site through any operand that one of the sites in its slot depends on; the number
            # that is mapped now stands before the operands of the branch.
            later = [i + 1 for i in sorted(slots[key].sources)] if chosen_by_each else []
            followed = of_branch.get(site, [()] * len(varies))
            lacks = [is_mapped and not has for is_mapped, has in zip(slots[key].varies, varies)]
            of_branch[site] = tuple(
                (*[0] * (0 in of_leaf or is_lacking), *later) for of_leaf, is_lacking in zip(followed, lacks)
            )
        follows.append(of_branch)
    return follows


def mapped_alike(
    axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, branches: Sequence[_jax.Jaxpr]
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
