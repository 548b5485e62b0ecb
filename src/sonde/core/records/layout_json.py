"""The layout of records as JSON: what files of records and exported functions hold beside the arrays.

It has names in place of positions, so that a later version of Sonde can read it. The tag of a site is not kept, and the
parts of a value must be in dicts, lists and tuples.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import Gate, Site, View
from sonde.core.records.layout import ArraysSpec, CallSpec, RecordLayout

_CLASSES = {kind.__name__: kind for kind in (ArraysSpec, CallSpec, Axis, Gate, View)}
# What a site needs while a program runs is left out.
_SITE = [name for name in Site.__slots__ if name not in ("tag", "handlers", "supply", "__weakref__")]
_PLAIN = (type(None), bool, int, float, str)


def layout_to_json(layout: RecordLayout) -> Any:
    """A layout as what `json` can write.

    Raises:
        TypeError: A value has parts outside dicts, lists and tuples.
    """
    return _Writer().plain(tuple(layout))


def layout_from_json(plain: Any) -> RecordLayout:
    """The layout that `layout_to_json` described."""
    return RecordLayout(_Reader().whole(plain))


class _Writer:
    def __init__(self) -> None:
        self._objects: dict[int, int] = {}  # loops and choices are compared by identity

    def plain(self, thing: Any) -> Any:
        if isinstance(thing, _PLAIN):
            return thing
        if isinstance(thing, _jax.MappedBy):
            return None  # which `vmap` made an axis is known only in the process that ran it
        if isinstance(thing, (tuple, list, frozenset)):
            return {
                type(thing).__name__ if type(thing) is not RecordLayout else "tuple": [self.plain(x) for x in thing]
            }
        if isinstance(thing, Site):
            return {"Site": {name: self.plain(getattr(thing, name)) for name in _SITE}}
        if type(thing).__name__ in _CLASSES and dataclasses.is_dataclass(thing):
            fields = {field.name: self.plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
            return {type(thing).__name__: fields}
        if isinstance(thing, jax.tree_util.PyTreeDef):
            return {"tree": _structure(jax.tree.unflatten(thing, [_LEAF] * thing.num_leaves))}
        if hasattr(thing, "shape") and hasattr(thing, "dtype"):
            if isinstance(thing, np.generic):
                return self.plain(thing.item())
            is_key = jnp.issubdtype(thing.dtype, jax.dtypes.prng_key)
            return {"type": [list(thing.shape), None if is_key else thing.dtype.name]}
        if type(thing) is object:
            return {"object": self._objects.setdefault(id(thing), len(self._objects))}
        raise TypeError(f"a value has a part of type {type(thing).__name__}, which cannot be saved: {thing!r}")


class _Leaf:
    pass


_LEAF = _Leaf()


def _structure(tree: Any) -> Any:
    if tree is _LEAF or tree is None:
        return "leaf" if tree is _LEAF else None
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_structure(x) for x in tree]}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _structure(x) for key, x in tree.items()}}
    raise TypeError(
        f"a value has a {type(tree).__name__} in it, but records can be saved and exported only with dicts with string "
        "keys, lists and tuples; capture with reduce= to extract the arrays"
    )


def _unstructured(plain: Any) -> Any:
    if plain is None or plain == "leaf":
        return None if plain is None else 0
    ((kind, parts),) = plain.items()
    if kind == "dict":
        return {key: _unstructured(x) for key, x in parts.items()}
    return {"list": list, "tuple": tuple}[kind](_unstructured(x) for x in parts)


class _Reader:
    def __init__(self) -> None:
        self._objects: dict[int, object] = {}

    def whole(self, plain: Any) -> Any:
        if isinstance(plain, _PLAIN):
            return plain
        ((kind, said),) = plain.items()
        if kind in ("tuple", "list", "frozenset"):
            return {"tuple": tuple, "list": list, "frozenset": frozenset}[kind](self.whole(x) for x in said)
        if kind == "Site":
            site = Site.__new__(Site)
            for name in _SITE:
                setattr(site, name, self.whole(said[name]))
            site.tag = site.handlers = site.supply = None
            return site
        if kind == "tree":
            return jax.tree.structure(_unstructured(said))
        if kind == "type":
            dtype = jax.random.key(0).dtype if said[1] is None else jnp.dtype(said[1])
            return jax.ShapeDtypeStruct(tuple(said[0]), dtype)
        if kind == "object":
            return self._objects.setdefault(said, object())
        return _CLASSES[kind](**{name: self.whole(x) for name, x in said.items()})
