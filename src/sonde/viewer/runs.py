"""Runs of a program that the page has asked for, and what was recorded in them.

A program that records everything takes twice as long to compile, or more. So the first run records the site that the
page shows first, and its family of layers. When the page has drawn it, everything is recorded, if it fits into the
memory that the page may use: a click then only reads an array, and later runs record everything at once. What does not
fit is recorded when it is clicked. Runs that were not looked at for longest are forgotten when the memory is full: they
are computed again when they are asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import JitByStaticPart, Records, StaticPart, arrays_in, capture, static_and_arrays
from sonde.dictionaries import Dictionary
from sonde.errors import EditError, TraceContextError
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.families import family
from sonde.viewer.arrays import Array, as_numbers, each_array, itemsize
from sonde.viewer.changes import Change, Place, changed, check_possible, numbers_of, within
from sonde.viewer.subject import Subject

MEMORY = 512
"""How many megabytes of recorded values are kept by default."""

# Python decides by numbers, or changes the state of a model that is not an argument: such a program runs as it is.
_NOT_TRACED = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, TraceContextError)
_MOST_MEMBERS = 64  # of a family whose layers one compiled program serves


@dataclasses.dataclass(frozen=True, eq=False)
class Ran:
    """Where a value was computed: a branch that was not taken, or a loop that ran no time, leaves zeros.

    Attributes:
        where: Along the first axes of the value, those of loops and maps.
        count: How many times the `while_loop` around the site ran, whose last value is recorded; None if there is none.
    """

    where: np.ndarray | np.bool_
    count: Any

    def along(self, value: np.ndarray) -> np.ndarray:
        """The same for every element of the value."""
        whole = self.where.reshape(self.where.shape + (1,) * (value.ndim - self.where.ndim))
        return np.broadcast_to(whole, value.shape)


@dataclasses.dataclass(eq=False)
class Run:
    """One run of a program with some changes, with NumPy arrays.

    Attributes:
        result: What the program returned.
        parts: What was recorded: everything at once, or some sites after the other.
        is_whole: Whether everything was recorded.
    """

    result: Any
    parts: list[Records]
    is_whole: bool

    def value(self, path: str, call: int = 0, part: int = 0) -> np.ndarray | None:
        """A recorded array; None if it was not recorded."""
        for records in [*self.parts]:  # another thread may add some, or forget some
            if path in records:
                return as_numbers(arrays_in(records[path].values[call])[part])
        return None

    def ran(self, path: str, call: int = 0) -> Ran:
        """Where a value that was recorded was computed."""
        for records in [*self.parts]:
            if path in records:
                record = records[path]
                taken, count = record.taken[call], record.counts[call]
                where = np.True_ if taken is None else np.asarray(taken)
                return Ran(where if count is None else where & (np.asarray(count) > 0), count)
        return Ran(np.True_, None)


class Runs:
    """Runs a subject, and remembers its last runs.

    Args:
        subject: The program.
        memory: How many bytes of recorded values to keep.
    """

    def __init__(self, subject: Subject, memory: int = MEMORY * 1_000_000) -> None:
        self.subject = subject
        self.memory = memory
        self.lock = threading.RLock()  # of everything that computes
        self._shelf = threading.RLock()  # of what is remembered; never held while something is computed
        self._compiled: dict[Hashable, JitByStaticPart] = {}
        self._kept: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._types: dict[Hashable, Records] = {}
        self._arrays: dict[Hashable, tuple[Array, ...]] = {}
        self._recorded_whole: set[Hashable] = set()  # kinds of runs that record everything from the start
        self._is_eager = False

    @property
    def card(self) -> dict[str, Any]:
        """What the page needs to know of the program before it runs."""
        language = self.subject.language
        has_prompt = language is not None and language.vocabulary
        return {
            "kind": "program",
            "name": self.subject.name,
            "about": self.subject.about,
            "prompt": self.subject.prompt if has_prompt else None,
            "reads": language is not None,
            "stream": [] if language is None else list(language.stream),
            "lens": language is not None and language.readout is not None and bool(language.stream),
            "attribution": language is not None and language.readout is not None and bool(language.components),
            "generates": language is not None and language.model is not None and language.tokenizer is not None,
            "graphs": self._graphs(),
            "inside": self.subject.inside_code,
            "dictionaries": [
                {"path": path, "features": f"{path}/features", "error": f"{path}/error", "count": d.n_features}
                for path, d in self.subject.replaced.items()
            ],
        }

    def _graphs(self) -> list[str]:
        """Which graphs can be drawn: of components, and of features."""
        language = self.subject.language
        transcoders = [d for d in self.subject.dictionaries.values() if d.kind != "autoencoder"]
        components = ["components"] if language is not None and language.model is not None else []
        return components + (["features"] if transcoders else [])

    # ---------------------------------------------------------------------------------------------- programs

    def call(
        self,
        key: Hashable,
        make: Callable[[Callable[..., Any], Any], Callable[..., Any]],
        args: tuple[Any, ...],
        placed: tuple[Sequence[Place], Sequence[Any]] = ((), ()),
        **kwargs: Any,
    ) -> Any:
        """Runs something made of the changed program, compiled once for each `key` and structure of its arguments.

        Args:
            key: What is compiled.
            make: Of the changed program and the program itself, what is run.
            args: The arguments.
            placed: Where the program is changed, and the arrays of the changes.
            **kwargs: More arguments.
        """
        with self.lock:
            tree = self._tree(args, {**self.subject.kwargs, **kwargs}, placed)
            if not self._is_eager:
                try:
                    return self._jitted(key, make)(*static_and_arrays(tree, None))
                except _NOT_TRACED:
                    self._is_eager = True
            return self._run(make, *tree)

    def _tree(self, args: Any, kwargs: Any, placed: tuple[Sequence[Place], Sequence[Any]]) -> tuple[Any, ...]:
        # Dictionaries are arguments, as the program is: arrays of a closure would be constants, slow to compile.
        # Their places do not sort, as keys of a pytree must: some are paths, and some are pairs of paths.
        dictionaries = tuple(self.subject.dictionaries.values())
        return self.subject.f, dictionaries, args, kwargs, tuple(placed[0]), tuple(placed[1])

    def _jitted(self, key: Hashable, make: Callable[..., Any]) -> JitByStaticPart:
        def run(static: StaticPart, arrays: list[Any]) -> Any:
            return self._run(make, *static.whole(arrays))

        return self._compiled.setdefault(key, JitByStaticPart(run))

    def _run(
        self,
        make: Callable[..., Any],
        f: Callable[..., Any],
        dictionaries: Sequence[Dictionary],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        places: Sequence[Place],
        numbers: Sequence[Any],
    ) -> Any:
        program = self.subject.spliced(f, dict(zip(self.subject.dictionaries, dictionaries)))
        return make(changed(program, places, numbers, self.subject.inside), f)(*args, **kwargs)

    # -------------------------------------------------------------------------------------------------- runs

    def run(self, prompt: str | None, changes: Sequence[Change] = (), path: str | None = None) -> Run:
        """A run on a prompt; the one that is remembered, if there is one.

        Args:
            prompt: The prompt.
            changes: The changes; those of gradients change no value.
            path: What to record with the result, if no run of this kind has recorded everything yet.
        """
        changes = tuple(change for change in changes if not change.is_of_gradient)

        def compute() -> Run:
            pattern = None if path is None else self._recorded_with(prompt, path)
            return self._run_anew(prompt, changes, pattern)

        return self.remembered((prompt, changes), compute)

    def whole_run(self, prompt: str | None, changes: Sequence[Change] = ()) -> Run:
        """A run that has recorded everything; if that does not fit into the memory, what is recorded so far."""
        if not self.fits(prompt):
            return self.run(prompt, changes)
        changes = tuple(change for change in changes if not change.is_of_gradient)

        def compute() -> Run:
            self._recorded_whole.add(self._kind(prompt, self.placed(prompt, changes)))
            return self._run_anew(prompt, changes, None)

        return self.remembered((prompt, changes), compute, is_enough=lambda run: run.is_whole)

    def _run_anew(self, prompt: str | None, changes: Sequence[Change], pattern: str | None) -> Run:
        """Runs the program, and records everything if runs of its kind do, or what matches the pattern."""
        args, placed = self.subject.arguments(prompt), self.placed(prompt, changes)
        is_whole = self._kind(prompt, placed) in self._recorded_whole
        if is_whole:
            result, records = self.call("run", self._captured(), args, placed)
        elif pattern is not None:
            result, records = self.call(("site", pattern), self._captured(pattern), args, placed)
        else:
            return Run(on_host(self.call("bare", _unchanged, args, placed), "view"), [], False)
        return Run(on_host(result, "view"), [on_host(records, "view")], is_whole)

    def _kind(self, prompt: str | None, placed: tuple[Sequence[Place], Sequence[Any]]) -> Hashable:
        """Runs of one kind share a compiled program."""
        places, numbers = placed
        return _shapes(self.subject.arguments(prompt)), tuple(places), _shapes(numbers)

    def _captured(self, *patterns: str) -> Callable[..., Callable[..., Any]]:
        return lambda f, _: capture(f, *patterns, inside=self.subject.inside)

    def _recorded_with(self, prompt: str | None, path: str) -> str:
        """What is recorded when a site is asked for: its family if it fits, as the next layer is likely to follow."""
        whole = family(path)
        if sum(a.bytes for a in self.arrays(prompt) if family(a.path) == whole) > self.memory:
            return path
        stacked = self.stacked_path(prompt, path)
        return whole if stacked == path else stacked

    def value(self, prompt: str | None, changes: Sequence[Change], path: str, call: int = 0, part: int = 0) -> Any:
        """A recorded array of a run."""
        self.array(prompt, path, call, part)  # an error names the nearest sites
        array = self.run(prompt, changes, path).value(path, call, part)
        if array is not None:
            return array
        with self.lock:
            run = self.run(prompt, changes, path)  # everything may have been recorded meanwhile
            if run.value(path, call, part) is None:
                pattern = self._recorded_with(prompt, path)
                args = self.subject.arguments(prompt)
                places = self.placed(prompt, tuple(c for c in changes if not c.is_of_gradient))
                _, records = self.call(("site", pattern), self._captured(pattern), args, places)
                run.parts.append(on_host(records, "view"))
                self._forget()
                while len(run.parts) > 1 and self.bytes > self.memory:
                    del run.parts[0]
        return run.value(path, call, part)

    def remembered(
        self, key: Hashable, compute: Callable[[], Any], is_enough: Callable[[Any], bool] = lambda kept: True
    ) -> Any:
        """What was computed for a key; it is computed if it is not remembered, or if that is not enough.

        What is remembered is read without waiting for what is being computed.
        """
        kept = self._recalled(key)
        if kept is None or not is_enough(kept):
            with self.lock:
                kept = self._recalled(key)  # another page may have asked for it meanwhile
                if kept is None or not is_enough(kept):
                    kept = compute()
                    with self._shelf:
                        self._kept[key] = kept
                    self._forget()
        return kept

    def _recalled(self, key: Hashable) -> Any:
        with self._shelf:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _forget(self) -> None:
        """Forgets the oldest runs until the others fit; the last one stays."""
        with self._shelf:
            while len(self._kept) > 1 and self.bytes > self.memory:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forgets all runs, as after an error for want of memory."""
        with self._shelf:
            self._kept.clear()

    @property
    def bytes(self) -> int:
        """How much memory the remembered runs take."""
        with self._shelf:
            return sum(_bytes_of(run) for run in self._kept.values())

    # ------------------------------------------------------------------------------------------------- sites

    def types(self, prompt: str | None) -> Records:
        """Records of a run with types in place of arrays; nothing is run for it, if the program can be traced."""
        args = self.subject.arguments(prompt)
        key = _shapes(args)
        if key not in self._types:
            with self.lock:
                if key not in self._types:
                    self._types[key] = self._traced_types(args)
        return self._types[key]

    def _traced_types(self, args: tuple[Any, ...]) -> Records:
        # JAX keeps the trace for the run that follows: the program is not traced twice.
        tree = self._tree(args, dict(self.subject.kwargs), ((), ()))
        static, arrays = static_and_arrays(tree, None)
        try:
            return self._jitted("run", self._captured()).at(static).eval_shape(arrays)[1].types
        except _NOT_TRACED:
            self._is_eager = True
            return self._run(self._captured(), *tree)[1].types

    def fits(self, prompt: str | None) -> bool:
        """Whether everything that a run records fits into the memory."""
        arrays = jax.tree.leaves(self.types(prompt))
        return sum(math.prod(x.shape) * itemsize(x.dtype) for x in arrays) <= self.memory

    def arrays(self, prompt: str | None) -> tuple[Array, ...]:
        """Every array that a run records, in program order."""
        key = _shapes(self.subject.arguments(prompt))
        if key not in self._arrays:
            length = len(self.subject.token_ids(prompt))
            self._arrays[key] = tuple(each_array(self.types(prompt), self.subject.language, length))
        return self._arrays[key]

    def array(self, prompt: str | None, path: str, call: int = 0, part: int = 0) -> Array:
        """One of them. Raises KeyError, with the nearest names, if there is none."""
        for array in self.arrays(prompt):
            if (array.path, array.call, array.part) == (path, call, part):
                return array
        self.types(prompt)[path]  # raises for an unknown path
        raise KeyError(f"the site {path!r} has no array {part} in its call {call}")

    def stacked_path(self, prompt: str | None, path: str) -> str:
        """The path of the named loop that a site is a row of; the path itself, if it is in none."""
        types = self.types(prompt)
        return path if path in types.stacked else types.rows(path)[0].path

    # ----------------------------------------------------------------------------------------------- changes

    def placed(
        self, prompt: str | None, changes: Sequence[Change], *, loose: bool = False
    ) -> tuple[tuple[Place, ...], tuple[Any, ...]]:
        """Where changes are made, and their arrays.

        One program serves all layers: in a loop the layer is a number; layers of their own are all changed, most of
        them nowhere.
        """
        places: list[Place] = []
        numbers: list[dict[str, Any]] = []
        for change in changes:
            array = self.array(prompt, change.path, change.call, change.part)
            check_possible(change, array)
            other = self._other(prompt, change, array)
            types, stacked = self.types(prompt), self.stacked_path(prompt, change.path)
            rows = types.rows(change.path) if stacked != change.path else []
            # Where dictionaries of several layers are spliced into a loop, the features of each are a call of the
            # loop's path: the number of a call would be that of another layer.
            is_row = 0 < len(rows) == len(types[stacked].axes) and len(rows[0].numbers) == 1
            call = None if len(rows) == 1 and not is_row else change.call
            iteration = rows[0].numbers[0] if is_row else 0
            own = numbers_of(within(change, array), array.inner_shape, iteration, other, loose=loose)
            for path in self._layers(prompt, array) if not is_row else [change.path]:
                pattern = stacked if is_row else path
                places.append(Place(change.kind, pattern, is_row, call, array.leaf, array.averaged))
                idle = own | {"masks": [np.zeros_like(mask) for mask in own["masks"]]}
                numbers.append(own if path == change.path else idle)
        return tuple(places), tuple(numbers)

    def _layers(self, prompt: str | None, array: Array) -> list[str]:
        """The members of a family that are like a site, so that one program can change any of them."""
        own = family(array.path)
        alike = [
            other.path
            for other in self.arrays(prompt)
            if family(other.path) == own
            and (other.shape, other.call, other.part) == (array.shape, array.call, array.part)
        ]
        return (
            alike
            if len(alike) <= _MOST_MEMBERS and len(set(alike)) == len(alike) and own != array.path
            else [array.path]
        )

    def _other(self, prompt: str | None, change: Change, array: Array) -> np.ndarray | None:
        """What a change puts in place: the value of another prompt, or the direction to it."""
        if change.kind not in ("patch", "steer"):
            return None
        other = self.value(change.prompt, (), change.path, change.call, change.part)
        if change.kind == "steer":
            own = self.value(prompt, (), change.path, change.call, change.part)
            means = [np.asarray(x, np.float32).mean(array.averaged, keepdims=True) for x in (other, own)]
            return means[0] - means[1]
        if other.shape != array.shape:
            raise EditError(
                f"{change.path} has shape {list(array.shape)} here and {list(other.shape)} for {change.prompt!r}: a "
                "patch needs prompts of the same number of tokens"
            )
        return other


def _shapes(tree: Any) -> Hashable:
    """What a compiled program depends on: the structure of its arguments, and the types of their arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(x), str(jnp.result_type(x))) for x in leaves)


def _bytes_of(kept: Any) -> int:
    if isinstance(kept, Run):
        trees: Any = (kept.result, kept.parts)
    elif dataclasses.is_dataclass(kept):
        trees = [getattr(kept, field.name) for field in dataclasses.fields(kept)]
    else:
        trees = kept
    return sum(x.nbytes for x in jax.tree.leaves(trees) if isinstance(x, np.ndarray))


def _unchanged(f: Callable[..., Any], _: Any) -> Callable[..., Any]:
    return f
