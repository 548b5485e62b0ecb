"""Looking at a program while it runs: `capture`."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import jax

from sonde import _jax
from sonde.core import boundaries, rules  # noqa: F401 (registers the rules)
from sonde.core.asking import Request as Asking
from sonde.core.asking import asked_for
from sonde.core.collect import Collect, Reduce
from sonde.core.context import Looking, look, looking
from sonde.core.failing import remember
from sonde.core.handler import Handler
from sonde.core.inside import has_sites
from sonde.core.module_paths import NOTHING, Request, trail
from sonde.core.path import Pattern, check_pattern
from sonde.core.record import Records, make_records
from sonde.core.trace import SiteTrace

P = ParamSpec("P")
R = TypeVar("R")


def capture(
    f: Callable[P, R],
    *patterns: Pattern,
    grads: bool = False,
    reduce: Reduce | None = None,
    last: int = 1,
    inside: Any = None,
) -> Callable[P, tuple[R, Records]]:
    """A function that runs `f` and returns its result together with what passed its sites.

    The result of `f` is what it is without the capture, and `f` runs once. Captures nest, and work inside and outside
    of every JAX transform.

    Args:
        f: Any callable: a function, a bound method, a partial, a jitted function, an object with `__call__`.
        *patterns: Which sites: globs over paths (`"blocks/*/attn"`, `"**/mlp"`) or predicates of a `Site`. All, if none
            are given.
        grads: Whether to record gradients too: any `jax.grad`, `value_and_grad` or `vjp` that runs inside `f` yields
            the cotangent at each site, in the same pass.
        reduce: A function of the value, applied at the site, on the device and inside loops, whose result is recorded
            in place of the value. Under `vmap` it sees one example. It must return arrays.
        last: How many of the last iterations of a `while_loop` to keep. With more than one, values have a leading axis.
        inside: Code without sites to look into: functions, classes, Python modules, their names, a model, or several;
            see `sonde.Inside`. Their variables, arguments and results are sites too.

    Returns:
        A function with the arguments of `f` that returns `(result, records)`.

    Raises:
        TypeError: `f` is not callable, or is a generator or coroutine function, whose body runs after the call.
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called: a site is in a place that cannot be captured.
        InsideError: `inside` names a function that cannot be looked into.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def loss(w, x):
        ...     h = sonde.sow(jnp.tanh(x * w), "h")
        ...     return jnp.sum(h**2)
        >>> (value, _), records = sonde.capture(jax.value_and_grad(loss), grads=True)(0.5, jnp.ones(3))
        >>> records["h"].value.shape, records["h"].grad.shape
        ((3,), (3,))
    """
    check_callable(f, "capture")
    patterns = tuple(map(check_pattern, patterns))
    if last < 1:
        raise ValueError(f"capture(last=...) keeps at least 1 iteration, got {last}")
    options: dict[str, Any] = {"grads": grads, "reduce": reduce, "last": last, "inside": asked_for(inside)}
    fast = _jitted_capture(f, patterns, options)
    if fast is not None:
        return fast

    def captured(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Records]:
        return _capture_now(f, patterns, options, args, kwargs)

    return like(captured, f)


def _capture_now(f: Callable, patterns: tuple[Pattern, ...], options: dict[str, Any], args: Any, kwargs: Any) -> Any:
    made: list[Collect] = []
    wanted = {name: option for name, option in options.items() if name != "inside"}

    def make(depth: int) -> Collect:
        made.append(Collect(patterns, depth=depth, **wanted))
        return made[0]

    try:
        result, handler = run_with(make, f, args, kwargs, grads=options["grads"], inside=options["inside"])
    except Exception as error:
        if made:
            remember(error, made[0], options["reduce"])
        raise
    return result, make_records(handler.items, handler.met, reduce=options["reduce"])


def capture_only(
    f: Callable,
    patterns: tuple[Pattern, ...],
    args: Any,
    kwargs: Any,
    *,
    grads: bool = False,
    reduce: Reduce | None = None,
    inside: Any = None,
) -> Records:
    """What passes the sites of a call whose result nobody wants. What the call was given is not donated."""
    options = {"grads": grads, "reduce": reduce, "donates": False, "inside": asked_for(inside)}
    return _capture_now(f, patterns, options, args, kwargs)[1]


_shortcut = _jax.EagerShortcut(SiteTrace, has_sites)


def run_with(
    make: Callable[[int], Any],
    f: Callable,
    args: Any,
    kwargs: Any,
    *,
    grads: bool = False,
    edits: bool = False,
    request: Request | None = None,
    inside: Asking | None = None,
) -> tuple[Any, Any]:
    """Runs `f` with a handler at its sites.

    Args:
        make: Makes the handler, from how many are nested, itself included.
        f: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        grads: Whether gradients must be marked.
        edits: Whether the handler replaces values.
        request: What is wanted of modules.
        inside: What to look into, as `asked_for` gives it.

    Returns:
        The result of `f` and the handler, finished.
    """
    outer = looking()
    wanted = NOTHING if request is None else request.traced
    if inside is not None:
        wanted = wanted._replace(methods=wanted.methods | inside.methods)
    depth, asked, modules = 1, None, (wanted,)
    if outer is not None:
        grads, edits, depth, asked = grads or outer.grads, edits or outer.edits, outer.depth + 1, outer.inside
        modules = (*outer.modules, *modules)
    if inside is not None:
        asked = inside.nested_in(asked, depth)
    handler: Handler = make(depth)
    handler.outside = outer
    trace = SiteTrace(_jax.current_trace(), handler)
    try:
        with (
            trail(f, args, kwargs, request, handler, () if inside is None else inside.known_models()),
            boundaries.hook,
            _shortcut,
            _jax.set_current_trace(trace),
            look(Looking(grads, edits, depth, modules, asked)),
        ):
            result = f(*args, **kwargs)
    finally:
        trace.invalidate()
    handler.finish()
    return result, handler


# A jitted function, and what was captured of it: one jax.jit of the captured inner function for every way of looking.
_jitted: weakref.WeakKeyDictionary[Any, dict[Hashable, Callable]] = weakref.WeakKeyDictionary()


def _jitted_capture(f: Any, patterns: tuple[Pattern, ...], options: dict[str, Any]) -> Callable | None:
    inside = _jax.jit_options(f)
    if inside is None:
        return None
    fn, jit_options = inside
    known = _jitted.setdefault(f, {})
    key = (patterns, *options.items())
    if key not in known:

        def captured(*args: Any, **kwargs: Any) -> Any:
            return _capture_now(fn, patterns, options, args, kwargs)

        known[key] = jax.jit(like(captured, fn), **jit_options)
    return known[key]


def check_callable(f: object, verb: str) -> None:
    """Raises TypeError unless `f` is something that can be captured, edited and so on."""
    if not callable(f):
        raise TypeError(f"{verb} takes a callable, got {f!r} of type {type(f).__name__}")
    inner = inspect.unwrap(f)
    for is_lazy, what in (
        (inspect.iscoroutinefunction, "a coroutine function"),
        (inspect.isgeneratorfunction, "a generator function"),
        (inspect.isasyncgenfunction, "an asynchronous generator function"),
    ):
        if is_lazy(inner):
            raise TypeError(
                f"{verb} cannot look into {what}: the body of {getattr(f, '__qualname__', f)!r} runs after the call "
                f"has returned; {verb} the functions it calls, or a function that runs it to its end"
            )


def like(new: Callable, f: Any) -> Callable:
    """Gives a wrapper the name, documentation and signature of the callable it wraps."""
    return functools.update_wrapper(new, f, updated=())
