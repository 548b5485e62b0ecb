"""Runs of a program that the page has asked for, and what was recorded in them.

The first run records everything if it fits into the memory that the page may use; a click then only reads an array. In
a program whose values do not fit, a run records the site that was clicked, or its family of layers. Runs that were not
looked at for longest are forgotten when the memory is full: they are computed again when they are asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import JitByStaticPart, Records, StaticPart, arrays_in, capture, static_and_arrays
from sonde.dictionaries import Dictionary, splice
from sonde.errors import EditError, TraceContextError
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.families import family
from sonde.viewer.changes import Change, Place, changed, numbers_of
from sonde.viewer.language import Language, guessed_axes

MEMORY = 512
"""How many megabytes of recorded values are kept by default."""

# Python decides by numbers, or changes the state of a model that is not an argument: such a program runs as it is.
_NOT_TRACED = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, TraceContextError)
_MOST_MEMBERS = 64  # of a family whose layers one compiled program serves


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A program that is looked at.

    Attributes:
        name: Its name on the page.
        f: The program.
        args: Its arguments.
        kwargs: Its keyword arguments.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
        language: What is known of it as a language model; None if it is none.
        prompt: The prompt that is shown first, if it can be typed; the arguments are its tokens.
        dictionaries: Dictionaries that are spliced into the program, by the path of the value that they replace; or
            by a pair of paths, what a transcoder reads and what it replaces.
        about: What was found in it before, in words, such as the answer of a bundle.
        code: Python that makes `f` and `args`; empty if it is not known.
    """

    name: str
    f: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    inside: Any = None
    language: Language | None = None
    prompt: str | None = None
    dictionaries: Mapping[Any, Dictionary] = dataclasses.field(default_factory=dict)
    about: str = ""
    code: str = ""

    def arguments(self, prompt: str | None) -> tuple[Any, ...]:
        """The arguments of a run on a prompt; those that the program was opened with, if it is None."""
        if prompt is None:
            return self.args
        if self.language is None or not self.language.vocabulary:
            raise ValueError("this program takes no prompt: it runs on the arguments that it was opened with")
        return (jnp.asarray([self.language.encoded(prompt)], jnp.int32), *self.args[1:])

    @property
    def program(self) -> Callable[..., Any]:
        """The program with its dictionaries."""
        return self.spliced(self.f, self.dictionaries)

    def spliced(self, f: Callable[..., Any], dictionaries: Mapping[Any, Dictionary]) -> Callable[..., Any]:
        """A program with dictionaries, whose errors are added back: nothing changes until a feature is changed."""
        return splice(f, dict(dictionaries), keep_error=True, inside=self.inside) if dictionaries else f

    @property
    def replaced(self) -> dict[str, Dictionary]:
        """The dictionaries by the path of the value that they replace."""
        return {place[-1] if isinstance(place, tuple) else place: d for place, d in self.dictionaries.items()}

    def token_ids(self, prompt: str | None) -> list[int]:
        """The tokens of the first example; none for a program that reads no tokens."""
        if self.language is None:
            return []
        if prompt is not None:
            return self.language.encoded(prompt)
        tokens = np.asarray(self.args[0])
        return [int(token) for token in tokens.reshape(-1, tokens.shape[-1])[0]]


@dataclasses.dataclass(frozen=True)
class Array:
    """One recorded array.

    Attributes:
        path: The path of its site.
        call: Which call of the site.
        part: Which array of the pytree that was marked, from 0.
        shape: Its shape, with the axes of loops and maps in front.
        lead: The number of these axes.
        dtype: Its dtype.
        source: The line of the program.
        axes: The names of its axes.
    """

    path: str
    call: int
    part: int
    shape: tuple[int, ...]
    lead: int
    dtype: str
    source: str
    axes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * _itemsize(self.dtype)

    @property
    def unit_axis(self) -> int:
        """The axis of the units that are changed as one: the heads, or the last."""
        return self.axes.index("heads") if "heads" in self.axes else max(len(self.shape) - 1, 0)

    @property
    def length_axis(self) -> int | None:
        """The axis of the positions."""
        return self.axes.index("length") if "length" in self.axes else None


class Run:
    """One run of a program with some changes.

    Attributes:
        result: What the program returned, with NumPy arrays.
        parts: What was recorded, with NumPy arrays: all at once, or some sites after the other.
    """

    def __init__(self, result: Any, records: Records | None) -> None:
        self.result = result
        self.parts: list[Records] = [] if records is None else [records]

    @property
    def records_nothing(self) -> bool:
        """Whether only its result is known."""
        return not self.parts

    def value(self, path: str, call: int = 0, part: int = 0) -> np.ndarray | None:
        """A recorded array; None if it was not recorded."""
        for records in self.parts:
            if path in records:
                leaves = arrays_in(records[path].values[call])
                return np.asarray(leaves[part])
        return None


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
        return self.subject.f, self.subject.dictionaries, args, kwargs, tuple(placed[0]), tuple(placed[1])

    def _jitted(self, key: Hashable, make: Callable[..., Any]) -> JitByStaticPart:
        def run(static: StaticPart, arrays: list[Any]) -> Any:
            return self._run(make, *static.whole(arrays))

        return self._compiled.setdefault(key, JitByStaticPart(run))

    def _run(
        self,
        make: Callable[..., Any],
        f: Callable[..., Any],
        dictionaries: Mapping[Any, Dictionary],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        places: Sequence[Place],
        numbers: Sequence[Any],
    ) -> Any:
        program = self.subject.spliced(f, dictionaries)
        return make(changed(program, places, numbers, self.subject.inside), f)(*args, **kwargs)

    # -------------------------------------------------------------------------------------------------- runs

    def run(self, prompt: str | None, changes: Sequence[Change] = ()) -> Run:
        """A run on a prompt; the one that is remembered, if there is one."""
        changes = tuple(change for change in changes if not change.is_of_gradient)
        key = prompt, changes
        return self.remembered(key, lambda: self._run_anew(prompt, changes))

    def result(self, prompt: str | None, changes: Sequence[Change] = ()) -> Any:
        """What the program returns.

        The first time nothing is recorded: a program that records everything takes several times as long to compile.
        """
        changes = tuple(change for change in changes if not change.is_of_gradient)
        key = "result", prompt, changes
        if self._recalled((prompt, changes)) is None and (
            self._recalled(key) is not None or "run" not in self._compiled
        ):
            args = self.subject.arguments(prompt)

            def compute() -> Run:
                return Run(on_host(self.call("bare", _unchanged, args, self.placed(prompt, changes)), "view"), None)

            return self.remembered(key, compute).result
        return self.run(prompt, changes).result

    def _run_anew(self, prompt: str | None, changes: Sequence[Change]) -> Run:
        args = self.subject.arguments(prompt)
        if self.fits(prompt):
            result, records = self.call("run", self._captured(), args, self.placed(prompt, changes))
            return Run(on_host(result, "view"), on_host(records, "view"))
        return Run(on_host(self.call("bare", _unchanged, args, self.placed(prompt, changes)), "view"), None)

    def _captured(self, *patterns: str) -> Callable[..., Callable[..., Any]]:
        return lambda f, _: capture(f, *patterns, inside=self.subject.inside)

    def value(self, prompt: str | None, changes: Sequence[Change], path: str, call: int = 0, part: int = 0) -> Any:
        """A recorded array of a run."""
        run = self.run(prompt, changes)
        array = run.value(path, call, part)
        if array is not None:
            return array
        self.array(prompt, path, call, part)  # an error names the nearest sites
        with self.lock:
            # A family is recorded together: the next layer is likely to be asked for.
            own, whole = self.stacked_path(prompt, path), family(path)
            needed = sum(a.bytes for a in self.arrays(prompt) if family(a.path) == whole)
            pattern = whole if own == path and needed <= self.memory else own
            args = self.subject.arguments(prompt)
            places = self.placed(prompt, tuple(c for c in changes if not c.is_of_gradient))
            _, records = self.call(("site", pattern), self._captured(pattern), args, places)
            run.parts.append(on_host(records, "view"))
            self._forget()
        return run.value(path, call, part)

    def remembered(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """What was computed for a key; it is computed if it is not remembered.

        What is remembered is read without waiting for what is being computed.
        """
        kept = self._recalled(key)
        if kept is None:
            with self.lock:
                kept = self._recalled(key)  # another page may have asked for it meanwhile
                if kept is None:
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
        key = jax.tree.structure(args), tuple((jnp.shape(x), str(jnp.result_type(x))) for x in jax.tree.leaves(args))
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
        return sum(math.prod(x.shape) * _itemsize(x.dtype) for x in arrays) <= self.memory

    @functools.lru_cache(maxsize=8)  # noqa: B019  (a few shapes of prompts; the page holds its runs as long as it lives)
    def _arrays(self, types: Any, length: int) -> tuple[Array, ...]:
        return tuple(_each_array(types.records, self.subject.language, length))

    def arrays(self, prompt: str | None) -> tuple[Array, ...]:
        """Every array that a run records, in program order."""
        return self._arrays(_ByIdentity(self.types(prompt)), len(self.subject.token_ids(prompt)))

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
            array = self.array(prompt, change.path, change.call)
            if any(axis < array.lead for axis, _ in change.chosen):
                raise EditError(f"{change.path}: iterations and mapped examples cannot be changed one by one here")
            inner = dataclasses.replace(change, chosen=tuple((axis - array.lead, at) for axis, at in change.chosen))
            shape = array.shape[array.lead :]
            other = self._other(prompt, change, array)
            stacked = self.stacked_path(prompt, change.path)
            rows = self.types(prompt).rows(change.path) if stacked != change.path else []
            is_row = len(rows) > 0 and len(rows[0].numbers) == 1
            iteration = rows[0].numbers[0] if is_row else 0
            unit_axis = array.unit_axis - array.lead
            own = numbers_of(inner, shape, iteration, other, loose=loose)
            for path in self._layers(prompt, array) if not is_row else [change.path]:
                place = Place(change.kind, stacked if is_row else path, is_row, change.call, len(shape), unit_axis)
                places.append(place)
                idle = own | {"masks": [np.zeros_like(mask) for mask in own["masks"]]}
                numbers.append(own if path == change.path else idle)
        return tuple(places), tuple(numbers)

    def _layers(self, prompt: str | None, array: Array) -> list[str]:
        """The members of a family that are like a site, so that one program can change any of them."""
        own = family(array.path)
        alike = [
            other.path
            for other in self.arrays(prompt)
            if family(other.path) == own and other.shape == array.shape and other.call == array.call
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
        other = self.value(change.prompt, (), change.path, change.call)
        if change.kind == "steer":
            own = self.value(prompt, (), change.path, change.call)
            lead = tuple(axis for axis in range(other.ndim - 1) if axis != array.unit_axis)
            means = [np.asarray(x, np.float32).mean(lead, keepdims=True) for x in (other, own)]
            return means[0] - means[1]
        if other.shape != array.shape:
            raise EditError(
                f"{change.path} has shape {list(array.shape)} here and {list(other.shape)} for {change.prompt!r}: a "
                "patch needs prompts of the same number of tokens"
            )
        return other


class _ByIdentity:
    """Records that stay the same object, as a key."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.records is self.records

    def __hash__(self) -> int:
        return id(self.records)


def _each_array(types: Records, language: Language | None, length: int) -> Iterator[Array]:
    by_stack: dict[tuple[str, ...], list[Array]] = {}  # the rows of a named loop are alike: one stands for all
    for path, record in types.items():
        stack = (path,) if path in types.stacked else tuple(row.path for row in types.rows(path)) or (path,)
        if stack not in by_stack:
            by_stack[stack] = list(_arrays_of(path, record, language, length))
        yield from (dataclasses.replace(array, path=path) for array in by_stack[stack])


def _arrays_of(path: str, record: Any, language: Language | None, length: int) -> Iterator[Array]:
    for call, (value, axes) in enumerate(zip(record.values, record.axes)):
        for part, x in enumerate(arrays_in(value)):
            shape = tuple(map(int, x.shape))
            inner = shape[len(axes) :]
            names = language.axes(path) if language is not None else ()
            names = names if len(names) == len(inner) else guessed_axes(inner, length)
            lead = tuple(str(axis.name or axis.kind) for axis in axes)
            yield Array(path, call, part, shape, len(axes), str(x.dtype), record.source, (*lead, *names))


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


def _itemsize(dtype: Any) -> int:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:  # random keys
        return 8
