"""What `capture` and `sites` return, if it is used before it is called; and what they say if nothing was recorded."""

from __future__ import annotations

import difflib
import functools
import inspect
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from sonde._array_text import counted
from sonde.core.modules.index import module_kind
from sonde.core.session.inside_protocol import InsideRequest

P = ParamSpec("P")
R = TypeVar("R")


class Uncalled:
    """A function that a verb such as `capture` has returned. Used as if it were the result, it says to call it.

    Args:
        verb: The verb.
        call: The function.
        arguments: What the verb takes, for messages.
        like: The function that it stands for; that which `call` wraps, if None.
        method: For a jitted function, does what it can be asked for: it takes the name of that and its arguments.
    """

    def __init__(
        self,
        verb: str,
        call: Callable[..., Any],
        arguments: str = "f",
        *,
        like: Callable[..., Any] | None = None,
        method: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, like or call, updated=())
        self.__wrapped__ = like or getattr(call, "__wrapped__", call)
        self._verb = verb
        self._arguments = arguments  # of the verb
        self._call = call
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._call(*args, **kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getitem__(self, path: object) -> NoReturn:
        raise TypeError(self._advice())

    def __iter__(self) -> NoReturn:
        raise TypeError(self._advice())

    def __enter__(self) -> NoReturn:
        raise TypeError(self._advice())

    def __exit__(self, *error: object) -> None:
        """Never reached: `__enter__` raises."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_JITTED and self._method is not None:
            return functools.partial(self._method, name)
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"a function has no {name!r}: {self._advice()}")

    def __repr__(self) -> str:
        return f"<{self._verb} of {getattr(self, '__qualname__', '?')}>"

    def _advice(self) -> str:
        returns = {"capture": "(result, records)", "sites": "the sites"}.get(self._verb, "what it finds")
        call = f"{self._verb}({self._arguments})"
        return f"{call} is a function that returns {returns}; call it first: {call}(x)"


_OF_JITTED = ("lower", "trace", "eval_shape", "clear_cache")


def two_steps(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb that is called as `verb(f)(x)`: the errors for `verb(f, x)` and for `verb(f)["h"]` say so."""
    parameters = inspect.signature(verb).parameters.values()
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    taken = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    written = f"{verb.__name__}({', '.join(taken)})"
    explained = explains_arguments(verb)

    @functools.wraps(verb)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # Otherwise Python's own error would count the arguments of the verb, and not say that it is called twice.
        if len(args) > len(taken) and not takes_any:
            raise TypeError(
                f"{written} takes {counted(len(taken), 'argument')}, got {len(args)}; to run it, call what it "
                f"returns: {written}(x)"
            )
        call: Any = explained(*args, **kwargs)
        if isinstance(call, types.FunctionType):
            call = Uncalled(verb.__name__, call, ", ".join(taken))
        return call

    return checked


def explains_arguments(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb whose errors about missing, surplus and misspelled arguments say how the call is written."""
    code = inspect.unwrap(verb).__code__
    written = _written(verb)

    @functools.wraps(verb)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            call = verb(*args, **kwargs)
        except TypeError as error:
            frames = traceback.walk_tb(error.__traceback__)
            if any(frame.f_code is code for frame, _ in frames):
                raise  # the arguments fit; what is wrong was found in the verb
            said = str(error).partition(". Did you mean")[0]  # Python 3.13 has a guess of its own
            raise TypeError(f"{said}{_nearest_keyword(verb, kwargs)}; write {written}(...)") from None
        if isinstance(call, types.FunctionType) and call.__module__ == verb.__module__:
            call.__qualname__ = call.__name__ = written  # Python's errors about its arguments name it
        return call

    return explained


def _written(verb: Callable[..., Any]) -> str:
    """How a call is written: the arguments that it needs, as in `patch_sweep(f, *patterns, metric=...)`."""
    words = []
    for p in inspect.signature(verb).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            words.append(f"*{p.name}")
        elif p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty:
            words.append(p.name)
        elif p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            words.append(f"{p.name}=...")
    return f"{verb.__name__}({', '.join(words)})"


def _nearest_keyword(verb: Callable[..., Any], kwargs: dict[str, Any]) -> str:
    names = list(inspect.signature(verb).parameters)
    for unknown in kwargs.keys() - set(names):
        if near := difflib.get_close_matches(unknown, names, 1, 0.5):
            return f", nearest: {near[0]}="
    return ""


def nothing_recorded(f: Callable, inside: InsideRequest | None) -> str:
    """Why a capture of `f` without patterns recorded nothing, and what to do."""
    if inside is not None:
        return (
            "inside= met no arrays: what it names was not called, or computes with numbers of Python or NumPy, which "
            "are not recorded; pass arrays, f(jnp.asarray(x)), and name what the program calls"
        )
    if inspect.ismethod(f) and not isinstance(f.__self__, type):
        return (
            f"nothing is marked in {f.__name__}; of a model, capture(model.{f.__name__}, inside=model) records what "
            "its layers return; of any other object, capture(f, inside=f)"
        )
    if module_kind(f) is not None or not hasattr(f, "__name__"):
        return "nothing is marked in the model; capture(model, inside=model) records what its layers return"
    name = f.__name__ if str(f.__name__).isidentifier() else "f"
    return (
        f"nothing is marked in {name}; mark values with sonde.sow(value, name), or look into it as it is: "
        f"capture({name}, inside={name}), or inside=model for a model that it calls"
    )
