"""Plants faults in the equations of traced programs, and says, without Sonde, where each strikes.

A program is traced to a jaxpr. A fault is a few equations after one of its equations, wherever that is nested: they
are the identity, but for one element of one run of that equation, which they make NaN or Inf. They have the source line
of the equation that they follow. An interpreter of some hundred lines runs the clean program equation by equation; it
says what the equation computes in each iteration, so that a number can be chosen that occurs in one of them alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import core, source_info_util
from jax._src.interpreters import partial_eval as pe

INNER = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "scan": "jaxpr",
    "while": "body_jaxpr",
}
"""The parameter with the program that an equation runs."""

# What strikes: the text of the element, and a function of a value and of a choice between two numbers.
KINDS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "log": ("log(-7.25)", lambda x, pick: x + lax.log(pick(-7.25, 1.0))),
    "sqrt": ("sqrt(-5.5)", lambda x, pick: x + lax.sqrt(pick(-5.5, 0.0))),
    "exp": ("exp(876.5)", lambda x, pick: x * lax.exp(pick(876.5, 0.0))),
    "div": ("0 / 0", lambda x, pick: x + (pick(0.0, 0.0) / pick(0.0, 1.0))),
    "mul": ("3e+38 * 3.25", lambda x, pick: x + pick(3e38, 0.0) * pick(3.25, 0.0)),
}

Path = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Fault:
    """Where and how a program is broken.

    Attributes:
        path: The equation: positions from the outermost program inward, with the number of the program in each.
        output: Which of its results.
        kind: A key of `KINDS`.
        value: The number at which it strikes.
        source: The line of the equation, as `file:line`.
        package: The package that the line is in.
        iteration: The iteration of every loop around, or None where the number occurs in several.
    """

    path: Path
    output: int
    kind: str
    value: Any
    source: str
    package: str
    iteration: tuple[int, ...] | None


def line_of(eqn: Any) -> str:
    """The innermost line of an equation that is not JAX's own, as `file:line`."""
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    return "" if frame is None else f"{frame.file_name}:{frame.start_line}"


def package_of(source: str) -> str:
    """The installed package that a line is in; empty if it is in none."""
    before, found, after = source.partition("site-packages/")
    return after.split("/")[0] if found else ""


def programs_of(eqn: Any) -> list[Any]:
    """The programs inside an equation that a fault may be planted in."""
    if eqn.primitive.name == "cond":
        return list(eqn.params["branches"])
    name = INNER.get(eqn.primitive.name)
    return [] if name is None else [eqn.params[name]]


def opened(jaxpr: Any) -> Any:
    """A jaxpr without its constants."""
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


def equations(jaxpr: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All equations, those inside others too, with their paths."""
    for number, eqn in enumerate(opened(jaxpr).eqns):
        inner = programs_of(eqn)
        if not inner:
            yield (*path, (number, 0)), eqn
        for which, program in enumerate(inner):
            yield from equations(program, (*path, (number, which)))


# -- the interpreter ---------------------------------------------------------------------------------------------------


class TooLong(Exception):
    """The program runs more equations than the interpreter is willing to."""


class Interpreter:
    """Runs a program equation by equation, loops unrolled, and calls `see` with the results of each equation.

    Args:
        see: Is given the path of an equation, the iteration of each loop around it, and its results.
        most: How many equations may run.
    """

    def __init__(self, see: Callable[[Path, tuple[int, ...], list[Any]], None], most: int = 6000) -> None:
        self.see, self.left = see, most

    def run(self, jaxpr: Any, args: Sequence[Any], path: Path = (), at: tuple[int, ...] = ()) -> list[Any]:
        """The results of a program."""
        inner = opened(jaxpr)
        consts = jaxpr.consts if isinstance(jaxpr, core.ClosedJaxpr) else []
        env = dict(zip([*inner.constvars, *inner.invars], [*consts, *args], strict=True))
        read = lambda v: v.val if isinstance(v, core.Literal) else env[v]
        for number, eqn in enumerate(inner.eqns):
            outs = self.equation(eqn, [read(v) for v in eqn.invars], (*path, (number, 0)), at)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in inner.outvars]

    def equation(self, eqn: Any, args: list[Any], path: Path, at: tuple[int, ...]) -> list[Any]:
        """The results of one equation."""
        self.left -= 1
        if self.left < 0:
            raise TooLong
        name, params = eqn.primitive.name, eqn.params
        if name == "scan":
            return self.scan(eqn, args, path, at)
        if name == "while":
            return self.while_loop(params, args, path, at)
        if name == "cond":
            which = int(np.clip(args[0], 0, len(params["branches"]) - 1))
            return self.run(params["branches"][which], args[1:], (*path[:-1], (path[-1][0], which)), at)
        if name in INNER:
            return self.run(params[INNER[name]], args, path, at)
        outs = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
        outs = list(outs) if eqn.primitive.multiple_results else [outs]
        self.see(path, at, outs)
        return outs

    def scan(self, eqn: Any, args: list[Any], path: Path, at: tuple[int, ...]) -> list[Any]:
        """The results of a scan."""
        p = eqn.params
        n_consts, n_carry, length = p["num_consts"], p["num_carry"], p["length"]
        consts, carry, rows = args[:n_consts], args[n_consts : n_consts + n_carry], args[n_consts + n_carry :]
        made: list[list[Any]] = [[] for _ in opened(p["jaxpr"]).outvars[n_carry:]]
        backward = "transpose(" in str(eqn.source_info.name_stack)
        for i in range(length):
            row = length - 1 - i if p["reverse"] else i
            shown = length - 1 - i if backward else i
            outs = self.run(p["jaxpr"], [*consts, *carry, *[x[row] for x in rows]], path, (*at, shown))
            carry = outs[:n_carry]
            for into, y in zip(made, outs[n_carry:], strict=True):
                into.append(y)
        order = slice(None, None, -1) if p["reverse"] else slice(None)
        if not length:
            types = [v.aval for v in eqn.outvars[n_carry:]]
            return [*carry, *[jnp.zeros(t.shape, t.dtype) for t in types]]
        return [*carry, *[jnp.stack(ys[order]) for ys in made]]

    def while_loop(self, p: dict[str, Any], args: list[Any], path: Path, at: tuple[int, ...]) -> list[Any]:
        """The results of a while loop; one of examples goes on while one of them does."""
        n_test, n_body = p["cond_nconsts"], p["body_nconsts"]
        tested, consts, carry = args[:n_test], args[n_test : n_test + n_body], args[n_test + n_body :]
        silent = Interpreter(lambda *_: None, self.left)
        i = 0
        while True:
            (again,) = silent.run(p["cond_jaxpr"], [*tested, *carry])
            if not np.any(again):
                return carry
            new = self.run(p["body_jaxpr"], [*consts, *carry], path, (*at, i))
            choose = lambda a, b: jnp.where(again.reshape(again.shape + (1,) * (a.ndim - again.ndim)), a, b)
            carry = [choose(a, b) for a, b in zip(new, carry, strict=True)] if np.ndim(again) else new
            i += 1


# -- planting ----------------------------------------------------------------------------------------------------------


def reach(value: Any) -> float:
    """How far from the number a fault strikes too: programs compiled in another way round differently."""
    return 1e-4 * float(abs(value)) + 1e-7


def traced(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A function as a closed jaxpr, without what its results do not need: a fault there would be in no result."""
    closed = jax.make_jaxpr(f)(*args)
    kept, _ = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return core.ClosedJaxpr(kept, closed.consts)


def choose(jaxpr: Any, args: Sequence[Any], random: Random, count: int) -> list[Fault]:
    """Faults at random equations of third-party packages, at numbers that occur in one iteration alone if possible."""
    candidates = [
        (path, output, eqn)
        for path, eqn in equations(jaxpr)
        for output, v in enumerate(eqn.outvars)
        if getattr(v.aval, "dtype", None) == np.float32 and not isinstance(v, core.DropVar) and v.aval.size
        if package_of(line_of(eqn)) not in ("", "jax", "jaxlib", "sonde")
    ]
    if not candidates:
        return []
    picked = random.sample(candidates, min(3 * count, len(candidates)))
    wanted = {path for path, _, _ in picked}
    seen: dict[Path, list[tuple[tuple[int, ...], list[Any]]]] = {}

    def see(path: Path, at: tuple[int, ...], outs: list[Any]) -> None:
        if path in wanted:
            seen.setdefault(path, []).append((at, [np.asarray(x) if isinstance(x, jax.Array) else x for x in outs]))

    Interpreter(see).run(jaxpr, args)
    faults = []
    for path, output, eqn in picked:
        runs = seen.get(path, [])
        if not runs or len(faults) == count:
            continue  # a branch that is not taken
        for _ in range(20):
            at, outs = random.choice(runs)
            value = random.choice(outs[output].ravel())
            hits = [other for other, results in runs if np.any(np.abs(results[output] - value) <= 3 * reach(value))]
            if np.isfinite(value) and len(hits) == 1:
                break
        else:
            if not np.isfinite(value):
                continue
        source = line_of(eqn)
        iteration = at if len(hits) == 1 else None
        kind = random.choice(list(KINDS))
        faults.append(Fault(path, output, kind, value, source, package_of(source), iteration))
    return faults


def planted(jaxpr: Any, fault: Fault) -> Any:
    """A closed jaxpr with the fault in it."""
    new = _planted(jaxpr, fault.path, fault)
    return new if isinstance(new, core.ClosedJaxpr) else core.ClosedJaxpr(new, ())


def _planted(jaxpr: Any, path: Path, fault: Fault) -> Any:
    inner = opened(jaxpr)
    (number, which), deeper = path[0], path[1:]
    eqn = inner.eqns[number]
    if deeper:
        if eqn.primitive.name == "cond":
            branches = list(eqn.params["branches"])
            branches[which] = _planted(branches[which], deeper, fault)
            changed = {"branches": tuple(branches)}
        else:
            name = INNER[eqn.primitive.name]
            changed = {name: _planted(eqn.params[name], deeper, fault)}
        new = [eqn.replace(params={**eqn.params, **changed})]
    else:
        new = _with_fault(eqn, fault)
    eqns = [*inner.eqns[:number], *new, *inner.eqns[number + 1 :]]
    replaced = inner.replace(eqns=eqns)
    return core.ClosedJaxpr(replaced, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else replaced


def _with_fault(eqn: Any, fault: Fault) -> list[Any]:
    """An equation whose result goes through the fault before anything uses it."""
    old = eqn.outvars[fault.output]
    fresh = core.Var(old.aval)
    _, strike = KINDS[fault.kind]
    shape = old.aval.shape

    def breaking_of(x: Any) -> Any:
        middle, around = [lax.full(shape, v, np.float32) for v in (fault.value, reach(fault.value))]
        hit = lax.le(lax.abs(x - middle), around)
        return strike(x, lambda a, b: lax.select(hit, *[lax.full(shape, v, np.float32) for v in (a, b)]))

    breaking = jax.make_jaxpr(breaking_of)(jax.ShapeDtypeStruct(shape, np.float32))
    outvars = list(eqn.outvars)
    outvars[fault.output] = fresh
    names: dict[Any, Any] = {breaking.jaxpr.invars[0]: fresh}
    assert not breaking.consts
    eqns = [eqn.replace(outvars=outvars)]
    for made in breaking.jaxpr.eqns:
        names.update({v: core.Var(v.aval) for v in made.outvars})
    names[breaking.jaxpr.outvars[0]] = old
    for made in breaking.jaxpr.eqns:
        invars = [v if isinstance(v, core.Literal) else names[v] for v in made.invars]
        outs = [names[v] for v in made.outvars]
        eqns.append(made.replace(invars=invars, outvars=outs, source_info=eqn.source_info))
    return eqns


# -- what the search says ----------------------------------------------------------------------------------------------


def verdict(jaxpr: Any, args: Sequence[Any], fault: Fault, *, jitted: bool) -> tuple[str, str]:
    """What `first_nonfinite` makes of a fault, and the text of its answer.

    Returns:
        `"exact"`: operation, element, line and iteration are right. `"doubt"`: they are not, and the answer says that
        something is not certain. `"missed"`: a result is not finite, and there is no answer. `"alarm"`: all results are
        finite, and there is one. `"wrong"`: anything else.
    """
    import sonde

    f = core.jaxpr_as_fun(planted(jaxpr, fault))
    f = jax.jit(f) if jitted else f
    try:
        broken = not all(np.isfinite(x).all() for x in f(*args) if jnp.issubdtype(jnp.result_type(x), jnp.inexact))
    except Exception:
        broken = True
    answer = sonde.first_nonfinite(f, discarded=not broken)(*args)
    if answer is None:
        return ("missed" if broken else "unused"), ""
    if not broken and not answer.discarded:
        return "alarm", str(answer)
    element, _ = KINDS[fault.kind]
    right = (answer.operation, answer.source, answer.element) == (fault.kind, fault.source, element)
    if right and (fault.iteration is None or answer.iteration == fault.iteration):
        return ("exact" if broken else "exact, discarded"), str(answer)
    return ("doubt" if answer.doubt else "wrong"), str(answer)


def main(count: int, seed: int, names: Sequence[str], only: int | None) -> None:
    """Plants faults in all programs of installed packages, and prints what became of them."""
    import collections
    import time
    import traceback

    from tests.why.package_programs import PROGRAMS, is_installed

    totals: collections.Counter[str] = collections.Counter()
    packages: collections.Counter[str] = collections.Counter()
    for name in names or [name for name in PROGRAMS if is_installed(name)]:
        random = Random(f"{name} {seed}")
        started = time.process_time()
        try:
            f, args = PROGRAMS[name](lambda x: x)
            leaves, tree = jax.tree.flatten(args)
            arrays = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

            def flat(*values: Any, f=f, tree=tree, leaves=leaves, arrays=arrays) -> Any:
                filled = list(leaves)
                for i, value in zip(arrays, values, strict=True):
                    filled[i] = value
                outs = jax.tree.leaves(f(*jax.tree.unflatten(tree, filled)))
                return [x for x in outs if isinstance(x, jax.Array)]

            values = [leaves[i] for i in arrays]
            jaxpr = traced(flat, values)
            faults = choose(jaxpr, values, random, count)
        except Exception as error:
            print(f"{name}: cannot be tried: {type(error).__name__} {str(error)[:200]}", flush=True)
            if not isinstance(error, TooLong | ImportError):
                traceback.print_exc(limit=-4)
            continue
        for number, fault in enumerate(faults):
            jitted = random.random() < 0.5
            if only not in (None, number):
                continue
            try:
                found, text = verdict(jaxpr, values, fault, jitted=jitted)
            except Exception:
                found, text = "error", traceback.format_exc(limit=-6)
            totals[found] += 1
            packages[fault.package] += 1
            if not found.startswith(("exact", "unused")):
                print(f"--- {name} {number}: {found}\n{fault}\n{text}\n---", flush=True)
        print(f"{name}: {len(faults)} faults, {time.process_time() - started:.1f} s", flush=True)
    print(dict(totals), f"in {len(packages)} packages: {dict(packages)}")


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=6, help="faults in each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one fault of each program")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    main(options.count, options.seed, options.names, options.only)
