"""Runs a script with its transformed functions watched: the first result that turns non-finite stops it.

While the script runs, `jax.jit`, `jax.grad`, `jax.vmap` and their like return functions that look at their results, and
so do loops that run without `jit`. They look on the device and do not wait: whether a call was fine is asked a few
calls later, so that the program keeps running ahead. Until then the arguments of these calls are kept, for the search
to run on the very call; if a call donates arrays, copies of them are kept.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.cli.script import Stopped
from sonde.errors import NoSuchSiteError
from sonde.tools.numerics.nonfinite import first_nonfinite
from sonde.tools.training.monitor import monitor
from sonde.tools.training.writers import Writer
from sonde.why.search import NOT_ABOUT_NUMBERS, UNRELATED

if TYPE_CHECKING:
    from sonde import NonFinite

_MONITORED = ("mean", "std", "norm", "nonfinite")
# Transforms and loops that a script may call outside of `jit`.
_TRANSFORMS = ("grad", "value_and_grad", "vmap", "pmap", "hessian", "jacfwd", "jacrev", "jacobian")
_LOOPS = ("scan", "while_loop", "fori_loop", "map")
_MOST_SEARCHES = 3  # for one function whose results hold intended Infs


class Call(NamedTuple):
    """A call whose results have not been looked at yet."""

    f: Callable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fine: Any
    number: int

    def __str__(self) -> str:
        return f"call {self.number} of {getattr(self.f, '__name__', 'a jitted function')}"


class Watch:
    """Watches the jitted functions of a script.

    Attributes:
        found: What was found.
        found_in: The call that it was found in.
        place: The same in words.
        failed: The last call that raised, with the exception.
        calls: How many calls were watched.
        nans_at_end: The variables of the script that hold NaN at its end.
        unexplained: Calls with a result that is not finite for which the search failed, in words.
    """

    def __init__(self, every: int, inside: Sequence[str] | None = None, writer: Writer | None = None) -> None:
        self.found: NonFinite | None = None
        self.found_in: Call | None = None
        self.place = ""
        self.failed: tuple[Call, Exception] | None = None
        self.calls = 0
        self.nans_at_end: list[str] = []
        self._every = every
        self._inside = inside
        self._pending: collections.deque[Call] = collections.deque()
        self.unexplained: list[str] = []
        # By code: a function that is made anew for each call is the same function for us.
        self._searches: collections.Counter[object] = collections.Counter()
        self._numbers: collections.Counter[object] = collections.Counter()
        self._is_busy = False
        self._has_ended = False
        self._finished: Call | None = None  # the last call, also if its results are fine
        self._intended: tuple[Call, NonFinite] | None = None  # a result that the program has set to NaN or Inf itself
        self._writer = writer
        self._monitored: dict[int, Callable[..., Any]] = {}
        self._flushes: list[Callable[[], Any]] = []

    def call(self, f: Callable, donates: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a jitted function."""
        if self._is_busy or self._has_ended or _jax.current_trace() is not _jax.eval_trace:
            return f(*args, **kwargs)
        number = self._number(f)
        kept_args, kept_kwargs = (args, kwargs)
        if donates:
            copies = {id(x): x.copy() for x in jax.tree.leaves((args, kwargs)) if isinstance(x, jax.Array)}
            kept_args, kept_kwargs = _with_copies((args, kwargs), copies)
            # Calls that are not looked at yet may have been given these arrays, too.
            self._pending = collections.deque(
                call._replace(args=new_args, kwargs=new_kwargs)
                for call in self._pending
                for new_args, new_kwargs in [_with_copies((call.args, call.kwargs), copies)]
            )
        try:
            self._is_busy = True  # what is called meanwhile is part of this call, or of a capture of it
            result = self._function(f)(*args, **kwargs)
        except Exception as error:
            self.failed = Call(f, kept_args, kept_kwargs, None, number), error
            raise
        finally:
            self._is_busy = False
        self.calls += 1
        self._finished = Call(f, kept_args, kept_kwargs, None, number)
        if self._searches[_code_of(f)] < _MOST_SEARCHES:
            floats = [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array) and _is_float(x)]
            if floats:
                self._pending.append(Call(f, kept_args, kept_kwargs, _all_finite(floats), number))
        if len(self._pending) >= self._every:
            self.look()
        return result

    def end(self) -> None:
        """Watches no longer: functions that were made meanwhile are as others."""
        self._has_ended = True
        self._pending.clear()

    def _number(self, f: Callable[..., Any]) -> int:
        """How many calls of a function there were before."""
        code = _code_of(f)
        self._numbers[code] += 1
        return self._numbers[code] - 1

    def look(self) -> None:
        """Looks at the results of the calls so far, in their order.

        Raises:
            Stopped: The search has found what made one of them not finite.
        """
        while self._pending:
            call = self._pending.popleft()
            if not bool(call.fine) and self._search(call):
                self._pending.clear()
                raise Stopped

    def _search(self, call: Call) -> bool:
        """Whether a call has computed something that is not finite; what it was given or holds as a constant is not."""
        self._searches[_code_of(call.f)] += 1
        try:
            call, nonfinite = self._explained(call)
        except Exception as error:
            self.unexplained.append(f"{call} has a result that is not finite, but could not be repeated: {error}")
            return False
        if nonfinite is None:
            return False
        # An Inf that the script passes in is meant, as a best loss is that starts there; so is a NaN that comes out as
        # it went in. If the call computes with a NaN, the data are broken, or a part of the script that is not watched.
        is_computed_on = nonfinite.operation == "argument" and nonfinite.nans and nonfinite.reached
        if nonfinite.operation in ("argument", "constant") and not is_computed_on:
            self._intended = call, nonfinite
            return False
        self.found, self.found_in, self.place = nonfinite, call, str(call)
        return True

    def _explained(self, call: Call) -> tuple[Call, NonFinite | None]:
        """The answer to a call, and the call that gave it.

        The function is called again, so that its sites have names. If that fails or finds nothing, what its Python code
        depends on has changed since (transforms of Flax open a context around the call, a script assigns to globals):
        then the program that JAX traced for the call runs again.
        """
        self._is_busy = True
        try:
            failure, nonfinite = None, None
            try:
                nonfinite = first_nonfinite(call.f, inside=self._inside)(*call.args, **call.kwargs)
            except Exception as error:
                failure = error
            if nonfinite is not None:
                return call, nonfinite
            if failure is not None and self.failed is not None and _is_same(failure, self.failed[1]):
                raise failure  # the call has raised again: it is the same program
            with suppress(Exception):
                call = call._replace(f=_as_traced(call))
                return call, first_nonfinite(call.f)(*call.args, **call.kwargs)
            if failure is not None:
                raise failure
            return call, None
        finally:
            self._is_busy = False

    def _function(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A jitted function, or the same with its sites monitored; a function without sites stays as it is."""
        if self._writer is None:
            return f
        if id(f) not in self._monitored:
            writer, name = self._writer, getattr(f, "__name__", "jitted")

            def write(step: int, numbers: Mapping[str, float]) -> None:
                writer(step, {f"{name}/{path}": number for path, number in numbers.items()})

            monitored = monitor(f, {"**": _MONITORED}, every=self._every, writers=write, inside=self._inside)

            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    return monitored(*args, **kwargs)
                except NoSuchSiteError:  # nothing is marked in it
                    self._monitored[id(f)] = f
                    return f(*args, **kwargs)

            self._monitored[id(f)] = call
            self._flushes.append(monitored.flush)
        return self._monitored[id(f)]

    def look_at_variables(self, names: Mapping[str, Any]) -> None:
        """Notes which variables of a script hold NaN at its end."""
        self.nans_at_end = [name for name, value in names.items() if not name.startswith("_") and _has_nan(value)]

    def flush(self) -> None:
        """Writes the statistics that are still on their way."""
        for flush in self._flushes:
            flush()

    def explain_failure(self, error: BaseException) -> None:
        """Searches the call behind an exception that has ended the script."""
        causes = {id(e) for e in _chain(error)}
        if self.failed is not None and any(id(e) in causes for e in _chain(self.failed[1])):
            call = self.failed[0]
            self.found_in, self.place = call, str(call)
            with suppress(Exception):
                self.found_in, self.found = self._explained(call)
        else:
            with suppress(Stopped):
                self.look()
        if self.found is None and isinstance(error, Exception) and not isinstance(error, NOT_ABOUT_NUMBERS):
            self._suspect(error)
        if self.found is not None and isinstance(error, Exception):
            self.found = dataclasses.replace(self.found, error=error)  # the script's own, not that of the repeated call

    def _suspect(self, error: Exception) -> None:
        """Reports, with doubt, what might have led to an exception if no result was made NaN or Inf.

        That is a result that the program has set to Inf, as samplers do outside of the support of a density, or a value
        that the last call has computed and dropped.
        """
        if self._intended is not None:
            call, nonfinite = self._intended
        elif self._finished is not None and self.failed is None:
            call, nonfinite = self._finished, None
            self._is_busy = True
            with suppress(Exception):
                nonfinite = first_nonfinite(call.f, inside=self._inside, discarded=True)(*call.args, **call.kwargs)
            self._is_busy = False
        else:
            return
        if nonfinite is not None:
            self.found = dataclasses.replace(nonfinite, doubt=UNRELATED)
            self.found_in, self.place = call, str(call)


class StepOfScript(Watch):
    """Stops a program at the second call of a jitted function, which is most likely the step of a loop.

    Attributes:
        last: The last call that was made, with its arguments.
    """

    def __init__(self) -> None:
        super().__init__(every=1)
        self.last: Call | None = None

    def call(self, f: Callable[..., Any], donates: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a jitted function, or stops."""
        if _jax.current_trace() is not _jax.eval_trace:
            return f(*args, **kwargs)
        number = self._number(f)
        kept_args, kept_kwargs = jax.tree.map(_copy, (args, kwargs)) if donates else (args, kwargs)
        self.last = Call(f, kept_args, kept_kwargs, None, number)
        if number:
            raise Stopped
        return f(*args, **kwargs)


def step_of(program: Callable[[], Any], names: dict[str, Any]) -> Call | None:
    """The first repeated call of a jitted function that a program makes, or its last; None if it makes none.

    Args:
        program: A function without arguments, which is run until then.
        names: The globals of its module, whose jitted functions are watched too.
    """
    watch = StepOfScript()
    with watching_names(names, watch), watching(watch), suppress(Stopped):
        program()
    return watch.last


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_same(error: Exception, other: Exception) -> bool:
    """Whether two exceptions say the same, as far as can be told: some hold tracebacks, which differ."""
    first, second = (str(e).partition("\n")[0] for e in (error, other))
    return type(error) is type(other) and first == second


def _code_of(f: Any) -> object:
    """What identifies a function, also if it is made anew; keeps it alive, so that no other can be taken for it."""
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    code = getattr(f, "__code__", None)
    return type(f) if code is None else code  # a module that is called may hold arrays, and have no hash


def _as_traced(call: Call) -> Callable[..., Any]:
    """The program that JAX has traced for a call; its Python code does not run again."""
    jitted: Any = call.f
    traced = jitted.trace(*call.args, **call.kwargs)  # JAX keeps traces
    return jax.jit(functools.wraps(call.f)(lambda *args, **kwargs: traced(*args, **kwargs)))


def _with_copies(tree: Any, copies: dict[int, Any]) -> Any:
    return jax.tree.map(lambda x: copies.get(id(x), x), tree)


def _copy(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array) else x


def _has_nan(value: Any) -> bool:
    """Whether a variable holds a NaN; NumPy's arrays may, since data have them in place of what is missing."""
    try:
        leaves = [x for x in jax.tree.leaves(value) if isinstance(x, float | jax.Array)]
        floats = [x for x in leaves if isinstance(x, float) or (_is_float(x) and not x.is_deleted())]
        return any(bool(jnp.isnan(x).any()) for x in floats)
    except Exception:  # an object of the script that is no pytree, or an array that this process cannot read
        return False


def _is_float(x: Any) -> bool:
    return _is_inexact(x.dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:  # JAX takes microseconds to say so, for each array of each call
    return jnp.issubdtype(dtype, jnp.inexact)


@jax.jit
def _all_finite(arrays: Sequence[Any]) -> Any:
    # The largest magnitude is NaN if any number is, and is found in half the time of a test of each number.
    return functools.reduce(jnp.logical_and, [jnp.isfinite(jnp.max(jnp.abs(x), initial=0)) for x in arrays])


class WatchedFunction:
    """A jitted function whose results are watched; in all else it is the jitted function."""

    def __init__(self, f: Callable, donates: bool, watch: Watch) -> None:
        functools.update_wrapper(self, f, updated=())
        self._f, self._donates, self._watch = f, donates, watch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the jitted function."""
        return self._watch.call(self._f, self._donates, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._f, name)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Inside the block, what `jax.jit` returns is watched; so are gradients, maps and loops that are not in a `jit`."""
    _jax.hide_frames("cli/watched_script.py")
    plain: Any = jax.jit
    before = {(jax, name): getattr(jax, name) for name in ("jit", *_TRANSFORMS)}
    before |= {(jax.lax, name): getattr(jax.lax, name) for name in _LOOPS}

    @functools.wraps(plain)
    def jit(*args: Any, **options: Any) -> Any:
        made = plain(*args, **options)
        donates = any(options.get(name) not in (None, (), []) for name in ("donate_argnums", "donate_argnames"))
        if isinstance(made, _jax.PjitFunction):
            return WatchedFunction(made, donates, watch)
        return lambda f: WatchedFunction(made(f), donates, watch)  # jit(static_argnums=...) without a function

    def watched_transform(transform: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(transform)
        def transformed(*args: Any, **options: Any) -> Any:
            made = transform(*args, **options)
            return WatchedFunction(made, False, watch) if callable(made) else made

        return transformed

    def watched_loop(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def loop(*args: Any, **options: Any) -> Any:
            bodies = [x for x in args if callable(x)]
            if not bodies or _jax.current_trace() is not _jax.eval_trace:
                return run(*args, **options)
            named = functools.wraps(bodies[-1], updated=())(lambda *given, **options: run(*given, **options))
            return watch.call(named, False, args, options)

        return loop

    for (module, name), function in before.items():
        watched = jit if name == "jit" else (watched_loop if module is jax.lax else watched_transform)(function)
        setattr(module, name, watched)
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)


@contextmanager
def watching_names(names: dict[str, Any], watch: Watch) -> Iterator[None]:
    """Inside the block, jitted functions that were made before are watched: variables, and what these hold.

    `nnx.jit` and `eqx.filter_jit` return objects that hold one, and a Keras model holds that of its `fit`.
    """
    places = [names, *(attributes for value in names.values() if (attributes := _attributes_of(value)))]
    before = [
        (place, {name: value for name, value in place.items() if isinstance(value, _jax.PjitFunction)})
        for place in {id(place): place for place in places}.values()
    ]
    # Whether an old function donates is not known: copies are safe.
    watched = [
        (place, {name: WatchedFunction(value, True, watch) for name, value in own.items()}) for place, own in before
    ]
    for place, own in watched:
        place.update(own)
    try:
        yield
    finally:
        for (place, before_value), (_, own) in zip(before, watched):
            place.update({name: before_value[name] for name, value in own.items() if place.get(name) is value})


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of the script, as they can be changed; None for classes and modules."""
    if isinstance(value, type | types.ModuleType):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) and not isinstance(value, _jax.PjitFunction) else None
