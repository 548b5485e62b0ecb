"""The modules that a call is about, before it runs: where paths count from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from sonde.core.module_index import has_modules, module_kind, outermost_in


def find_roots(f: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The modules that a call is about: in its arguments, or else what the function belongs to or refers to.

    Paths count from the first; the names of further arguments stand in front of the paths in them. If all modules are
    in containers, paths count from the containers.
    """
    named = [*((str(i), x) for i, x in enumerate(args)), *kwargs.items()]
    found = [(name, x) for name, x in (*_around(f), *named) if _is_root(x)]
    if not found and has_modules():
        if in_containers := _in_containers(named):
            return in_containers
        found = [(name, x) for name, x in _referred_to(f) if _is_root(x)]
    unique: dict[int, tuple[str, Any]] = {}
    for name, x in found:
        unique.setdefault(id(x), (name, x))  # one that is given twice has the name and the place of the first
    return [("" if i == 0 else name, x) for i, (name, x) in enumerate(unique.values())]


def _is_root(value: Any) -> bool:
    kind = module_kind(value)
    return kind is not None and kind.is_root(value)


def _in_containers(named: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The modules in containers among the arguments, named by the keys that lead to them; one alone needs no name."""
    found = {name: [(p, x) for p, x in outermost_in(value, ()) if _is_root(x)] for name, value in named}
    found = {name: modules for name, modules in found.items() if modules}
    if sum(map(len, found.values())) == 1:
        return [("", x) for modules in found.values() for _, x in modules]
    paths = [((name, *p) if len(found) > 1 else p, x) for name, modules in found.items() for p, x in modules]
    return [("/".join(map(str, path)), x) for path, x in paths]


def _around(f: Any) -> Iterator[tuple[str, Any]]:
    while f is not None:
        yield "self", f
        if (owner := getattr(f, "__self__", None)) is not None:
            yield "self", owner
        for i, x in enumerate(getattr(f, "args", None) or ()):
            yield str(i), x
        f = getattr(f, "func", None) or getattr(f, "__wrapped__", None)


def _referred_to(f: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    while f is not None and id(f) not in seen:
        seen.add(id(f))
        code = getattr(f, "__code__", None)
        if code is not None:
            for name, cell in zip(code.co_freevars, f.__closure__ or ()):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    yield name, cell.cell_contents
            for name in code.co_names:
                yield name, f.__globals__.get(name)
        f = getattr(f, "__wrapped__", None) or getattr(f, "func", None)
