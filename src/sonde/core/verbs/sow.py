"""`sow` marks a value; `perturb` marks a value that can be added to."""

from __future__ import annotations

import sys
import types
from collections.abc import Hashable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.edits.applying import apply_edits
from sonde.core.interpret.trace import SiteTrace
from sonde.core.marks.arrays import as_now, flattened
from sonde.core.marks.path import checked_name, short_repr
from sonde.core.marks.primitive import site_p
from sonde.core.marks.scopes import check_scopes
from sonde.core.marks.site import LEAF, PLAIN, Site, take_apart
from sonde.core.session.inside_protocol import PASSED_SITES
from sonde.core.session.session import CaptureState, capture_state, sows_are_seen
from sonde.errors import EditError, SiteNameError

T = TypeVar("T")
_ONE_ARRAY = (True,)
_NUMBERS = (bool, int, float, complex)

PERTURBED = "perturb"


def sow(value: T, name: str) -> T:
    """Marks a value, so that a capture can see it and an edit can replace it. Returns it.

    Use what it returns: during an edit, that is the new value. Without a capture it returns `value` itself and adds
    nothing to the program. `value` may be any pytree; leaves that are not arrays are kept as they are.

    Args:
        value: Any pytree.
        name: The name of the site. Slashes nest, as `sonde.scope` does.

    Returns:
        `value`, or what it was replaced by.

    Raises:
        SiteNameError: `name` is not a string, or it is empty.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     h = sonde.sow(jnp.sin(x), "h")
        ...     return h * 2
        >>> result, records = sonde.capture(f)(jnp.float32(0.5))
        >>> print(f"{records['h'].value:.4f}")
        0.4794
    """
    if type(name) is not str or not name:
        check_order(value, name, "sow")
    return mark(value, name, depth=2) if sows_are_seen() else value


def perturb(value: T, name: str) -> T:
    """Marks a value to which `sonde.with_perturbations` may add something; otherwise the same as `sow`.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def loss(x):
        ...     h = sonde.perturb(x * 3, "h")
        ...     return (h**2).sum()
        >>> x = jnp.float32(2.0)
        >>> zeros = sonde.zero_perturbations(loss)(x)
        >>> grads = jax.grad(sonde.with_perturbations(loss))(zeros, x)
        >>> print(grads["h"])
        12.0
    """
    if type(name) is not str or not name:
        check_order(value, name, "perturb")
    return mark(value, name, tag=PERTURBED, depth=2) if sows_are_seen() else value


def check_order(value: object, name: object, verb: str) -> None:
    """Raises SiteNameError if the name of a site is not a string, and says if it stands in the place of the value."""
    if isinstance(value, str) and not isinstance(name, str):
        raise SiteNameError(
            f"{verb} got the string {value!r} as value, and {short_repr(name)} as name; the value comes first: "
            f"{verb}(value, {value!r})"
        )
    checked_name(name)


def mark(
    value: T,
    name: str,
    *,
    tag: Hashable = None,
    depth: int = 1,
    code: types.CodeType | None = None,
    depths: frozenset[int] | None = None,
) -> T:
    """Marks a value with a tag for the layer above; `sow` calls it while a capture runs.

    Args:
        value: Any pytree.
        name: The name of the site below the scopes that are open.
        tag: Kept as `Site.tag`; hashable.
        depth: How many frames up the source line of the site is.
        code: The function whose first line is the source line of the site, in place of a frame.
        depths: Which of the nested captures see the site; see `Site.depths`.

    Returns:
        `value`, or what it was replaced by. When no capture runs, `value`.
    """
    return value if capture_state() is None else _marked(value, name, tag, depth + 1, code, depths=depths)[0]


def mark_in_place(value: Any, name: str, *, tag: Hashable = None, depth: int = 1) -> None:
    """Marks a value that the program continues to use, as `Module.sow` does, which returns nothing.

    A capture with `grads=True` still sees the gradient at the site: a tracer in `value` becomes the tracer that
    came out of the site, so every later use of it is a use of the marked value. An edit of such a site is an error,
    because an array that is not a tracer cannot be replaced in place.

    A tracer of an outer transform (a value that a jitted function or a loop body closes over) cannot become a tracer of
    the inner transform: its value is recorded, and its gradient is None.

    Args:
        value: Any pytree.
        name: The name of the site below the scopes that are open.
        tag: Kept as `Site.tag`; hashable.
        depth: How many frames up the source line of the site is.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> from sonde.core import mark_in_place
        >>> def loss(w):
        ...     h = jnp.sin(w)
        ...     mark_in_place(h, "h")
        ...     return h**2
        >>> _, records = sonde.capture(jax.grad(loss), grads=True)(0.5)
        >>> print(f"{records['h'].grad:.4f}")  # 2 * sin(0.5)
        0.9589
    """
    state = capture_state()
    if state is None:
        return
    if not state.grads and not state.edits:  # the value itself is the same as what comes out of the site
        _marked(value, name, tag, depth + 1, in_place=True)
        return
    leaves, tree = jax.tree.flatten(value)
    tracers = [x for x in leaves if isinstance(x, _jax.Tracer)]
    # The site holds on to what it was given, which therefore must not change.
    copies = {id(x): _jax.copy_of_tracer(x) for x in tracers}
    copied = jax.tree.unflatten(tree, [copies.get(id(x), x) for x in leaves])
    marked, site = _marked(copied, name, tag, depth + 1, in_place=True)
    trace = _jax.current_trace()
    replaces = state.edits and isinstance(trace, SiteTrace) and not trace.handler.passes_on
    for before, after in zip(leaves, jax.tree.leaves(marked)):
        copied_leaf: Any = copies.get(id(before), before)
        if isinstance(before, _jax.Tracer):
            if _jax.become(before, after, copied_leaf):
                continue
            site.has_gradient = False
        if replaces and after is not copied_leaf:
            raise EditError(
                f"site {site.path!r} ({site.line}) cannot be replaced: the program continues with the value itself, "
                "which is not traced; mark it with sonde.sow or Module.perturb, and use the result"
            )


def _marked(
    value: Any,
    name: str,
    tag: Hashable,
    depth: int,
    code: types.CodeType | None = None,
    *,
    in_place: bool = False,
    depths: frozenset[int] | None = None,
) -> tuple[Any, Site]:
    state: Any = capture_state()
    if code is None:
        frame = sys._getframe(depth)
        code, line = frame.f_code, frame.f_lineno
    else:
        line = code.co_firstlineno
    if state.edits and not in_place:  # a number can only be replaced if it is an array
        arrays_given, tree = flattened(value)
        value = jax.tree.unflatten(tree, [jnp.asarray(x) if isinstance(x, _NUMBERS) else x for x in arrays_given])
    if isinstance(value, jax.Array):
        leaves, tree, arrays, statics = [value], LEAF, _ONE_ARRAY, ()
    else:
        leaves, tree, arrays, statics = take_apart(value)
    check_scopes(name)
    site = Site.new(
        checked_name(name),
        tree=tree,
        arrays=arrays,
        statics=statics,
        tag=tag,
        grads=state.grads,
        code=code,
        line=line,
        in_place=in_place,
        depths=depths,
        handlers=state.seen_by,
    )
    arrays_given = [as_now(x) for x in leaves]
    outs = through_site(arrays_given, site, state)
    outs = [x if a is b or _is_constant(x, b, state) else b for x, a, b in zip(leaves, arrays_given, outs)]
    for note in PASSED_SITES:
        note(leaves, outs)
    return site.rebuild(outs), site


def through_site(arrays: list[Any], site: Site, state: CaptureState) -> list[Any]:
    """Passes arrays through a site and the edits that run. Returns what the program continues with."""
    edited = apply_edits(arrays, site, state) if _may_be_edited(site, state) else None
    passed = arrays if edited is None else edited.arrays
    trace = _jax.current_trace()
    own = type(trace) is SiteTrace  # the capture's own level: no need to go through the primitive
    outs = trace.at_site(passed, site, PLAIN) if own else site_p.bind(*passed, site=site, view=PLAIN)
    return outs if edited is None else edited.behind_site(outs[: len(arrays)])


def _may_be_edited(site: Site, state: CaptureState) -> bool:
    return bool(state.plans) and (not site.in_place or any(running.plan.has_rules for running in state.plans))


def _is_constant(before: Any, after: Any, state: Any) -> bool:
    """Whether what came out of a site has the numbers of the NumPy array that went in."""
    return isinstance(before, np.ndarray) and not state.edits and not isinstance(after, _jax.Tracer)
