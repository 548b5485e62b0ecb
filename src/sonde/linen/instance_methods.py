"""Methods for instances only: calling one on the class raises an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sonde.errors import InvalidInstanceModuleError


class OnInstances:
    """A method that raises a clear error when it is called on the class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return _CalledOnClass(self.function, owner)
        return self.function.__get__(instance, owner)


class _CalledOnClass:
    """The value of `Module.apply`: callable through `super()` or with an instance, an error otherwise."""

    def __init__(self, function: Callable[..., Any], owner: type[Any]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self._owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], self._owner):
            name, owner = self.__wrapped__.__name__, self._owner.__name__
            raise InvalidInstanceModuleError(
                f"{owner}.{name} was called on the class: make an instance first, as in {owner}(...).{name}(...)"
            )
        return self.__wrapped__(*args, **kwargs)
