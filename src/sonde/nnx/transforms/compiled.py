"""`nnx.jit`, `nnx.jit_partial` and `nnx.cached_partial`: compiled functions of Modules and Variables.

Calling a jitted function costs what `jax.jit` over a flat list of arrays costs, as long as it is called with the same
objects; see `_plans` for how. The objects may change in any way between two calls.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from sonde.core import boundaries
from sonde.core.context import LOOKERS, looking
from sonde.nnx._epoch import EPOCH
from sonde.nnx._kinds import ARRAY, KIND
from sonde.nnx.transforms._lifting import Fixed, Structure, enter, is_object, walked
from sonde.nnx.transforms._options import MISSING, mode, named_like, refuse_bound_method
from sonde.nnx.transforms._plans import (
    PLAIN,
    PROGRAMS,
    ROOT,
    Changes,
    Plan,
    Program,
    Recent,
    Sorted,
    along,
    assemble,
    holds_objects,
)
from sonde.nnx.transforms._prefixes import leaf_values
from sonde.nnx.transforms._results import Lists
from sonde.nnx.transforms.stages import Lowered, Traced

#: How many structures of one set of objects are remembered: training, evaluating and a few more.
KNOWN_STRUCTURES = 4
_tracing = threading.local()


def jit(
    fun: Callable[..., Any] = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.jit` for functions of Modules and Variables; what the function does to Variables comes out.

    Args:
        fun: the function; leave it out to use `jit` as a decorator with options.
        in_shardings: a sharding for each positional argument, or None; `StateSharding` for the Variables of a Module.
        out_shardings: the same for the output.
        static_argnums: positions of arguments that are compile-time constants; they must be hashable.
        static_argnames: names of such arguments. Of the two, the one not given is found by the signature.
        donate_argnums: positions of arguments whose arrays may be reused. The Variables among them all get a new value,
            so that the objects can be used afterwards.
        donate_argnames: names of such arguments.
        keep_unused: see `jax.jit`.
        device: see `jax.jit`.
        backend: see `jax.jit`.
        inline: see `jax.jit`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: None or False.

    Returns:
        A function with the same arguments. It has `lower`, `trace` and `eval_shape` as that of `jax.jit`.

    Raises:
        ValueError: a bound method is given; or, in a call, a Variable of the arguments is returned, or `graph` is False
            and a Variable is met twice.

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
    graph = mode("jit", graph, graph_updates)
    options: dict[str, Any] = {"keep_unused": keep_unused, "inline": inline}
    if device is not None:
        options["device"] = device
    if backend is not None:
        options["backend"] = backend
    if fun is MISSING:
        return functools.partial(
            jit,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            graph=graph,
            **options,
        )
    refuse_bound_method("jit", fun)
    compiler = _Compiler(
        fun,
        graph,
        in_shardings,
        out_shardings,
        _places(fun, static_argnums, static_argnames),
        _places(fun, donate_argnums, donate_argnames),
        options,
    )
    return _caller(fun, compiler)


def _caller(fun: Callable[..., Any], compiler: _Compiler) -> Callable[..., Any]:
    """The function that users call: a closure, because calling an instance costs a tenth of a whole call more.

    It recognises the call that was made before with the same objects, and leaves all others to the compiler. Every line
    of it is paid for by every call.
    """
    kinds, epoch, lookers, memory, general = KIND, EPOCH, LOOKERS, compiler.memory, compiler.call

    @named_like(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values()) if kwargs else args
        last = memory.last
        if (
            last is None
            or last.plan.epoch != epoch.value
            or (lookers.count and looking() is not None)
            or len(values) != last.n_values
            or (tuple(kwargs) != last.keywords if kwargs else last.keywords)
        ):
            return general(values, len(args), tuple(kwargs))
        for i, root in last.roots:
            if root() is not values[i]:
                return general(values, len(args), tuple(kwargs))
        if last.n_front:
            plain = values[last.n_front :]
        elif last.static and not last.same_static(values):
            return general(values, len(args), tuple(kwargs))
        else:
            plain = [values[i] for i in last.plain]
        for x in plain:
            if kinds.get(type(x)) != ARRAY and holds_objects(x):
                return general(values, len(args), tuple(kwargs))
        if last.cells is None:
            return last.plan.run_with(plain)
        result = last.run([cell[0] for cell in last.cells], *plain)
        return last.plan.finish(result) if type(result) is tuple else result

    call.lower = compiler.lower  # type: ignore[attr-defined]
    call.trace = compiler.trace  # type: ignore[attr-defined]
    call.eval_shape = compiler.eval_shape  # type: ignore[attr-defined]
    return call


class _Last:
    """The last call, in a form that is quick to compare with.

    Attributes:
        plan: its plan.
        n_values: the number of its arguments.
        keywords: the names of those that were given by keyword.
        n_front: how many objects there are, if they are the first arguments and all others are plain, else 0.
        roots: positions of, and weak references to, the arguments that are objects.
        plain: the positions of plain arguments.
        static: positions and values of static arguments.
        run: the jitted function.
        cells: the cells of Variables, if it takes a list of their values and the plain arguments, and nothing else.
    """

    __slots__ = ("cells", "keywords", "n_front", "n_values", "plain", "plan", "roots", "run", "static")

    def __init__(self, plan: Plan, keywords: tuple[str, ...], at: dict[int, Any], plain: list[int], static: Any):
        self.plan = plan
        self.run = plan.run
        self.cells = plan.cells
        self.n_values = len(at) + len(plain) + len(static)
        self.keywords = keywords
        self.roots = [(i, weakref.ref(root)) for i, root in at.items()]
        self.n_front = len(at) if [*at, *plain] == list(range(self.n_values)) else 0
        self.plain = plain
        self.static = static

    def same_static(self, values: Sequence[Any]) -> bool:
        """Whether the static arguments are equal to those of the last call."""
        for i, value in self.static:
            x = values[i]
            if x is not value and (type(x) is not type(value) or x != value):
                return False
        return True


class _Memory:
    """What a jitted function remembers: plans by the identity of their roots, and the last call.

    Attributes:
        plans: by skeleton and identities: weak references to the roots, and plans for structures that they had lately.
        last: the last call; None if it cannot be recognised quickly.
    """

    __slots__ = ("__weakref__", "last", "plans")

    def __init__(self) -> None:
        self.plans: dict[Any, tuple[list[Any], list[Plan]]] = {}
        self.last: _Last | None = None

    def find(self, key: Any, roots: Sequence[Any]) -> Plan | None:
        """The plan for these roots as they are now, if it is known."""
        entry = self.plans.get(key)
        if entry is None:
            return None
        refs, plans = entry
        if not all(ref() is root for ref, root in zip(refs, roots)):
            return None
        for i, plan in enumerate(plans):
            found = plan.match()
            if found is not None:
                if i or found is not plan:  # the plan used last comes first; one that it replaces is of no more use
                    entry[1][:] = [found, *plans[:i], *plans[i + 1 :]]
                return found
        return None

    def keep(self, key: Any, roots: Sequence[Any], plan: Plan) -> None:
        """Keeps a plan as long as all its roots live; not at all, if that cannot be known of them."""
        entry = self.plans.get(key)
        if entry is not None and all(ref() is root for ref, root in zip(entry[0], roots)):
            entry[1][:] = [plan, *entry[1][: KNOWN_STRUCTURES - 1]]
            return
        me = weakref.ref(self)

        def forget(_: Any) -> None:
            memory = me()
            if memory is None:
                return
            memory.plans.pop(key, None)
            last = memory.last
            if last is not None and any(root() is None for _, root in last.roots):
                memory.last = None

        try:
            self.plans[key] = ([weakref.ref(root, forget) for root in roots], [plan])
        except TypeError:
            return
        if len(self.plans) > PROGRAMS:  # static arguments that never come again
            self.plans.pop(next(iter(self.plans)), None)


class _Compiler:
    """Makes programs and plans for one jitted function."""

    def __init__(
        self,
        fun: Callable[..., Any],
        graph: bool,
        in_shardings: Any,
        out_shardings: Any,
        static: frozenset[Any],
        donated: frozenset[Any],
        options: dict[str, Any],
    ):
        self.memory = _Memory()
        self._programs: Recent[Program] = Recent(PROGRAMS)
        self._fun = fun
        self._graph = graph
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._static = static
        self._donated = donated
        self._options = options

    def call(self, values: Sequence[Any], n_args: int, keywords: tuple[str, ...]) -> Any:
        """Calls the function, and remembers how if that was a simple call."""
        plan, arguments, nodes, order = self._plan(values, n_args, keywords)
        if nodes is not None:  # a capture runs: say which Modules the copies inside stand for
            before, _tracing.originals = getattr(_tracing, "originals", None), nodes
            try:
                with boundaries.given(arguments.roots):
                    return plan.run_with(arguments.plain)
            finally:
                _tracing.originals = before
        out = plan.run_with(arguments.plain)
        self._remember(plan, arguments, keywords, order)
        return out

    def _plan(self, values: Sequence[Any], n_args: int, keywords: tuple[str, ...]) -> Any:
        order = list(range(len(values)))
        if keywords and list(keywords) != sorted(keywords):
            order = [*order[:n_args], *sorted(order[n_args:], key=lambda i: keywords[i - n_args])]
        arguments = Sorted([values[i] for i in order], tuple(sorted(keywords)), self._static)
        key = (arguments.skeleton, tuple(map(id, arguments.roots)))
        watched = looking() is not None
        if not watched and (plan := self.memory.find(key, arguments.roots)) is not None:
            return plan, arguments, None, order
        names = tuple(arguments.names)
        found = walked(names, arguments.roots, who="jit", graph=self._graph)
        structure = Structure(found, names, len(names), ())
        program = self._programs.get(
            (arguments.skeleton, structure, watched), lambda: self._program(structure, arguments, found.leaves)
        )
        plan = Plan(found, program)
        if not watched:
            self.memory.keep(key, arguments.roots, plan)
        return plan, arguments, found.nodes if watched else None, order

    def _remember(self, plan: Plan, arguments: Sorted, keywords: tuple[str, ...], order: list[int]) -> None:
        parts = arguments.skeleton[2]
        entry = self.memory.plans.get((arguments.skeleton, tuple(map(id, arguments.roots))))
        if entry is None or entry[1][0] is not plan or plan.loose or any(type(part) is tuple for part in parts):
            return
        static = [(i, part.value) for i, part in zip(order, parts) if isinstance(part, Fixed)]
        plain = [i for i, part in zip(order, parts) if part == PLAIN]
        at = dict(zip([i for i, part in zip(order, parts) if part == ROOT], arguments.roots))
        self.memory.last = _Last(plan, keywords, at, plain, static)

    def _program(self, structure: Structure, arguments: Sorted, leaves: Sequence[Any]) -> Program:
        gone = {name for name, place in zip(arguments.names, arguments.places) if place in self._donated}
        numbers = range(len(structure.kinds))
        arrays = [i for i in numbers if structure.kinds[i] is None]  # they get no new values: never donated
        kept = [i for i in numbers if structure.kinds[i] is not None and structure.paths[i][0] not in gone]
        donated = [i for i in numbers if structure.kinds[i] is not None and structure.paths[i][0] in gone]
        program = Program(arrays, kept, donated)
        n_lead = len(program.lists(numbers))
        lists, shardings = self._shardings(structure, arguments, program, leaves)
        give_away = [n_lead + i for i, place in enumerate(arguments.plain_places) if place in self._donated]
        program.run = jax.jit(
            self._traced(program, structure, arguments.skeleton, lists),
            donate_argnums=tuple([n_lead - 1, *give_away] if donated else give_away),
            **shardings,
            **self._options,
        )
        return program

    def _shardings(self, structure: Structure, arguments: Sorted, program: Program, leaves: Any) -> Any:
        """How results are put into lists by sharding, and the options for `jax.jit`; nothing if none are asked for."""
        if self._in_shardings is None and self._out_shardings is None:
            return None, {}
        roots, plain = along(self._in_shardings, arguments.skeleton)
        given = leaf_values(tuple(roots), structure.definition, leaves, who="jit", what="in_shardings")
        lists = Lists("jit", "out_shardings", self._out_shardings, given)
        options: dict[str, Any] = {"out_shardings": (tuple(lists.kinds), None)}
        if self._in_shardings is not None:
            options["in_shardings"] = (*program.lists(given), *plain)
        return lists, options

    def _traced(self, program: Program, structure: Structure, skeleton: Any, lists: Lists | None) -> Any:
        fun, graph = self._fun, self._graph
        order = [*program.arrays, *program.kept, *program.donated]
        n_lead = len(program.lists(range(len(order))))

        def traced(*given: Any) -> Any:
            plain = given[n_lead:]
            values = dict(zip(order, [value for one in given[:n_lead] for value in one]))
            originals = getattr(_tracing, "originals", None)
            leaves = [values[i] for i in range(len(order))]
            entered = enter(structure, leaves, who="jit", graph=graph, originals=originals)
            args, kwargs = assemble(skeleton, entered.args, plain)
            out = fun(*args, **kwargs)
            if lists is not None:
                arrays, outcome = lists.leave(entered, out, always=program.donated)
                return program.result(arrays, None, Changes(outcome.changed, outcome.metadata, None, outcome))
            if any(map(is_object, jax.tree.leaves(out, is_leaf=is_object))):
                (arrays,), outcome = entered.leave(out, always=program.donated)
                n = len(outcome.places)
                changes = Changes(outcome.changed, outcome.metadata, outcome.definition.definition, None)
                return program.result(arrays[:n], arrays[n:], changes)
            changed = tuple(sorted({*entered.changed(), *program.donated}))
            if not changed and type(out) is not tuple:
                return out
            changes = Changes(changed, entered.new_metadata(changed), None, None)
            return program.result(out, [entered.leaves[i]._raw_value for i in changed], changes)

        traced.__name__ = traced.__qualname__ = getattr(fun, "__name__", "jit")
        return traced

    # ------------------------------------------------------------------------------------------- other uses

    def _arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, list[Any]]:
        plan, arguments, _, _ = self._plan((*args, *kwargs.values()), len(args), tuple(kwargs))
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
        return plan.program.output(plan.run.eval_shape(*arrays))


def _places(
    fun: Callable[..., Any], nums: int | Sequence[int] | None, names: str | Iterable[str] | None
) -> frozenset[Any]:
    """Positions and names of arguments; where only one of the two is given, the signature says the other."""
    positions = {nums} if isinstance(nums, int) else set(nums or ())
    keywords = {names} if isinstance(names, str) else set(names or ())
    if not (positions or keywords):
        return frozenset()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return frozenset(positions | keywords)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    n_positional = sum(p.kind in kinds for p in parameters)
    positions = {i + n_positional if i < 0 else i for i in positions}
    if names is None:
        keywords = {parameters[i].name for i in positions if i < n_positional and parameters[i].kind is kinds[1]}
    elif nums is None:
        positions = {i for i, p in enumerate(parameters) if p.kind is kinds[1] and p.name in keywords}
    return frozenset(positions | keywords)


def jit_partial(fun: Callable[..., Any], *partial_args: Any, **options: Any) -> Any:
    """`nnx.jit` with the first arguments given.

    Args:
        fun: the function.
        *partial_args: its first arguments; their Variables may change between calls, and are changed by calls.
        **options: those of `nnx.jit`; positions count from the first of `partial_args`.

    Returns:
        A function of the other arguments.
    """
    return cached_partial(jit(fun, **options), *partial_args)


def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Any:
    """A jitted function with the first arguments given.

    In Flax this is how to make calls cheap; `nnx.jit` is as cheap without it.

    Args:
        f: a function that `nnx.jit` returned.
        *cached_args: its first arguments.
        graph: accepted for Flax's sake; the mode is that of `f`.
        graph_updates: None or False.
    """
    mode("cached_partial", graph, graph_updates)

    @named_like(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        return f(*cached_args, *args, **kwargs)

    return call
