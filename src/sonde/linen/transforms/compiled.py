"""`nn.jit` and `nn.fold_rngs`.

A jitted method is compiled once for all modules of equal class and fields, in whichever `apply` they are called. So its
random keys must not depend on where it is called: every call gets new streams, each made from the next key of a stream
(`fold_rngs` does only that). A module that is called again in one run goes on counting keys, as in Flax; with random
streams its second call is another compilation.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import capture_state
from sonde.flax.serialization import is_serializable, to_state_dict
from sonde.linen.modules import attach
from sonde.linen.modules.module import Module
from sonde.linen.transforms.lift import Body, Bridge, Groups, Lifting, Methods, Static, lift_with
from sonde.linen.variables.filters import Filter, hashable
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.rng import Stream
from sonde.linen.variables.scope import Run, Variable


def jit(
    target: Callable[..., Any],
    variables: Filter = True,
    rngs: Filter = True,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    device: object = None,
    backend: str | None = None,
    methods: Methods = None,
) -> Any:
    """A module class or function that is compiled.

    Args:
        target: The module class, or a function whose first argument is a module.
        variables: The collections that the compiled function sees.
        rngs: The random streams that the compiled function sees.
        static_argnums: As in `jax.jit`; the module is argument 0.
        static_argnames: As in `jax.jit`.
        donate_argnums: As in `jax.jit`; the module is argument 0.
        device: As in `jax.jit`.
        backend: As in `jax.jit`.
        methods: For a class, the methods to transform.
    """
    compiled: dict[str, Callable[..., Any]] = {}  # the compiled function, once the first call has made it
    return lift_with(_jit, locals(), label="jit")


def _numbers(numbers: int | Iterable[int]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)


class _Calls(threading.local):
    """The calls that are being traced or run in this thread, innermost last.

    The compiled function takes scopes, modules and variables from here and not from its static argument, which JAX
    keeps as long as the compiled program.
    """

    def __init__(self) -> None:
        self.active: list[_CompiledCall] = []


_calls = _Calls()


class _CompiledCall:
    """One call of a compiled method.

    Attributes:
        key: Everything that the compiled program depends on besides its arrays; equal calls share one compilation.
    """

    def __init__(self, lifting: Lifting, bridge: Bridge, body: Body, variables: Filter) -> None:
        state = bridge.module._state
        self.lifting, self.module, self.body = lifting, bridge.module, body
        self.counts = lifting.counts()
        run = lifting.packed[0].run if lifting.packed else None
        # A capture depends on the module's path, and so do values sown to runs outside this transform.
        paths = capture_state() is not None or (variables is not True and run is not None and run.mutable is not False)
        self.key = (
            tuple(map(_weakly, body.of)),  # pyright: ignore[reportFunctionMemberAccess]
            tuple(fingerprint(source, bridge) for source in bridge.sources),
            lifting.places,
            tuple(scope.path for scope in bridge.scopes) if paths else None,
            tuple((tuple(scope.streams), *sorted(used.items())) for scope, used in zip(lifting.packed, self.counts)),
            (_levels(run), run is not None and run.initializing, run is not None and run.capture),
            (state.in_compact, tuple(sorted(state.cursor.items()))),
        )

    def run(self, variables: Groups, rngs: Groups, *args: Any, **kwargs: Any) -> Any:
        """The function that is compiled.

        Returns the keys and names that the body used as structure, so that a cached call reports them too.
        """
        self.lifting.restore_counts(self.counts)
        output, changes = self.lifting.call(self.body, variables, rngs, *args, **kwargs)
        used = [
            tuple((key, n - before.get(key, 0)) for key, n in after.items())
            for before, after in zip(self.counts, self.lifting.counts())
        ]
        return output, changes, Static((tuple(used), tuple(self.module._state.cursor.items())))


def _levels(run: Run | None) -> tuple[Any, ...]:
    """Which collections may change in this run and in those around it, and where values sown inside go."""
    return () if run is None else ((hashable(run.mutable), run.level), *_levels(run.outer))


def _jit(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    variables: Filter,
    rngs: Filter,
    static_argnums: int | Iterable[int],
    static_argnames: str | Iterable[str],
    donate_argnums: int | Iterable[int],
    device: object,
    backend: str | None,
    compiled: dict[str, Callable[..., Any]],
) -> Any:
    if not compiled:
        # A new function for each transform: JAX drops its compiled programs when the function dies.
        def run_call(key: Hashable, variables: Groups, rngs: Groups, *args: Any, **kwargs: Any) -> Any:
            del key
            return _calls.active[-1].run(variables, rngs, *args, **kwargs)

        target = {"device": device, "backend": backend}
        compiled["function"] = jax.jit(
            run_call,
            static_argnums=(0, *(i + 2 for i in _numbers(static_argnums) if i > 0)),
            static_argnames=static_argnames or None,
            donate_argnums=tuple(i + 2 for i in _numbers(donate_argnums) if i > 0),
            **{name: value for name, value in target.items() if value is not None},
        )
    with _own_streams(bridge, "jit", variables, rngs) as lifting:
        call = _CompiledCall(lifting, bridge, body, variables)
        _calls.active.append(call)
        try:
            output, changes, after = compiled["function"](call.key, lifting.variables, lifting.rngs, *args, **kwargs)
        finally:
            _calls.active.pop()
        used, cursor = after.value
        # A cached call draws no keys in Python, so the counts are advanced by what its trace drew.
        totals = [
            {**before, **{key: before.get(key, 0) + n for key, n in drawn}} for before, drawn in zip(call.counts, used)
        ]
        lifting.restore_counts(totals)
        bridge.module._state.cursor = dict(cursor)
        lifting.publish(changes)
    return output


def fold_rngs(
    target: Callable[..., Any], variables: Filter = True, rngs: Filter = True, methods: Methods = None
) -> Any:
    """A module class or function that gets new random streams for every call, each made from the next key of a stream.

    Args:
        target: The module class, or a function whose first argument is a module.
        variables: The collections that the function sees.
        rngs: The random streams that the function sees.
        methods: For a class, the methods to transform.
    """
    return lift_with(_fold_rngs, locals(), label="fold_rngs")


def _fold_rngs(
    bridge: Bridge, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any], *, variables: Filter, rngs: Filter
) -> Any:
    with _own_streams(bridge, "fold_rngs", variables, rngs) as lifting:
        output, changes = lifting.call(body, lifting.variables, lifting.rngs, *args, **kwargs)
        lifting.publish(changes)
    return output


@contextlib.contextmanager
def _own_streams(bridge: Bridge, label: str, variables: Filter, rngs: Filter) -> Iterator[Lifting]:
    """A lifting in which the module's streams start from their next keys, and all others from their roots."""
    scope = bridge.scopes[0] if bridge.module.scope is not None else None
    streams = scope.streams if scope is not None else {}
    if scope is not None:
        scope.streams = {name: Stream(scope.make_rng(name)) for name in streams}
    try:
        lifting = Lifting(bridge.scopes, label, variables=(variables,), changes=(variables,), rngs=(rngs,))
        lifting.rngs = jax.tree.map(
            lambda stream: Stream(stream.root), lifting.rngs, is_leaf=lambda x: isinstance(x, Stream)
        )
        yield lifting
    finally:
        if scope is not None:
            scope.streams = streams


def _weakly(value: object) -> Any:
    """A weak reference to a function or class, for a key: it may itself refer to the transform that holds the key."""
    return None if value is None else weakref.ref(value)


class _Same:
    """A value that is equal only to itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class _Copy:
    """A copy of a mutable value; compared by the `==` of the values."""

    def __init__(self, value: Any) -> None:
        self.value = copy.deepcopy(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Copy) and type(other.value) is type(self.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


def fingerprint(value: object, bridge: Bridge) -> Any:
    """A hashable key that is equal for two modules (or variables) that behave the same on the same variables."""
    if isinstance(value, Module):
        fields = tuple((name, fingerprint(getattr(value, name), bridge)) for name in attach.fields_of(value))
        return _weakly(type(value)), bridge.index_of(value), fields
    if isinstance(value, Variable):
        return Variable, bridge.index_of(value), value.collection, value.name
    if isinstance(value, (tuple, list)):
        return type(value), tuple(fingerprint(entry, bridge) for entry in value)
    if isinstance(value, (dict, FrozenDict)):
        return type(value), tuple((key, fingerprint(entry, bridge)) for key, entry in value.items())
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(value)
    if isinstance(value, _jax.Tracer):
        return object()  # it belongs to one trace: this call is compiled separately
    # Comparing arrays would read them from the device; the same object has the same values.
    if isinstance(value, jax.Array):
        return _Same(value)
    if isinstance(value, np.ndarray):
        return np.ndarray, value.shape, value.dtype, value.tobytes() if value.dtype != object else _Copy(value.tolist())
    if not jax.tree_util.all_leaves((value,)):
        inside, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
        return _hashable(structure), tuple(fingerprint(part, bridge) for part in inside)
    if is_serializable(value):
        return type(value), fingerprint(to_state_dict(value), bridge)
    return _hashable(value)


def _hashable(value: object) -> Any:
    try:
        hash(value)
    except TypeError:
        pass
    else:
        return type(value), value
    try:
        snapshot = _Copy(value)
        return snapshot if snapshot == _Copy(value) else object()
    except Exception:  # it cannot be copied or compared: this call is compiled separately
        return object()
