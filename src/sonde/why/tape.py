"""Runs a function and keeps every operation of it, with its numbers, also if the function raises.

The function runs once and as it is: Python sees numbers, compiled functions run compiled, and each is one operation on
the tape. What is inside them is looked at afterwards, only if there is a reason to.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import Handler, InsideRequest, UnwrappedTrace, marker_p, plain_p, run_with, site_p, with_capture_state
from sonde.errors import CaptureError
from sonde.programs.callbacks import Written, writing
from sonde.programs.flat import Equation, Level


class Tape(UnwrappedTrace):
    """The trace that a function runs under while it is taped.

    Attributes:
        level: The operations, and the sites that values passed.
        arrays: The value of each slot.
        raised: The number of the operation that raised, if one did.
        written: What functions of the host with side effects have returned.
    """

    sees_all = True

    def __init__(self, parent: Any, handler: Any) -> None:
        super().__init__(parent, handler)
        if parent is not _jax.eval_trace:
            raise CaptureError(
                "first_nonfinite must run on numbers, but it is called in a program that is being traced: call it "
                "outside jit, vmap and grad"
            )
        self.level = Level()
        self.arrays: list[Any] = []
        self.raised: int | None = None
        self.written: Written = {}
        self._slots: dict[int, int] = {}
        self._n_names = _jax.count_open_names()

    def slot_of(self, value: Any) -> int:
        """The slot of a value. JAX's arrays do not change, so that the same object is the same value."""
        if isinstance(value, jax.Array):
            known = self._slots.get(id(value))
            if known is not None:
                return known
            slot = self.level.slot(_jax.typeof(value))
            self._slots[id(value)] = slot
            self.arrays.append(value)
            return slot
        slot = self.level.slot(_jax.typeof(value))
        self.arrays.append(np.array(value) if isinstance(value, np.ndarray) else value)
        return slot

    def _new_slot(self, value: Any) -> int:
        """A slot for a result. An array that was an operand too (a copy that JAX left out) keeps its first slot."""
        slot = self.level.slot(_jax.typeof(value))
        self.arrays.append(value)
        self._slots.setdefault(id(value), slot)
        return slot

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        """Runs an operation, and notes it."""
        names = _jax.names_since(self._n_names)
        if primitive is site_p:
            slots = self.level.mark([*map(self.slot_of, tracers)], params, names)
            self._fill()
            return [self.arrays[slot] for slot in slots]
        if primitive is marker_p:
            return list(tracers[:-1])
        if primitive is plain_p:
            return list(tracers[: len(tracers) - params["view"].gives_token(params["site"])])
        if primitive is _jax.jit_p and any(params["donated_invars"]):  # the search needs what went in
            params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
        if _jax.has_effects_outside(primitive, params):
            params = writing(primitive, params, self.written)
        with self._noting(primitive, tracers, params, names) as note, self._as_before():
            outs = primitive.bind(*tracers, **params)
            if _jax.has_callbacks(primitive, params):
                jax.block_until_ready(outs)  # what a function of the host raises, it raises now
            note(outs if primitive.multiple_results else [outs])
        return outs

    def _fill(self) -> None:
        """Gives the constants that the level made a place among the arrays."""
        for slot in range(len(self.arrays), len(self.level.types)):
            self.arrays.append(self.level.constants.pop(slot))

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        with _jax.set_current_trace(self.parent), with_capture_state(None):
            yield

    @contextlib.contextmanager
    def _noting(
        self, primitive: Any, operands: Sequence[Any], params: dict[str, Any], names: tuple[Any, ...]
    ) -> Iterator[Callable[[Sequence[Any]], None]]:
        inputs = tuple(map(self.slot_of, operands))
        source = _jax.current_source()

        def note(results: Sequence[Any]) -> None:
            outputs = tuple(self._new_slot(x) for x in results)
            self.level.add(Equation(primitive, params, inputs, outputs, (source,), names, _jax.is_backward(source)))

        try:
            yield note
        except Exception:
            if self.raised is None:
                note([])
                self.raised = len(self.level.equations) - 1
            raise

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        """A function with its own forward derivative, which is not asked for here."""
        with _jax.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        """A function with its own backward pass, which is not asked for here."""
        with _jax.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        """A function that runs per shard is traced, and becomes one compiled operation."""
        answers: list[Any] = []

        def bound(*operands: Any) -> Any:
            def kept(*shards: Any) -> Any:
                answer = fun(*shards)
                answers[:] = [answer.unpack_aux()[0]]
                return answer

            return list(_jax.bind_shard_map(primitive, _jax.current_trace(), kept, operands, **params))

        jitted = jax.jit(bound)
        with _jax.set_current_trace(self):
            outs = jitted(*args)
        answer = answers[0]
        return answer.update(list(outs))


@dataclasses.dataclass(eq=False)
class Taped:
    """A function that was run.

    Attributes:
        f: The function.
        tape: What it did.
        result: What it returned; None if it raised.
        error: What it raised.
    """

    f: Callable
    tape: Tape
    result: Any
    error: Exception | None


def run_taped(f: Callable, args: Any, kwargs: Any, *, inside: InsideRequest | None = None) -> Taped:
    """Runs a function and tapes it."""
    tapes: list[Tape] = []
    failed: list[Exception] = []

    def make(parent: Any, handler: Any) -> Tape:
        tapes.append(Tape(parent, handler))
        return tapes[-1]

    make.sees_all = True  # type: ignore[attr-defined]

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except Exception as error:
            failed.append(error)
            return None

    result = run_with(
        Handler(None, ()),
        guarded,
        args,
        kwargs,
        grads=True,
        inside=inside,
        trace_type=make,
    )
    return Taped(f, tapes[0], result, failed[0] if failed else None)
