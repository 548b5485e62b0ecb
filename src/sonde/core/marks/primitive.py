"""The site primitive: the identity, as an equation that every JAX transform carries along.

Three primitives share the work.

`site_p` marks values going forward and, with a view that says so, gradients coming back. It has an unordered effect,
so that JAX's dead-code passes keep it although its output is not used. `operands` says what it takes and returns.

`marker_p` is the linear part: differentiating a site puts a marker on the tangent, and transposing the marker is a site
on the cotangent. That is how gradients are seen in the pass that computes them. A marker has no effect.

`plain_p` replaces a site where a value is computed a second time (rematerialization). It passes the values on and,
when it is differentiated itself, marks their tangents.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._jax import ad, batching, mlir
from sonde.core.marks.axes import Axis
from sonde.core.marks.batch_like import repeated
from sonde.core.marks.operands import NO_VALUE, TOKEN, TOKEN_TYPE, Operands, operands_of
from sonde.core.marks.site import Site, View
from sonde.core.session.session import capture_state, has_outlived_capture, with_capture_state
from sonde.errors import CaptureError


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
_jax.at_first_capture(lambda: _jax.allow_effect(SiteEffect))
_jax.at_first_capture(lambda: _jax.hold_weakly(Site))
kept = _jax.kept_when_partially_evaluated(SiteEffect)  # while a capture runs


class _SitePrimitive(_jax.Primitive):
    """A primitive that leaves values alone which only the trace of another library knows.

    Such a trace has rules for JAX's primitives. For others it makes an array of a value, or refuses to.
    """

    def bind_with_trace(self, trace: Any, args: Sequence[Any], avals: Any, params: dict[str, Any], /) -> Any:
        """Binds the primitive, unless it has such a value and its site may be left out."""
        if any(_jax.is_no_jax_array(x, trace) for x in args):
            state = capture_state()
            if state is None or state.may_miss(params["site"]):
                return self.impl(*args, **params)
        return super().bind_with_trace(trace, args, avals, params)


site_p = _SitePrimitive("sonde_site")
marker_p = _SitePrimitive("sonde_marker")
plain_p = _SitePrimitive("sonde_plain")
for _primitive in (site_p, marker_p, plain_p):
    _primitive.multiple_results = True


def bind_site(operands: Operands, site: Site, view: View) -> list[Any]:
    """Binds the site primitive."""
    return site_p.bind(*operands.flat(site, view), site=site, view=view)


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation and lowering of the primitives
# ---------------------------------------------------------------------------------------------------------------------


def _outside_of_a_capture(args: Sequence[Any], site: Site, view: View) -> list[Any]:
    """A site in a program that has outlived its capture, such as a pullback: the identity.

    Raises:
        CaptureError: A capture runs, and cannot see this.
    """
    state = capture_state()
    if state is not None and not state.may_miss(site) and not has_outlived_capture():
        raise CaptureError(
            f"site {site.path!r} ({site.line}) runs where the capture cannot see it: it was compiled or evaluated "
            "outside the captured program: in a callback or another thread, under `jax.ensure_compile_time_eval`, by "
            "`jit(...).lower(...)` in the captured function, or by a pullback or other function that another capture "
            "has made. Return the value from there and sow it in the captured program"
        )
    if view.role == "supply":
        return site.supply.nothing(operands_of(args, site, view).arrays, view)
    return [] if view.role == "look" else operands_of(args, site, view).arrays


@site_p.def_impl
def _site_impl(*args: Any, site: Site, view: View) -> Any:
    outs = _outside_of_a_capture(args, site, view)
    return [*outs, np.asarray(NO_VALUE, TOKEN)] if view.gives_token(site) else outs


@site_p.def_effectful_abstract_eval
def _site_types(*args: Any, site: Site, view: View) -> Any:
    if view.role == "supply":
        return site.supply.types(operands_of(args, site, view).arrays, view), _site_effects
    outs = [] if view.role == "look" else operands_of(args, site, view).arrays
    return [*outs, TOKEN_TYPE] if view.gives_token(site) else outs, _site_effects


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


def _n_values(params: dict[str, Any], args: Sequence[Any]) -> int:
    site, view = params["site"], params["view"]
    return 0 if view.role in ("look", "supply") else len(operands_of(args, site, view).arrays)


def _may_divide(params: dict[str, Any]) -> bool:
    # What is sown must keep its site: a value that passes by it would have no gradient of the next order.
    return params["site"].depths is not None


def _run_again(params: dict[str, Any]) -> dict[str, Any] | None:
    return None if params["view"].role != "supply" else params["site"].supply.again(params)


def _differentiated(params: dict[str, Any]) -> dict[str, Any]:
    view = params["view"]
    return {**params, "view": view.replace(order=view.order + 1)} if view.is_value else params


def _n_needed_as_types(params: dict[str, Any], args: Sequence[Any]) -> int:
    asks = params["view"].role == "supply" and not params["site"].supply.plan.has_rules  # a rule may look at values
    return len(operands_of(args, params["site"], params["view"]).arrays) if asks else 0


_jax.register_partial_evaluation(
    site_p, plain_p, _n_values, _may_divide, _run_again, _differentiated, _n_needed_as_types
)

# ---------------------------------------------------------------------------------------------------------------------
# Differentiation
# ---------------------------------------------------------------------------------------------------------------------


def _site_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, view: View) -> Any:
    if view.role == "supply":  # which edits apply, and with which arrays, does not depend on the value
        answer = site_p.bind(*primals, site=site, view=view.replace(order=view.order + 1))
        return answer, [ad.Zero(_jax.typeof(x).to_tangent_aval()) for x in answer]
    n = len(operands_of(primals, site, view).arrays)
    tangents_out = list(tangents[:n])
    if not view.is_value:
        return site_p.bind(*primals, site=site, view=view), [] if view.role == "look" else tangents_out
    outs = site_p.bind(*primals, site=site, view=view.replace(order=view.order + 1))
    if view.role == "look":
        return outs, []
    if not _edited():  # a Python number that is differentiated stays one
        outs[:n] = [x if isinstance(x, _NUMBERS) else out for x, out in zip(primals, outs[:n])]
    if site.grads:
        tangents_out = [*_marked(tangents_out, outs[-1], site, view), ad.Zero(TOKEN_TYPE.to_tangent_aval())]
    return outs, tangents_out


_NUMBERS = (int, float, complex)


def _edited() -> bool:
    state = capture_state()
    return state is not None and state.edits


def _plain_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, view: View) -> Any:
    outs = plain_p.bind(*primals, site=site, view=view.replace(order=view.order + 1))
    if not view.gives_token(site):
        return outs, list(tangents)
    return outs, _marked(tangents[:-1], primals[-1], site, view)


def _marked(tangents: Sequence[Any], token: Any, site: Site, view: View) -> list[Any]:
    """The tangents of a site's values, with a marker on those that may get a gradient: not zeros or Python numbers."""
    tangents = list(tangents)
    nonzero = tuple(i for i, t in enumerate(tangents) if not (isinstance(t, _NUMBERS) or _jax.is_zero_tangent(t)))
    if nonzero:
        marked = marker_p.bind(*[tangents[i] for i in nonzero], token, site=site, view=_gradient_view(view, nonzero))
        for i, tangent in zip(nonzero, marked):
            tangents[i] = tangent
    return tangents


def _gradient_view(view: View, parts: tuple[int, ...]) -> View:
    axes = tuple(axis.with_parts(parts).inherited() for axis in view.axes)
    return View(order=view.order, gradient_of=parts, axes=axes, reached=frozenset(parts))


def _site_transpose(cotangents: Sequence[Any], *args: Any, site: Site, view: View) -> Any:
    """For a function that is only transposed (`jax.linear_transpose`), so that no value is computed."""
    if view.role == "look":  # a tangent that a loop only records has no results
        return [None] * len(args)
    n = len(operands_of(args, site, view).arrays)
    value_cotangents = list(cotangents[:n])
    nonzero = tuple(i for i, ct in enumerate(value_cotangents) if type(ct) is not ad.Zero)
    if view.is_value and site.grads and nonzero:
        gradient = _gradient_view(view, nonzero).replace(reached=None)
        token = np.asarray(NO_VALUE, TOKEN)
        recorded = site_p.bind(*[value_cotangents[i] for i in nonzero], token, site=site, view=gradient)
        for i, ct in zip(nonzero, recorded):
            value_cotangents[i] = ct
    return [*value_cotangents, *[None] * (len(args) - n)]


def _marker_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return marker_p.bind(*primals, **params), list(tangents[:-1])


def _marker_transpose(cotangents: Sequence[Any], *args: Any, site: Site, view: View) -> Any:
    nonzero = [i for i, ct in enumerate(cotangents) if type(ct) is not ad.Zero]
    cotangents = [*cotangents, None]
    if nonzero:
        recorded = site_p.bind(*[cotangents[i] for i in nonzero], args[-1], site=site, view=view.part(nonzero))
        for i, cotangent in zip(nonzero, recorded):
            cotangents[i] = cotangent
    return cotangents


def _plain_transpose(cotangents: Sequence[Any], *args: Any, site: Site, view: View) -> Any:
    return [*cotangents, *[None] * view.gives_token(site)]


ad.primitive_jvps[site_p] = _site_jvp
ad.primitive_jvps[plain_p] = _plain_jvp
ad.primitive_transposes[plain_p] = _plain_transpose
ad.primitive_transposes[site_p] = _site_transpose
ad.primitive_jvps[marker_p] = _marker_jvp
ad.primitive_transposes[marker_p] = _marker_transpose
_jax.register_partial_use(marker_p, lambda params, kept: {**params, "view": params["view"].part(kept)})


def _taylor_terms(jet: Any) -> None:
    """Rules for `jax.experimental.jet`: the value is recorded, and the terms of its series pass through."""

    def rule(primitive: _jax.Primitive, primals: Sequence[Any], series: Any, *, site: Site, view: View) -> Any:
        outs = primitive.bind(*primals, site=site, view=view)
        terms = list(series[: len(outs)])
        return outs, [*terms, *[jet.zero_series] * (len(outs) - len(terms))]

    def site_rule(primals: Sequence[Any], series: Any, *, site: Site, view: View) -> Any:
        n = len(operands_of(primals, site, view).arrays)
        return rule(site_p, primals, series[:n], site=site, view=view)

    jet.jet_rules[site_p] = site_rule
    jet.jet_rules[plain_p] = lambda *args, **params: rule(plain_p, *args, **params)


_jax.when_loaded("jax.experimental.jet", _taylor_terms)


def _sparse_values(transform: Any) -> None:
    """Rules for `jax.experimental.sparse.sparsify`: a site of sparse arrays passes them on, unless it must be seen."""

    def rule(primitive: _jax.Primitive, env: Any, *values: Any, site: Site, view: View) -> list[Any]:
        state = capture_state()
        if primitive is site_p and state is not None and not state.may_miss(site):
            raise CaptureError(f"site {site.path!r} ({site.line}) cannot be captured: its value is sparse")
        if primitive is not site_p:
            return list(values[: len(values) - (primitive is marker_p or view.gives_token(site))])
        outs = [] if view.role == "look" else operands_of(values, site, view).arrays
        return [*outs, env.dense(np.asarray(NO_VALUE, TOKEN))] if view.gives_token(site) else outs

    for primitive in (site_p, marker_p, plain_p):
        for rules in (transform.sparse_rules_bcoo, transform.sparse_rules_bcsr):
            rules[primitive] = functools.partial(rule, primitive)


_jax.when_loaded("jax.experimental.sparse.transform", _sparse_values)

# ---------------------------------------------------------------------------------------------------------------------
# Batching: the mapped axis goes to the front, and the view says so
# ---------------------------------------------------------------------------------------------------------------------


def _front(array: _jax.AnyArray, dim: Any) -> Any:
    if dim is None or dim == 0:
        return array
    with with_capture_state(None):  # `jax.numpy` may be marked
        return jnp.moveaxis(array, dim, 0)


def _shared_stay_shared(site: Site, view: View) -> bool:
    """Whether the unbatched arrays of a partly batched site stay unbatched.

    A gradient has a part for each example; that of a shared array would be their sum, so the array must be mapped too.
    But code that was not written for Sonde may rely on what is mapped and what is not: there the gradient is the sum.
    """
    return view.is_value and site.depths is not None


def _with_mapped_axis(
    view: View,
    axis_data: _jax.AxisData,
    leaf_dims: Sequence[Any],
    extra_dims: Mapping[str, Any],
    stopping: Sequence[Any] = (),
    summed: frozenset[int] = frozenset(),
) -> View:
    """The view of a site that is mapped over one more axis, at these positions in its arrays and extras."""
    varies = tuple(d is not None for d in leaf_dims)
    lacking = frozenset({"token", "taken"}) - {name for name, d in extra_dims.items() if d is not None}
    axis = Axis(
        "vmap",
        axis_data.size,
        axis_data.name if isinstance(axis_data.name, str) else None,
        leaves=None if all(varies) else varies,
        lacking=lacking,
        stopping=frozenset(stopping),
        summed=summed,
        mapped_by=_jax.mapped_by(axis_data),
    )
    return view.replace(axes=(axis, *view.axes))


def _batched_site(axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, *, site: Site, view: View) -> Any:
    operands, at = operands_of(args, site, view), operands_of(dims, site, view)
    batched = Operands(
        [_front(x, d) for x, d in zip(operands.arrays, at.arrays)],
        # The iteration number is the same for every batch element; the first will do.
        anchor=_front(operands.anchor, at.anchor)[0] if at.anchor is not None else operands.anchor,
        token=_front(operands.token, at.token),
        gate=_front(operands.gate, at.gate),
        active=tuple(x for x, d in zip(operands.active, at.active) if d is None),
    )
    out_dims = [d if d is None else 0 for d in at.arrays]
    # A loop whose predicate is mapped has had its operand for this axis; what is left waits for further maps.
    extra_dims = {"token": at.token, "taken": at.gate}
    stopping = [loop for loop, d in zip(view.whiles, at.active) if d is not None]
    view = view.replace(whiles=tuple(loop for loop in view.whiles if loop not in stopping)) if stopping else view
    summed: frozenset[int] = frozenset()
    n_axes = len(view.axes)
    if stopping or any(d is not None for d in (*out_dims, *extra_dims.values())):
        is_mapped = any(d is not None for d in out_dims)
        if site.grads and is_mapped and not _edited() and _shared_stay_shared(site, view):
            summed = frozenset(i for i, d in enumerate(out_dims) if d is None)
        # A value that is supplied may vary where the old one does not. If examples share an array and not another one,
        # each has its own part of the gradient: with a capture that records it, or an edit that changes it.
        elif view.role == "supply" or (is_mapped and (site.grads or _edited())):
            batched.arrays = [x if d == 0 else repeated(x, axis_data) for x, d in zip(batched.arrays, out_dims)]
            out_dims = [0] * len(out_dims)
        view = _with_mapped_axis(view, axis_data, out_dims, extra_dims, stopping, summed)
    outs = bind_site(batched, site, view)
    if view.role == "supply":
        is_mapped = len(view.axes) > n_axes
        return outs, site.supply.dims(len(batched.arrays)) if is_mapped else [None] * len(outs)
    return outs, [*out_dims, None][: len(outs)]


def _batched(primitive: _jax.Primitive) -> Any:
    """The batching of markers and plain sites, whose operands are arrays and perhaps a token."""

    def rule(axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, *, site: Site, view: View) -> Any:
        n = len(args) - (primitive is marker_p or view.gives_token(site))
        out_dims = [d if d is None else 0 for d in dims[:n]]
        args = list(map(_front, args, dims))
        # A tangent that the examples share has one cotangent, their sum; mapped, it has one for each.
        if site.grads and any(d is not None for d in out_dims):
            args[:n] = [x if d == 0 else repeated(x, axis_data) for x, d in zip(args, out_dims)]
            out_dims = [0] * n
        if any(d is not None for d in dims):
            token_dim = dims[n] if n < len(dims) else None
            view = _with_mapped_axis(view, axis_data, out_dims, {"token": token_dim})
        return primitive.bind(*args, site=site, view=view), out_dims

    return rule


batching.fancy_primitive_batchers[site_p] = _batched_site
batching.fancy_primitive_batchers[marker_p] = _batched(marker_p)
batching.fancy_primitive_batchers[plain_p] = _batched(plain_p)
