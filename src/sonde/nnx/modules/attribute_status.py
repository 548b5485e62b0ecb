"""How to say whether an attribute of a Pytree is data (a child of the pytree) or static (part of its structure).

`nnx.data(x)` and `nnx.static(x)` mark a value on assignment or a field of a dataclass; `nnx.Data[T]` and
`nnx.Static[T]` are annotations. Without them, `value_kinds.is_data` decides.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, TypeVar, get_args, get_origin, overload

import jax

from sonde.nnx.structure.value_kinds import CONTAINER, is_data, kind_of

T = TypeVar("T")
_MISSING: Any = object()
_DATA, _STATIC = "sonde.nnx.data", "sonde.nnx.static"

#: Annotation of an attribute that is data whatever it holds.
Data = Annotated[T, _DATA]
#: Annotation of an attribute that is static.
Static = Annotated[T, _STATIC]


@overload
def data(value: T, /, **kwargs: Any) -> T: ...
@overload
def data(**kwargs: Any) -> Any: ...
def data(value: object = _MISSING, /, **kwargs: Any) -> Any:
    """Makes an attribute data: `self.x = nnx.data(x)`, or `x: T = nnx.data()` in a class body.

    Args:
        value: The value to assign.
        **kwargs: For a dataclass, what `dataclasses.field` takes (`default`, `default_factory`, ...).

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> class Scale(nnx.Pytree):
        ...     def __init__(self, x):
        ...         self.x = nnx.data(x)
        >>> jax.tree.leaves(Scale(42))
        [42]
    """
    return _field(True, value, kwargs)


def static(value: object = _MISSING, /, **kwargs: Any) -> Any:
    """Makes an attribute static: `self.x = nnx.static(x)`, or `x: T = nnx.static()` in a class body.

    Args:
        value: The value to assign.
        **kwargs: For a dataclass, what `dataclasses.field` takes (`default`, `default_factory`, ...).
    """
    return _field(False, value, kwargs)


def _field(status: bool, value: object, kwargs: dict[str, Any]) -> Any:
    # A dataclass field, because it works both in the body of a dataclass and as a marked value.
    metadata = {**kwargs.pop("metadata", {}), _DATA: status}
    if value is not _MISSING:
        metadata["value"] = value
    return dataclasses.field(**kwargs, metadata=metadata)  # type: ignore[call-overload]


def marked_value(value: object) -> tuple[Any, bool | None]:
    """The bare value, and its mark: True for data, False for static, None if it was not marked."""
    if isinstance(value, dataclasses.Field) and _DATA in value.metadata and "value" in value.metadata:
        return value.metadata["value"], value.metadata[_DATA]
    return value, None


def check_no_marks_inside(node: object, name: str | int, value: object) -> None:
    """Checks that a container which is assigned to an attribute holds no value marked by `data` or `static`.

    Raises:
        ValueError: It does; the mark would have no effect.
    """
    if kind_of(value) != CONTAINER or not value:
        return
    for leaf in jax.tree.leaves(value, is_leaf=is_data):
        if (mark := marked_value(leaf)[1]) is not None:
            raise ValueError(
                f"A value marked with nnx.{'data' if mark else 'static'} is inside of the {type(value).__name__} that "
                f"was assigned to the attribute '{name}' of {type(node).__name__}. Mark the attribute itself, or use "
                "nnx.List(...) or nnx.Dict(...), whose items may be marked."
            )


def declared_in(cls: type) -> dict[str, bool]:
    """Statuses that a class body declares, by annotation or by a field."""
    declared = {}
    for name, annotation in inspect.get_annotations(cls).items():
        text = annotation if isinstance(annotation, str) else ""
        head = text.split("[")[0].rsplit(".", 1)[-1].strip() if "[" in text else ""
        marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        if head == "Data" or _DATA in marks:
            declared[name] = True
        elif head == "Static" or _STATIC in marks:
            declared[name] = False
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field) and _DATA in value.metadata:
            declared[name] = value.metadata[_DATA]
        elif isinstance(value, dataclasses.Field) and "static" in value.metadata:  # as for `jax.tree_util`
            declared[name] = not value.metadata["static"]
    return declared


def static_holds_data(
    node: object, name: str | int, value: object, data_inside: list[Any], *, explicit: bool, was_static: bool
) -> ValueError:
    """The error for data in a static attribute, which says what to do about it."""
    cls = type(node).__name__
    types = ", ".join(sorted({type(x).__name__ for x in data_inside}))
    holding = f"a {type(value).__name__} that holds {types}" if not is_data(value) else f"a {types}"
    if explicit:
        return ValueError(f"Attribute '{name}' of {cls} is marked with nnx.static, but holds data: {holding}.")
    if was_static:
        return ValueError(
            f"Cannot assign data, {holding}, to the static attribute '{name}' of {cls}. Its first value made it "
            f"static. To make it data, write `self.{name} = nnx.data(...)` here or in the first assignment."
        )
    return ValueError(
        f"Found data, {holding}, assigned to the static attribute '{name}' of {cls}; JAX would not see it. Use "
        f"nnx.List(...) or nnx.Dict(...) in place of a list or dict, or wrap the value: `self.{name} = nnx.data(...)`, "
        f"or annotate the class: `{name}: nnx.Data[...]`, or declare `class {cls}(..., pytree=False)`."
    )
