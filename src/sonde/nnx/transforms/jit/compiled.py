"""`nnx.jit`, `nnx.jit_partial` and `nnx.cached_partial`: compiled functions of Modules and Variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from sonde.core import SESSIONS, capture_state, with_converted_modules
from sonde.nnx.structure.epoch import EPOCH
from sonde.nnx.structure.split_merge import graphdef, merge, split
from sonde.nnx.structure.value_kinds import ARRAY, KIND
from sonde.nnx.transforms.bounded_cache import PROGRAMS, Recent
from sonde.nnx.transforms.jit.arguments import PLAIN, ROOT, Arguments, holds_objects, named_arguments
from sonde.nnx.transforms.jit.memory import LastCall, Memory, Plan
from sonde.nnx.transforms.jit.program import Options, Program, tracing
from sonde.nnx.transforms.lifting import Fixed, Structure, take, walk_call
from sonde.nnx.transforms.options import MISSING, also_decorator, mode, named_like
from sonde.nnx.transforms.prefixes import Prefix, prepare
from sonde.nnx.transforms.stages import Lowered, Traced

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S", contravariant=True)


class JitOptions(TypedDict, total=False):
    """The options of `nnx.jit`, for type checkers."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: object
    backend: str | None
    inline: bool
    graph: bool | None
    graph_updates: bool | None


class Jitted(Protocol[P, R]):
    """What `nnx.jit` returns, with the types of the function it was given."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the compiled function."""
        ...

    # A method stays one: `model.step(x)` if `step` is decorated in the class.
    @overload
    def __get__(self, instance: None, owner: type) -> Jitted[P, R]: ...
    @overload
    def __get__(self: Jitted[Concatenate[S, Q], R], instance: S, owner: type) -> Jitted[Q, R]: ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Lowers the function for these arguments."""
        ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced:
        """Traces the function for these arguments."""
        ...

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The shapes of the output for these arguments."""
        ...


@overload
def jit(fun: Callable[P, R], **options: Unpack[JitOptions]) -> Jitted[P, R]: ...
@overload
def jit(**options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
@also_decorator
def jit(
    fun: Callable[..., Any] = MISSING,
    *,
    in_shardings: Prefix = None,
    out_shardings: Prefix = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: object = None,
    backend: str | None = None,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.jit` for functions of Modules and Variables; changes of Variables reach the caller.

    Args:
        fun: The function; leave it out to use `jit` as a decorator with options.
        in_shardings: A sharding for each positional argument that is not static, or None; `StateSharding` for the
            Variables of a Module.
        out_shardings: The same for the output.
        static_argnums: Positions of arguments that are compile-time constants; they must be hashable.
        static_argnames: Names of such arguments. If only one of the two is given, the other is found from the
            signature.
        donate_argnums: Positions of arguments whose arrays may be reused. All Variables among them get a new value, so
            the objects can be used afterwards.
        donate_argnames: Names of such arguments.
        keep_unused: See `jax.jit`.
        device: See `jax.jit`.
        backend: See `jax.jit`.
        inline: See `jax.jit`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Returns:
        A function with the same arguments. It has `lower`, `trace` and `eval_shape`, as with `jax.jit`.

    Raises:
        ValueError: A bound method is given; or, in a call, a Variable of the arguments is returned without graph
            updates, or `graph` is False and a Variable occurs twice.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> @nnx.jit
        ... def step(count, x):
        ...     count[...] += 1
        ...     return x * count
        >>> count = nnx.Variable(jnp.array(0))
        >>> int(step(count, 5)), int(step(count, 5)), int(count)
        (5, 10, 2)
    """
    prefixes = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    run_mode = prepare("jit", fun, graph, graph_updates, **prefixes)
    more: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    more |= {name: value for name, value in (("device", device), ("backend", backend)) if value is not None}
    static = named_arguments(fun, static_argnums, static_argnames)
    donated = named_arguments(fun, donate_argnums, donate_argnames)
    return _caller(fun, _Compiler(Options(fun, run_mode, in_shardings, out_shardings, static, donated, more)))


def _caller(fun: Callable[..., Any], compiler: _Compiler) -> Callable[..., Any]:
    """The function that users call: a closure, because calling an instance would make calls a tenth slower.

    It recognizes the previous call, if that had the same objects, and leaves all others to the compiler. Every call
    pays for every line of it.
    """
    kinds, epoch, lookers, memory, general = KIND, EPOCH, SESSIONS, compiler.memory, compiler.call

    @named_like(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        last = memory.last
        if (
            last is None
            or (lookers.threads and capture_state() is not None)
            or len(args) != last.n_args
            or ([*kwargs] != last.keywords if kwargs else last.keywords)
        ):
            return general(args, kwargs)
        n_front = last.n_front
        if n_front:
            values = args
            if not kwargs:
                plain = args[n_front:]
            else:
                plain = kwargs.values() if n_front == len(args) else [*args[n_front:], *kwargs.values()]
        else:
            values = (*args, *kwargs.values())
            if last.static and not last.same_static(values):
                return general(args, kwargs)
            plain = [values[i] for i in last.plain]
        # The same objects have the same structure while the plan holds, so they are compared by identity.
        for i, root in last.roots:
            if root() is not values[i]:
                return general(args, kwargs)
        for x in plain:
            if kinds.get(type(x)) != ARRAY and holds_objects(x):
                return general(args, kwargs)
        plan = last.plan
        if plan.epoch != epoch.value and (not plan.matches() or plan.loose):
            return general(args, kwargs, plan)
        if plan.cells is None:
            return plan.finish(last.run(*plan.read(), *plain))
        # kept until the end: freeing all at once is faster than one by one
        values_before = [cell.value for cell in plan.cells]
        result = last.run(values_before, *plain)
        return result if type(result) is not tuple else plan.finish(result)

    call.lower = compiler.lower  # type: ignore[attr-defined]
    call.trace = compiler.trace  # type: ignore[attr-defined]
    call.eval_shape = compiler.eval_shape  # type: ignore[attr-defined]
    call.jitted_fn = compiler  # type: ignore[attr-defined]
    return call


class _Compiler:
    """Finds programs and plans for one jitted function."""

    def __init__(self, options: Options):
        self.memory = Memory()
        self._programs: Recent[Program] = Recent(PROGRAMS)
        self._options = options

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], ruled_out: Plan | None = None) -> Any:
        """Calls the function; remembers the plan if the call was simple.

        Args:
            args: The positional arguments.
            kwargs: The others.
            ruled_out: A plan that is known not to hold now.
        """
        plan, arguments, nodes, order = self._plan(args, kwargs, ruled_out)
        if nodes is not None:  # a capture runs: note which Modules the copies inside stand for
            before, tracing.originals = getattr(tracing, "originals", None), nodes
            try:
                with with_converted_modules(arguments.roots):
                    return plan.finish(plan.run(*plan.read(), *arguments.plain))
            finally:
                tracing.originals = before
        out = plan.finish(plan.run(*plan.read(), *arguments.plain))
        self._remember(plan, arguments, len(args), list(kwargs), order)
        return out

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any], ruled_out: Plan | None = None) -> Any:
        # Positional arguments first, so that positions are the same with and without keywords.
        values, keywords = (*args, *kwargs.values()), list(kwargs)
        # Keywords are sorted: calls that name the same arguments in another order share plans and programs.
        order = list(range(len(values)))
        if keywords and keywords != sorted(keywords):
            order = [*order[: len(args)], *sorted(order[len(args) :], key=lambda i: keywords[i - len(args)])]
        arguments = Arguments([values[i] for i in order], tuple(sorted(keywords)), self._options.static)
        # An id may be used again after its object is gone; the memory compares the objects too.
        key = (arguments.skeleton, tuple(map(id, arguments.roots)))
        # A capture needs the walk itself: its nodes are what the copies inside stand for.
        watched = capture_state() is not None
        if not watched and (plan := self.memory.find(key, arguments.roots, ruled_out)) is not None:
            return plan, arguments, None, order
        # No plan holds: walk the objects, which costs far more than the call.
        names = tuple(arguments.names)
        walked = walk_call(names, arguments.roots, verb="jit", graph=self._options.mode.graph)
        structure = Structure(walked, names, len(names), ())
        program = self._programs.get(
            (arguments.skeleton, structure, watched),
            lambda: Program(self._options, structure, arguments, walked.leaves),
        )
        plan = Plan(walked, program)
        if not watched:
            self.memory.keep(key, arguments.roots, plan)
        return plan, arguments, walked.nodes if watched else None, order

    def _remember(self, plan: Plan, arguments: Arguments, n_args: int, keywords: list[str], order: list[int]) -> None:
        parts = arguments.skeleton[2]
        key = (arguments.skeleton, tuple(map(id, arguments.roots)))
        # The quick way compares whole arguments; objects in a container (a tuple in the skeleton) would need a walk.
        if not self.memory.is_current(key, plan) or plan.loose or any(type(part) is tuple for part in parts):
            self.memory.last = None
            return
        static = [(i, part.value) for i, part in zip(order, parts) if isinstance(part, Fixed)]
        plain = [i for i, part in zip(order, parts) if part == PLAIN]
        at = dict(zip([i for i, part in zip(order, parts) if part == ROOT], arguments.roots))
        self.memory.last = LastCall(plan, n_args, keywords, at, plain, static)

    # ------------------------------------------------------------------------------------------- other uses

    def _cache_size(self) -> int:
        """How many compiled programs there are, as for jitted functions of JAX."""
        runs: list[Any] = [program.run for program in self._programs]
        return sum(run._cache_size() for run in runs)

    def clear_cache(self) -> None:
        """Drops all compiled programs."""
        for program in self._programs:
            run: Any = program.run
            run.clear_cache()

    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Any]]:
        plan, arguments, _, _ = self._plan(args, kwargs)
        return plan, [*plan.read(), *arguments.plain]

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Lowers the function for these arguments, as `jax.jit(...).lower`."""
        return self.trace(*args, **kwargs).lower()

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Traces the function for these arguments, as `jax.jit(...).trace`."""
        plan, arrays = self._arrays(args, kwargs)
        return Traced(plan.run.trace(*arrays), self._arrays)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes of the output for these arguments; nothing is changed."""
        plan, arrays = self._arrays(args, kwargs)
        return plan.output(plan.run.eval_shape(*arrays))


def jit_partial(fun: Callable[..., Any], *partial_args: Any, **options: Any) -> Any:
    """`nnx.jit` with its first arguments fixed.

    Args:
        fun: The function.
        *partial_args: Its first arguments; their Variables may change between and during calls.
        **options: Those of `nnx.jit`; positions count from the first of `partial_args`.

    Returns:
        A function of the other arguments.
    """
    run_mode = mode(options.get("graph"), options.get("graph_updates"))
    take("jit_partial", run_mode, partial_args)  # in tree mode, refuses aliases
    jitted = jit(fun, **options)
    return _staged(functools.partial(jitted, *partial_args), jitted, partial_args)


def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Any:
    """A jitted function with its first arguments fixed, in their current structure.

    In Flax this is how to make calls cheap; `nnx.jit` is as cheap without it. The function gets objects that share
    their Variables with the arguments: it sees new values of Variables, and its changes of Variables reach the
    arguments. It does not see changes of attributes made after `cached_partial`.

    Args:
        f: A function that `nnx.jit` returned.
        *cached_args: Its first arguments.
        graph: Accepted for compatibility with Flax; the mode is that of `f`.
        graph_updates: Accepted for compatibility with Flax, as `graph`.

    Raises:
        ValueError: In a call, the function changes the structure of the fixed arguments.
    """
    del graph, graph_updates
    structure, values = split(cached_args, graph=True)
    copies = merge(structure, values)

    @named_like(f)
    def checked(*args: Any, **kwargs: Any) -> Any:
        # Comparing GraphDefs costs a walk, and is needed only if some structure changed during the call.
        epoch = EPOCH.value
        out = f(*args, **kwargs)
        if EPOCH.value != epoch and graphdef(copies, graph=True) != structure:
            raise ValueError(
                "The function changed the structure of an argument that was given to nnx.cached_partial: an attribute "
                "was added, removed or replaced. The change cannot reach the object itself; pass it as an argument of "
                "the call, or use nnx.jit."
            )
        return out

    return _staged(functools.partial(checked, *copies), f, copies)


def _staged(partial: Callable[..., Any], f: Callable[..., Any], cached_args: Sequence[Any]) -> Any:
    """A function of further arguments, with the name and the stages of the jitted function that it calls."""
    call: Any = named_like(f)(partial)
    jitted: Any = f
    if hasattr(f, "trace"):
        call.trace = lambda *args, **kwargs: jitted.trace(*cached_args, *args, **kwargs).given(cached_args)
        call.lower = lambda *args, **kwargs: call.trace(*args, **kwargs).lower()
        call.eval_shape = functools.partial(jitted.eval_shape, *cached_args)
    return call
