"""The modules that a call is about, before it runs: where paths count from.

In a program that is compiled as a function of its arrays, the models among the arguments are copies with tracers in
them, and most libraries store nothing about the original in a copy. But the copy is at the same position among the
arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sonde.core.modules.index import Path, at_path, children_of, module_kind, outermost_in, path_between
from sonde.core.session.caches import ByIdentity
from sonde.core.session.inside_protocol import InsideRequest
from sonde.errors import ScopeError


def find_roots(
    f: Callable, args: Sequence[Any], kwargs: dict[str, Any], models: Sequence[Any] = ()
) -> list[tuple[str, Any]]:
    """The modules that a call is about: in its arguments, or else what the function belongs to or refers to.

    Paths count from the first; paths in further arguments begin with the argument's name. If all modules are in
    containers, paths count from the containers.

    If the capture looks inside some models, paths count from the first of them. Further models are named as arguments,
    or after their classes. If the first model is not an argument, the argument of its class is taken for it: programs
    are often called with the model after some training steps.

    Raises:
        ScopeError: There are several such arguments, and nothing says which is the model.
    """
    modules, in_containers = _modules_about(f, args, kwargs)
    if not models:
        return [("" if i == 0 and not in_containers else name, x) for i, (name, x) in enumerate(modules)]
    first, *other_models = [next((x for _, x in modules if _is_copy(x, model)), model) for model in models]
    names = {id(x): name for name, x in modules}
    roots = [("", first)]
    attributes = {str(key) for key, _ in children_of(first)}
    referred_to = [(name, x) for name, x in _referred_to(f) if _is_root(x)]
    if id(first) not in names:  # trained meanwhile, or a copy that a transform has made
        candidates = [
            x
            for _, x in modules
            if type(x) is type(first) and all(x is not other_model for other_model in other_models)
        ]
        if len(candidates) > 1:
            raise ScopeError(
                f"the function is called with {len(candidates)} modules of the class {type(first).__name__}, and none "
                "of them is the model of `inside=` itself, which was changed, or copied by a transform around this "
                "run. It is not known which of them is the model. Call the function with the same object; or name "
                "the others too, inside=[model, *others], so that only one remains; in a transformed function, pass "
                "its own argument as inside="
            )
        roots += [("", x) for x in candidates[:1]]
    names = {id(x): name for name, x in reversed(referred_to)} | names
    for x in (*other_models, *(x for _, x in (*modules, *referred_to))):
        if all(x is not root and path_between(root, x) is None for _, root in roots):
            taken = attributes.union(name for name, _ in roots)
            name = names.get(id(x)) or type(x).__name__
            roots.append((next(n for n in _numbered(name) if n not in taken), x))
    return roots


@dataclasses.dataclass(frozen=True, slots=True)
class ModelsOfCall:
    """Where the models of `inside=` are in a call of a jitted function. Equal if both calls can use one program.

    Attributes:
        paths: For each model, the keys that lead to it from the arguments; None if it is not an argument.
        request: The request, with the models that are not arguments.
    """

    paths: tuple[Path | None, ...]
    request: InsideRequest

    def inside(self, args: Sequence[Any], kwargs: dict[str, Any]) -> InsideRequest:
        """The request inside the function, for the arguments it was called with."""
        known_models = iter(self.request.known_models())
        models = (next(known_models, None) if path is None else at_path((args, kwargs), path) for path in self.paths)
        return self.request.at([model for model in models if model is not None])


def models_of_call(request: InsideRequest, args: Sequence[Any], kwargs: dict[str, Any]) -> ModelsOfCall:
    """Where the models are in a call."""
    models = request.known_models()
    path_of_model = dict(_paths_of(models, (args, kwargs)))
    paths = tuple(path_of_model.get(i) for i in range(len(models)))
    return ModelsOfCall(paths, request.at([m for m, path in zip(models, paths) if path is None]))


_models = ByIdentity[weakref.ref[Any]]()  # for a copy, its model


@dataclasses.dataclass(frozen=True, slots=True)
class StandIns:
    """Where the models of `inside=` are in a tree that a tool makes again of its arrays. It notes the copies.

    Attributes:
        paths: The number of a model, and the keys that lead to it from a tree.
        models: The models.
    """

    paths: tuple[tuple[int, Path], ...] = ()
    models: tuple[weakref.ref[Any], ...] = dataclasses.field(default=(), compare=False)

    def note(self, tree: Any) -> None:
        """Notes which modules of a tree that was made again stand for the models."""
        for number, path in self.paths:
            model, copy = self.models[number](), at_path(tree, path)
            if model is not None and copy is not model:
                _models.set(copy, weakref.ref(model))


NO_MODELS = StandIns()


def stand_ins(request: InsideRequest | None, tree: Any) -> StandIns:
    """Where the models of `inside=` are in a tree."""
    models = [] if request is None else request.known_models()
    return StandIns(tuple(_paths_of(models, tree)), tuple(map(weakref.ref, models))) if models else NO_MODELS


def _paths_of(models: Sequence[Any], tree: Any) -> Iterator[tuple[int, Path]]:
    numbers = {id(model): i for i, model in enumerate(models)}
    return ((numbers[id(x)], path) for path, x in outermost_in(tree, ()) if id(x) in numbers)


def model_of(copy: Any) -> Any:
    """The model of which something is noted to be a copy, or None."""
    model = _models.get(copy)
    return None if model is None else model()


def _is_copy(module: Any, model: Any) -> bool:
    """Whether a module is a copy of a model."""
    kind: Any = module_kind(module)
    origin = kind.origin(module)
    while origin is not None:
        if origin.ref() is model:
            return True
        origin = origin.before
    return model_of(module) is model


def _numbered(name: str) -> Iterator[str]:
    yield name
    for i in itertools.count(1):
        yield f"{name}_{i}"


def _modules_about(f: Callable, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[tuple[str, Any]], bool]:
    """The modules of a call with names, and whether they are in containers among its arguments."""
    named = [*((str(i), x) for i, x in enumerate(args)), *kwargs.items()]
    modules = [(name, x) for name, x in (*_around(f), *named) if _is_root(x)]
    if not modules:
        if in_containers := _in_containers(named):
            return in_containers, True
        modules = [(name, x) for name, x in _referred_to(f) if _is_root(x)]
    unique: dict[int, tuple[str, Any]] = {}
    for name, x in modules:
        unique.setdefault(id(x), (name, x))  # a module that is passed twice has the name and the place of the first
    return list(unique.values()), False


def _is_root(value: Any) -> bool:
    kind = module_kind(value)
    return kind is not None and kind.is_root(value)


def _in_containers(named: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The modules in containers among the arguments, named by the keys that lead to them; one alone needs no name."""
    in_argument = {name: [(p, x) for p, x in outermost_in(value, ()) if _is_root(x)] for name, value in named}
    in_argument = {name: modules for name, modules in in_argument.items() if modules}
    if sum(map(len, in_argument.values())) == 1:
        return [("", x) for modules in in_argument.values() for _, x in modules]
    has_several = len(in_argument) > 1
    paths = [((name, *p) if has_several else p, x) for name, modules in in_argument.items() for p, x in modules]
    return [("/".join(map(str, path)), x) for path, x in paths]


def _around(f: Any) -> Iterator[tuple[str, Any]]:
    while f is not None:
        yield "self", f
        if (owner := getattr(f, "__self__", None)) is not None:
            yield "self", owner
        for i, x in enumerate(getattr(f, "args", None) or ()):
            yield str(i), x
        f = getattr(f, "func", None) or getattr(f, "__wrapped__", None)


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The global names in a function, and in the functions that are written in it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)


def _referred_to(f: Any) -> Iterator[tuple[str, Any]]:
    visited: set[int] = set()
    while f is not None and id(f) not in visited:
        visited.add(id(f))
        code = getattr(f, "__code__", None)
        if code is not None:
            for name, cell in zip(code.co_freevars, f.__closure__ or ()):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    yield name, cell.cell_contents
            for name in _names_in(code):
                yield name, f.__globals__.get(name)
        f = getattr(f, "__wrapped__", None) or getattr(f, "func", None)
