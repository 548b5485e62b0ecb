"""Tracing a function while a capture runs: the boundary between the program around and the program inside.

JAX traces a function once for all calls with arguments of the same types. Two calls with modules in different places
would share one trace, although their sites must be recorded under two paths. So for the second place the function is
given to JAX under another identity. The one that fits a call is found by the places of the modules among its arguments,
and by what the trace used of the program around (`Segment.used`).

The necessary change to JAX is `_jax.tracing_hook`; it is in place only while a capture runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from sonde import _jax
from sonde.core.marks.scopes import strange_scope
from sonde.core.marks.site_search import first_site
from sonde.core.modules.call_stack import CallStack, call_stacks
from sonde.core.modules.copies import CopyKey
from sonde.core.modules.index import LIBRARIES, holds_modules, module_kind, outermost_modules
from sonde.core.modules.places import Place, Question, UnregisteredInside, Used
from sonde.core.session.caches import ByIdentity
from sonde.core.session.session import SESSIONS, capture_state, captures_run
from sonde.errors import ScopeError

Values = Callable[[], Sequence[Any] | None]
_MOST = 256  # functions that are kept for one function, for places that may come again


@dataclasses.dataclass(slots=True, eq=False)
class Variant:
    """A function that is traced for some places.

    Attributes:
        fun: A function that calls it; None for the function itself, which is not kept alive.
        labels: For every capture, the places of the modules among the arguments; and what else the trace was made for.
        used: For every capture, what the trace used of the program around.
    """

    fun: Callable[..., Any] | None
    labels: tuple[tuple[tuple[Place | None, ...], ...], Hashable]
    used: list[dict[Question, Used]]

    def holds(self, stacks: Sequence[CallStack], values: Values) -> bool:
        """Whether a trace now would find the same as the earlier one."""
        for stack, answers in zip(stacks, self.used):
            named = {question: used for question, used in answers.items() if isinstance(question, UnregisteredInside)}
            for question, used in answers.items():
                if question in named or used.is_gone or (isinstance(question, CopyKey) and question.is_own()):
                    continue
                if stack.answer_now(question, used, values) != used.answer:
                    return False
            # Last, because asking for such a name gives it out.
            if any(stack.answer_now(question, used, values) != used.answer for question, used in named.items()):
                stack.forget(named)
                return False
        return True


_variants: ByIdentity[list[Variant]] = ByIdentity(lambda fun: [])


@contextlib.contextmanager
def with_converted_modules(modules: Iterable[Any]) -> Iterator[None]:
    """Around a call of a jitted function that gets modules in another form than as its arguments."""
    session = SESSIONS.current()
    if session is None:
        yield
        return
    before, session.converted_modules = session.converted_modules, tuple(outermost_modules(modules))
    try:
        yield
    finally:
        session.converted_modules = before


def pass_boundary(
    fun: Any,
    find_modules: Callable[[], Iterable[Any]],
    values: Values,
    trace: Callable[[Any], Any],
    *,
    description: Any = None,
    more: Hashable = None,
) -> Any:
    """Traces a function, or finds the trace that fits.

    Args:
        fun: The function.
        find_modules: Returns the modules among its arguments.
        values: Returns the arrays that its program gets, if they can be found.
        trace: Traces a function in its place, or returns the trace that JAX has of it.
        description: Of the call, as JAX gives it to the trace; None if JAX has not made it yet.
        more: What a trace must have been made for, besides the places of the modules.
    """
    session, stacks = SESSIONS.current(), call_stacks()
    if session is None or not stacks:
        return trace(fun)
    if fun is session.boundary:  # a cache behind another
        session.boundary = None
        for stack in stacks:
            stack.segments[-1].description = description
        return trace(fun)
    if capture_state() is None:
        return trace(fun)
    modules = [m for m in (*session.converted_modules, *find_modules()) if _is_module(m)]
    labels = tuple([tuple([stack.label(m) for m in modules]) for stack in stacks]), more
    variants = _variants.of(fun)
    variant = _variant_for(fun, labels, variants, stacks, values) if variants else None
    traced_function = fun if variant is None or variant.fun is None else variant.fun
    before = session.boundary, session.converted_modules
    session.boundary, session.converted_modules = traced_function, ()
    for stack, places in zip(stacks, labels[0]):
        stack.enter([(place, m) for place, m in zip(places, modules) if place is not None], description=description)
    try:
        result = trace(traced_function)
        if (why := strange_scope()) is not None:
            for site in filter(None, map(first_site, _jax.jaxprs_in(result))):
                raise ScopeError(f"site {site.path!r} ({site.line}) runs under {why}")
        return result
    finally:
        session.boundary, session.converted_modules = before
        used = [stack.segments.pop().used for stack in stacks]
        if variant is None and (modules or more is not None or any(used)):
            variant = Variant(None, labels, [{} for _ in stacks])
            variants.append(variant)
        if variant is not None:
            for answers, answers_now in zip(variant.used, used):
                answers.update({question: answer for question, answer in answers_now.items() if not answer.is_gone})


def _is_module(value: Any) -> bool:
    """Whether a value is a module, or was made from one."""
    kind = module_kind(value)
    return kind is not None and (kind.is_root(value) or kind.origin(value) is not None)


def _variant_for(
    fun: Any, labels: Any, variants: list[Variant], stacks: Sequence[CallStack], values: Values
) -> Variant:
    """The variant of a function that fits, or a new one."""
    for variant in variants:
        if variant.labels == labels and variant.holds(stacks, values):
            return variant
    variant_made = Variant(_again(fun), labels, [{} for _ in stacks])
    variants.append(variant_made)
    if len(variants) > _MOST:
        del variants[1]  # the first is the function itself
    return variant_made


def _again(fun: Any) -> Callable[..., Any]:
    """The same function under another identity. It does not keep the function alive, which its caller does."""
    ref = weakref.ref(fun)

    def again(*args: Any, **kwargs: Any) -> Any:
        inner: Any = ref()
        return inner(*args, **kwargs)

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        with contextlib.suppress(AttributeError):
            setattr(again, name, getattr(fun, name))
    return again


def _described_modules(description: Any) -> Iterator[Any]:
    """The modules that a call was made with."""
    for ref in _jax.notes_described(description) or ():
        if (module := ref()) is not None:
            yield module


def _notes(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What is kept with the description of a call; None if no capture runs."""
    if not captures_run():
        return None
    return tuple([weakref.ref(module) for module in outermost_modules((*args, *kwargs.values()))])


def _is_crossed_freely(fun: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether JAX may look for the trace of a jitted function directly, as for those of `jax.numpy`.

    It may if the call has no modules and the existing traces of the function used nothing of the program around. If JAX
    has to trace it, `_from_description` is called before that.
    """
    session = SESSIONS.current()
    if session is None or not session.runs:
        return True
    if session.converted_modules or LIBRARIES.told_apart_by or fun is session.boundary:
        return False
    if _variants.get(fun) or strange_scope():
        return False
    without_modules = LIBRARIES.without_modules
    for x in (*args, *kwargs.values()) if kwargs else args:
        if type(x) not in without_modules and holds_modules(x):
            return False
    return True


def _from_arguments(
    fun: Any, args: Sequence[Any], kwargs: dict[str, Any], values: Values, trace: Callable[[Any], Any]
) -> Any:
    more = tuple([answer for f in LIBRARIES.told_apart_by if (answer := f(args)) is not None]) or None
    return pass_boundary(fun, lambda: outermost_modules((*args, *kwargs.values())), values, trace, more=more)


def _from_description(fun: Any, description: Any, values: Values, trace: Callable[[Any], Any]) -> Any:
    return pass_boundary(fun, lambda: _described_modules(description), values, trace, description=description)


CHANGES = _jax.tracing_hook(_is_crossed_freely, _from_arguments, _from_description, _notes).changes
