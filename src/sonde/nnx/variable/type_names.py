"""Names for Variable types, so that a string can name a collection (`sow("losses", ...)`).

The registry is one table in both directions. A type registered under a second name keeps its first one:
`variable_name_from_type` returns that.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from sonde.nnx.variable.kinds import BatchStat, Cache, Intermediate, Param, Perturbation
from sonde.nnx.variable.variable import Variable

_types: dict[str, type[Variable[Any]]] = {}
_names: dict[type[Variable[Any]], str] = {}
_lock = threading.Lock()


def register_variable_name(name: str, typ: type[Variable[Any]] | None = None, *, overwrite: bool = False) -> Any:
    """Registers a Variable type under a name; without a type, returns a decorator.

    Raises:
        ValueError: The name belongs to another type and `overwrite` is False.

    Example:
        >>> from sonde import nnx
        >>> @nnx.register_variable_name("memory", overwrite=True)
        ... class Memory(nnx.Variable):
        ...     pass
        >>> nnx.variable_type_from_name("memory") is Memory
        True
    """
    if typ is None:
        return functools.partial(register_variable_name, name, overwrite=overwrite)
    with _lock:
        if name in _types and not overwrite:
            raise ValueError(
                f"The name '{name}' already belongs to {_types[name]}. Pass overwrite=True to give it to {typ}."
            )
        _types[name] = typ
        _names.setdefault(typ, name)
    return typ


def variable_type_from_name(
    name: str, /, *, base: type[Variable[Any]] = Variable, allow_register: bool = False
) -> type[Variable[Any]]:
    """The Variable type registered under a name.

    Args:
        name: The registered name.
        base: The class to derive a new type from.
        allow_register: Make and register a new type if the name is unknown.

    Raises:
        ValueError: The name is unknown and `allow_register` is False.
    """
    if name not in _types:
        if not allow_register:
            raise ValueError(
                f"No Variable type is registered under the name '{name}'; known are {sorted(_types)}. Use "
                f"register_variable_name, or set allow_register=True to make one."
            )
        return register_variable_name(name, type(name, (base,), {"__module__": base.__module__}))
    return _types[name]


def variable_name_from_type(typ: type[Variable[Any]], /, *, allow_register: bool = False) -> str:
    """The name under which a Variable type is registered.

    Raises:
        ValueError: It is not registered and `allow_register` is False.
    """
    for registered_type, name in _names.items():
        if registered_type is typ:
            return name
    if not allow_register:
        raise ValueError(
            f"{typ} is not registered under any name. Register it with nnx.register_variable_name(name, type), or here "
            f"as '{typ.__name__}' with allow_register=True."
        )
    name = typ.__name__
    if name in _types:
        raise ValueError(f"Cannot register {typ} as '{name}': the name already belongs to {_types[name]}.")
    register_variable_name(name, typ)
    return name


for _name, _type in {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}.items():
    register_variable_name(_name, _type)
