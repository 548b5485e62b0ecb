"""The walk back: from an element of a result to the operation that made it what it is.

At each equation the walk looks at the elements of the operands that the element was computed from. Was one of them as
bad: it is older, and the walk goes on there. Was none: it was born here, and operands that are bad in a lesser way (the
Infs behind a NaN) are its causes, from which the walk goes on in turn. What "bad" means is a `Question`, so the same
walk finds where a value grew beyond a bound or became zero.

Equations with programs inside are entered with the numbers that went into them: see `loops` and `branches`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from sonde import _jax
from sonde.programs.callbacks import Callbacks
from sonde.programs.flat import Equation, Level, flatten
from sonde.programs.running import Run, Values, compiled, on_host, run_equation, run_plain
from sonde.why.reads import Index, Read, elements_by_trial, elements_read

_MOST_CAUSES = 3
_MOST_ALIKE = 8
_GUESSED = "on the way is an operation for which no trial showed which of the operands with NaN made the result NaN"
FINE_AGAIN = (
    "run again, operation by operation, this value was fine: the program rounds differently when compiled whole"
)


class Question(Protocol):
    """What is asked about values."""

    def severity(self, values: Any, xp: Any) -> Any:
        """For every element how bad it is: 0 is fine, and of two states the worse one has the larger number.

        Args:
            values: An array of numbers; of NumPy, or of JAX in a program that is traced.
            xp: The module for arithmetic on it, `numpy` or `jax.numpy`.
        """
        ...


class NotFinite:
    """Is a number finite? NaN is worse than Inf, because it may come from Inf."""

    def severity(self, values: Any, xp: Any) -> Any:
        """2 for NaN, 1 for Inf, 0 for other numbers."""
        if not jax.numpy.issubdtype(values.dtype, np.inexact):
            return xp.zeros(values.shape, np.int32)
        return xp.where(xp.isnan(values), 2, xp.where(xp.isinf(values), 1, 0))


class IsZero:
    """Is a number zero?"""

    def severity(self, values: Any, xp: Any) -> Any:
        """1 for zero, 0 for other numbers."""
        if not jax.numpy.issubdtype(values.dtype, np.inexact):
            return xp.zeros(values.shape, np.int32)
        return xp.where(values == 0, 1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """A loop or a branch that a program runs in.

    Attributes:
        kind: `"scan"`, `"while"`, `"cond"` or `"shard_map"`.
        number: The iteration or the branch, from 0.
        name: The path of the scope that names the loop, if one does.
    """

    kind: str
    number: int
    name: str | None = None


@dataclasses.dataclass(eq=False)
class Scene:
    """A level with its numbers, and where in the program it is.

    Attributes:
        level: The equations.
        values: Their numbers.
        around: The loops and branches around it, outermost first.
        run: Runs a program on values of this scene.
        shard: Inside a `shard_map`, the position on the mesh, by axis.
        outer: The scene that it is in, and the number of the equation there.
        leave: Says which value outside an input of the scene is, given the scene, the slot and the element; None for
            the outermost scene, whose inputs come from nowhere.
        entered: What is inside, by what is entered: each is made once.
    """

    level: Level
    values: Values
    around: tuple[Around, ...] = ()
    run: Run = run_plain
    shard: Any = None
    outer: tuple[Scene, int] | None = None
    leave: Callable[[Scene, int, Index], Position] | None = None
    entered: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def host(self, slot: int) -> np.ndarray:
        """The numbers of a slot; inside a `shard_map`, those of the shard."""
        value = self.values.host(slot)
        return value if self.shard is None else self.shard.local(value, self.level.types[slot])

    def at(self, shard: Any) -> Scene:
        """The same scene, seen from another shard."""
        if self.shard is None or self.shard == shard:
            return self
        known = self.entered.get(("shard", shard))
        if known is None:
            known = self.entered["shard", shard] = dataclasses.replace(self, shard=shard, entered={})
        return known

    def inside(
        self,
        level: Level,
        inputs: Sequence[Any],
        equation: int,
        leave: Callable[[Scene, int, Index], Position],
        around: Around | None = None,
        **changes: Any,
    ) -> Scene:
        """The scene of a program inside one of the equations."""
        run = changes.get("run", self.run)
        values = Values(level, inputs, self.values.callbacks, run=run)
        surroundings = self.around if around is None else (*self.around, around)
        options = {"run": run, "shard": self.shard, "outer": (self, equation), "leave": leave, **changes}
        return Scene(level, values, surroundings, **options)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An element on the way back.

    Attributes:
        scene: Where.
        slot: Of which value.
        index: Which element.
        severity: How bad it is.
    """

    scene: Scene
    slot: int
    index: Index
    severity: int

    @property
    def equation(self) -> Equation | None:
        """The equation that computed it; None for an input or a constant."""
        number = self.scene.level.makers.get(self.slot)
        return None if number is None else self.scene.level.equations[number]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """Where an element became bad.

    Attributes:
        step: The element.
        way: The steps from the start of the walk to here, the first first.
        causes: The births of what went in and was bad in a lesser way.
        doubt: What could not be looked into.
    """

    step: Step
    way: tuple[Step, ...]
    causes: tuple[Birth, ...] = ()
    doubt: str = ""


class Element(NamedTuple):
    """An element of an operand."""

    operand: int
    part: Index


class Position(NamedTuple):
    """An element of a value of a scene."""

    scene: Scene
    slot: int
    element: Index


Enter = Callable[["Walk", Scene, int, int, Index], "Position | Birth | None"]
# Where an element of the result of an equation comes from, by the name of its primitive: a position inside it or, for
# collective operations, on another shard. Given the walk, the scene, the number of the equation, which result and which
# element. None: it cannot be looked into. Filled by the modules of this package.
ENTER: dict[str, Enter] = {}
ANY = ""  # the name under which `ENTER` has what applies to all other primitives: it enters calls


class Walk:
    """Walks back over programs in search of the answer to one question."""

    def __init__(self, question: Question, callbacks: Callbacks | None = None) -> None:
        self.question = question
        self.callbacks = Callbacks() if callbacks is None else callbacks
        self._known: dict[tuple[int, int, Index], tuple[Birth, int]] = {}
        self._guessed: set[tuple[int, int]] = set()  # values of which only a guess says what they come from

    def scene(self, jaxpr: Any, inputs: Sequence[Any], **options: Any) -> Scene:
        """A program with numbers for its inputs."""
        level = flatten(jaxpr)
        return Scene(level, Values(level, inputs, self.callbacks), **options)

    def severity(self, values: np.ndarray) -> np.ndarray:
        """How bad each element is."""
        return np.asarray(self.question.severity(as_floats(values), np), np.uint8)

    def worst(self, scene: Scene, slot: int, most: int = 1) -> list[Index]:
        """Some of the worst elements of a value, the first one first; none if all are fine."""
        severity = self.severity(scene.host(slot))
        if not severity.any():
            return []
        worst = np.flatnonzero(severity == severity.max())
        chosen = worst[np.unique(np.linspace(0, len(worst) - 1, most).astype(int))]
        return [
            tuple(map(int, np.unravel_index(int(flat), severity.shape))) if severity.ndim else () for flat in chosen
        ]

    def back(self, scene: Scene, slot: int, index: Index) -> Birth:
        """Where an element of a value became bad. Walks that meet an earlier one end as it did."""
        way: list[Step] = []
        while True:
            known = self._known.get((id(scene), slot, index))
            if known is not None:
                birth, position = known
                return dataclasses.replace(birth, way=(*way, *birth.way[position:]))
            way.append(Step(scene, slot, index, int(self.severity(scene.host(slot)[index]))))
            found = self._before(way[-1])
            if isinstance(found, Birth):
                guessed = any((id(step.scene), step.slot) in self._guessed for step in way)
                birth = dataclasses.replace(found, way=tuple(way), doubt=found.doubt or _GUESSED * guessed)
                for position, step in enumerate(way):
                    self._known[id(step.scene), step.slot, step.index] = birth, position
                return birth
            scene, slot, index = found

    def _before(self, step: Step) -> Position | Birth:
        """Where an element comes from, or that it was born there."""
        scene, slot, index, severity = step.scene, step.slot, step.index, step.severity
        number = scene.level.makers.get(slot)
        if number is None:
            if slot >= scene.level.n_inputs or scene.leave is None:
                return Birth(step, ())
            return scene.leave(scene, slot, index)
        equation = scene.level.equations[number]
        output = equation.outputs.index(slot)
        enter = ENTER.get(equation.name)
        entered = (enter or ENTER[ANY])(self, scene, number, output, index)
        if isinstance(entered, Birth):
            return entered
        if entered is not None:
            inside = entered.scene.host(entered.slot)[entered.element]
            return entered if self.severity(inside) > 0 else Birth(step, (), (), FINE_AGAIN)
        same, lesser = self._origins(scene, equation, output, index, severity)
        if same:
            positions = [Position(scene, equation.inputs[e.operand], e.part) for e in same]
            if len(positions) == 1 or not _jax.facts_of(equation.name).picks:
                return positions[0]
            # It takes all of them: a sentinel among them is not to blame.
            births = [self.back(*position) for position in positions]
            computed = [p for p, birth in zip(positions, births) if birth.step.equation is not None]
            return (computed or positions)[0]
        causes = [self.back(scene, equation.inputs[element.operand], element.part) for element in lesser]
        doubt = "" if enter is None else f"{equation.name} could not be looked into"
        return Birth(step, (), tuple(causes), doubt)

    def _origins(
        self, scene: Scene, equation: Equation, output: int, index: Index, severity: int
    ) -> tuple[list[Element], list[Element]]:
        """Elements of operands that are as bad, the likeliest first; and some that are bad in a lesser way."""
        operands = [scene.host(slot) for slot in equation.inputs]
        result = scene.host(equation.outputs[output])
        reads = elements_read(equation, output, index, operands, result.shape)
        if reads is None:
            reads = self._by_trial(scene, equation, output, index, operands, severity)
        same: list[Element] = []
        lesser: list[Element] = []
        whole: set[int] = set()  # operands of which everything that was read is as bad
        for operand, part in reads:
            values = operands[operand][part]
            found = self.severity(values)
            if np.all(found == severity):
                whole.add(operand)
            for level, into in ((severity, same), (0, lesser)):
                mask = (found == level) if level else (found > 0) & (found < severity)
                if level and np.any(mask):  # of several, one with the same value: a sum of inf and -inf is neither
                    equal = mask & (np.asarray(values) == result[index])
                    mask = equal if np.any(equal) else mask
                many = _MOST_ALIKE if level and _jax.facts_of(equation.name).picks else 1
                into += [Element(operand, i) for i in _whole_indices(part, mask, operands[operand].shape, many)]
        # Of several that are as bad: one with the same value, of which all that was read is bad (a product with a
        # column of zeros is zero, whatever zeros the row has), and one that was computed, not written down.
        same.sort(
            key=lambda e: (
                operands[e.operand][e.part] != result[index],
                e.operand not in whole,
                equation.inputs[e.operand] in scene.level.constants,
            )
        )
        return same, lesser[:_MOST_CAUSES]

    def _by_trial(
        self, scene: Scene, equation: Equation, output: int, index: Index, operands: Sequence[np.ndarray], severity: int
    ) -> list[Read]:
        severities = [self.severity(x) for x in operands]
        program = compiled(lambda *values: run_equation(equation, values, self.callbacks))

        def run(values: Sequence[Any]) -> Any:
            return on_host(program(*values)[output])[index]

        try:
            reads = elements_by_trial(run, operands, severities, severity, lambda x: bool(self.severity(x) > 0))
            if not reads and severity > 1:
                # No harmless number made it fine, as no factorization is fine of a matrix of such numbers. What is as
                # bad among the operands is then the likeliest cause.
                reads = [Read(i, _first(s == severity)) for i, s in enumerate(severities) if np.any(s == severity)]
                self._guessed.add((id(scene), equation.outputs[output])) if reads else None
            return reads
        except Exception:
            if scene.shard is None:
                raise
            # The operation cannot run outside of the shard_map: take the first suspicious elements.
            return [Read(i, _first(s)) for i, s in enumerate(severities) if s.any()]


def as_floats(values: np.ndarray) -> np.ndarray:
    """Numbers in a type that NumPy knows: those of bfloat16 and the like as float32, others as they are."""
    values = np.asarray(values)
    return values.astype(np.float32) if values.dtype.kind == "V" and values.dtype.names is None else values


def _first(severity: np.ndarray) -> Index:
    return tuple(map(int, np.unravel_index(int(np.argmax(severity)), severity.shape))) if severity.ndim else ()


def _whole_indices(part: Any, mask: np.ndarray, shape: tuple[int, ...], most: int) -> list[Index]:
    """The indices of some elements of a part that are in a mask, the first one first."""
    mask = np.asarray(mask)
    chosen = np.flatnonzero(mask)
    if not len(chosen):
        return []
    chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, most).astype(int))]
    wholes = []
    for flat in chosen:
        position = iter(np.unravel_index(int(flat), mask.shape) if mask.ndim else ())
        whole = []
        for p, n in zip(part, shape):
            if isinstance(p, slice):
                first, _, step = p.indices(n)
                whole.append(first + int(next(position)) * step)
            else:
                whole.append(int(p))
        wholes.append(tuple(whole))
    return wholes
