"""`while_loop`, of unknown length: the values of the last iteration, and the number of iterations.

On request the last few iterations are kept, in a ring that is put in order after the loop (`loop_carry`).

Under `vmap` with a mapped predicate the loop runs until the last element is done. The predicate is then an array, and
everything that the loop carries has its axes in front: JAX does not change an element that has finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._jax import batching, mlir
from sonde.core.edits.plan import running
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import build_items
from sonde.core.interpret.rebinding import Rebinding, rebound
from sonde.core.interpret.rewrite import PROGRAMS, Rewritten, rewrite
from sonde.core.interpret.rules.loop_carry import LoopState, gate_from_outside
from sonde.core.interpret.trace import RULES, SiteTrace, check_may_miss_all
from sonde.core.interpret.where import Loop
from sonde.core.marks.batch_like import repeated
from sonde.core.marks.operands import TOKEN, WRITTEN_DOWN, operands_of
from sonde.core.marks.primitive import bind_site, site_p
from sonde.core.marks.site import Site, View
from sonde.core.marks.site_search import gives_tokens, has_sites, sites_inside
from sonde.core.session.session import capture_state
from sonde.errors import EditError

INDEX_TYPE = _jax.typeof(np.zeros((), np.int32))


def while_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A while loop, or a `fori_loop` with bounds known only when it runs."""
    handler = trace.handler
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, init = args[:n_test], args[n_test : n_test + n_body], args[n_test + n_body :]
    active, mapped = _jax.open_jaxpr(params["cond_jaxpr"]).outvars[0].aval, _mapped_loop(params["cond_jaxpr"])
    test = _Part(params["cond_jaxpr"], handler, test_consts, active)  # runs first: calls are counted in that order
    body = _Part(params["body_jaxpr"], handler, body_consts, active)
    if not (body.new.specs or test.new.specs or handler.counts_iterations):
        # Nothing has to come out: the loop stays as it is.
        return _bind(*_also_asked(handler, test), body.new.jaxpr, body.front, init)
    if active.shape and mapped is None:  # the loop was not mapped by the rule below
        # A program that interprets others, such as Quax, put the sites into a loop that `vmap` had mapped before. Which
        # of their axes are those of the predicate is not known.
        check_may_miss_all(_jax.while_p, params, "was mapped before it had sites")
        return _jax.while_p.bind(*args, **(_rewritten(params, Rebinding(_leave_out), has_sites) or params))
    keep = body.keep(active, handler, mapped)
    keep_test = test.keep(active, handler, mapped)
    # The test runs once before the loop and once in every iteration. If another capture records it too, it stays where
    # it is, and what is recorded here is computed once more. Otherwise the loop carries its answer.
    computed_again = bool(test.new.specs) and handler.passes_on
    recorded_test = _Part(params["cond_jaxpr"], handler.quietly(), test_consts, active) if computed_again else test
    carries_answer = bool(test.new.specs) and not computed_again

    def run_test(
        front: Sequence[Any], carry: Sequence[Any], count: Any, kept: Sequence[Any] | None = None
    ) -> tuple[list[Any], list[Any]]:
        """The answer, if the loop carries it, and what is kept of this run of the test and those before."""
        if not test.new.specs:
            return [], []
        (answer,), recorded = recorded_test.run(front, carry, count)
        kept_now = keep_test.begin(recorded) if kept is None else keep_test.update(count, recorded, kept)
        return [answer] * carries_answer, kept_now

    count = keep.no_iterations()
    kept_of_body = keep.empty(body.new.types, body.known_before())
    start = _State(list(init), kept_of_body, count, *run_test(recorded_test.front, init, count))

    def go_on(*flat: Any) -> list[Any]:
        n = len(test.front)
        state = start.rebuilt(flat[n:])
        return state.answer if carries_answer else test.run(flat[:n], state.carry, state.count)[0]

    def step(*flat: Any) -> list[Any]:
        n_body = len(body.front)
        n = n_body + len(recorded_test.front)
        before = start.rebuilt(flat[n:])
        carry, recorded = body.run(flat[:n_body], before.carry, before.count)
        kept, count = keep.update(before.count, recorded, before.of_body), before.count + 1
        return _State(carry, kept, count, *run_test(flat[n_body:n], carry, count, before.of_test)).flat()

    types, step_front = [*map(_jax.typeof, start.flat())], [*body.front, *recorded_test.front]
    # The same jaxprs each time: JAX compiles a loop that is not in a jitted function again for other jaxprs.
    parts = (body.new, test.new, recorded_test.new)
    # What a part closes over is an operand (`front`), so that the programs serve other arrays.
    key = ("while", *map(id, parts), tuple(types), handler.last)
    programs = body.new.cache.get(key)
    if programs is None:
        go_on_and_consts = _jax.trace_to_jaxpr(go_on, [*map(_jax.typeof, test.front), *types])
        step_and_consts = _jax.trace_to_jaxpr(step, [*map(_jax.typeof, step_front), *types])
        programs = go_on_and_consts, step_and_consts, parts  # with the parts: their ids are in the key
        if not any(isinstance(x, _jax.Tracer) for x in (*go_on_and_consts[1], *step_and_consts[1])):
            body.new.cache[key] = programs
    (test_jaxpr, test_consts), (step_jaxpr, step_consts), _ = programs
    end = start.rebuilt(
        _bind(test_jaxpr, [*test_consts, *test.front], step_jaxpr, [*step_consts, *step_front], start.flat())
    )
    loop = object()
    handler.items += keep_test.items(end.of_test, end.count, loop, runs=end.count + 1)
    handler.items += keep.items(end.of_body, end.count, loop, runs=end.count)
    return end.carry


class _State(NamedTuple):
    """What a loop carries from which values come out.

    Attributes:
        carry: What the program carries.
        of_body: What is kept of the runs of the body.
        count: How many times the body has run.
        answer: That of the test, if the loop carries it.
        of_test: What is kept of the runs of the test.
    """

    carry: list[Any]
    of_body: list[Any]
    count: Any
    answer: list[Any]
    of_test: list[Any]

    def flat(self) -> list[Any]:
        """The carry of the loop as JAX wants it: one flat list."""
        return [*self.carry, *self.of_body, self.count, *self.answer, *self.of_test]

    def rebuilt(self, flat: Iterable[Any]) -> _State:
        """The state with other values, from a flat list of them."""
        values = iter(flat)
        carry, of_body = [[next(values) for _ in part] for part in (self.carry, self.of_body)]
        return _State(carry, of_body, next(values), [next(values) for _ in self.answer], list(values))


def _bind(
    test: _jax.Jaxpr, test_consts: Sequence[Any], body: _jax.Jaxpr, body_consts: Sequence[Any], init: Sequence[Any]
) -> Any:
    return _jax.while_p.bind(
        *test_consts,
        *body_consts,
        *init,
        cond_nconsts=len(test_consts),
        cond_jaxpr=test,
        body_nconsts=len(body_consts),
        body_jaxpr=body,
    )


class _Part:
    """The test or the body of a loop, rewritten."""

    def __init__(self, jaxpr: _jax.Jaxpr, handler: Handler, consts: Sequence[Any], active: Any) -> None:
        self.numbered = handler.counts_iterations
        # On a mesh, the number of the iteration varies where the test does.
        axes = _jax.varying_axes_of_type(active)
        index_type = _jax.typeof(_jax.varying_over(np.zeros((), np.int32), axes)) if axes else INDEX_TYPE
        self.new: Rewritten = rewrite(jaxpr, handler, [index_type] * self.numbered, loop=Loop(None, None))
        self.front = [*self.new.inputs(handler), *consts]

    def run(self, front: Sequence[Any], carry: Sequence[Any], count: Any) -> tuple[list[Any], list[Any]]:
        """The outputs of the program, and what was recorded; `front` is `self.front`, or tracers for it."""
        # An element that is still active has run in every iteration.
        steps = [jnp.max(count, initial=0)] * self.numbered
        outs = _jax.eval_jaxpr(self.new.jaxpr, *front, *carry, *steps)
        return outs[: self.new.n_outs], outs[self.new.n_outs :]

    def keep(self, active: Any, handler: Handler, mapped: object) -> LoopState:
        """What the loop carries along for it."""
        return LoopState(self.new.specs, self.new.deduplicated.numbers, active, handler.last, mapped)

    def known_before(self) -> list[Any]:
        """For each of the recorded arrays, its value for an element that never runs; None for zeros."""
        flags = build_items(self.new.specs, [*range(self.new.n_outs, self.new.n_outs + self.new.n_extra)])
        constants: list[Any] = [None] * self.new.n_extra
        for item in flags:
            if "taken" in item.extras:
                at = item.extras["taken"]
                constants[at - self.new.n_outs] = gate_from_outside(self.new.jaxpr, at, self.front)
        return constants


def _also_asked(handler: Handler, test: _Part) -> tuple[Any, list[Any]]:
    """The test of a loop that continues only where the handler allows it, and its constants."""
    if not handler.stops_loops:
        return test.new.jaxpr, test.front

    def ask(*flat: Any) -> list[Any]:
        (answer,) = _jax.eval_jaxpr(test.new.jaxpr, *flat)
        return [jnp.logical_and(answer, handler.values)]

    jaxpr, consts = _jax.trace_to_jaxpr(ask, [v.aval for v in _jax.open_jaxpr(test.new.jaxpr).invars])
    return jaxpr, [*consts, *test.front]


RULES[_jax.while_p] = while_rule


# ---------------------------------------------------------------------------------------------------------------------
# Under remat JAX cannot save anything from inside a while loop, not even a token. It cannot differentiate the loop
# backward either, so its sites need no gradients; when remat computes the loop again, its values are already recorded.
# ---------------------------------------------------------------------------------------------------------------------


_numbers = itertools.count(WRITTEN_DOWN, -1)


def _bind_look(_: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
    """Splits a site into the value, which passes through, and a look that records it.

    Gradients that are computed in the body find their values by constant tokens.
    """
    if view.role == "supply":
        return site_p.bind(*args, site=running(site, "twice"), view=view)
    if not view.gives_token(site):
        return site_p.bind(*args, site=site, view=view)
    operands = operands_of(args, site, view)
    operands.token = np.asarray(next(_numbers), TOKEN)
    if view.role == "site":
        bind_site(operands, site, view.replace(role="look"))
    return [*operands.arrays, operands.token]


def _leave_out(_: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
    """The values of a site in its place, and a token that is not used."""
    if view.role == "supply":
        return site_p.bind(*args, site=running(site, "again"), view=view)
    values = [] if view.role == "look" else operands_of(args, site, view).arrays
    return [*values, np.zeros((), TOKEN)] if view.gives_token(site) else values


def _leave_out_of_call(_: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
    """The values of a site in a function with its own derivatives, which no edit can reach."""
    if view.role == "supply":
        raise EditError(
            f"edit of {site.path!r} ({site.line}): the site is in a function with its own derivatives, in a "
            "while_loop that jax.checkpoint computes again; edit the result of the function, or leave out "
            "jax.checkpoint"
        )
    return _leave_out((), args, site, view)


_PARTS = ("cond_jaxpr", "body_jaxpr")


def _rewritten(params: dict[str, Any], handler: Rebinding, wants: Callable[[Any], bool]) -> dict[str, Any] | None:
    parts = {}
    for name in _PARTS:
        jaxpr = params[name]
        if wants(jaxpr):
            parts[name] = rebound(jaxpr, lambda *_: handler)
    return {**params, **parts} if parts else None


def _has_sites(params: dict[str, Any]) -> bool:
    return any(has_sites(params[name]) for name in _PARTS)


def _without_tokens(params: dict[str, Any]) -> dict[str, Any] | None:
    # JAX would save what a call with sites inside returns.
    looking = Rebinding(_bind_look, in_custom_calls=Rebinding(_leave_out_of_call))
    return _rewritten(params, looking, lambda jaxpr: has_sites(jaxpr) and (gives_tokens(jaxpr) or _asks(jaxpr)))


def _asks(jaxpr: _jax.Jaxpr) -> bool:
    """Whether a site inside asks an edit."""
    return any(equation.view.role == "supply" for equation in sites_inside(jaxpr))


def _met_already(forward: dict[str, Any], again: dict[str, Any]) -> dict[str, Any] | None:
    equations = [equations for name in _PARTS for equations in sites_inside(forward[name])]
    recorded_sites = frozenset(f.site for f in equations if f.view.role != "mark")

    def bind_others(_: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        if site in recorded_sites:
            return _leave_out((), args, site, view)
        return site_p.bind(*args, site=site, view=view)

    return _rewritten(again, Rebinding(bind_others), has_sites) if recorded_sites else None


_jax.at_first_capture(lambda: _jax.prepare_while_loops_for_remat(_has_sites, _without_tokens, _met_already))


# ---------------------------------------------------------------------------------------------------------------------
# Under vmap with a mapped predicate: which axes of a site are those of the predicate? Every site inside gets an operand
# that is mapped, too, and so learns of the axis (`Axis.stopping`). The loop gets a name by which it is found again.
# ---------------------------------------------------------------------------------------------------------------------

mapped_p = _jax.Primitive("sonde_mapped_while")  # the identity, on the predicate of a loop; its parameter is the name
mapped_p.def_impl(lambda x, *, loop: x)
mapped_p.def_abstract_eval(lambda x, *, loop: x)
mlir.register_lowering(mapped_p, lambda ctx, x, *, loop: [x])
batching.primitive_batchers[mapped_p] = lambda args, dims, *, loop: (mapped_p.bind(args[0], loop=loop), dims[0])


def _mapped_loop(test: _jax.Jaxpr) -> object:
    """The name that a loop got when it was mapped; None if it was not."""
    loops = (eqn.params["loop"] for eqn in _jax.open_jaxpr(test).eqns if eqn.primitive is mapped_p)
    return next(loops, None)


def _predicate_is_mapped(axis_data: _jax.AxisData, dims: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the elements of a loop that is mapped like this may stop at different iterations."""
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    mapped = [d is not None for d in dims]
    test_consts, body_consts, carry = mapped[:n_test], mapped[n_test : n_test + n_body], mapped[n_test + n_body :]
    for _ in range(len(carry) + 1):
        outs = _jax.mapped_outputs(params["body_jaxpr"], axis_data, [*body_consts, *carry], carry)
        if carry == outs:
            break
        carry = [a or b for a, b in zip(carry, outs)]
    return _jax.mapped_outputs(params["cond_jaxpr"], axis_data, [*test_consts, *carry], False)[0]


def _naming_batcher(plain: Any) -> Any:
    def rule(axis_data: _jax.AxisData, args: Sequence[Any], dims: _jax.Dims, **params: Any) -> Any:
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        if not (has_sites(test) or has_sites(body)) or not _predicate_is_mapped(axis_data, dims, params):
            return plain(axis_data, args, dims, **params)
        on_mesh = axis_data.explicit_mesh_axis is not None
        params["cond_jaxpr"], params["body_jaxpr"] = _with_active(test, body, on_mesh)
        n = params["cond_nconsts"]
        params.update(cond_nconsts=n + 1, body_nconsts=params["body_nconsts"] + 1)
        number = repeated(np.zeros((), np.int32), axis_data)
        args = list(map(_jax.on_mesh_around, args)) if on_mesh else args
        args, dims = [number, *args[:n], number, *args[n:]], [0, *dims[:n], 0, *dims[n:]]
        return plain(axis_data, args, dims, **params)

    return rule


def _with_active(test: _jax.Jaxpr, body: _jax.Jaxpr, on_mesh: bool) -> tuple[Any, Any]:
    """Test and body of a loop with one more operand in front, which every site inside gets.

    If they are about to be mapped over an axis of a mesh, all types must name the mesh: that of a counter does not.
    """
    mesh = jax.sharding.get_abstract_mesh() if on_mesh else None
    old_name = _mapped_loop(test)
    # Two loops may have one test, so a new name belongs to both parts. The test is kept, so that its id stays valid.
    names_before, pair = PROGRAMS.of(body), ("loop name", id(test), capture_state(), mesh)
    if pair not in names_before:
        names_before[pair] = test, old_name or object()
    loop = names_before[pair][1]

    def with_name(outs: list[Any], _: Sequence[Any]) -> list[Any]:
        return outs if old_name is not None else [mapped_p.bind(outs[0], loop=loop)]

    def laid_out(outs: list[Any], _: Sequence[Any]) -> list[Any]:
        return list(map(_jax.on_mesh_around, outs)) if on_mesh else outs

    def bind_active(number: Any, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        operands = operands_of(args, site, view)
        operands.active = (*operands.active, number)  # it will be mapped like the predicate
        return bind_site(operands, site, view.replace(whiles=(*view.whiles, loop)))

    def part(jaxpr: _jax.Jaxpr, then: Callable[[list[Any], Sequence[Any]], list[Any]]) -> Any:
        number, *types = [INDEX_TYPE, *[v.aval for v in _jax.open_jaxpr(jaxpr).invars]]
        if on_mesh:
            number, *types = map(_jax.type_on_mesh_around, [number, *types])
        key = "active", loop, mesh
        active = lambda *inputs: Rebinding(bind_active, inputs[0])  # noqa: E731
        return rebound(jaxpr, active, front=[number], types=types, then=then, key=key)

    return part(test, with_name), part(body, laid_out)


def _change_mapping() -> None:
    rules = batching.fancy_primitive_batchers
    rules[_jax.while_p] = _naming_batcher(rules[_jax.while_p])


_jax.at_first_capture(_change_mapping)
