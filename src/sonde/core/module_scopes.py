"""A call of a module as a scope, for every capture that runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from sonde import _jax
from sonde.core.module_paths import thread
from sonde.core.module_places import Frame, Move, Place
from sonde.core.scopes import ScopeName


class ModuleScope(ScopeName):
    """A call of a module as a scope: what is inside stands at the module's path, whatever called it."""

    moves: tuple[Move, ...] = ()

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def of(moves: tuple[Move, ...]) -> ModuleScope:
        """The scope that gets every capture to its path."""
        new = ModuleScope(next((move.down for move in moves if move.down), "module"))
        new.moves = moves
        return new

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
    open_calls = [trail.stretches[-1].frames for trail in thread.trails]
    if _is_innermost(module, open_calls):
        places = [frames[-1].place for frames in open_calls]
        names = _jax.open_names()
        if all(names is frames[-1].names for frames in open_calls):
            return _NO_SCOPE, places
    else:
        places = [trail.place_of(module) for trail in thread.trails]
    return _jax.open_name(_scope_to(places)), places


_NO_SCOPE = contextlib.nullcontext()


def _is_innermost(module: Any, open_calls: list[list[Frame]]) -> bool:
    """Whether the innermost call, for every capture, is one of the module."""
    return all(frames and frames[-1].module is module for frames in open_calls)


def _scope_to(places: list[Place]) -> ModuleScope:
    return ModuleScope.of(tuple([trail.move_to(place) for trail, place in zip(thread.trails, places)]))


class calling:
    """Around a call of a method of a module."""

    __slots__ = ("_method", "_module", "_opened")

    def __init__(self, module: Any, name: str, fn: Callable[..., Any]) -> None:
        self._module, self._method = module, (name, fn)

    def __enter__(self) -> None:
        module, method = self._module, self._method
        open_calls = [trail.stretches[-1].frames for trail in thread.trails]
        self._opened = None
        if _is_innermost(module, open_calls):  # a method calls another of the same module
            for frames in open_calls:
                frames.append(dataclasses.replace(frames[-1], method=method))
            return
        places = [trail.place_of(module) for trail in thread.trails]
        scope = _scope_to(places)
        self._opened = _jax.open_name(scope)
        names, level = self._opened.__enter__(), _jax.trace_level()
        for frames, place in zip(open_calls, places):
            frames.append(Frame(place, module, method, scope, names, level))

    def __exit__(self, *error: Any) -> None:
        for t in thread.trails:
            stretch = t.stretches[-1]
            stretch.frames.pop()
            if not stretch.frames:
                stretch.notes.clear()
        if self._opened is not None:
            self._opened.__exit__(*error)


def overrides_running(module: Any, name: str, fn: Callable[..., Any]) -> bool:
    """Whether a method runs because the one that overrides it has called it: both are one call."""
    for trail in thread.trails:
        for stretch in trail.stretches:
            for frame in stretch.frames:
                if frame.module is module and frame.method[0] == name and frame.method[1] is not fn:
                    return True
    return False
