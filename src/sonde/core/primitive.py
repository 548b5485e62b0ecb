"""The site primitive: the identity, as an equation that every JAX transform carries along.

Three primitives share the work.

`site_p` marks values going forward and, with a view that says so, gradients coming back. It has an unordered effect,
so that JAX's dead-code passes keep it although nobody uses its output. Its operands:

    value     *arrays [anchor] [gate]          -> *arrays [token]
    look      *arrays anchor [token] [gate]    ->
    gradient  *cotangents token [gate]         -> *cotangents

`marker_p` is the linear part: differentiating a site puts a marker on the tangent, and transposing the marker is a site
on the cotangent. That is how gradients are seen in the pass that computes them. A marker has no effect.

`plain_p` stands in for a site where a value is computed a second time (rematerialisation). It passes the values on and,
when it is differentiated itself, marks their tangents.

The token is an int32 that tells calls apart: a function that is compiled once and called twice has one `Site`, two
values and, perhaps, one gradient. The number travels from the value to its gradient as a residual, so a gradient is
never given to the wrong call. The gate is a boolean that says whether the branch with the site was taken; it appears
when `vmap` turns a `cond` into a select, where both branches run. The anchor is the number of the iteration; it appears
when a loop is differentiated, which would otherwise move a site whose value does not change out of the loop. There the
site is divided in two, so that the value itself stays free to move (see `View.role`).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._jax import ad, batching, mlir
from sonde.core.context import looking
from sonde.core.site import Axis, Site, View
from sonde.errors import CaptureError

TOKEN = np.dtype("int32")
TOKEN_TYPE = _jax.typeof(np.zeros((), TOKEN))


class SiteEffect(_jax.Effect):
    """Marks jaxprs that have sites in them. All instances are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SiteEffect)

    def __hash__(self) -> int:
        return hash(SiteEffect)

    def __str__(self) -> str:
        return "Site"


site_effect = SiteEffect()
_site_effects = {site_effect}
_jax.allow_effect(SiteEffect)

site_p = _jax.Primitive("sonde_site")
marker_p = _jax.Primitive("sonde_marker")
plain_p = _jax.Primitive("sonde_plain")
for _primitive in (site_p, marker_p, plain_p):
    _primitive.multiple_results = True


def n_arrays(args: Any, site: Site, view: View) -> int:
    """How many operands of a site are values or cotangents, not token, anchor or gate."""
    return len(args) - view.n_operands(site)


# ---------------------------------------------------------------------------------------------------------------------
# What the primitives are when they run, and what they become
# ---------------------------------------------------------------------------------------------------------------------


def _escaped(site: Site) -> CaptureError:
    return CaptureError(
        f"site {site.path!r} ({site.source}) runs where the capture cannot see it: it was compiled or evaluated apart "
        "from the captured program (`jax.ensure_compile_time_eval`, or `jit(...).lower(...)` in the captured function)"
    )


@site_p.def_impl
def _site_impl(*args: Any, site: Site, view: View) -> Any:
    if site.depths is None:
        raise _escaped(site)
    values = [] if view.role == "look" else list(args[: n_arrays(args, site, view)])
    return [*values, np.zeros((), TOKEN)] if view.gives_token(site) else values


@site_p.def_effectful_abstract_eval
def _site_types(*args: Any, site: Site, view: View) -> Any:
    outs = [] if view.role == "look" else list(args[: n_arrays(args, site, view)])
    if view.gives_token(site):
        outs.append(TOKEN_TYPE)
    return outs, _site_effects


mlir.register_lowering(site_p, mlir.lower_fun(_site_impl, multiple_results=True))


def _drop_token(*args: Any, **_: Any) -> list[Any]:
    return list(args[:-1])


marker_p.def_impl(_drop_token)
marker_p.def_abstract_eval(_drop_token)
mlir.register_lowering(marker_p, lambda ctx, *args, **_: list(args[:-1]))


def _values_only(*args: Any, site: Site, view: View) -> list[Any]:
    return list(args[: len(args) - view.gives_token(site)])


plain_p.def_impl(_values_only)
plain_p.def_abstract_eval(_values_only)
mlir.register_lowering(plain_p, lambda ctx, *args, site, view: _values_only(*args, site=site, view=view))


def _n_values(eqn: Any) -> int:
    site, view = eqn.params["site"], eqn.params["view"]
    return 0 if view.role == "look" else n_arrays(eqn.invars, site, view)


_jax.register_kept_when_rematerialised(site_p, plain_p, _n_values)

# ---------------------------------------------------------------------------------------------------------------------
# Differentiation
# ---------------------------------------------------------------------------------------------------------------------


def _site_jvp(primals: Any, tangents: Any, *, site: Site, view: View) -> Any:
    n = n_arrays(primals, site, view)
    tangents_out = list(tangents[:n])
    if not view.is_value:
        return site_p.bind(*primals, site=site, view=view), tangents_out
    outs = site_p.bind(*primals, site=site, view=view.replace(order=view.order + 1))
    if view.role == "look":
        return outs, []
    if site.grads:
        tangents_out = [*_marked(tangents_out, outs[-1], site, view), ad.Zero(TOKEN_TYPE.to_tangent_aval())]
    return outs, tangents_out


def _plain_jvp(primals: Any, tangents: Any, *, site: Site, view: View) -> Any:
    outs = plain_p.bind(*primals, site=site, view=view.replace(order=view.order + 1))
    if not view.gives_token(site):
        return outs, list(tangents)
    return outs, _marked(tangents[:-1], primals[-1], site, view)


def _marked(tangents: Any, token: Any, site: Site, view: View) -> list[Any]:
    """The tangents of a site's values, with a marker on those that are not zero."""
    tangents = list(tangents)
    nonzero = tuple(i for i, t in enumerate(tangents) if not _jax.is_zero_tangent(t))
    if nonzero:
        marked = marker_p.bind(*[tangents[i] for i in nonzero], token, site=site, view=_gradient_view(view, nonzero))
        for i, tangent in zip(nonzero, marked):
            tangents[i] = tangent
    return tangents


def _gradient_view(view: View, parts: tuple[int, ...]) -> View:
    return View(order=view.order, gradient_of=parts, axes=view.axes)


def _site_transpose(cotangents: Any, *args: Any, site: Site, view: View) -> Any:
    """Of a function that is only ever transposed (`jax.linear_transpose`), where no value is computed."""
    n = n_arrays(args, site, view)
    given = list(cotangents[:n])
    nonzero = tuple(i for i, ct in enumerate(given) if type(ct) is not ad.Zero)
    if view.is_value and site.grads and nonzero:
        gradient = _gradient_view(view, nonzero)
        token = np.zeros((), TOKEN)
        seen = site_p.bind(*[given[i] for i in nonzero], token, site=site, view=gradient)
        for i, ct in zip(nonzero, seen):
            given[i] = ct
    return [*given, *[None] * (len(args) - n)]


def _marker_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    return marker_p.bind(*primals, **params), list(tangents[:-1])


def _marker_transpose(cotangents: Any, *args: Any, site: Site, view: View) -> Any:
    if all(type(ct) is ad.Zero for ct in cotangents):
        return [*cotangents, None]
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
    return [*site_p.bind(*cotangents, args[-1], site=site, view=view), None]


def _plain_transpose(cotangents: Any, *args: Any, site: Site, view: View) -> Any:
    return [*cotangents, *[None] * view.gives_token(site)]


ad.primitive_jvps[site_p] = _site_jvp
ad.primitive_jvps[plain_p] = _plain_jvp
ad.primitive_transposes[plain_p] = _plain_transpose
ad.primitive_transposes[site_p] = _site_transpose
ad.primitive_jvps[marker_p] = _marker_jvp
ad.primitive_transposes[marker_p] = _marker_transpose

# ---------------------------------------------------------------------------------------------------------------------
# Batching: the mapped axis goes to the front, and the view says so
# ---------------------------------------------------------------------------------------------------------------------


def _front(array: Any, dim: Any) -> Any:
    return array if dim is None or dim == 0 else jnp.moveaxis(array, dim, 0)


def _vmap_axis(size: int, dims: list[Any]) -> Axis:
    varies = tuple(d is not None for d in dims)
    return Axis("vmap", size, leaves=None if all(varies) else varies)


def _repeated(array: Any, size: int) -> Any:
    return jnp.broadcast_to(array, (size, *jnp.shape(array)))


def _may_be_replaced() -> bool:
    state = looking()
    return state is not None and state.edits


def _unbatched(number: Any, dim: Any) -> Any:
    # A select makes a batched array of a token; where the other branch was taken it is 0.
    return number if dim is None else jnp.max(number, axis=dim)


def _batched(primitive: Any) -> Any:
    def rule(axis_data: Any, args: Any, dims: Any, *, site: Site, view: View) -> Any:
        n = n_arrays(args, site, view)
        arrays = [_front(x, d) for x, d in zip(args[:n], dims[:n])]
        out_dims = [d if d is None else 0 for d in dims[:n]]
        if _may_be_replaced() and any(d is not None for d in out_dims):
            arrays = [_repeated(x, axis_data.size) if d is None else x for x, d in zip(arrays, out_dims)]
            out_dims = [0] * n
        # Token and anchor are numbers that belong to the whole loop or call; the gate is there for every element.
        rest = [_unbatched(x, d) for x, d in zip(args[n:], dims[n:])]
        if view.gates:
            gate = _front(args[-1], dims[-1])
            rest[-1] = gate if dims[-1] is not None else _repeated(gate, axis_data.size)
        if any(d is not None for d in out_dims) or view.gates:
            view = view.replace(axes=(_vmap_axis(axis_data.size, out_dims), *view.axes))
        outs = primitive.bind(*arrays, *rest, site=site, view=view)
        return outs, [*out_dims, None][: len(outs)]

    return rule


batching.fancy_primitive_batchers[site_p] = _batched(site_p)
batching.fancy_primitive_batchers[marker_p] = _batched(marker_p)


def _plain_batched(axis_data: Any, args: Any, dims: Any, *, site: Site, view: View) -> Any:
    n = len(args) - view.gives_token(site)
    arrays = [_front(x, d) for x, d in zip(args[:n], dims[:n])]
    out_dims = [d if d is None else 0 for d in dims[:n]]
    if any(d is not None for d in out_dims):
        view = view.replace(axes=(_vmap_axis(axis_data.size, out_dims), *view.axes))
    token = [_unbatched(args[n], dims[n])] if n < len(args) else []
    return plain_p.bind(*arrays, *token, site=site, view=view), out_dims


batching.fancy_primitive_batchers[plain_p] = _plain_batched
