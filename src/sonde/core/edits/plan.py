"""What edits are, without their arrays: which sites, which calls and iterations, what is put there, and how.

A plan is part of the capture state, on which traced programs depend: equal edits are one plan, so that one program
serves all of them. `applying.py` says how a plan becomes part of the program.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.edits.hoisting import Hoisted
from sonde.core.marks.path import STAR, Pattern, glob_matches
from sonde.core.marks.scopes import RowsName
from sonde.core.marks.site import Site, View
from sonde.core.session.closures import same_value
from sonde.core.session.session import CaptureState

TRACED: Literal["traced"] = "traced"  # in place of numbers that are known only when the program runs
FLAG_TYPE = _jax.typeof(np.zeros((), bool))


class Put(NamedTuple):
    """How arrays that an edit supplies are put in place of a value.

    Attributes:
        combine: A function of the old arrays and of one list of supplied arrays for each entry of `kinds`, that returns
            the new arrays. It is part of the program, so JAX differentiates it; the supplied arrays are constants.
        kinds: What is supplied: arrays of the shapes of the value's arrays, of their dtypes if the entry is None,
            otherwise of that dtype.
    """

    combine: Callable[..., list[Any]]
    kinds: tuple[np.dtype[Any] | None, ...] = (None,)

    def types(self, arrays: Sequence[Any]) -> list[Any]:
        """The types of all that is supplied for arrays of these types."""
        return [x if kind is None else x.update(dtype=kind, weak_type=False) for kind in self.kinds for x in arrays]


def _in_place(old: list[Any], new: list[Any]) -> list[Any]:
    """The new arrays instead of the old ones."""
    del old
    return new


def added(old: list[Any], more: list[Any]) -> list[Any]:
    """The sums; an array that has no sum, such as a random key, stays."""
    return [a if jnp.issubdtype(a.dtype, jax.dtypes.extended) else a + b for a, b in zip(old, more)]


REPLACED = Put(_in_place)
ADDED = Put(added)


class Paths:
    """The paths at which something may be put; compared by what they are.

    Args:
        paths: Whole paths, with a `*` or a number for each named loop.
    """

    __slots__ = ("_by_last", "paths")

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self._by_last: dict[str, list[str]] = {}
        for path in self.paths:
            self._by_last.setdefault(path.rpartition("/")[2], []).append(path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Paths) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)

    def may_have(self, relative: str) -> bool:
        """Whether a site whose path ends in this may be at one of the paths."""
        return any(_may_end_in(path, relative) for path in self._by_last.get(relative.rpartition("/")[2], ()))

    def have(self, path: str) -> bool:
        """Whether a whole path, with a `*` for each named loop, or that of one of its rows, is among them."""
        if path in self.paths or STAR not in path:
            return path in self.paths
        parts = path.split("/")
        return any(
            all(part == name or (part == STAR and name.isdecimal()) for part, name in zip(parts, names))
            for names in (path_here.split("/") for path_here in self._by_last.get(parts[-1], ()))
            if len(names) == len(parts)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Near:
    """Where a rule may apply: at all sites that patterns choose, and perhaps at others, where it does no harm."""

    patterns: tuple[Pattern, ...]

    def may_have(self, relative: str) -> bool:
        """Whether a site whose path ends in this may be one of them."""
        return any(not isinstance(p, str) or _may_end_in(p, relative) for p in self.patterns)

    def have(self, path: str) -> bool:
        """Whether the rule may apply at a whole path."""
        del path
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One edit without its arrays.

    Attributes:
        pattern: Which sites; None for a rule, which decides itself.
        kind: What the new value is: that of a function, an array (or a pytree of arrays), that of a record, what a rule
            supplies (`editing.Rule`), or the old one if only the gradient is edited.
        calls: Which calls of the site; None: all. `TRACED`: those in `StepValues.calls`.
        iterations: Which iterations, as in `sonde.Edit`. `TRACED`: those in `StepValues.iterations`.
        positions: Which positions along `axis`; None: all. A function of the last arrays, if they are traced.
        axis: The axis of the positions.
        function: The function of the value, if any.
        gradient: The function of the gradient, if any.
        may_be_absent: Whether a record says for each example whether it has a value.
        put: How the arrays that the edit supplies are put in place; None if it supplies none.
        paths: Where a rule may apply; None: anywhere.
        counts_calls: Whether a rule depends on the call of the site.
    """

    pattern: Pattern | None
    kind: Literal["function", "value", "record", "rule", "keep"]
    calls: tuple[int, ...] | Literal["traced"] | None
    iterations: Any
    positions: tuple[int, ...] | Hoisted | None
    axis: int
    function: Hoisted | None
    gradient: Hoisted | None
    may_be_absent: bool = False
    put: Put | None = None
    paths: Paths | Near | None = None
    counts_calls: bool = True

    @property
    def is_by_call(self) -> bool:
        """Whether it matters which call of a site runs."""
        return self.calls is not None or self.kind == "record" or (self.kind == "rule" and self.counts_calls)

    @property
    def key(self) -> Hashable:
        """Equal for edits of which one program can serve both, given other arrays."""
        pattern = _key_of(self.pattern) if callable(self.pattern) else self.pattern
        iterations = _key_of(self.iterations) if callable(self.iterations) else self.iterations
        return (
            pattern, self.kind, self.calls, iterations, self.positions, self.axis, self.function, self.gradient,
            self.may_be_absent, self.put, self.paths, self.counts_calls,
        )  # fmt: skip

    @property
    def n_supplied(self) -> int:
        """How many arrays are supplied for each array of the value."""
        return 0 if self.put is None else len(self.put.kinds)

    @property
    def functions(self) -> list[Hoisted]:
        """Its functions of values and gradients."""
        return [function for function in (self.function, self.gradient) if function is not None]

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of the arrays of its functions, and of its positions if they are traced."""
        parts = (self.function, self.gradient, self.positions)
        return tuple(t for part in parts if isinstance(part, Hoisted) for t in part.types)

    def positions_in(self, operands: Sequence[Any]) -> Any:
        """The positions, given arrays of which the last ones are theirs."""
        if not isinstance(self.positions, Hoisted):
            return self.positions
        return self.positions.rebuild(operands[len(operands) - len(self.positions.types) :])

    def may_match(self, relative: str) -> bool:
        """Whether the pattern may choose a site whose path ends in this."""
        if self.paths is not None:
            return self.paths.may_have(relative)
        return not isinstance(self.pattern, str) or _may_end_in(self.pattern, relative)


def _key_of(function: Callable[..., Any]) -> Hashable:
    """A key for a function that is called with what is known while the program is traced, not with arrays."""
    return same_value(function)


@functools.lru_cache(maxsize=4096)
def _may_end_in(glob: str, relative: str) -> bool:
    """Whether a glob matches the path, or a path of which it is the end; named loops put numbers between the parts."""
    last, parts = relative.rsplit("/", 1)[-1], glob.split("/")
    if "**" in parts[-1] or "{" in glob:
        return True
    if not glob_matches(parts[-1], last):
        return False
    own = relative.split("/")
    # Counted from the end, the parts of the glob must match those of the path, except for a number of an iteration.
    position = len(parts) - 1
    for name in reversed(own):
        if position >= 0 and "**" in parts[position]:
            return True
        while position >= 0 and not glob_matches(parts[position], name):
            if not _may_be_number(parts[position]):
                return False
            position -= 1
        if position < 0:
            return False
        position -= 1
    return True


def _may_be_number(part: str) -> bool:
    return part.isdigit() or re.search(r"[*?\[{]", part) is not None


class EditPlan:
    """The edits of one call of `sonde.edit` without their arrays. Equal edits give the same object.

    Attributes:
        steps: The edits, in the order in which they are applied: those of the call that asked for the plan last.
        has_rules: Whether any of them is a rule.
    """

    __slots__ = ("__weakref__", "_also_for", "_by_last", "_others", "has_rules", "steps")

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self._also_for: Hashable = None
        self.has_rules = any(step.kind == "rule" for step in steps)
        self._by_last: dict[str, list[int]] = {}  # records are edits too, one for every site
        self._others: list[int] = []
        for number, step in enumerate(steps):
            last = step.pattern.rpartition("/")[2] if isinstance(step.pattern, str) else "*"
            (self._others if re.search(r"[*?{\\]", last) else self._by_last.setdefault(last, [])).append(number)

    def may_match(self, relative: str) -> tuple[int, ...]:
        """The edits, by number, that may choose a site whose path ends in this."""
        near = [*self._by_last.get(relative.rpartition("/")[2], ()), *self._others]
        return tuple(number for number in sorted(near) if self.steps[number].may_match(relative))

    @staticmethod
    def of(steps: Sequence[Step]) -> EditPlan:
        """The plan of some edits."""
        key = tuple([step.key for step in steps])
        plan = _plans.get(key) or _plans.setdefault(key, EditPlan(tuple(steps)))
        plan.steps = tuple(steps)  # what a pattern or a function of an earlier call reads may have changed
        _recent.append(plan)
        return plan

    def stays_for(self, steps: Sequence[Step]) -> None:
        """Makes this the plan of edits that differ in what their functions have changed by running.

        A function that logs what it is called with reads a longer list in each call. As for `jax.jit`, that asks for no
        other program.
        """
        key = tuple([step.key for step in steps])
        if _plans.get(key) is None and [step.types for step in steps] == [step.types for step in self.steps]:
            _plans.pop(self._also_for, None)
            _plans[key], self._also_for = self, key


_plans: weakref.WeakValueDictionary[Hashable, EditPlan] = weakref.WeakValueDictionary()
# JAX keeps what it traced for a plan. An equal edit that is written anew, as in a loop, must find the same plan again.
_recent: collections.deque[EditPlan] = collections.deque(maxlen=16)


class RunningPlan(NamedTuple):
    """A plan while its edit runs.

    Attributes:
        depth: How many captures and edits are nested, up to this one.
        plan: The plan.
        outside: What the captures around it want; None if there are none.
        in_scope: Whether it began inside scopes, which are then no part of paths.
    """

    depth: int
    plan: EditPlan
    outside: CaptureState | None
    in_scope: bool


@dataclasses.dataclass(eq=False, slots=True)
class Supply:
    """What a site asks of an edit.

    Attributes:
        plan: The edits.
        numbers: Which of them may apply, in order.
        names: For each edit with a function that may apply, the scope of what the function marks.
        failures: The errors of functions that were applied to a site for which the edit may turn out not to be meant,
            by number. They are raised if it is.
        run: `"once"`, or in a loop of which nothing can be saved for a recomputation: `"twice"`, and then `"again"` in
            the recomputation, which is not another call of the site.
        first: What the site asked when it ran first, if this is the recomputation.
    """

    plan: EditPlan
    numbers: tuple[int, ...]
    names: dict[int, RowsName] = dataclasses.field(default_factory=dict)
    failures: dict[int, Exception] = dataclasses.field(default_factory=dict)
    run: Literal["once", "twice", "again"] = "once"
    first: Supply | None = None

    def again(self, params: dict[str, Any]) -> dict[str, Any] | None:
        """The parameters of the equation in a recomputation; None if the answer is saved for it."""
        return None if self.run == "once" else {**params, "site": running(params["site"], "again")}

    def types(self, arrays: Sequence[Any], view: View) -> list[Any]:
        """The types of the answer, given those of the site's arrays."""
        types: list[Any] = []
        for step in self.steps:
            sizes = tuple(axis.size for axis in view.axes) if step.may_be_absent else ()
            types.append(FLAG_TYPE.update(shape=sizes))
            types += [] if step.put is None else step.put.types(arrays)
            types += step.types
        return types

    @property
    def steps(self) -> list[Step]:
        """The edits that may apply, in order."""
        return [self.plan.steps[number] for number in self.numbers]

    def dims(self, n_arrays: int) -> list[int | None]:
        """Which of the results of a mapped site are mapped, too: along their first axis."""
        dims: list[int | None] = []
        for step in self.steps:
            dims.append(0 if step.may_be_absent else None)
            dims += [0] * (n_arrays * step.n_supplied)
            dims += [None] * len(step.types)
        return dims

    def nothing(self, arrays: Sequence[Any], view: View) -> list[Any]:
        """The answer that no edit applies."""
        return [_jax.zeros_of_type(t) for t in self.types([*map(_jax.typeof, arrays)], view)]


def running(site: Site, run: Literal["twice", "again"]) -> Site:
    """A site that asks an edit, with another `Supply.run`."""
    copied, before = site.at(site.path), site.supply
    if before.run == "again":  # whatever is computed again of a recomputation
        return site
    copied.supply = dataclasses.replace(before, run=run, first=before if run == "again" else None)
    return copied
