"""Follows a value back through the equations that made it, and into the programs inside them.

The answer depends on the question: `tokens` asks which number a token is, and which numbers it may be;
`rules/loop_carry` asks what a gate is made of. Each question answers for the primitives that it knows. Entering jitted
functions, and repeating loops until nothing changes, is the same for all questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from sonde import _jax
from sonde.core.session.caches import ByIdentity

T = TypeVar("T")
Read = Callable[[int], T | None]  # the answer for an input, by its position

_STEPS = 100  # how many equations are followed, one after the other


class Dataflow(Generic[T]):
    """A question about values. The answer None means unknown."""

    # Whether there are answers for a value that is one of several: the result of a branch, or what a loop carries.
    joins = False
    _steps = 0

    def of_number(self, value: Any) -> T | None:
        """The answer for a literal number in a program."""
        del value

    def of_equation(self, made: _jax.MadeBy, read: Read[T]) -> T | None:
        """The answer for an output of an equation that is neither a branch, nor a loop, nor a jitted call."""
        raise NotImplementedError

    def either(self, answers: Iterable[T | None]) -> T | None:
        """The answer for a value that is one of several."""
        raise NotImplementedError

    def sliced(self, answer: T) -> T | None:
        """The answer, in the body of a scan, for a slice of an operand."""
        return answer

    def stacked(self, answer: T, length: int) -> T | None:
        """The answer for what every iteration of a scan returns, in one array."""
        del length
        return answer

    def follow(self, made: _jax.MadeBy, read: Read[T]) -> T | None:
        """The answer for an output of any equation, from those for its inputs."""
        if self._steps >= _STEPS:
            return None
        self._steps += 1
        try:
            return self._follow(made, read)
        finally:
            self._steps -= 1

    def _follow(self, made: _jax.MadeBy, read: Read[T]) -> T | None:
        primitive, params, position, inputs = made
        if primitive is _jax.jit_p or primitive is _jax.remat_p:
            return self.inside(params["jaxpr"], read)(position)
        if primitive is _jax.scan_p:
            return self._of_scan(params, position, read)
        if primitive is _jax.while_p:
            n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
            n_in = len(inputs) - n_test
            return self._of_loop(params["body_jaxpr"], range(n_body, n_in), position, lambda i: read(n_test + i))
        if primitive is not _jax.cond_p:
            return self.of_equation(made, read)
        branches = [self.inside(b, lambda i: read(i + 1)) for b in params["branches"]]
        return self.either(branch(position) for branch in branches) if self.joins else None

    def inside(self, jaxpr: _jax.Jaxpr, read: Read[T]) -> Read[T]:
        """The answers for the outputs of a program, by their position."""
        opened = _jax.open_jaxpr(jaxpr)
        inputs = {v: i for i, v in enumerate(opened.invars)}
        consts = dict(zip(opened.constvars, _jax.close_jaxpr(jaxpr).consts))
        answers: dict[Any, T | None] = {}

        def of(atom: Any) -> T | None:
            if isinstance(atom, _jax.Literal):
                return self.of_number(atom.val)
            if atom in inputs:
                return read(inputs[atom])
            if atom in consts:
                return self.of_number(consts[atom])
            if atom not in answers:  # asked once, however many equations use the value
                made = _made_by.of(opened)[atom]
                answers[atom] = self.follow(made, lambda i: of(made.inputs[i]))
            return answers[atom]

        return lambda position: of(opened.outvars[position])

    def _of_scan(self, params: dict[str, Any], position: int, read: Read[T]) -> T | None:
        n_consts, n_carry = _jax.scan_sizes(params)
        carry = range(n_consts, n_consts + n_carry)

        def of_operand(i: int) -> T | None:
            answer = read(i)
            return answer if i < carry.stop or answer is None else self.sliced(answer)

        answer = self._of_loop(params["jaxpr"], carry, position, of_operand)
        return answer if position < n_carry or answer is None else self.stacked(answer, params["length"])

    def _of_loop(self, body: Any, carry: range, position: int, read: Read[T]) -> T | None:
        """The answer for an output of a body: what is carried is its initial value, or the result of an iteration.

        Args:
            body: The body.
            carry: Which of its inputs are carried; they are its first outputs.
            position: Which output.
            read: The answers for the inputs, before the first iteration.
        """
        carried: dict[int, T | None] = {}  # the current approximation; each round can only weaken it

        def of_input(i: int) -> T | None:
            if i not in carry:
                return read(i)
            if i not in carried:
                carried[i] = read(i) if self.joins else None
            return carried[i]

        is_carried = position < len(carry)
        if is_carried and of_input(carry[position]) is None:
            return None
        # An answer for what is carried must hold before the first iteration and after each: it is assumed to be that of
        # the initial value, and weakened until an iteration no longer changes it.
        while True:
            inside = self.inside(body, of_input)
            sources = inside(position)
            before = dict(carried)
            if self.joins:
                carried.update({i: self.either([before[i], inside(i - carry.start)]) for i in before})
            if carried == before:
                return carried[carry[position]] if is_carried else sources


def _equations(jaxpr: _jax.Jaxpr) -> dict[Any, _jax.MadeBy]:
    return {
        v: _jax.MadeBy(eqn.primitive, eqn.params, i, eqn.invars)
        for eqn in jaxpr.eqns
        for i, v in enumerate(eqn.outvars)
    }


_made_by = ByIdentity(_equations)  # for every variable of a jaxpr the equation that makes it
