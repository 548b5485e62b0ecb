"""Rewriting a jaxpr with sites inside into one without, whose extra outputs are what the handler recorded.

There are two ways. If the handler only records, site equations are dropped and their operands become outputs: no
equation is traced again, which keeps tracing cheap. Otherwise the jaxpr is evaluated once under a child of the handler.
Both are cached by jaxpr and handler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.call_tokens import knowable_outputs, known_outputs
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import (
    Bundle,
    Item,
    build_items,
    firsts,
    flat_arrays,
    flat_specs,
    in_new_choices,
    in_new_loops,
)
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.interpret.trace import run_under
from sonde.core.interpret.where import Loop
from sonde.core.marks.axes import Axis
from sonde.core.marks.operands import TOKEN_TYPE, operands_of
from sonde.core.marks.primitive import site_effect, site_p
from sonde.core.marks.site import Site
from sonde.core.marks.site_search import equations_with_sites, gives_tokens, gradient_sites
from sonde.core.session.caches import ByIdentity, Meter, Programs
from sonde.core.session.session import capture_state


@dataclasses.dataclass(frozen=True, slots=True)
class Deduplicated:
    """A rewritten program that returns no array twice.

    Attributes:
        jaxpr: The program.
        n_extra: How many arrays it returns beside the outputs.
        n_outs: How many outputs there are.
        numbers: For every array that was recorded, its position among the extra outputs.
    """

    jaxpr: Any
    n_extra: int
    n_outs: int
    numbers: list[int]

    def spread(self, outs: Sequence[Any]) -> Sequence[Any]:
        """The outputs, and every array as often as it was recorded."""
        n = self.n_outs
        if self.n_extra == len(self.numbers):
            return outs
        return [*outs[:n], *[outs[n + number] for number in self.numbers]]


def deduplicated(jaxprs: Sequence[Any], n_outs: int) -> list[Deduplicated]:
    """Programs that return alike, such as the branches of a `cond`, without what each of them returns twice."""
    opened = [_jax.open_jaxpr(jaxpr) for jaxpr in jaxprs]
    extra = list(zip(*[jaxpr.outvars[n_outs:] for jaxpr in opened]))
    # A literal number in the program cannot be a key.
    first, numbers = firsts(tuple(id(v) if isinstance(v, _jax.Literal) else v for v in group) for group in extra)
    if len(first) == len(numbers):
        return [Deduplicated(jaxpr, len(first), n_outs, numbers) for jaxpr in jaxprs]
    chosen_outputs = [*range(n_outs), *[n_outs + i for i in first]]
    return [
        Deduplicated(_with_outputs(jaxpr, [before.outvars[i] for i in chosen_outputs]), len(first), n_outs, numbers)
        for jaxpr, before in zip(jaxprs, opened)
    ]


def _with_outputs(jaxpr: _jax.Jaxpr, outvars: list[Any]) -> Any:
    before = _jax.open_jaxpr(jaxpr)
    return _jax.replace_jaxpr(jaxpr, extra_invars=[], eqns=before.eqns, outvars=outvars, effects=before.effects)


@dataclasses.dataclass
class Rewritten:
    """A rewritten jaxpr: takes `inputs(handler)`, then the old inputs, then this iteration's steps.

    Attributes:
        jaxpr: Closed, without constants.
        consts: Values for the first inputs.
        n_outs: How many of the outputs are those of the program; the arrays of `specs` follow.
        n_arrays: How many of the inputs after `consts` are the arrays of the handler.
        choices: The choices, between branches that all run, that led to what was recorded.
        takes_base: Whether the input after them is the token to start from.
        span: How many tokens it uses.
        cache: For results that depend on the program alone; copies of this object with other specs share it.
        meter: Estimates what it takes, with what is in the cache.
    """

    jaxpr: Any
    consts: list[Any]
    n_outs: int
    specs: list[Item]
    takes_base: bool
    span: int
    met: SeenSites
    cache: dict[Any, Any] = dataclasses.field(default_factory=dict)
    meter: Meter = dataclasses.field(default_factory=Meter)
    n_arrays: int = 0
    choices: frozenset[object] = frozenset()

    def inputs(self, handler: Handler) -> list[Any]:
        """The values that this call needs in front of the old inputs."""
        front = self.front(handler)
        return [*front, handler.allot(self.span)] if self.takes_base else front

    def front(self, handler: Handler) -> list[Any]:
        """The first of these: constants, and the arrays of the handler."""
        return [*self.consts, *handler.arrays()] if self.n_arrays else self.consts

    @property
    def front_types(self) -> list[Any]:
        """The types of the constants and of the arrays of the handler."""
        return [v.aval for v in _jax.open_jaxpr(self.jaxpr).invars[: len(self.consts) + self.n_arrays]]

    @property
    def types(self) -> list[Any]:
        """The types of the extra outputs."""
        return [v.aval for v in _jax.open_jaxpr(self.jaxpr).outvars[self.n_outs :]]

    def known(self, outs: Any, inputs: Sequence[Any], scan: dict[str, Any] | None = None) -> Any:
        """The outputs of a call, with numbers in place of those that are known; see `tokens`."""
        key = "known", scan and scan["length"]  # several loops may have one body
        plan = self.cache.get(key)
        if plan is None:
            plan = self.cache[key] = knowable_outputs(self.jaxpr, self._tokens, scan)
        return known_outputs(outs, plan, inputs) if plan else outs

    @property
    def _tokens(self) -> list[bool]:
        """For each output, whether it is the token of an item."""
        return [False] * self.n_outs + [name == "token" for spec in self.specs for name in spec.names]

    def in_run(self, run: int, choices: frozenset[object]) -> Rewritten:
        """The program for a later run in one capture, in which the branches of these choices are other ones."""
        key = "run", run, choices
        if run and key not in self.cache:
            specs = in_new_choices(self.specs, choices)
            self.cache[key] = dataclasses.replace(self, specs=specs, choices=_choices_of(specs))
        return self.cache[key] if run else self

    @property
    def n_extra(self) -> int:
        """How many extra outputs there are."""
        return sum(spec.size for spec in self.specs)

    @property
    def deduplicated(self) -> Deduplicated:
        """The program with every extra output once: one value that is passed on may have many sites."""
        if "distinct" not in self.cache:
            (self.cache["distinct"],) = deduplicated([self.jaxpr], self.n_outs)
        return self.cache["distinct"]

    def call(self, handler: Handler, args: Sequence[Any], bind: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
        """The outputs of the program for these arguments; the handler gets what was recorded.

        Args:
            handler: That for which it was rewritten.
            args: The old inputs.
            bind: Binds the primitive with the rewritten program, given all inputs.
        """
        inputs = [*self.inputs(handler), *args]
        outs = self.known(bind(inputs), inputs)
        handler.items += self.items(outs)
        return list(outs[: self.n_outs])

    def items(self, outs: Sequence[Any], axis: Axis | None = None) -> list[Item]:
        """The recorded items from the outputs of a call, of a loop if `axis` is given."""
        specs = self.specs if axis is None else [spec.inside(axis) for spec in self.specs]
        return build_items(specs, outs[self.n_outs :])

    def items_of_named(self, outs: Sequence[Any], axis: Axis, path: str) -> list[Item]:
        """The recorded items of a named loop: those of values below its path have its rows."""
        rows = dataclasses.replace(axis, rows=tuple(range(axis.size or 0)))
        specs = [
            spec.inside(rows if spec.view.is_value and spec.path.startswith(f"{path}*/") else axis)
            for spec in self.specs
        ]
        return build_items(specs, outs[self.n_outs :])


PROGRAMS = ByIdentity(Programs)  # what was made of a jaxpr, by what it depends on


def rewrite(jaxpr: _jax.Jaxpr, handler: Handler, steps: Sequence[Any] = (), *, loop: Loop | None = None) -> Rewritten:
    """Rewrites a jaxpr for a handler.

    Args:
        jaxpr: Open without constants, or closed.
        handler: Decides what to do at the sites, and receives what was recorded.
        steps: Types of the slices that a loop gives every iteration; more inputs at the end.
        loop: The loop, if the jaxpr is the body of one, or its test.
    """
    handler = handler.entering(loop)
    kept_programs = PROGRAMS.of(jaxpr) if handler.key is not None else None
    # A gradient is recorded if its value was, and that may have been before this program ran.
    gradients_wanted = tuple(map(handler.met.wants_gradient, gradient_sites(jaxpr))) if handler.patterns else ()
    depends_on = handler.key, handler.counts.key, handler.position.key, handler.passes_on
    key = (*depends_on, gradients_wanted, capture_state(), *map(str, steps))
    rewritten = None if kept_programs is None else kept_programs.get(key)
    if rewritten is None:
        rewritten = _by_moving(jaxpr, handler) if handler.records_only and not handler.passes_on else None
        if rewritten is None:
            rewritten = _by_running(jaxpr, handler, steps)
        # Traced constants belong to this run alone.
        if kept_programs is not None and not any(isinstance(c, _jax.Tracer) for c in rewritten.consts):
            rewritten.meter.bytes += Meter.TRACED * len(_jax.open_jaxpr(rewritten.jaxpr).eqns)
            kept_programs.keep(key, rewritten, rewritten.meter)
            rewritten.cache["calls"] = handler.counts.after()
    else:
        handler.counts.repeat(rewritten.cache["calls"])
        if handler.tells_loops_apart:
            rewritten = dataclasses.replace(rewritten, specs=in_new_loops(rewritten.specs))
    handler.counts.leave(handler.position.choices)
    handler.met.update(rewritten.met)
    return _with_choices_of_run(rewritten, handler)


def _with_choices_of_run(rewritten: Rewritten, handler: Handler) -> Rewritten:
    """The program as it runs now: called twice in one capture it chooses twice, though it was rewritten once."""
    inside = rewritten.choices - handler.position.choices
    if not inside:
        return rewritten
    run = max(handler.runs_of_choices.get(choice, 0) for choice in inside)
    handler.runs_of_choices.update(dict.fromkeys(inside, run + 1))
    return rewritten.in_run(run, inside)


def _by_running(jaxpr: _jax.Jaxpr, handler: Handler, steps: Sequence[Any]) -> Rewritten:
    takes_base = gives_tokens(jaxpr)
    types = [v.aval for v in _jax.open_jaxpr(jaxpr).invars]
    results: list[Any] = []

    arrays = handler.arrays() if handler.key is not None else []
    n = len(arrays)

    def run(*flat: Any) -> list[Any]:
        inside, flat = handler.with_arrays(flat[:n]) if n else handler, flat[n:]
        base, flat = (flat[0], flat[1:]) if takes_base else (1, flat)
        args, slices = flat[: len(types)], flat[len(types) :]
        child = inside.child(base=base, steps=slices)
        outs = run_under(child, _jax.eval_jaxpr, jaxpr, *args)
        results[:] = [len(outs), flat_specs(child.items), child.span, child.met.alone()]  # and no tracers
        return [*outs, *flat_arrays(child.items)]

    array_types = [*map(_jax.typeof, arrays)]
    traced, consts = _jax.trace_to_jaxpr(run, [*array_types, *[TOKEN_TYPE] * takes_base, *types, *steps])
    n_outs, specs, span, sites_met = results
    return Rewritten(traced, consts, n_outs, specs, takes_base, span, sites_met, n_arrays=n, choices=_choices_of(specs))


def _choices_of(specs: Sequence[Item]) -> frozenset[object]:
    return frozenset(gate.choice for spec in specs for gate in spec.view.gates)


def _by_moving(jaxpr: _jax.Jaxpr, handler: Handler) -> Rewritten | None:
    """Drops site equations; None if something inside needs more than that."""
    if _jax.close_jaxpr(jaxpr).consts:  # they would have to become inputs
        return None
    program, moving = _jax.open_jaxpr(jaxpr), _Moving(jaxpr, handler)
    with_sites = set(map(id, equations_with_sites(program)))
    for eqn in program.eqns:
        if id(eqn) not in with_sites:
            moving.keep(eqn)
        elif eqn.primitive is site_p and not eqn.params["view"].gates:
            moving.drop_site(eqn)
        # A loop or a branch needs its rule. And where a site has gates, the values of elements that took another branch
        # are set to zero, which is an operation.
        elif eqn.primitive is not _jax.jit_p or not moving.rewrite_call(eqn):
            return None
    child = moving.child
    moved = _jax.replace_jaxpr(
        jaxpr,
        extra_invars=[] if moving.base is None else [moving.base],
        eqns=moving.equations,
        outvars=[*map(moving.current, program.outvars), *flat_arrays(child.items)],
        effects=program.effects - {site_effect},
    )
    takes_base, n_outs = moving.base is not None, len(program.outvars)
    return Rewritten(moved, [], n_outs, flat_specs(child.items), takes_base, child.span, child.met.alone())


class _Moving:
    """A program while its sites are dropped: variables of the program stand where a handler has arrays elsewhere.

    Attributes:
        child: Records the variables.
        base: The input that is the token to start from; None if no site gives out a token.
        equations: Those of the new program so far.
    """

    def __init__(self, jaxpr: _jax.Jaxpr, handler: Handler) -> None:
        self.child = handler.child()
        self.base = _jax.new_var(TOKEN_TYPE) if gives_tokens(jaxpr) else None
        self.equations: list[Any] = []
        self._replaced: dict[Any, Any] = {}
        self._sites_met: set[Site] = set()

    def current(self, atom: Any) -> Any:
        """What an operand of the old program is in the new one."""
        return atom if isinstance(atom, _jax.Literal) else self._replaced.get(atom, atom)

    def keep(self, eqn: _jax.Equation) -> None:
        """An equation without sites; the same object where nothing changes, as in most of a large program."""
        if any(type(v) is _jax.Var and v in self._replaced for v in eqn.invars):
            eqn = eqn.replace(invars=[*map(self.current, eqn.invars)])
        self.equations.append(eqn)

    def drop_site(self, eqn: _jax.Equation) -> None:
        """A site: its operands stand for its results, and are recorded."""
        site, view = eqn.params["site"], eqn.params["view"]
        operands = operands_of([*map(self.current, eqn.invars)], site, view)
        outs = list(operands.arrays)
        if view.gives_token(site):
            # Tokens only tell the calls of one site apart, so all sites that were not inlined twice have one.
            operands.token = self._token_after(1) if site in self._sites_met else self.base
            self._sites_met.add(site)
            outs.append(operands.token)
        if self.child.sees(site):
            where = self.child.meet(site, view, _jax.names_of(eqn))
            if view.role != "mark":
                self.child.record(operands.arrays, where, operands.extras)
        self._replaced.update(zip(eqn.outvars, outs))

    def rewrite_call(self, eqn: _jax.Equation) -> bool:
        """A jitted call, which returns what was recorded inside; False if it takes constants."""
        with _jax.open_names_of(eqn):
            inner = rewrite(eqn.params["jaxpr"], self.child)
        if inner.consts:
            return False
        front = [self._token_after(inner.span)] if inner.takes_base else []
        once = inner.deduplicated
        extra = [_jax.new_var(v.aval) for v in _jax.open_jaxpr(once.jaxpr).outvars[once.n_outs :]]
        params = _jax.jit_params(eqn.params, once.jaxpr, n_in=len(front), n_out=len(extra))
        invars, outvars = [*front, *map(self.current, eqn.invars)], [*eqn.outvars, *extra]
        effects = eqn.effects - {site_effect}
        self.equations.append(eqn.replace(invars=invars, outvars=outvars, params=params, effects=effects))
        self.child.items.append(Bundle(inner.specs, once.spread(outvars)[once.n_outs :], inner.cache))
        return True

    def _token_after(self, span: int) -> Any:
        """A new token, of so many that the child then has given out."""
        eqn, var = _jax.add_equation(self.base, self.child.skip(span))
        self.equations.append(eqn)
        return var
