"""A primitive that batches its first operands whenever any of its other operands is batched.

A gradient at such an array has a part for each example; otherwise it would be the sum over the examples. The primitive
is the identity on its first operands. Each `vmap` over one of the other operands gives them its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde._jax import ad, batching, mlir

along_p = _jax.Primitive("sonde_along")
along_p.multiple_results = True


def along(arrays: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The arrays, with every mapped axis that one of the others has."""
    return along_p.bind(*arrays, *others, n=len(arrays)) if arrays and others else list(arrays)


def selectable(arrays: Sequence[Any]) -> list[Any]:
    """The arrays that a branch returns to a capture; those that are sharded over a mesh are marked in the program.

    JAX cannot select among branches that return sharded arrays. Without a capture they would not be returned.
    """
    return [along_p.bind(x, n=1)[0] if _jax.is_in_pieces(_jax.typeof(x)) else x for x in arrays]


def returns_selectable(branch: Any) -> bool:
    """Whether a branch has arrays that `selectable` marked."""
    return any(eqn.primitive is along_p for eqn in _jax.open_jaxpr(branch).eqns)


def repeated(array: _jax.AnyArray, axis_data: _jax.AxisData) -> Any:
    """An array that does not vary over a mapped axis, with that axis in front."""
    mesh_axis = axis_data.explicit_mesh_axis
    array = array if mesh_axis is None else _jax.on_mesh_around(array)
    return batching.broadcast(array, axis_data.size, 0, mesh_axis=mesh_axis)


def _arrays(*args: Any, n: int) -> list[Any]:
    return list(args[:n])


def _batched(axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, *, n: int) -> Any:
    arrays, out_dims = list(args[:n]), list(dims[:n])
    if any(d is not None for d in dims[n:]):
        for i in (i for i in range(n) if dims[i] is None):
            arrays[i], out_dims[i] = repeated(arrays[i], axis_data), 0
    return along_p.bind(*arrays, *args[n:], n=n), out_dims


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, n: int) -> Any:
    tangents = list(tangents[:n])
    nonzero = [i for i, t in enumerate(tangents) if not _jax.is_zero_tangent(t)]
    for i, tangent in zip(nonzero, along([tangents[i] for i in nonzero], primals[n:])):
        tangents[i] = tangent
    return along_p.bind(*primals, n=n), tangents


def _transpose(cotangents: Sequence[Any], *args: Any, n: int) -> Any:
    return [*cotangents, *[None] * (len(args) - n)]


along_p.def_impl(_arrays)
along_p.def_abstract_eval(_arrays)
mlir.register_lowering(along_p, lambda ctx, *args, n: list(args[:n]))
batching.fancy_primitive_batchers[along_p] = _batched
ad.primitive_jvps[along_p] = _jvp
ad.primitive_transposes[along_p] = _transpose
