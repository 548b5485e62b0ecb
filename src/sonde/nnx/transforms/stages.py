"""What `lower`, `trace` and `compile` of a jitted function return: JAX's stages, for functions of Modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arrays = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, list[Any]]]


class _Stage:
    """A stage of JAX; other attributes are those of the stage."""

    def __init__(self, stage: Any, arrays: Arrays):
        self._stage = stage
        self._arrays = arrays

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._stage!r})"

    def given(self, first: tuple[Any, ...]) -> Any:
        """The same stage for a function whose first arguments are fixed."""
        arrays = self._arrays
        return type(self)(self._stage, lambda args, kwargs: arrays((*first, *args), kwargs))


class Traced(_Stage):
    """A traced function; see `jax.stages.Traced`."""

    def lower(self, **options: Any) -> Lowered:
        """The function as text for the compiler."""
        return Lowered(self._stage.lower(**options), self._arrays)


class Lowered(_Stage):
    """A lowered function; see `jax.stages.Lowered`."""

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled:
        """The compiled function."""
        return Compiled(self._stage.compile(compiler_options), self._arrays)


class Compiled(_Stage):
    """A compiled function; see `jax.stages.Compiled`. It is called like the function it was made from."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; Variables are changed as by the jitted function."""
        plan, arrays = self._arrays(args, kwargs)
        return plan.finish(self._stage(*arrays))
