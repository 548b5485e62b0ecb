"""Edits of gradients: an identity that changes the cotangent on its way back.

`gradient_p` is the identity on values. Differentiating it puts `cotangent_p` on the tangents, the identity going
forward; transposing that applies the function of the edit to the cotangents. So the gradient is edited in reverse mode
under every transform, and forward mode, which has no gradient at a site, is left as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde._jax import ad, batching, mlir
from sonde.core.edits.hoisting import Hoisted, calling
from sonde.core.edits.new_values import at_positions, checked_leaves
from sonde.core.marks.axes import Axis, per_example
from sonde.core.marks.batch_like import repeated
from sonde.core.marks.site import Site
from sonde.core.session.session import with_capture_state


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class GradientEdit:
    """What to do with the gradient at a site.

    Attributes:
        function: The function of the gradient, without its arrays.
        site: The site.
        positions_in: Gives the positions along `axis` to change, given the arrays; None: all.
        axis: The axis of the positions.
        owner: Keeps the plan of the edit alive as long as programs refer to it.
    """

    function: Hoisted
    site: Site
    positions_in: Callable[[Sequence[Any]], Any]
    axis: int
    owner: object

    def of_example(self, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The new cotangents of a value as it was marked."""
        site = self.site
        with with_capture_state(None), calling(self.function, site, "the gradient function of an edit"):
            result = self.function.rebuild(operands)(site.rebuild(cotangents))
            changed = checked_leaves(result, cotangents, site, "the gradient of ")
            positions = self.positions_in(operands)
            if positions is not None:
                changed = at_positions(changed, list(cotangents), positions, self.axis, site)
            return [_jax.typed_like(a, b) for a, b in zip(changed, cotangents)]


gradient_p = _jax.Primitive("sonde_edited_gradient")
cotangent_p = _jax.Primitive("sonde_edited_cotangent")
for _primitive in (gradient_p, cotangent_p):
    _primitive.multiple_results = True


def with_edited_gradient(arrays: Sequence[Any], applies: Any, operands: Sequence[Any], edit: GradientEdit) -> list[Any]:
    """The arrays, with an edit of their gradient where `applies` is true."""
    if not any(jnp.issubdtype(_jax.typeof(x).dtype, jnp.inexact) for x in arrays):
        return list(arrays)
    return gradient_p.bind(*arrays, applies, *operands, edit=edit, n=len(arrays), axes=())


def _first(*args: Any, n: int, **_: Any) -> list[Any]:
    return list(args[:n])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, edit: GradientEdit, n: int, axes: tuple[Axis, ...]) -> Any:
    outs = gradient_p.bind(*primals, edit=edit, n=n, axes=axes)
    changed = list(tangents[:n])
    nonzero = [i for i, t in enumerate(changed) if not _jax.is_zero_tangent(t)]
    if nonzero:
        # All arrays of the site take part: the function gets the gradient of the whole value.
        whole = [ad.instantiate_zeros(t) for t in changed]
        passed = cotangent_p.bind(*whole, *primals[n:], edit=edit, n=n, axes=axes)
        changed = [passed[i] if i in nonzero else t for i, t in enumerate(changed)]
    return outs, changed


def _cotangent_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    n = params["n"]
    tangents = [ad.instantiate_zeros(t) for t in tangents[:n]]
    return cotangent_p.bind(*primals, **params), cotangent_p.bind(*tangents, *primals[n:], **params)


def _transpose(cotangents: Sequence[Any], *args: Any, edit: GradientEdit, n: int, axes: tuple[Axis, ...]) -> Any:
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]

    def of_example(*flat: Any) -> list[Any]:
        cotangents_of_example, flag, operands = list(flat[:n]), flat[n], flat[n + 1 :]
        if not isinstance(flag, _jax.Tracer):
            return edit.of_example(cotangents_of_example, operands) if bool(flag) else cotangents_of_example
        return jax.lax.cond(
            flag,
            edit.of_example,
            lambda cotangents_of_example, _: cotangents_of_example,
            cotangents_of_example,
            operands,
        )

    changed = per_example(of_example, axes, len(args))(*cotangents, *args[n:])
    return [*changed, *[None] * (len(args) - n)]


def _batched(primitive: _jax.Primitive) -> Any:
    def rule(
        axis_data: _jax.AxisData,
        args: Sequence[Any],
        dims: _jax.Dims,
        *,
        edit: GradientEdit,
        n: int,
        axes: tuple[Axis, ...],
    ) -> Any:
        if all(d is None for d in dims):  # the gradient of what the examples share is a sum over them
            return primitive.bind(*args, edit=edit, n=n, axes=axes), [None] * n
        moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims)]
        moved[:n] = [repeated(x, axis_data) if d is None else x for x, d in zip(moved[:n], dims)]
        name = axis_data.name if isinstance(axis_data.name, str) else None
        leaves = (True,) * n + tuple(d is not None for d in dims[n:])
        axis = Axis("vmap", axis_data.size, name, leaves=leaves)
        return primitive.bind(*moved, edit=edit, n=n, axes=(axis, *axes)), [0] * n

    return rule


for _primitive in (gradient_p, cotangent_p):
    _primitive.def_impl(_first)
    _primitive.def_abstract_eval(_first)
    mlir.register_lowering(_primitive, lambda ctx, *args, n, **_: list(args[:n]))
    batching.fancy_primitive_batchers[_primitive] = _batched(_primitive)
ad.primitive_jvps[gradient_p] = _jvp
ad.primitive_jvps[cotangent_p] = _cotangent_jvp
ad.primitive_transposes[cotangent_p] = _transpose
ad.primitive_transposes[gradient_p] = _transpose  # `jax.linear_transpose` transposes the function as it is
