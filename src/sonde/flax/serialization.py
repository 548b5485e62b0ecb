"""Trees of arrays as plain dicts and as bytes, with the names and the file format of `flax.serialization`.

`to_state_dict` turns dataclasses, tuples, lists and optimizer states into nested dicts with string keys;
`from_state_dict` puts such a dict back into an object of the same form. `to_bytes` and `from_bytes` write and read them
as msgpack, which needs the extra `serialization`. Files move between Sonde and Flax in both directions.

Types registered here are also registered with `flax.serialization` once that is loaded, so either library can write
variables in boxes of `sonde.linen`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar, overload

import jax
import numpy as np

from sonde._extras import load

__all__ = [
    "from_bytes",
    "from_state_dict",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
]

T = TypeVar("T")
ToState = Callable[[Any], Any]
FromState = Callable[[Any, Any], Any]
#: Larger arrays are written in pieces: msgpack has no entries of 4 GiB and more.
MAX_CHUNK_SIZE = 2**30
_CHUNKED = "__msgpack_chunked_array__"
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3  # Flax's numbers for what msgpack has no type for


@dataclasses.dataclass(frozen=True)
class _Form:
    to_state: ToState
    from_state: FromState


_STATE_DICT_REGISTRY: dict[type, _Form] = {}
_unknown_to_flax: list[type] = []
_put_aside: list[Any] = []
_lock = threading.Lock()


class _Progress(threading.local):
    path: tuple[str, ...] = ()


_progress = _Progress()


@contextlib.contextmanager
def _at(name: str) -> Iterator[None]:
    before = _progress.path
    _progress.path = (*before, name)
    try:
        yield
    finally:
        _progress.path = before


def current_path() -> str:
    """The path at which `from_state_dict` currently is: `./params/kernel`."""
    return "/".join(_progress.path)


def register_serialization_state(
    ty: type, ty_to_state_dict: ToState, ty_from_state_dict: FromState, override: bool = False
) -> None:
    """Registers how a type is converted to a state dict and restored from one.

    Args:
        ty: The type.
        ty_to_state_dict: Takes an object, returns nested dicts with string keys.
        ty_from_state_dict: Takes an object and such a dict, returns a new object.
        override: Whether to replace an earlier registration.

    Raises:
        ValueError: The type is registered already and `override` is False.
    """
    with _lock:
        if ty in _STATE_DICT_REGISTRY and not override:
            raise ValueError(f"{ty.__name__} is registered already: pass override=True to replace the registration.")
        _STATE_DICT_REGISTRY[ty] = _Form(ty_to_state_dict, ty_from_state_dict)
        _unknown_to_flax.append(ty)
    tell_flax()


def put_aside(flax: ModuleType) -> None:
    """Remembers the real `flax.serialization` while that name means this module; see `sonde.alias`."""
    _put_aside[:] = [flax]
    tell_flax()


def tell_flax() -> None:
    """Registers all types that are registered here with `flax.serialization` too, if that is loaded."""
    if not _unknown_to_flax:
        return
    flax = _put_aside[-1] if _put_aside else sys.modules.get("flax.serialization")
    register = getattr(flax, "register_serialization_state", None)
    if register is None or register is register_serialization_state:
        return
    with _lock:
        while _unknown_to_flax:
            ty = _unknown_to_flax.pop()
            if ty.__module__ != "builtins":
                register(ty, to_state_dict_of(ty), from_state_dict_of(ty), override=True)


def to_state_dict_of(ty: type) -> ToState:
    """The function that converts a registered type to a state dict."""
    return _STATE_DICT_REGISTRY[ty].to_state


def from_state_dict_of(ty: type) -> FromState:
    """The function that restores a registered type."""
    return _STATE_DICT_REGISTRY[ty].from_state


def register_box(ty: type) -> None:
    """Registers one of linen's box types; only the value is written."""
    register_serialization_state(
        ty,
        lambda box: {"value": to_state_dict(box.value)},
        lambda box, state: box.replace_boxed(_restored_field(box.value, state, "value", type(box))),
    )


def is_serializable(target: object) -> bool:
    """Whether `to_state_dict` knows the type of a value; values of other types are leaves."""
    return _form_of(target) is not None


def to_state_dict(target: object) -> Any:
    """Nested dicts with string keys for a tree; a leaf stays as it is.

    Example:
        >>> to_state_dict({"layers": [1.0, (2.0, 3.0)]})
        {'layers': {'0': 1.0, '1': {'0': 2.0, '1': 3.0}}}
    """
    form = _form_of(target)
    if form is None:
        return target
    state = form.to_state(target)
    if isinstance(state, dict):
        wrong = [key for key in state if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"A state dict must have string keys; that of {type(target).__name__} has {wrong[0]!r}.")
    return state


@overload
def from_state_dict(target: None, state: object, name: str = ".") -> Any: ...


@overload
def from_state_dict(target: T, state: object, name: str = ".") -> T: ...


def from_state_dict(target: object, state: object, name: str = ".") -> Any:
    """An object like `target` with the values of a state dict.

    Args:
        target: An object of the form that the state dict was made from.
        state: The state dict.
        name: The name of the root in messages.

    Raises:
        ValueError: The state dict does not have the form of `target`; the message says where.

    Example:
        >>> from_state_dict([0, 0], {"0": 1, "1": 2})
        [1, 2]
    """
    form = _form_of(target)
    if form is None:
        return state
    with _at(name):
        return form.from_state(target, state)


def _form_of(target: object) -> _Form | None:
    if isinstance(target, tuple) and hasattr(target, "_fields"):
        return _NAMED_TUPLE
    form = _STATE_DICT_REGISTRY.get(type(target))
    return _form_of_flax(target) if form is None else form


def _form_of_flax(target: object) -> _Form | None:
    """How Flax writes its own dicts and dataclasses, if it is loaded."""
    flax: Any = sys.modules.get("flax.serialization")
    is_known_to_flax = getattr(flax, "is_serializable", is_serializable)
    if is_known_to_flax is is_serializable or not is_known_to_flax(target):
        return None
    return _Form(flax.to_state_dict, flax.from_state_dict)


# --------------------------------------------------------------------------------------------------------------------
# Types of Python and JAX
# --------------------------------------------------------------------------------------------------------------------


def _restored_field(old: T, state: Mapping[str, Any], name: str, owner: type) -> T:
    if name not in state:
        raise ValueError(f"The state dict has no field {name!r} of {owner.__name__}, at {current_path()}.")
    return from_state_dict(old, state[name], name=name)


def restore_fields(target: object, names: list[str], state: Mapping[str, Any]) -> dict[str, Any]:
    """New values for the fields of an object, from a state dict that must have exactly these."""
    fields = {name: _restored_field(getattr(target, name), state, name, type(target)) for name in names}
    unknown = sorted(set(state) - set(names))
    if unknown:
        raise ValueError(
            f"The state dict has fields that {type(target).__name__} lacks: {', '.join(unknown)}, at {current_path()}."
        )
    return fields


def _dict_from_state(target: Mapping[Any, Any], state: Mapping[str, Any]) -> dict[Any, Any]:
    missing = sorted(str(key) for key in target if str(key) not in state)
    if missing:
        raise ValueError(f"The state dict lacks the entries {', '.join(missing[:5])}, at {current_path()}.")
    return {key: from_state_dict(value, state[str(key)], name=str(key)) for key, value in target.items()}


def _dict_to_state(target: Mapping[Any, Any]) -> dict[str, Any]:
    state = {str(key): to_state_dict(value) for key, value in target.items()}
    if len(state) != len(target):
        raise ValueError(f"The keys {list(target)} must differ as strings, because a state dict has strings as keys.")
    return state


def register_mapping(ty: type[Any]) -> None:
    """Registers a mapping type that can be made from a dict."""
    register_serialization_state(ty, _dict_to_state, lambda old, state: ty(_dict_from_state(old, state)))


def _list_from_state(target: Sequence[Any], state: Mapping[str, Any]) -> list[Any]:
    if len(state) != len(target):
        raise ValueError(
            f"The state dict has {len(state)} entries for a {type(target).__name__} of {len(target)}, at "
            f"{current_path()}."
        )
    return [_restored_field(value, state, str(i), type(target)) for i, value in enumerate(target)]


def _list_to_state(target: Sequence[Any]) -> dict[str, Any]:
    return {str(i): to_state_dict(value) for i, value in enumerate(target)}


_NAMED_TUPLE = _Form(
    lambda target: {name: to_state_dict(getattr(target, name)) for name in target._fields},
    lambda target, state: type(target)(**restore_fields(target, list(target._fields), state)),
)


def _partial_from_state(target: Any, state: Mapping[str, Any]) -> Any:
    args = from_state_dict(target.args, state["args"], name="args")
    return jax.tree_util.Partial(target.func, *args, **from_state_dict(target.keywords, state["keywords"]))


register_serialization_state(dict, _dict_to_state, _dict_from_state)
register_serialization_state(list, _list_to_state, _list_from_state)
register_serialization_state(tuple, _list_to_state, lambda old, state: tuple(_list_from_state(old, state)))
_STATE_DICT_REGISTRY[jax.tree_util.Partial] = _Form(  # not passed on to Flax, which has its own
    lambda target: {"args": to_state_dict(target.args), "keywords": to_state_dict(target.keywords)},
    _partial_from_state,
)


# --------------------------------------------------------------------------------------------------------------------
# Bytes
# --------------------------------------------------------------------------------------------------------------------


def to_bytes(target: object) -> bytes:
    """A tree as bytes: its state dict in msgpack.

    Example:
        >>> import numpy as np
        >>> data = to_bytes({"w": np.arange(3)})
        >>> from_bytes({"w": np.zeros(3)}, data)
        {'w': array([0, 1, 2])}
    """
    return msgpack_serialize(to_state_dict(target), in_place=True)


@overload
def from_bytes(target: None, encoded_bytes: bytes) -> Any: ...


@overload
def from_bytes(target: T, encoded_bytes: bytes) -> T: ...


def from_bytes(target: object, encoded_bytes: bytes) -> Any:
    """A tree of the form of `target` from bytes; with None as target, the state dict."""
    return from_state_dict(target, msgpack_restore(encoded_bytes))


def msgpack_serialize(pytree: object, in_place: bool = False) -> bytes:
    """Nested dicts of arrays, numbers, strings and bytes in msgpack.

    Args:
        pytree: The dicts.
        in_place: Has no effect; the dicts are never changed.
    """
    del in_place
    msgpack = _msgpack()
    return msgpack.packb(_in_pieces(pytree), default=_packed, strict_types=True)


def msgpack_restore(encoded_pytree: bytes) -> Any:
    """Restores what `msgpack_serialize` wrote, with NumPy arrays."""
    msgpack = _msgpack()
    return _in_one(msgpack.unpackb(encoded_pytree, ext_hook=_unpacked, raw=False))


def _msgpack() -> Any:
    return load("msgpack", extra="serialization", purpose="State as bytes")


def _pack(thing: object) -> bytes:
    return _msgpack().packb(thing, use_bin_type=True)


def _array_bytes(array: jax.Array | np.ndarray | np.generic) -> bytes:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise ValueError(
            "An array is spread over several processes and cannot be written as bytes here: gather it first, with "
            "jax.experimental.multihost_utils.process_allgather."
        )
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.isalignedstruct:
        raise ValueError(f"Arrays of dtype {array.dtype} cannot be written as bytes.")
    return _pack((array.shape, array.dtype.name, array.tobytes("C")))


def _packed(thing: object) -> Any:
    """Packs a value that msgpack has no type for."""
    msgpack = _msgpack()
    if isinstance(thing, (np.ndarray, jax.Array)):
        return msgpack.ExtType(_ARRAY, _array_bytes(thing))
    if isinstance(thing, np.generic):
        return msgpack.ExtType(_SCALAR, _array_bytes(thing))
    if isinstance(thing, complex):
        return msgpack.ExtType(_COMPLEX, _pack((thing.real, thing.imag)))
    raise TypeError(
        f"A {type(thing).__name__} cannot be written as bytes: it is not an array, number, string or dict of these. "
        "Call `register_serialization_state` to say how the type becomes a dict."
    )


def _unpacked(code: int, data: bytes) -> Any:
    msgpack = _msgpack()
    if code in (_ARRAY, _SCALAR):
        shape, dtype, buffer = msgpack.unpackb(data, raw=True)
        name = dtype.decode() if isinstance(dtype, bytes) else dtype
        kind = jax.numpy.bfloat16 if name == "bfloat16" else jax.numpy.dtype(name)
        array = np.frombuffer(buffer, dtype=kind, count=-1).reshape(shape)
        return array if code == _ARRAY else array[()]
    if code == _COMPLEX:
        return complex(*msgpack.unpackb(data))
    return msgpack.ExtType(code, data)


def _in_pieces(tree: object) -> Any:
    if isinstance(tree, dict):
        return {key: _in_pieces(value) for key, value in tree.items()}
    if isinstance(tree, (np.ndarray, jax.Array)) and tree.size * tree.dtype.itemsize > MAX_CHUNK_SIZE:
        flat = np.asarray(tree).reshape(-1)
        size = max(1, MAX_CHUNK_SIZE // flat.dtype.itemsize)
        pieces = [flat[i : i + size] for i in range(0, flat.size, size)]
        return {_CHUNKED: True, "shape": _list_to_state(tree.shape), "chunks": _list_to_state(pieces)}
    return tree


def _in_one(tree: object) -> Any:
    if not isinstance(tree, dict):
        return tree
    if _CHUNKED in tree:
        shape = [tree["shape"][str(i)] for i in range(len(tree["shape"]))]
        return np.concatenate([tree["chunks"][str(i)] for i in range(len(tree["chunks"]))]).reshape(shape)
    return {key: _in_one(value) for key, value in tree.items()}
