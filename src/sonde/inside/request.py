"""`Inside`: the code whose values become sites, with options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde.inside.active_requests import BoundRequest, joined, request_with
from sonde.inside.libraries.registry import Model, as_model
from sonde.inside.messages import nearest
from sonde.inside.method_hooks import modules_in
from sonde.inside.resolve import LeftOut, Resolved, find, object_named


class Inside:
    """Code whose values become sites, with options; for `inside=`, if a function or its name is not enough.

    Args:
        *what: Functions (also jitted, decorated, bound, partial), classes (the methods in their bodies), Python modules
            and packages, and names: `"pkg.attention:Attention.__call__"`, `"pkg.*"`, `"pkg.losses:*norm*"`. Their
            variables, arguments and results are sites. Models of Flax, Equinox, Penzai, Keras and Sonde, and a
            function that Haiku transformed, or names of these: the calls of their modules are scopes with the sites
            `in` and `out`.
        methods: For models: further methods, besides `__call__`, whose arguments and results are the sites `in` and
            `out`.
        expressions: Whether the value of every call and operator is a site too, named after what is called
            (`softmax`, `matmul`), with a number where a function has several.

    Raises:
        InsideError: Something that was named cannot be looked into: it has no source, or is a generator.
        TypeError: An argument has no functions, or no module of the models has a method of `methods`.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> inside = sonde.Inside(jax.nn.silu, expressions=True)
        >>> _, records = sonde.capture(jax.nn.silu, inside=inside)(jnp.float32(1.0))
        >>> [path for path in records if path in ("silu/x", "silu/sigmoid", "silu/return")]
        ['silu/x', 'silu/sigmoid', 'silu/return']
    """

    def __init__(self, *what: Any, expressions: bool = False, methods: Sequence[str] = ()) -> None:
        if not what:
            raise TypeError("Inside takes at least one function, class, module, model or name")
        if isinstance(methods, str):
            raise TypeError(f"Inside: methods= takes a list of names, got the string {methods!r}")
        names = frozenset({"__call__", *methods})
        self._resolved: list[Resolved] = []
        models: list[tuple[Any, Model]] = []
        for thing in what:
            named = object_named(thing) if isinstance(thing, str) else None
            model = as_model(thing if named is None else named, names)
            if model is None:
                self._resolved.append(find(thing))
            else:
                models.append(model)
        _check_methods(methods, models)
        functions = frozenset().union(*(each.functions for each in self._resolved))
        calls = frozenset().union(*(model.calls for _, model in models))
        hooks = frozenset().union(*(model.hooks for _, model in models))
        named = frozenset().union(*(each.functions for each in self._resolved if each.by_name))
        self.request = request_with(functions, expressions, names if models else frozenset(), calls, hooks, named)
        self.bound = BoundRequest(self.request, [model for model, _ in models])

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that are looked into, by name, with their lines."""
        return tuple(sorted(f"{f.qualname} ({f.place})" for f in self.request.functions))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Functions of a class, module or package that cannot be looked into: name, file and line, reason."""
        return tuple(dict.fromkeys(x for each in self._resolved for x in each.left_out))

    def __repr__(self) -> str:
        return f"Inside({len(self.request.functions)} functions, {len(self.left_out)} left out)"


def _check_methods(methods: Sequence[str], models: list[tuple[Any, Model]]) -> None:
    """Raises TypeError for a method that no module has. Modules of linen and Haiku are not known before they run."""
    if methods and not models:
        raise TypeError(f"Inside: methods={list(methods)!r} is for models, and there is none among the arguments")
    if any(model.hooks for _, model in models):
        return
    classes = {type(module) for model, _ in models for module in modules_in(model)}
    for name in methods:
        if classes and not any(hasattr(cls, name) for cls in classes):
            known_methods = {n for cls in classes for n in dir(cls) if not n.startswith("_")}
            raise TypeError(
                f"Inside: no module of the model has a method {name!r}; nearest: {nearest(name, known_methods)}"
            )


def request_of(inside: Any) -> BoundRequest:
    """The request of an `inside=` argument."""
    if isinstance(inside, BoundRequest):
        return inside
    if isinstance(inside, Inside):
        return inside.bound
    if type(inside) in (list, tuple, set, frozenset):
        if not inside:
            raise TypeError("inside= takes at least one function, class, module, model or name; got none")
        plain = [x for x in inside if not isinstance(x, Inside)]
        made = [x.bound for x in inside if isinstance(x, Inside)] + ([Inside(*plain).bound] if plain else [])
        return joined(made)
    return Inside(inside).bound
