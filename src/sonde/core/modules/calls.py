"""A call of a module while a capture runs: its scope, and its arguments and result as the sites `in` and `out`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from sonde import _jax
from sonde.core.marks.arrays import flattened
from sonde.core.marks.scopes import ScopeName
from sonde.core.modules.call_stack import call_stacks
from sonde.core.modules.index import module_kind
from sonde.core.modules.places import Frame, Move, Place
from sonde.core.session.session import capture_state
from sonde.core.verbs.sow import mark

T = TypeVar("T")
NUMBERS = (bool, int, float, complex, str, bytes, np.generic)


class ModuleScope(ScopeName):
    """A call of a module as a scope: what is inside has the module's path, whatever called it."""

    moves: tuple[Move, ...] = ()

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def of(moves: tuple[Move, ...]) -> ModuleScope:
        """The scope with the module's path for every capture."""
        scope = ModuleScope(next((move.down for move in moves if move.down), "module"))
        scope.moves = moves
        return scope

    def path(self, before: str, depth: int) -> str:
        """The module's path for one of the captures that run."""
        if depth > len(self.moves):
            return before
        up, down = self.moves[depth - 1]
        if up is None:
            before = ""
        elif up:
            before = "".join(f"{name}/" for name in before.split("/")[: -up - 1])
        return f"{before}{down}/" if down else before


def at_module(module: Any) -> tuple[contextlib.AbstractContextManager[Any], list[Place]]:
    """A block whose sites get the path of a module, and the place of the module for every capture."""
    open_calls = [stack.segments[-1].frames for stack in call_stacks()]
    if _is_innermost(module, open_calls):
        places = [frames[-1].place for frames in open_calls]
        names = _jax.open_names()
        if all(names is frames[-1].names for frames in open_calls):
            return _NO_SCOPE, places
    else:
        places = [stack.place_of(module) for stack in call_stacks()]
    return _jax.open_name(_scope_to(places)), places


_NO_SCOPE = contextlib.nullcontext()


def _is_innermost(module: Any, open_calls: list[list[Frame]]) -> bool:
    """Whether the innermost call, for every capture, is one of the module."""
    return all(frames and frames[-1].module is module for frames in open_calls)


def _scope_to(places: list[Place]) -> ModuleScope:
    return ModuleScope.of(tuple([stack.move_to(place) for stack, place in zip(call_stacks(), places)]))


class calling:
    """Around a call of a method of a module."""

    __slots__ = ("_method", "_module", "_opened")

    def __init__(self, module: Any, name: str, fn: Callable) -> None:
        self._module, self._method = module, (name, fn)

    def __enter__(self) -> None:
        module, method, stacks = self._module, self._method, call_stacks()
        open_calls = [stack.segments[-1].frames for stack in stacks]
        self._opened = None
        if _is_innermost(module, open_calls):  # a method calls another of the same module
            for frames in open_calls:
                frames.append(dataclasses.replace(frames[-1], method=method))
            return
        places = [stack.place_of(module) for stack in stacks]
        scope = _scope_to(places)
        self._opened = _jax.open_name(scope)
        names, level = self._opened.__enter__(), _jax.trace_level()
        for frames, place in zip(open_calls, places):
            frames.append(Frame(place, module, method, scope, names, level))

    def __exit__(self, *error: Any) -> None:
        for t in call_stacks():
            segment = t.segments[-1]
            segment.frames.pop()
            if not segment.frames:
                segment.notes.clear()
        if self._opened is not None:
            self._opened.__exit__(*error)


def overrides_running(module: Any, name: str, fn: Callable) -> bool:
    """Whether a method runs because the method that overrides it called it: both are one call."""
    for stack in call_stacks():
        for segment in stack.segments:
            for frame in segment.frames:
                if frame.module is module and frame.method[0] == name and frame.method[1] is not fn:
                    return True
    return False


def note_result(module: Any, result: Any) -> None:
    """Notes the places of the modules that the innermost call, one of the module, returns."""
    kind: Any = module_kind(module)
    if (name := kind.returns(module)) is not None:
        for stack in call_stacks():
            segment = stack.segments[-1]
            segment.note(segment.innermost.below(name), result)


def is_part_of_caller(module: Any) -> bool:
    """Whether the innermost call is of a module that works by calling this one."""
    kind: Any = module_kind(module)
    frames = [stack.segments[-1].frames for stack in call_stacks()]
    return any(open_calls and kind.is_part(module, open_calls[-1].module) for open_calls in frames)


def is_module(value: Any) -> bool:
    """Whether a value is a module of a library that is known."""
    return module_kind(value) is not None


def run_method(
    module: Any,
    name: str,
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    keep: Callable[[Any], bool] = is_module,
    after: Callable[[Any], Any] | None = None,
) -> Any:
    """Calls a method of a module, as a scope.

    Args:
        module: The module.
        name: The name of the method.
        fn: The method, a function of the module and the arguments.
        args: The positional arguments.
        kwargs: The keyword arguments.
        keep: Which objects among arguments and results must stay the same objects.
        after: A function of the result that returns it, called in the scope, unless an overriding method is running.
    """
    is_super_call = overrides_running(module, name, fn)
    marked = not is_super_call and are_ends_wanted(name)
    with calling(module, name, fn):
        if marked:
            args, kwargs = mark_arguments(name, fn, args, kwargs, keep)
        result = fn(module, *args, **kwargs)
        if marked:
            result = mark_result(name, fn, result, keep)
        return result if after is None or is_super_call else after(result)


def name_of_method(cls: type, name_of_function: str, is_function: Callable[[Any], bool]) -> str:
    """The attribute of a class that holds a method; a decorator, or an assignment, may have left it another name.

    Args:
        cls: The class.
        name_of_function: The name that the function has.
        is_function: Whether an attribute of the class is the method.
    """
    for name in ("__call__", name_of_function):
        if any(is_function(vars(base).get(name)) for base in cls.__mro__):
            return name
    return next(
        (name for base in cls.__mro__ for name, value in vars(base).items() if is_function(value)), name_of_function
    )


def are_ends_wanted(name: str) -> bool:
    """Whether a capture wants the arguments and results of methods of that name."""
    state = capture_state()
    return state is not None and name in state.methods


def _depths_of_ends(name: str) -> frozenset[int]:
    """Which of the nested captures want them."""
    state = capture_state()
    wants = () if state is None else state.modules
    return frozenset(depth for depth, wanted_methods in enumerate(wants, 1) if name in wanted_methods.methods)


def mark_arguments(
    name: str,
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    keep: Callable[[Any], bool],
    depths: frozenset[int] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Marks the arguments of a method as the site `in`, or `method/in`.

    The value is the argument itself, or a tuple of several, with a dict at the end if there are keywords other than
    those that are None, such as `rngs=None`. It is seen by the captures that want the ends of the method, and by those
    in `depths`.
    """
    site, code = _end(name, "in"), code_of(fn)
    depths = _depths_of_ends(name) if depths is None else depths
    given = {key: value for key, value in kwargs.items() if value is not None}
    if len(args) == 1 and not given:
        return (mark_arrays(args[0], site, keep, code, depths=depths),), kwargs
    if not given:
        return mark_arrays(tuple(args), site, keep, code, depths=depths), kwargs
    *marked, marked_given = mark_arrays((*args, given), site, keep, code, depths=depths)
    return tuple(marked), kwargs | marked_given


def mark_result(
    name: str,
    fn: Callable,
    result: T,
    keep: Callable[[Any], bool],
    depths: frozenset[int] | None = None,
) -> T:
    """Marks the result of a method as the site `out`, or `method/out`."""
    depths = _depths_of_ends(name) if depths is None else depths
    return mark_arrays(result, _end(name, "out"), keep, code_of(fn), depths=depths)


def _end(name: str, end: str) -> str:
    return end if name == "__call__" else f"{name}/{end}"


def mark_arrays(
    value: T,
    name: str,
    keep: Callable[[Any], bool],
    code: types.CodeType | None,
    tag: Any = None,
    depths: frozenset[int] | None = None,
) -> T:
    """Marks a value in which some objects must stay the same, although JAX could take them apart.

    If there are edits, these include numbers: a jitted method may depend on them, as on `deterministic=True`.
    """
    if isinstance(value, jax.Array):
        return mark(value, name, tag=tag, code=code, depth=2, depths=depths)
    state = capture_state()
    has_edits = state is not None and state.edits
    is_kept = (lambda x: isinstance(x, NUMBERS) or keep(x)) if has_edits else keep
    leaves, tree = flattened(value, is_kept)
    kept_leaves = {i: x for i, x in enumerate(leaves) if is_kept(x)}
    if not kept_leaves:
        return mark(value, name, tag=tag, code=code, depth=2, depths=depths)
    if has_edits and len(kept_leaves) == len(leaves):  # nothing to edit
        return value
    instead = _Kept if has_edits else str
    for i, x in kept_leaves.items():
        leaves[i] = instead(f"<{type(x).__name__}>")
    marked_tree = mark(jax.tree.unflatten(tree, leaves), name, tag=tag, code=code, depth=2, depths=depths)
    marked = iter(jax.tree.leaves(marked_tree, is_leaf=lambda x: isinstance(x, _Kept)))
    return jax.tree.unflatten(tree, [kept_leaves.get(i, x) for i, x in enumerate(marked)])


@jax.tree_util.register_static
class _Kept(str):
    """Stands for an object that stays the same, in the value that the function of an edit gets: not a leaf."""


def code_of(fn: Callable) -> types.CodeType | None:
    """The code of a function, for the line that is shown for its arguments and results."""
    return getattr(inspect.unwrap(fn), "__code__", None)
