"""`shard_map` and `pmap`: the values of all shards become a global array with the same sharding; nothing is gathered.

The array has one leading axis for every mesh axis that the value varies over. The token of a call comes once per shard:
in a branch that only some shards take, the others have 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.sharding import PartitionSpec

from sonde import _jax
from sonde.core.interpret.items import Item, build_items, expand
from sonde.core.interpret.trace import CUSTOM_RULES, SiteTrace, run_under
from sonde.core.marks.axes import Axis


def shard_map_rule(trace: SiteTrace, primitive: _jax.Primitive, fun: Any, args: Sequence[Any], **params: Any) -> Any:
    """A shard_map."""
    handler = trace.handler
    mesh, manual, checked = params["mesh"], params["newly_manual_axes"], params["check_vma"]
    names = [name for name in mesh.axis_names if name in manual]
    n_args, inner = len(args), handler.entering()
    inner = inner.at(inner.position.along(*[(name, mesh.shape[name]) for name in names]))
    carried = handler.carried()  # operands: on a mesh with explicit axes nothing may be closed over
    params["in_specs"] = (*params["in_specs"], *[PartitionSpec()] * len(carried))
    items_seen: list[Any] = []

    def new_fun(*shards: Any) -> Any:
        around = inner.carrying(shards[n_args:])
        child = around.child(base=around.allot(1))
        answer, specs = run_under(child, fun, *shards[:n_args]).unpack_aux()
        handler.met.update(child.met)
        handler.skip(child.span)
        outs, new_specs, kinds = list(answer), [], []
        for item in expand(child.items):
            global_item, item_specs = _with_mesh_axes(item, names, mesh, checked, handler.reduced_have_all_axes)
            outs += global_item.arrays
            new_specs += item_specs
            kinds.append(global_item.spec)
        items_seen[:] = [len(answer), kinds, answer.update([None] * len(answer))]  # and no tracers
        return _jax.flat_tree(outs, (*specs, *new_specs))

    outs = list(_jax.bind_shard_map(primitive, trace.parent, new_fun, [*args, *carried], **params))
    n_outs, kinds, answer = items_seen
    handler.items += build_items(kinds, outs[n_outs:])
    return answer.update(outs[:n_outs])


def _with_mesh_axes(
    item: Item, names: list[str], mesh: Any, checked: bool, all_axes: bool
) -> tuple[Item, list[PartitionSpec]]:
    """An item whose arrays have an axis of length one per mesh axis they vary over, and how these are laid out."""
    n_loops = sum(axis.is_loop for axis in item.view.axes)
    arrays, specs, varying = [], [], []
    arrays_inside = item.arrays
    if item.tree is not None and checked and all_axes:
        union = frozenset().union(*map(_jax.varying_axes, item.leaves))
        arrays_inside = [*(_jax.varying_over(x, union) for x in item.leaves), *arrays_inside[len(item.leaves) :]]
    for array, name in zip(arrays_inside, item.names):
        # With `check_vma=False` JAX does not know what varies, so everything may.
        everywhere = name == "token" or not checked
        names_of_array = [n for n in names if everywhere or n in _jax.varying_axes(array)]
        loops = n_loops if name is None else sum(a.on_extra(name) for a in item.view.axes[:n_loops])
        arrays.append(lax.expand_dims(array, range(loops, loops + len(names_of_array))) if names_of_array else array)
        specs.append(_jax.spec_of_shard(array, *[None] * loops, *names_of_array, *[None] * (array.ndim - loops)))
        varying.append(names_of_array)
    leaves, extras = varying[: len(item.leaves)], dict(zip(item.extras, varying[len(item.leaves) :]))
    extras.pop("token", None)
    used = [n for n in names if any(n in names_of_array for names_of_array in (*leaves, *extras.values()))]
    axes = [
        Axis(
            "mesh",
            mesh.shape[n],
            n,
            None
            if all(n in names_of_array for names_of_array in leaves)
            else tuple(n in names_of_array for names_of_array in leaves),
            lacking=frozenset(name for name, names_of_array in extras.items() if n not in names_of_array),
        )
        for n in used
    ]
    before, after = item.view.axes[:n_loops], item.view.axes[n_loops:]
    spec = dataclasses.replace(item.spec, view=item.view.replace(axes=(*before, *axes, *after)))
    return spec.build(arrays), specs


CUSTOM_RULES["shard_map"] = shard_map_rule
