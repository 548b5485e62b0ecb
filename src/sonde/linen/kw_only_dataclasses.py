"""Dataclasses in which a keyword-only field stays keyword-only when a subclass declares it again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from dataclasses import KW_ONLY as KW_ONLY
from dataclasses import field as field
from typing import Any, dataclass_transform


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(cls: Any = None, **options: Any) -> Any:
    """`dataclasses.dataclass` in which fields stay keyword-only.

    Args:
        cls: The class; without it, a decorator is returned.
        **options: As for `dataclasses.dataclass`.

    Example:
        >>> @dataclass
        ... class Base:
        ...     name: str = field(default="", kw_only=True)
        >>> @dataclass
        ... class Derived(Base):
        ...     size: int
        ...     name: str = "derived"
        >>> Derived(3).name
        'derived'
    """
    if cls is None:
        return functools.partial(dataclass, **options)
    inherited = {
        name: inherited_field
        for base in reversed(cls.__mro__[1:])
        for name, inherited_field in getattr(base, "__dataclass_fields__", {}).items()
    }
    for name in inspect.get_annotations(cls):
        if name in inherited and inherited[name].kw_only:
            default = vars(cls).get(name, dataclasses.MISSING)
            declared = default if isinstance(default, dataclasses.Field) else field(default=default)
            declared.kw_only = True
            setattr(cls, name, declared)
    return dataclasses.dataclass(cls, **options)
