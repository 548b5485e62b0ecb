"""Which marked values are terms of which others, read off the equations of a traced program.

A value is a term of another if the other is a sum in which it is added once: additions, changes of dtype and shape,
jitted functions and the carry of a loop keep a term; every other equation ends it. So what a component writes is a term
of what later components read, and of nothing that is computed from it otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.ad_checkpoint import checkpoint_name

from sonde import _jax

_PREFIX = "sonde term "
_KEEPING = {
    "add",
    "add_any",
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "copy_p",
    "expand_dims",
    "optimization_barrier",
    "reduce_precision",
    "reshape",
    "sharding_constraint",
    "squeeze",
}


class Term(NamedTuple):
    """A marked value: one of those that a mark has in loops.

    Attributes:
        label: The label of the mark.
        row: The number of the iteration of each loop around it, outermost first.
    """

    label: str
    row: tuple[int, ...] = ()


Terms = frozenset[Term]
_NONE: Terms = frozenset()


@dataclasses.dataclass
class Sums:
    """What the equations say about marked values.

    Attributes:
        terms: The terms of each marked value.
        same: Values that are another one, unchanged, marked again under the same name; and the first of these.
        joined: For a value that is read: the senders that were added to it, or to a sum that it is a term of.
    """

    terms: dict[Term, Terms] = dataclasses.field(default_factory=dict)
    same: dict[Term, Term] = dataclasses.field(default_factory=dict)
    joined: dict[Term, set[Term]] = dataclasses.field(default_factory=dict)


def marked(x: jax.Array, label: str) -> Any:
    """The same value, with a mark that `sums_in` finds in the traced program."""
    return checkpoint_name(x, _PREFIX + label)


def sums_in(jaxpr: Any, senders: Mapping[str, int | None], names: Mapping[str, str]) -> Sums:
    """The terms of all marked values of a traced program.

    Args:
        jaxpr: The program.
        senders: The labels of what components write, each with the axis that a sum may remove, or None. All other
            marked values are read.
        names: By label, the name of the site.
    """
    search = _Search(senders, names)
    inner = _jax.open_jaxpr(jaxpr)
    search.run(inner, [_NONE] * len(inner.invars))
    return search.sums


class _Search:
    def __init__(self, senders: Mapping[str, int | None], names: Mapping[str, str]) -> None:
        self.senders, self.names = senders, names
        self.row: tuple[int, ...] = ()
        self.sums = Sums()

    def run(self, jaxpr: Any, inputs: Sequence[Terms]) -> list[Terms]:
        """The terms of the outputs of a program."""
        terms: dict[Any, Terms] = dict(zip(jaxpr.invars, inputs))
        marks: dict[Any, Term] = {}  # variables that are marked values

        def of(variable: Any) -> Terms:
            return _NONE if hasattr(variable, "val") else terms.get(variable, _NONE)

        for eqn in jaxpr.eqns:
            label = _label(eqn)
            if label is not None:
                mark, x = Term(label, self.row), eqn.invars[0]
                terms[eqn.outvars[0]] = self._marked(mark, of(x), None if hasattr(x, "val") else marks.get(x))
                marks[eqn.outvars[0]] = mark
                continue
            new = self._after(eqn, [of(v) for v in eqn.invars])
            terms.update((v, t) for v, t in zip(eqn.outvars, new) if t)
        return [of(v) for v in jaxpr.outvars]

    def _marked(self, mark: Term, inputs: Terms, before: Term | None) -> Terms:
        if before is not None and self.names[before.label] == self.names[mark.label]:
            self.sums.same[mark] = self.sums.same.get(before, before)
            return inputs
        self.sums.terms[mark] = inputs
        # What a component writes starts anew, even if it is a sum that has what the component reads as a term.
        return frozenset({mark}) if mark.label in self.senders else inputs | {mark}

    def _after(self, eqn: Any, inputs: Sequence[Terms]) -> list[Terms]:
        name, inner = eqn.primitive.name, [_jax.open_jaxpr(x) for x in _jax.sub_jaxprs(eqn.params)]
        nothing = [_NONE] * len(eqn.outvars)
        if name == "scan":
            return self._scan(inner[0], inputs, eqn.params)
        if name == "cond":
            found = [self.run(branch, inputs[1:]) for branch in inner]
            return [frozenset().union(*terms) for terms in zip(*found)]
        if len(inner) == 1 and len(inner[0].invars) == len(inputs) and len(inner[0].outvars) == len(eqn.outvars):
            return self.run(inner[0], inputs)
        if name == "reduce_sum":
            return [frozenset(t for t in inputs[0] if self._sums_parts(t, eqn))]
        if inner or name not in _KEEPING:
            return nothing
        if len(eqn.outvars) == len(inputs) > 1:  # several values at once, each unchanged
            return list(inputs)
        if len(inputs) > 1:
            self._join(inputs)
        return [frozenset().union(*inputs)] * len(eqn.outvars)

    def _sums_parts(self, term: Term, eqn: Any) -> bool:
        axis = self.senders.get(term.label)
        return axis is not None and tuple(eqn.params["axes"]) == (len(eqn.invars[0].aval.shape) + axis,)

    def _join(self, inputs: Sequence[Terms]) -> None:
        for i, terms in enumerate(inputs):
            others = {t for j, other in enumerate(inputs) if j != i for t in other if t.label in self.senders}
            for term in terms:
                if term.label not in self.senders and others:
                    self.sums.joined.setdefault(term, set()).update(others)

    def _scan(self, body: Any, inputs: Sequence[Terms], params: Mapping[str, Any]) -> list[Terms]:
        """The terms after a scan, whose iterations are gone through one by one if there are marks in them."""
        consts, carried = _jax.scan_sizes(dict(params))
        length, outside = params["length"], self.row
        order = range(length - 1, -1, -1) if params["reverse"] else range(length)
        if not _has_marks(body):
            order = range(min(length, 2 * carried + 1))  # by then every term has gone wherever it can go
        carry = list(inputs[consts : consts + carried])
        for number in order:
            self.row = (*outside, number)
            carry = self.run(body, [*inputs[:consts], *carry, *[_NONE] * (len(body.invars) - consts - carried)])
            carry = carry[:carried]
        self.row = outside
        return [*carry, *[_NONE] * (len(body.outvars) - carried)]  # a stack of values is no sum of them


def _label(eqn: Any) -> str | None:
    name = eqn.params.get("name") if eqn.primitive.name == "name" else None
    return name[len(_PREFIX) :] if isinstance(name, str) and name.startswith(_PREFIX) else None


def _has_marks(jaxpr: Any) -> bool:
    return any(
        _label(eqn) is not None or any(_has_marks(_jax.open_jaxpr(inner)) for inner in _jax.sub_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )
