"""Why two programs part at an operation: common mistakes, each tried on the second program.

A cause is only named if the second program, with it mended, returns what the first one does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special

from sonde._array_text import short_place
from sonde.port.difference import distance, epsilon
from sonde.port.layouts import arranged
from sonde.port.origins import Explained, scalar_of
from sonde.port.prints import Print, print_of
from sonde.programs.unrolled import Step, Tape, as_numbers


def _tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


# In NumPy: JAX would compile each for every shape.
_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the exact gelu": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "the tanh approximation of gelu": _tanh_gelu,
    "gelu as x * sigmoid(1.702 x)": lambda x: x * special.expit(1.702 * x),
    "silu": lambda x: x * special.expit(x),
    "relu": lambda x: np.maximum(x, 0),
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "relu, at most 6": lambda x: np.clip(x, 0, 6),
    "elu": _elu,
    "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772),
    "celu (2)": lambda x: _elu(x / 2) * 2,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "the square": np.square,
    "the absolute value": np.abs,
    "no activation": lambda x: x,
}
_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-3, 1e-4, 1e-2)  # common ones first
_MOST_TRIALS = 150
_MOST_AFTER_COPY = 40  # trials, once a copied result is known to do
_MOST_REPEATS = 24  # of a trial at every place of its line: the whole program runs again
_MOST_REJOINING = 60  # values after a change that are looked for in the first program
_SAME_PRINT = 1e-5
_NEAR = 24  # how many operations after the one at which programs part are tried, too


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """A mistake in the second program, found by mending it.

    Attributes:
        text: What is different.
        agreement: How far apart the results are without it, relative to their norm.
        step: The number of the operation of the second program that is wrong; None if it is where the programs part.
        is_one_of_several: Whether the results still differ without it: only what follows agrees, as `agreement` says.
        copies: Whether the first program's own result was put in place, which says where but not why.
    """

    text: str
    agreement: float
    step: int | None = None
    is_one_of_several: bool = False
    copies: bool = False

    def __str__(self) -> str:
        if self.is_one_of_several:
            return f"{self.text}: what follows then agrees to {self.agreement:.1g}, and something else differs later"
        return f"{self.text}: the programs then agree to {self.agreement:.1g}"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Everywhere:
    """The same change at every step that the same line made, such as that of each layer.

    Attributes:
        start: The step of which the trial is made.
        end: The step whose outputs change: the same one, or one of those that follow it.
        outputs: These outputs, of the inputs of the first step, the last one, and its inputs.
    """

    start: int
    end: int
    outputs: Callable[[Sequence[Any], Step, Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Values of the second program to be replaced, and what that would mean."""

    replaced: dict[int, Any]
    text: str
    step: int | None = None
    everywhere: _Everywhere | None = None
    copies: bool = False  # the first program's own result, which makes the programs agree whatever the cause is
    leaves_out: bool = False  # an operation: what follows may then be values of the first program by chance


def find_cause(explained: Explained, first: list[int], second: list[int], allowed: float) -> Cause | None:
    """The cause of a difference, if one of the common ones is it.

    Args:
        explained: The programs.
        first: The steps at which the first program leaves the second.
        second: The steps at which the second leaves the first.
        allowed: How far apart results may be that agree, relative to their norm.
    """
    one, other = explained.tapes
    before = how_far_apart(one, [other.array(i) for i in other.results])
    exact = epsilon(*[one.array(i) for i in one.results])
    enough = min(max(allowed, 32 * exact), before / 4)
    best: Cause | None = None
    one_of_several: Cause | None = None
    repeats = after_copy = 0
    for trial in itertools.islice(_trials(explained, first, second), _MOST_TRIALS):
        best_copies = best is not None and best.copies
        after_copy += best_copies
        if after_copy > _MOST_AFTER_COPY:
            break
        try:
            values = other.again(trial.replaced) if trial.replaced else []
            agreement = how_far_apart(one, [as_numbers(values[i]) for i in other.results]) if values else np.inf
            text = trial.text
            tells = not (trial.copies or trial.leaves_out)
            if agreement > enough and best is None and one_of_several is None and tells:
                one_of_several = _one_of_several(explained, values, trial)
            if agreement > enough and trial.everywhere is not None and repeats < _MOST_REPEATS:
                places = _alike(other, trial.everywhere)
                if len(places) > 1:
                    repeats += 1
                    values = _again_everywhere(other, trial.everywhere, places)
                    agreement = how_far_apart(one, [as_numbers(values[i]) for i in other.results])
                    text = f"{text}, in {len(places)} places"
        except (TypeError, ValueError):  # the shapes do not fit
            continue
        if agreement > enough or (trial.copies and not best_copies and best is not None):
            continue
        # Of several that agree, the first: another one must be much better, or say more.
        is_better = best is not None and agreement < best.agreement / 8 and best.agreement > exact
        if best is None or is_better or (best_copies and not trial.copies):
            best = Cause(text, agreement, trial.step, copies=trial.copies)
        if best.agreement <= exact and not best.copies:
            break
    return best or one_of_several


def _one_of_several(explained: Explained, values: Sequence[Any], trial: _Trial) -> Cause | None:
    """The cause that a trial shows, if it makes two values that only the first program had before.

    A single one may be made by chance: of `x + (a + b)` without `b`, that of `(x + a) + b`.
    """
    changed = [i for i, (new, old) in enumerate(zip(values, explained.tapes[1].values)) if new is not old]
    before: Print | None = None
    for number in changed[:_MOST_REJOINING]:
        new = as_numbers(values[number])
        if new.size <= 1 or explained.explained(1, number):
            continue
        own = print_of(new)
        if before is not None and before.apart(own) < _SAME_PRINT:  # moved or cast
            continue
        agreement = _agreement(explained, new, own)
        if agreement is not None and before is not None:
            return Cause(trial.text, agreement, trial.step, is_one_of_several=True)
        before = before if agreement is None else own
    return None


def _agreement(explained: Explained, array: np.ndarray, fingerprint: Print) -> float | None:
    """How far an array is from a value that only the first program has; None if it is no such value."""
    for k in explained.with_fingerprint(0, fingerprint):
        own = explained.tapes[0].array(k)
        same = None if explained.explained(0, k) else arranged(array, own, functools.partial(_is_near, own))
        if same is not None:
            return distance(same[0], own).norm
    return None


def _is_near(array: np.ndarray, other: np.ndarray) -> bool:
    return distance(other, array).norm <= 64 * epsilon(array, other)


def _alike(tape: Tape, everywhere: _Everywhere) -> list[int]:
    """The steps that the same line made of the same operation on values of the same shapes."""
    start, end = tape.steps[everywhere.start], tape.steps[everywhere.end]
    apart = everywhere.end - everywhere.start
    return [
        i
        for i, (step, last) in enumerate(zip(tape.steps, tape.steps[apart:]))
        if (step.name, step.lines) == (start.name, start.lines)
        and (last.name, last.lines) == (end.name, end.lines)
        and [np.shape(tape.values[k]) for k in step.inputs] == [np.shape(tape.values[k]) for k in start.inputs]
    ]


def _again_everywhere(tape: Tape, everywhere: _Everywhere, places: Sequence[int]) -> list[Any]:
    """All values of a tape as they are if some steps are changed."""
    apart = everywhere.end - everywhere.start
    starts = {id(tape.steps[i]): i for i in places}
    ends = {id(tape.steps[i + apart]): i for i in places}
    inputs_of: dict[int, Sequence[Any]] = {}

    def run(step: Step, inputs: Sequence[Any]) -> list[Any]:
        if id(step) in starts:
            inputs_of[starts[id(step)]] = inputs
        place = ends.get(id(step))
        return step.run(inputs) if place is None else everywhere.outputs(inputs_of[place], step, inputs)

    return tape.again({}, around=run)


def how_far_apart(tape: Tape, results: list[np.ndarray]) -> float:
    """How far results are from those of a program, relative to their norm."""
    own = [tape.array(i) for i in tape.results]
    if len(own) != len(results) or any(a.shape != b.shape for a, b in zip(own, results)):
        return np.inf
    return max((distance(b, a).norm for a, b in zip(own, results)), default=np.inf)


def _trials(explained: Explained, first: list[int], second: list[int]) -> Iterator[_Trial]:
    """What might be the cause, the most telling first."""
    ours, theirs = ([tape.steps[i] for i in steps] for tape, steps in zip(explained.tapes, (first, second)))
    for number, g in zip(second, theirs):
        alike = list(dict.fromkeys([*[f for f in ours if f.name == g.name], *_counterparts(explained, g)]))
        trials = itertools.chain(
            *(_other_number(explained, f, g) for f in alike),
            _transposed(explained, g),
            _other_activation(explained, ours, g),
            _missing_bias(explained, g),
            _other_weight(explained, g),
            _other_epsilon(explained, g, ours),
            *(_other_operation(explained, f, g) for f in alike),
            *(_numbers_before(explained, i) for i in g.inputs),
            *(_lacking(explained, f, g, 1) for f in ours),
            _surplus(explained, g, 1),
            *(_other_operation(explained, f, g) for f in ours if f.name != g.name),
        )
        for trial in trials:
            yield trial if trial.step is not None else dataclasses.replace(trial, step=number)
    for g in theirs[:2]:
        start = second[theirs.index(g)]
        after = range(start + 1, min(start + _NEAR, len(explained.tapes[1].steps)))
        for number in [*_before(explained, g), *after]:
            step = explained.tapes[1].steps[number]
            others = _numbers_of_counterparts(explained, step), _other_epsilon(explained, step)
            for trial in itertools.chain(*others, _other_weight(explained, step), _missing_bias(explained, step)):
                yield dataclasses.replace(trial, step=number)
        yield from _surplus(explained, g, _NEAR)
        for f in ours[:2]:
            yield from _lacking(explained, f, g, _NEAR)


def _before(explained: Explained, g: Step) -> list[int]:
    """The steps of the second program that made what goes into one, where it says too little to be recognized."""
    tape = explained.tapes[1]
    numbers: list[int] = []
    todo = list(g.inputs)
    while todo and len(numbers) < _NEAR:
        number = todo.pop()
        maker = tape.makers[number]
        if maker is not None and maker not in numbers and not explained.fingerprint(1, number).telling:
            numbers.append(maker)
            todo += tape.steps[maker].inputs
    return numbers


def _counterparts(explained: Explained, g: Step) -> list[Step]:
    """Operations of the first program of the same kind, on the same values."""
    inputs = {k for i in g.inputs for k in explained.like(1, i)}
    return [f for f in explained.tapes[0].steps if f.name == g.name and not inputs.isdisjoint(f.inputs)][:4]


def _numbers_of_counterparts(explained: Explained, g: Step) -> Iterator[_Trial]:
    for f in _counterparts(explained, g):
        yield from _other_number(explained, f, g)


def _numbers_before(explained: Explained, number: int) -> Iterator[_Trial]:
    """Other numbers in the operation that made a value: an epsilon may be lost in its rounding."""
    maker = explained.tapes[1].makers[number]
    if maker is not None:
        for trial in _numbers_of_counterparts(explained, explained.tapes[1].steps[maker]):
            yield dataclasses.replace(trial, step=maker)


def _other_number(explained: Explained, f: Step, g: Step) -> Iterator[_Trial]:
    """The same operation with another number: an epsilon, a scale."""
    if f.name != g.name or len(f.inputs) != len(g.inputs):
        return
    one, other = explained.tapes
    numbers = [(scalar_of(one.values[i]), scalar_of(other.values[k])) for i, k in zip(f.inputs, g.inputs)]
    different = [(k, a, b) for k, (a, b) in zip(g.inputs, numbers) if a is not None and b is not None and a != b]
    if len(different) == 1:
        number, a, b = different[0]
        new = jnp.full_like(jnp.asarray(other.values[number]), a)
        text = f"with {_called(g, a)} in place of {b:.6g}"
        yield _run_with(other, g, {number: new}, text, _number_for(b, a))


def _called(step: Step, number: float) -> str:
    """What a number in an operation is likely to be called."""
    if step.name in ("add", "max") and 0 < abs(number) <= 2e-2:
        return f"eps={number:.6g}"
    return f"{step.name} by {number:.6g}" if step.name in ("mul", "div") else f"{number:.6g} in {step.name}"


def _run_with(
    tape: Tape, step: Step, replaced: dict[int, Any], text: str, everywhere: Callable[[Any], Any] | None = None
) -> _Trial:
    """A trial in which one step has other inputs; the inputs of other steps stay.

    `everywhere` makes the new input of the old one, for the other steps that the same line made.
    """
    inputs = [replaced.get(i, tape.values[i]) for i in step.inputs]
    try:
        outs = step.run(inputs)
    except (TypeError, ValueError):
        outs = []
    same = [np.shape(x) == np.shape(tape.values[i]) for x, i in zip(outs, step.outputs)]
    trial = _Trial(dict(zip(step.outputs, outs)) if outs and all(same) else {}, text)
    if everywhere is None or not trial.replaced:
        return trial
    positions = [k for k, i in enumerate(step.inputs) if i in replaced]

    def outputs(_: Sequence[Any], other: Step, values: Sequence[Any]) -> list[Any]:
        return other.run([everywhere(x) if k in positions else x for k, x in enumerate(values)])

    number = tape.steps.index(step)
    return dataclasses.replace(trial, everywhere=_Everywhere(number, number, outputs))


def _number_for(old: float, new: float) -> Callable[[Any], Any]:
    """Puts one number in place of another, and leaves all others."""
    return lambda x: jnp.full_like(jnp.asarray(x), new) if scalar_of(x) == old else x


def _transposed(explained: Explained, g: Step) -> Iterator[_Trial]:
    """A square weight that is transposed."""
    tape = explained.tapes[1]
    if g.name not in ("dot_general", "conv_general_dilated"):
        return
    for number in g.inputs:
        shape = np.shape(tape.values[number])
        for i, k in itertools.combinations(range(len(shape)), 2):
            if shape[i] == shape[k] and explained.is_moved_input(1, number):
                turned = functools.partial(jnp.swapaxes, axis1=i, axis2=k)
                new = turned(jnp.asarray(tape.values[number]))
                yield _run_with(tape, g, {number: new}, f"with the weight {list(shape)} transposed", turned)


def _missing_bias(explained: Explained, g: Step) -> Iterator[_Trial]:
    """A bias that only the first program has, where it is added inside another operation."""
    one, other = explained.tapes
    is_sum = g.name == "add" and any(explained.is_moved_input(1, i) for i in g.inputs)  # of two biases, there is one
    if not is_sum and g.name not in ("dot_general", "conv_general_dilated"):
        return
    out = jnp.asarray(other.values[g.outputs[0]])
    for number in one.given:
        shape = np.shape(one.values[number])
        if shape == out.shape[-1:] and not explained.explained(0, number):
            bias = jnp.asarray(one.values[number], out.dtype)

            def outputs(_: Sequence[Any], step: Step, values: Sequence[Any], bias: Any = bias) -> list[Any]:
                return [step.run(values)[0] + bias]

            at = other.steps.index(g)
            text = f"with the bias {list(shape)} of the first program, which the second lacks"
            yield _Trial({g.outputs[0]: out + bias}, text, everywhere=_Everywhere(at, at, outputs))


def _other_weight(explained: Explained, g: Step) -> Iterator[_Trial]:
    """A weight of the first program that the second does not have, in place of the second's own."""
    one, other = explained.tapes
    lacking = [i for i in one.given if np.size(one.values[i]) > 1 and not explained.explained(0, i)]
    for number in g.inputs:
        shape = np.shape(other.values[number])
        if np.prod(shape) <= 1 or not explained.is_moved_input(1, number):
            continue
        if explained.fingerprint(1, number).telling and explained.explained(1, number):
            continue
        for i in [i for i in lacking if np.size(one.values[i]) == np.prod(shape)][:4]:
            text = f"with the weight {list(np.shape(one.values[i]))} of the first program, which the second lacks"
            dtype = jnp.result_type(other.values[number])
            array = jnp.asarray(one.values[i], dtype)
            for new in (array.reshape(shape), array.T.reshape(shape)) if array.ndim > 1 else (array.reshape(shape),):
                yield _run_with(other, g, {number: new}, text)


def _other_activation(explained: Explained, ours: list[Step], g: Step) -> Iterator[_Trial]:
    """Another activation function of the same value."""
    one, other = explained.tapes
    for number in g.inputs:
        x = other.values[number]
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating) or not np.size(x) > 1:
            continue
        exact = np.asarray(x, np.float64)
        with np.errstate(all="ignore"):
            made = {name: f(exact).astype(np.asarray(x).dtype) for name, f in _ACTIVATIONS.items()}
        mine = [(name, k) for name, y in made.items() for k in _equal_values(other, y, [g])]
        for name, k in mine[:3]:
            for wanted, y in made.items():
                if wanted != name and _equal_values(one, y, ours):
                    everywhere = _activated_everywhere(other, g, number, k, _ACTIVATIONS[wanted])
                    yield _Trial({k: jnp.asarray(y)}, f"with {wanted} in place of {name}", everywhere=everywhere)


def _activated_everywhere(
    tape: Tape, g: Step, number: int, result: int, function: Callable[[np.ndarray], np.ndarray]
) -> _Everywhere | None:
    """Another activation function of what goes into a step, at all places of its line."""
    last = tape.makers[result]
    position = g.inputs.index(number)
    if last is None or tape.steps[last].outputs != (result,):
        return None

    def outputs(inputs: Sequence[Any], step: Step, values: Sequence[Any]) -> list[Any]:
        x = np.asarray(inputs[position])
        with np.errstate(all="ignore"):
            return [jnp.asarray(function(x.astype(np.float64)).astype(x.dtype))]

    return _Everywhere(tape.steps.index(g), last, outputs)


def _equal_values(tape: Tape, array: np.ndarray, after: Sequence[Step]) -> list[int]:
    """The values that steps made after some, that are equal to an array."""
    start = min(number for step in after for number in step.outputs)
    few = np.linspace(0, array.size - 1, 8).astype(int)
    sample = array.ravel()[few].astype(np.float64)
    apart = 1e-2 * np.abs(sample).max()
    numbers = []
    for i in range(start, min(start + 200, len(tape.values))):
        if np.shape(tape.values[i]) == array.shape:
            value = tape.array(i)
            # A few elements rule out most values.
            with np.errstate(all="ignore"):
                is_other = bool(np.any(np.abs(value.ravel()[few] - sample) > apart))
            if not is_other and distance(value, array).norm <= 16 * epsilon(array):
                numbers.append(i)
    return numbers


def _lacking(explained: Explained, f: Step, g: Step, near: int) -> Iterator[_Trial]:
    """Operations of the first program, from one on, that the second leaves out."""
    one, other = explained.tapes
    start = one.steps.index(f)
    inputs = [i for i in g.inputs if explained.like(1, i) and not explained.is_moved_input(1, i)]
    for last in range(start, min(start + near, len(one.steps))):
        made = one.array(one.steps[last].outputs[0])
        for number in inputs:
            old = other.array(number)
            if old.size == made.size and old.dtype == made.dtype and not (near > 1 and last == start):
                new = jnp.asarray(made.reshape(old.shape))
                what = explained.described(0, start) if last == start else f"the {last - start + 1} operations"
                text = f"with {what} of the first program ({_lines(f, one.steps[last])}), which the second lacks"
                yield _Trial({number: new}, text, copies=last > start)
                yield dataclasses.replace(_run_with(other, g, {number: new}, text), copies=last > start)


def _surplus(explained: Explained, g: Step, near: int) -> Iterator[_Trial]:
    """Operations of the second program, from one on, that the first does not have; or one of them alone."""
    tape = explained.tapes[1]
    start = tape.steps.index(g)
    inputs = [i for i in g.inputs if scalar_of(tape.values[i]) is None]
    for last in range(start, min(start + near, len(tape.steps))):
        step = tape.steps[last]
        out = step.outputs[0]
        for number in dict.fromkeys([*step.inputs, *inputs]):
            same = np.shape(tape.values[number]) == np.shape(tape.values[out])
            if same and jnp.result_type(tape.values[number]) == jnp.result_type(tape.values[out]):
                alone = number in step.inputs
                if not alone and not explained.fingerprint(1, number).telling:
                    continue
                what = explained.described(1, last) if alone else f"the {last - start + 1} operations"
                lines = "" if alone and last == start else f" ({_lines(step if alone else g, step)})"
                text, at = f"without {what}{lines}", last if alone else start
                yield _Trial({out: tape.values[number]}, text, at, leaves_out=True)


def _lines(first: Step, last: Step) -> str:
    places = [short_place(step.source) if step.source else step.scope for step in (first, last)]
    return places[0] if places[0] == places[1] else f"{places[0]} to {places[1]}"


def _other_epsilon(explained: Explained, g: Step, ours: Sequence[Step] = ()) -> Iterator[_Trial]:
    """Another epsilon, where the first program's is out of sight or, in PyTorch, a setting of an operation."""
    tape = explained.tapes[1]
    settings = [x for f in ours for x in f.settings.values() if isinstance(x, float) and 0 < x <= 2e-2]
    for number in g.inputs:
        old = scalar_of(tape.values[number])
        if g.name in ("add", "max") and old is not None and 0 < abs(old) <= 2e-2:
            for value in dict.fromkeys([*settings, *_EPSILONS]):
                if value != old:
                    new = jnp.full_like(jnp.asarray(tape.values[number]), value)
                    text = f"with eps={value:g} in place of {old:.6g}"
                    yield _run_with(tape, g, {number: new}, text, _number_for(old, value))


def _other_operation(explained: Explained, f: Step, g: Step) -> Iterator[_Trial]:
    """The first program's numbers at this operation, whatever it does."""
    one, other = explained.tapes
    made, old = one.array(f.outputs[0]), other.array(g.outputs[0])
    if made.size != old.size:
        return
    if made.shape != old.shape:
        made = made.reshape(old.shape)
    text = f"with the result of {explained.described(0, one.steps.index(f))} in the first program ({_lines(f, f)})"
    mask = _mask_text(explained, f, g)
    order = _order_text(made, old)
    factor = _factor_text(made, old)
    text = mask or factor or (f"{text}, {order}" if order else text)
    yield _Trial({g.outputs[0]: jnp.asarray(made, old.dtype)}, text, copies=not (mask or order))


def _mask_text(explained: Explained, f: Step, g: Step) -> str:
    """How two masks differ, if both operations choose with one."""
    if f.name != "select_n" or g.name != "select_n":
        return ""
    masks = [tape.array(step.inputs[0]) for tape, step in zip(explained.tapes, (f, g))]
    if masks[0].shape != masks[1].shape or masks[0].dtype != bool:
        return ""
    kinds = [_diagonal(mask) for mask in masks]
    if None not in kinds:
        return f"with the causal mask of diagonal {kinds[0]} in place of {kinds[1]}"
    if np.array_equal(masks[0], ~masks[1]):
        return "with the mask inverted"
    return (
        f"with the mask of the first program ({int(np.sum(masks[0] != masks[1]))} of {masks[0].size} elements differ)"
    )


def _diagonal(mask: np.ndarray) -> int | None:
    """The diagonal up to which a causal mask keeps positions; None if it is no causal mask."""
    if mask.ndim < 2:
        return None
    rows = mask.reshape(-1, *mask.shape[-2:])
    for k in range(-mask.shape[-2] + 1, mask.shape[-1]):
        causal = np.tri(mask.shape[-2], mask.shape[-1], k, dtype=bool)
        if np.all(rows == causal) or np.all(rows == ~causal):
            return k
    return None


def _factor_text(made: np.ndarray, old: np.ndarray) -> str:
    if not jnp.issubdtype(made.dtype, jnp.floating):
        return ""
    x, y = made.astype(np.float64).ravel(), old.astype(np.float64).ravel()
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if not x.size or not np.any(y):
        return ""
    factor = float(x @ y / (y @ y))
    # So small a factor is an epsilon's work.
    if abs(factor - 1) < 1e-5 or np.linalg.norm(x - factor * y) > 64 * epsilon(made, old) * np.linalg.norm(x):
        return ""
    return f"multiplied by {factor:.6g} at this operation"


def _order_text(made: np.ndarray, old: np.ndarray) -> str:
    same = arranged(old, made, lambda y: distance(made, y).norm <= 64 * epsilon(made, old))
    if same is not None and str(same[1]):
        return f"whose result is this one's, {same[1]}"
    x, y = np.sort(made.ravel().astype(np.float64)), np.sort(old.ravel().astype(np.float64))
    if np.allclose(x, y, rtol=1e-5, atol=0, equal_nan=True):
        return "which has the same numbers in another order"
    return ""
