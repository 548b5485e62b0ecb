"""What is changed in other libraries while a capture runs, also one without `inside=`.

A library is changed when a capture begins after the program has imported it. Nothing here imports one.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from types import ModuleType
from typing import Any

import jax

from sonde import _jax
from sonde.core import capture_state, first_site, split_arrays, with_capture_state
from sonde.errors import CaptureError


def add_changes(changes: _jax.InPlace) -> None:
    """Adds the changes to libraries to those that sessions make, as soon as each library is imported."""
    for name, make in _CHANGES.items():
        _jax.when_loaded(name, lambda module, make=make: changes.add(*make(module)))


def _call_at_once(noinline: ModuleType) -> Sequence[_jax.Change]:
    """Functions under `equinox.internal.noinline`, which a compiled program calls on the host, are called directly.

    That computes the same. If the function is chosen only when the program runs, a site in it is an error. Functions
    that `inside=` reaches through a package are left out.
    """
    wrapper = noinline._NoInlineWrapper
    plain = wrapper.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = capture_state()
        if state is None or not (state.inside is None or state.inside.names_functions() or state.inside.names_models()):
            return plain(self, *args, **kwargs)
        if isinstance(self.dynamic_index, _jax.Tracer):
            _check_no_sites(self, args, kwargs)
            return plain(self, *args, **kwargs)
        function = noinline._index_to_fn[int(self.dynamic_index)]
        return noinline.hashable_combine(self.dynamic_fn, function)(*args, **kwargs)

    return [_jax.Change(wrapper, "__call__", call)]


def _check_no_sites(wrapper: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    arrays, without_arrays = split_arrays((wrapper.dynamic_fn, args, kwargs), lambda x: isinstance(x, jax.Array))

    def run(*arrays: Any) -> list[Any]:
        function, args, kwargs = without_arrays.whole(arrays)
        out = wrapper.abstract_fn(function, *args, **kwargs)
        return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]

    jaxpr, _ = _jax.trace_to_jaxpr(run, [*map(_jax.typeof, arrays)])
    if (site := first_site(jaxpr)) is not None:
        raise CaptureError(
            f"site {site.path!r} ({site.line}) cannot be captured: it is in a function under "
            "equinox.internal.noinline that is an argument of a compiled program, which calls it on the host. Call "
            "the function directly"
        )


def _hide_trial_run(axes_scan: ModuleType) -> Sequence[_jax.Change]:
    """Nothing is marked in the trial run that Flax's `scan` makes of a loop body.

    It is made to see what depends on the iteration. Every equation with an effect would count as a use of its operands,
    and Flax would refuse the loop.
    """
    del axes_scan
    return _jax.trials_unseen("flax scan", lambda: with_capture_state(None)).changes


def share_masks(masking: ModuleType) -> Sequence[_jax.Change]:
    """All objects that stand for one array share the mask that Keras keeps with it, by its identity."""
    # When it is loaded, every site notes which objects are one: of no use to programs without Keras.
    from sonde.inside.same_object import keep_all_alive, same_as

    get, give = masking.get_tensor_attr, masking.set_tensor_attr
    keep_all_alive()

    def mask_of(array: _jax.AnyArray, name: str) -> Any:
        with with_capture_state(None):
            return next((mask for x in same_as(array) if (mask := get(x, name)) is not None), None)

    def give_mask(array: _jax.AnyArray, name: str, mask: Any) -> None:
        with with_capture_state(None):  # marked, Keras's function would be given other objects
            for x in same_as(array):
                give(x, name, mask)

    return _jax.Change(masking, "get_tensor_attr", mask_of), _jax.Change(masking, "set_tensor_attr", give_mask)


class _OwnTraces:
    """Numbers of traces by function, which grow only while no capture runs in the thread."""

    def __init__(self, counter: MutableMapping[int, int]) -> None:
        self._counter = counter

    def __getitem__(self, function: int) -> int:
        return self._counter[function]

    def __setitem__(self, function: int, number: int) -> None:
        if capture_state() is None:
            self._counter[function] = number

    def clear(self) -> None:
        self._counter.clear()


def count_own_traces(asserts: ModuleType) -> Sequence[_jax.Change]:
    """`chex.assert_max_traces` counts how often the program traces a function; what captures trace does not count."""
    return [_jax.Change(asserts, "TRACE_COUNTER", _OwnTraces(asserts.TRACE_COUNTER))]


def compile_as_written(bytecode: ModuleType) -> Sequence[_jax.Change]:
    """Numba compiles the code that a function has without marks, whose blocks it does not know."""
    from sonde.inside.code_swap import code_as_written

    code_of = bytecode.get_code_object
    return [_jax.Change(bytecode, "get_code_object", lambda function: code_as_written(function) or code_of(function))]


_CHANGES: dict[str, Callable[[ModuleType], Sequence[_jax.Change]]] = {
    "chex._src.asserts_internal": count_own_traces,
    "equinox.internal._noinline": _call_at_once,
    "flax.core.axes_scan": _hide_trial_run,
    "keras.src.backend.common.masking": share_masks,
    "numba.core.bytecode": compile_as_written,
}
