"""The search for what made results not finite, or made a program raise."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import InsideRequest
from sonde.errors import SondeError
from sonde.programs.callbacks import Callbacks
from sonde.programs.flat import Level
from sonde.programs.running import Run, Values, run_optimized, run_plain
from sonde.why import loops, shards  # noqa: F401 (each registers how to enter equations)
from sonde.why.calls import scene_of_call
from sonde.why.reads import Index, elements_read
from sonde.why.tape import Tape, Taped, run_taped
from sonde.why.walk import FINE_AGAIN, Birth, IsZero, NotFinite, Position, Question, Scene, Walk

_ARRAYS = (jax.Array, np.ndarray, np.generic, float, complex)
_MOST_ELEMENTS = 4
_MOST_WALKS = 32
_MOST_COMPARED = 256
_LOGIC = ("and", "or", "not", "reduce_and", "reduce_or", "broadcast_in_dim", "reshape", "convert_element_type")
_REPLACED = "the program tests this value and puts an Inf in its place"
_ZERO_OF_INF = "this Inf has become a zero before the result turned bad, as exp makes 0 of -Inf; it may be meant"
_IN_LOOP = "the value is inside a loop that the check depends on; the loop may discard it"
UNRELATED = "the program raised in Python, which does not tell whether this value is the reason"
# Exceptions that are never about numbers.
NOT_ABOUT_NUMBERS = (TypeError, AttributeError, LookupError, NameError, ImportError, OSError, SondeError, SyntaxError)


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What was found.

    Attributes:
        birth: Where the first bad value came from: the birth of the bad result, or of what caused it, if that was
            computed by the program too and not written down as a mask is.
        turns: The later births, in the order of the program: there an Inf became a NaN.
        results: The results, gradients and updated arguments that are bad, by name.
        labels: What arrays that came from outside are called, by their slot on the tape.
        error: What the program raised.
        doubt: What is not certain about the answer.
        discarded: Whether the bad value is in no result.
    """

    birth: Birth
    turns: tuple[Birth, ...] = ()
    results: tuple[str, ...] = ()
    labels: dict[int, str] = dataclasses.field(default_factory=dict)
    error: Exception | None = None
    doubt: str = ""
    discarded: bool = False


class TapeValues(Values):
    """The numbers on a tape, all of which are known."""

    def __init__(self, level: Level, arrays: Sequence[Any], callbacks: Callbacks) -> None:
        super().__init__(level, (), callbacks)
        self._kept.update(enumerate(arrays))


def search(
    f: Callable,
    args: Any,
    kwargs: Any,
    *,
    question: Question | None = None,
    inside: InsideRequest | None = None,
    discarded: bool = False,
) -> Answer | None:
    """Runs a function, and explains the first result that is bad; None if all results are fine.

    Args:
        f: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        question: What is bad; by default, what is not finite.
        inside: Functions whose variables become sites, to have names.
        discarded: Whether to explain the first bad value that was computed and is in no result, if no result is bad.

    Raises:
        Exception: What the function raised, if no bad value led to it.
    """
    labels = {
        key: leaf for name, value in _arguments(f, args, kwargs) for key, leaf in _leaves(value, f"argument {name}")
    }
    # JAX's own checks for NaN and Inf would end the program where the search can say more.
    with jax.debug_nans(False), jax.debug_infs(False), _jax.callbacks_unlogged():
        taped = run_taped(f, args, kwargs, inside=inside)
        return explain(taped, args, kwargs, labels, NotFinite() if question is None else question, discarded)


def explain(
    taped: Taped, args: Any, kwargs: Any, labels: dict[int, Any], question: Question, discarded: bool = False
) -> Answer | None:
    """Explains what a function that was taped has returned, changed or raised."""
    walk = Walk(question, Callbacks(taped.tape.written))
    answer = _explain(taped, args, kwargs, labels, walk, discarded, run_plain)
    if answer is None and taped.error is None:
        return None
    # Where the program raises again, it is the same program; else rounding has changed its course.
    is_repeated = taped.tape.raised is None or bool(walk.callbacks.raised)
    if (answer is None and not is_repeated) or (answer is not None and answer.doubt == FINE_AGAIN):
        walk = Walk(question, Callbacks(taped.tape.written))
        answer = _explain(taped, args, kwargs, labels, walk, discarded, run_optimized) or answer
    if answer is None and taped.error is not None:
        raise taped.error
    return answer


def _explain(
    taped: Taped, args: Any, kwargs: Any, labels: dict[int, Any], walk: Walk, discarded: bool, run: Run
) -> Answer | None:
    """One attempt; None if there is nothing to explain, or nothing explains what the program raised."""
    tape = taped.tape
    kept = _kept(tape, {id(x) for x in jax.tree.leaves((taped.result, args, kwargs))})
    scene = Scene(tape.level, TapeValues(tape.level, tape.arrays, walk.callbacks), run=run)
    names = {slot: name for slot, x in enumerate(tape.arrays) if (name := _label_of(x, labels)) is not None}
    if taped.error is not None:
        answer = None if isinstance(taped.error, NOT_ABOUT_NUMBERS) else _why_raised(walk, scene, taped)
        return None if answer is None else dataclasses.replace(answer, labels=names)
    bad = [
        (name, slot)
        for _, (name, value) in (*_leaves(taped.result, "result"), *_updated(taped.f, args, kwargs, labels))
        if (slot := _slot_of(scene, tape, value)) is not None and walk.worst(scene, slot)
    ]
    named = {slot for _, slot in bad}
    bad += [
        (f"an array that the program keeps, {_type_text(tape.level.types[slot])}", slot)
        for slot in kept
        if slot not in named and walk.worst(scene, slot)
    ]
    # Several elements of each, if there are few results: which was the first to become bad is known afterwards.
    each = max(1, min(_MOST_ELEMENTS, _MOST_WALKS // max(1, len(bad))))
    births = [walk.back(scene, slot, index) for _, slot in bad[:_MOST_WALKS] for index in walk.worst(scene, slot, each)]
    if not births and discarded:
        birth = _on_the_way(walk, scene)
        return None if birth is None else Answer(*root_of(birth), labels=names, discarded=True)
    if not births:
        return None
    birth, turns = min(map(root_of, births), key=lambda found: when(found[0]))
    absorbed = _before_zero(walk, birth) if isinstance(walk.question, NotFinite) else None
    if absorbed is not None:
        root, earlier = root_of(absorbed)
        root = dataclasses.replace(root, way=(*birth.way, *root.way))
        return Answer(root, (*earlier, birth, *turns), tuple(name for name, _ in bad), names, doubt=_ZERO_OF_INF)
    replaced = _before_replacement(walk, birth) if isinstance(walk.question, NotFinite) else None
    if replaced is not None:
        root, earlier = root_of(replaced)
        return Answer(root, earlier, tuple(name for name, _ in bad), names, doubt=_REPLACED)
    return Answer(birth, turns, tuple(name for name, _ in bad), names, doubt=birth.doubt)


def _before_replacement(walk: Walk, birth: Birth) -> Birth | None:
    """The bad value in whose place the program has put an Inf, as `where(isfinite(x), x, -inf)` does.

    The Inf was written down, and made the value bad or a NaN of it. What matters is the value on which the choice
    depends, if that is bad itself: tested for being finite, or a NaN, for which every comparison is false.
    """
    if birth.step.equation is not None:
        return next(filter(None, (_before_replacement(walk, cause) for cause in birth.causes)), None)
    select = next((s for s in reversed(birth.way) if s.equation is not None and s.equation.name == "select_n"), None)
    if select is None or select.equation is None:
        return None
    condition = Position(select.scene, select.equation.inputs[0], select.index)
    if not select.scene.host(condition.slot).ndim:
        condition = condition._replace(element=())
    compared = _compared_nan(walk, condition)
    if compared is not None:
        return compared
    scene, slot, index = condition
    while slot not in scene.level.makers and slot < scene.level.n_inputs and scene.leave is not None:
        scene, slot, index = scene.leave(scene, slot, index)
    if slot not in scene.level.makers or not _is_test_of_finiteness(scene, slot):
        return None
    return _nearest(walk, scene, [slot])


def _before_zero(walk: Walk, birth: Birth) -> Birth | None:
    """The Inf that became the zero of which a value was made, as `exp` makes 0 of -Inf and `log` -Inf of that.

    Only an Inf that the program computes counts: one that is written down is a mask.
    """
    step = birth.step
    number = step.scene.level.makers.get(step.slot)
    if birth.causes or number is None:
        return None
    zeros = Walk(IsZero(), walk.callbacks)
    for zero in _operands_of(step.scene, number, step.slot, step.index):
        if not zeros.severity(zero.scene.host(zero.slot)[zero.element]):
            continue
        origin = zeros.back(*zero).step
        made_by = origin.scene.level.makers.get(origin.slot)
        if made_by is None:
            continue
        for operand in _operands_of(origin.scene, made_by, origin.slot, origin.index):
            if walk.severity(operand.scene.host(operand.slot)[operand.element]) == 1:
                before = walk.back(*operand)
                if root_of(before)[0].step.equation is not None:
                    return before
    return None


def _compared_nan(walk: Walk, condition: Position) -> Birth | None:
    """The birth of a NaN that an element of a condition was computed from by comparisons and logic."""
    pending, seen = [condition], {condition}
    while pending:
        position = scene, slot, index = pending.pop()
        value = scene.host(slot)
        if value.dtype.kind not in "biu":
            if walk.severity(value[index]) > 1:
                return walk.back(*position)
            continue
        number = scene.level.makers.get(slot)
        if number is None:
            before = [scene.leave(scene, slot, index)] if slot < scene.level.n_inputs and scene.leave else []
        elif (inside := scene_of_call(scene, number)) is not None:
            output = scene.level.equations[number].outputs.index(slot)
            before = [Position(inside, inside.level.outputs[output], index)]
        else:
            before = _operands_of(scene, number, slot, index)
        new = [p for p in before if p not in seen]
        if len(seen) + len(new) <= _MOST_COMPARED:
            seen.update(new)
            pending += new
    return None


def _operands_of(scene: Scene, number: int, slot: int, index: Index) -> list[Position]:
    """The single elements that an element was computed from; none if it was computed from ranges of elements."""
    equation = scene.level.equations[number]
    operands = [scene.host(s) for s in equation.inputs]
    reads = elements_read(equation, equation.outputs.index(slot), index, operands, scene.host(slot).shape) or []
    positions: list[Position] = []
    for operand, part in reads:
        ranges = [range(n)[p] if isinstance(p, slice) else (p,) for p, n in zip(part, operands[operand].shape)]
        elements = itertools.islice(itertools.product(*ranges), _MOST_COMPARED)
        positions += [Position(scene, equation.inputs[operand], element) for element in elements]
    return positions


def _is_test_of_finiteness(scene: Scene, slot: int) -> bool:
    """Whether a condition is computed from `isfinite`, `isnan` or `isinf`, and not only from other comparisons."""
    pending, seen = [slot], {slot}
    while pending:
        number = scene.level.makers.get(pending.pop())
        if number is None:
            continue
        equation = scene.level.equations[number]
        # `isnan(x)` is `x != x`.
        if equation.name == "is_finite" or (equation.name == "ne" and len(set(equation.inputs)) == 1):
            return True
        inside = scene_of_call(scene, number)
        if inside is not None and any(_is_test_of_finiteness(inside, output) for output in inside.level.outputs):
            return True
        if equation.name in _LOGIC or (inside and all(e.name in _LOGIC for e in inside.level.equations)):
            new = [operand for operand in equation.inputs if operand not in seen]
            seen.update(new)
            pending += new
    return False


def _kept(tape: Tape, shown: set[int]) -> list[int]:
    """The results that no later operation uses, and that something besides the tape still refers to.

    The program has put them into some object, which need not show what it holds. Arrays that are `shown`, by identity,
    are known already.
    """
    used = {slot for equation in tape.level.equations for slot in equation.inputs}
    last = [slot for slot in tape.level.makers if slot not in used and id(tape.arrays[slot]) not in shown]
    if any(_has_other_owners(tape, slot) for slot in last):
        gc.collect()  # transforms that have ended refer to their values in circles
    return [slot for slot in last if _has_other_owners(tape, slot)]


def _has_other_owners(tape: Tape, slot: int) -> bool:
    own = sum(array is tape.arrays[slot] for array in tape.arrays)
    return sys.getrefcount(tape.arrays[slot]) > own + 1  # the argument of the function is one more


def _type_text(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _slot_of(scene: Scene, tape: Tape, value: Any) -> int | None:
    if not isinstance(value, _ARRAYS):
        return None
    slot = tape.slot_of(value)
    scene.values.put({slot: tape.arrays[slot]})  # it may be new: NumPy has made it, or it was there before
    return slot


def _leaves(tree: Any, name: str) -> Iterator[tuple[int, tuple[str, Any]]]:
    """The arrays in a pytree, by identity, with what they are called."""
    try:
        found = jax.tree_util.tree_flatten_with_path(tree)[0]
    except Exception:  # an object that JAX cannot take apart now; it has no arrays for us
        found = []
    for path, leaf in found:
        array = leaf if isinstance(leaf, _ARRAYS) else _numbers_of_other_library(leaf)
        if array is not None:
            yield id(leaf), (f"{name}{jax.tree_util.keystr(path)}", array)


def _numbers_of_other_library(leaf: Any) -> np.ndarray | None:
    """What a tensor of another library holds, so that its NaN is not passed over."""
    if isinstance(leaf, type) or not hasattr(leaf, "__array__"):
        return None
    try:
        numbers = np.asarray(leaf)
    except Exception:  # it is on a device that NumPy does not reach
        return None
    return numbers if jnp.issubdtype(numbers.dtype, np.inexact) else None


def _label_of(value: Any, labels: dict[int, Any]) -> str | None:
    """What an array of the tape is called, if it is one of the labelled ones.

    JAX hands on copies of NumPy's arrays, which may have another type: such an array is known by its numbers.
    """
    if id(value) in labels:
        return labels[id(value)][0]
    if not isinstance(value, np.ndarray):
        return None
    with np.errstate(all="ignore"):
        for name, leaf in labels.values():
            is_alike = isinstance(leaf, np.ndarray) and leaf.shape == value.shape
            if is_alike and np.array_equal(leaf.astype(value.dtype), value, equal_nan=value.dtype.kind in "fc"):
                return name
    return None


def _arguments(f: Callable, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The arguments of a call, by the names of the parameters if they are known."""
    try:
        return list(inspect.signature(f).bind(*args, **kwargs).arguments.items())
    except (TypeError, ValueError):  # a function of C, or one that says it has the signature of another one
        return [("args", args), ("kwargs", kwargs)]


def _updated(f: Callable, args: Any, kwargs: Any, before: dict[int, Any]) -> Iterator[tuple[int, tuple[str, Any]]]:
    """The arrays that a function has put into objects among its arguments."""
    for name, value in _arguments(f, args, kwargs):
        yield from (leaf for leaf in _leaves(value, f"updated argument {name}") if leaf[0] not in before)


def root_of(birth: Birth) -> tuple[Birth, tuple[Birth, ...]]:
    """The first birth among a birth and its causes that is a computation, and the births after it.

    A mask of -Inf that made a NaN is the cause of it, but not the fault: the operation that met it is named.
    """
    computed = [root_of(cause) for cause in birth.causes]
    computed = [found for found in computed if found[0].step.equation is not None]
    if not computed:
        return birth, ()
    root, turns = min(computed, key=lambda found: when(found[0]))
    return dataclasses.replace(root, way=(*birth.way, *root.way), doubt=root.doubt or birth.doubt), (*turns, birth)


def when(birth: Birth) -> tuple[Any, ...]:
    """Orders births by when they happened: constants and inputs first."""
    order: list[tuple[int, int]] = []
    scene: Scene | None = birth.step.scene
    number = scene.level.makers.get(birth.step.slot, -1) if scene is not None else -1
    while scene is not None:
        iteration = -1
        if scene.outer is not None and len(scene.around) > len(scene.outer[0].around):
            iteration = scene.around[-1].number
        order.insert(0, (iteration, number))
        scene, number = scene.outer if scene.outer is not None else (None, -1)
    return tuple(order)


def _on_the_way(walk: Walk, scene: Scene) -> Birth | None:
    """The birth of the first bad value that a program computes; masks and the like are written down, not computed."""
    for number, equation in enumerate(scene.level.equations):
        birth = None
        inside = scene_of_call(scene, number)
        if inside is None and equation.name == "cond":
            inside = loops.enter_branch(walk, scene, number, 0, ()).scene if equation.outputs else None
        if inside is not None:
            birth = _on_the_way(walk, inside)
        elif equation.name in ("scan", "while"):
            birth = _computed_inside(walk, scene, number)
        for slot in equation.outputs if birth is None else ():
            worst = walk.worst(scene, slot)
            birth = walk.back(scene, slot, worst[0]) if worst else birth
        if birth is not None and root_of(birth)[0].step.equation is not None:
            return birth
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Programs that raise
# ---------------------------------------------------------------------------------------------------------------------


def _why_raised(walk: Walk, scene: Scene, taped: Taped) -> Answer | None:
    """The bad value that led a program to raise."""
    number = taped.tape.raised
    if number is not None:
        inside = scene_of_call(scene, number)
        birth = None
        with contextlib.suppress(Exception):  # the program may raise again, from where no function can be replaced
            birth = None if inside is None else _before_callback(walk, inside)
        if birth is None:
            birth = _nearest(walk, scene, scene.level.equations[number].inputs)
        if birth is None:
            return None
        return Answer(*root_of(birth), error=taped.error, doubt=birth.doubt)
    # Python has raised: about one of the values that were computed last.
    used = {slot for equation in scene.level.equations for slot in equation.inputs}
    last = [slot for equation in reversed(scene.level.equations) for slot in equation.outputs if slot not in used]
    for slot in last:
        birth = _nearest(walk, scene, [slot])
        if birth is not None and birth.step.equation is not None:
            return Answer(*root_of(birth), error=taped.error, doubt=UNRELATED)
    return None


def _before_callback(walk: Walk, scene: Scene) -> Birth | None:
    """The bad value behind what a function of the host was given that raised."""
    callbacks = Callbacks(walk.callbacks.written)
    if not loops.makes_bad(walk, scene, callbacks):
        walk.callbacks.raised += callbacks.raised
        return None
    jax.block_until_ready(scene.values.many(scene.level.outputs))  # runs everything; what raises is noted
    for callback, _ in walk.callbacks.raised:
        for equation in scene.level.equations:
            if _calls(equation.primitive, equation.params, callback):
                return _nearest(walk, scene, equation.inputs)
    return None


def _calls(primitive: Any, params: dict[str, Any], callback: Any) -> bool:
    if params.get("callback") is callback:
        return True
    return any(
        _calls(e.primitive, e.params, callback) for j in _jax.sub_jaxprs(params) for e in _jax.open_jaxpr(j).eqns
    )


def _nearest(walk: Walk, scene: Scene, slots: Sequence[int]) -> Birth | None:
    """The birth of the bad value that is nearest to these values, among those they were computed from.

    An Inf that was written down, as in a buffer or a first step size, is no reason: the search goes on.
    """
    level = scene.level
    pending, seen = set(slots), set(slots)
    visited: list[int] = []
    while pending:
        slot = max(pending, key=lambda s: level.makers.get(s, -1))
        pending.discard(slot)
        birth = _reason(walk, scene, slot)
        if birth is not None:
            return birth
        number = level.makers.get(slot)
        if number is not None:
            visited.append(number)
            pending |= set(level.equations[number].inputs) - seen
            seen |= set(level.equations[number].inputs)
    for number in visited:  # none is between calls and loops: look into them, the latest first
        birth = _reason_inside(walk, scene, number)
        if birth is not None:
            return birth
    return None


def _reason(walk: Walk, scene: Scene, slot: int) -> Birth | None:
    """The birth of the worst element of a value, if it may be why a program raised."""
    worst = walk.worst(scene, slot)
    birth = walk.back(scene, slot, worst[0]) if worst else None
    if birth is None or root_of(birth)[0].step.equation is not None:
        return birth
    return birth if birth.step.severity > 1 else None  # nobody writes a NaN down on purpose


def _reason_inside(walk: Walk, scene: Scene, number: int) -> Birth | None:
    """The same for what is in a call, or in a loop whose other results may have led to what is looked at."""
    inside = scene_of_call(scene, number)
    if inside is not None:
        return _nearest(walk, inside, inside.level.outputs)
    equation = scene.level.equations[number]
    if equation.name not in ("scan", "while"):
        return None
    for slot in equation.outputs:
        birth = _reason(walk, scene, slot)
        if birth is not None:
            return birth
    birth = _computed_inside(walk, scene, number)
    return None if birth is None else dataclasses.replace(birth, doubt=_IN_LOOP)


def _computed_inside(walk: Walk, scene: Scene, number: int) -> Birth | None:
    """The birth of the first bad value that is computed inside a loop, not written down."""
    positions = itertools.islice(loops.made_bad_inside(walk, scene, number), _MOST_WALKS)
    births = (walk.back(*position) for position in positions)
    return next((birth for birth in births if root_of(birth)[0].step.equation is not None), None)
