"""`capture`: records values while a program runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
import numpy as np

from sonde import _jax
from sonde.core.interpret.recording import Recording, Reduce
from sonde.core.marks.path import Pattern, check_patterns, short_repr
from sonde.core.modules.roots import ModelsOfCall, models_of_call
from sonde.core.records.build import make_records
from sonde.core.records.partial_records import attach_records
from sonde.core.records.record import Records
from sonde.core.records.returned import AsStored
from sonde.core.session.caches import Meter, by_identity, kept_with
from sonde.core.session.closures import state_of
from sonde.core.session.debug_nans import checking_results
from sonde.core.session.inside_protocol import InsideRequest, inside_request
from sonde.core.session.run import run_with
from sonde.core.verbs.uncalled import Uncalled, explains_arguments, nothing_recorded

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable)


@explains_arguments
def capture(
    f: Callable[P, R],
    *patterns: Pattern,
    grads: bool = False,
    reduce: Reduce | None = None,
    last: int = 1,
    inside: object = None,
) -> Callable[P, tuple[R, Records]]:
    """A function that runs `f` and returns its result together with the values at its sites.

    The result of `f` is the same as without the capture, and `f` runs once. Captures nest, and work inside and outside
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
        inside: Code that marks nothing: functions, classes, Python modules, their names, a model, or several; see
            `sonde.Inside`. Their variables, arguments and results become sites too.

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
    patterns = check_patterns(patterns, "capture")
    if isinstance(last, bool) or not isinstance(last, int | np.integer):
        raise TypeError(f"capture(last=...) must be a number of iterations, got {last!r} of type {type(last).__name__}")
    if last < 1:
        raise ValueError(f"capture(last=...) must be at least 1, got {last}")
    if reduce is not None and not callable(reduce):
        raise TypeError(
            f"capture(reduce=...) must be a function of a value, got {reduce!r} of type {type(reduce).__name__}"
        )
    options: dict[str, Any] = {"grads": grads, "reduce": reduce, "last": int(last)}
    request = inside_request(inside)
    fast = _jitted_capture(f, patterns, options, request)
    if fast is not None:
        return fast

    def captured(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Records]:
        result, records = _capture_now(f, patterns, options, request, args, kwargs)
        return result, records.explained(lambda: nothing_recorded(f, request))

    return Uncalled("capture", wrapped_like(captured, f))


def _capture_now(
    f: Callable,
    patterns: tuple[Pattern, ...],
    options: dict[str, Any],
    inside: InsideRequest | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    handler = Recording(patterns, **options)
    try:
        result = run_with(handler, f, args, kwargs, grads=options["grads"], inside=inside)
    except Exception as error:
        attach_records(error, handler, options["reduce"])
        raise
    return result, make_records(handler.items, handler.met, reduce=options["reduce"])


def capture_only(
    f: Callable,
    patterns: tuple[Pattern, ...],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    reduce: Reduce | None = None,
    inside: object = None,
) -> Records:
    """The records of a call whose result is discarded. The arguments of the call are not donated."""
    options = {"grads": False, "reduce": reduce, "donates": False}
    return _capture_now(f, patterns, options, inside_request(inside), args, kwargs)[1]


def _jitted_capture(
    f: Callable, patterns: tuple[Pattern, ...], options: dict[str, Any], asked: InsideRequest | None
) -> Callable | None:
    """One `jax.jit` of the captured inner function for each set of capture options."""
    inside = _jax.jit_options(f)
    if inside is None:
        return None
    fn, jit_options = inside
    has_models = bool(asked and asked.known_models())

    def make(models: ModelsOfCall | None, meter: Meter) -> Any:
        def captured(*args: Any, **kwargs: Any) -> Any:
            request = asked if models is None else models.inside(args, kwargs)
            result, records = _capture_now(fn, patterns, options, request, args, kwargs)
            return result, AsStored.of(records)

        jitted = meter.jit(wrapped_like(captured, fn), **jit_options)  # JAX keeps one trace for one function

        def call(*args: Any, **kwargs: Any) -> Any:
            result, stored = checking_results(lambda: jitted(*args, **kwargs), lambda found: found[0])
            return result, stored.records.explained(lambda: nothing_recorded(f, asked))

        def method(name: str, *args: Any, **kwargs: Any) -> Any:
            answer = getattr(jitted, name)(*args, **kwargs)
            return (answer[0], answer[1].records) if name == "eval_shape" else answer

        return like_jitted(call, fn, method)

    key = (patterns, *[(name, by_identity(value)) for name, value in options.items()])

    def compiled(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        models = models_of_call(asked, args, kwargs) if asked is not None and has_models else None
        whole_key = (*key, models or asked, state_of(*patterns, options["reduce"]))
        return kept_with(f, whole_key, functools.partial(make, models))

    # One program for all calls: it is found now, and a call costs no more than that of the jitted function.
    if not has_models and state_of(*patterns, options["reduce"]) is None:
        return compiled((), {})
    # What a predicate or a reduce function reads may differ at the next call, and so may the place of a model.
    return like_jitted(
        lambda *args, **kwargs: compiled(args, kwargs)(*args, **kwargs),
        fn,
        lambda name, *args, **kwargs: getattr(compiled(args, kwargs), name)(*args, **kwargs),
    )


def like_jitted(call: Callable, fn: Callable, method: Callable) -> Callable:
    """A function that can be asked for what jitted functions can; `method` is given the name of what is asked for."""
    return Uncalled("capture", call, like=fn, method=method)


def check_callable(f: object, verb: str) -> None:
    """Raises TypeError unless `f` is something that can be captured, edited and so on."""
    if not callable(f) and ": " in verb:  # one of its other arguments
        raise TypeError(f"{verb}= must be a function, got {short_repr(f)}")
    if not callable(f):
        raise TypeError(
            f"{verb} takes a callable, got {short_repr(f)}; give it the function itself, not its result or its "
            f"arguments, such as {verb}(lambda x: ...)"
        )
    if isinstance(f, jax.stages.Compiled):
        raise TypeError(
            f"{verb} cannot look into a function that was compiled ahead of time, whose program is fixed: pass the "
            f"jitted function to {verb}, and compile the result"
        )
    inner = inspect.unwrap(f)
    for is_lazy, kind in (
        (inspect.iscoroutinefunction, "a coroutine function"),
        (inspect.isgeneratorfunction, "a generator function"),
        (inspect.isasyncgenfunction, "an asynchronous generator function"),
    ):
        if is_lazy(inner):
            raise TypeError(
                f"{verb} cannot look into {kind}: the body of {getattr(f, '__qualname__', f)!r} runs after the call "
                f"has returned; {verb} the functions it calls, or a function that runs it to completion"
            )


def wrapped_like(new: C, f: object) -> C:
    """Gives a wrapper the name, documentation and signature of the callable it wraps."""
    wrapper: Any = functools.update_wrapper(new, cast(Callable, f), assigned=(), updated=())
    for name in functools.WRAPPER_ASSIGNMENTS:
        with contextlib.suppress(AttributeError, TypeError):  # a callable object may have a name that is no string
            setattr(wrapper, name, getattr(f, name))
    return wrapper
