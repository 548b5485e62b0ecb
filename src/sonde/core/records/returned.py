"""Records as what a jitted function returns, or a function that leaves the process by `jax.export`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from sonde.core.interpret.items import firsts
from sonde.core.records.layout import RecordLayout
from sonde.core.records.layout_json import layout_from_json, layout_to_json
from sonde.core.records.record import Record, Records


@jax.tree_util.register_pytree_node_class
class AsStored(Records):
    """Records as the output of one of Sonde's jitted functions: their arrays come out as they are stored.

    An array that has several names is one output: XLA would copy it for each. What is made of the output has the same
    structure: JAX takes the result of a jitted function apart again, to know what its next call returns.
    """

    __slots__ = ("_numbers",)

    _numbers: tuple[int, ...]  # equal for arrays that are one

    @classmethod
    def of(cls, records: Records) -> AsStored:
        """Records, to be returned by a jitted function."""
        stored = cls.of_layout(records._layout, records._arrays)
        stored._numbers = tuple(firsts(map(id, records._arrays))[1])
        return stored

    @property
    def records(self) -> Records:
        """The records themselves."""
        return Records.of_layout(self._layout, self._arrays)

    def tree_flatten(self) -> tuple[Sequence[Any], Any]:
        """For JAX."""
        return [self._arrays[i] for i in firsts(self._numbers)[0]], (self._layout, self._numbers)

    @classmethod
    def tree_unflatten(cls, layout: Any, arrays: Sequence[Any]) -> AsStored:
        """For JAX."""
        layout, numbers = layout
        stored = cls.of_layout(layout, [arrays[i] for i in numbers])
        stored._numbers = numbers
        return stored


def _to_text(layout: Any) -> str:
    return json.dumps(layout_to_json(layout))


def _from_text(text: str | bytes | bytearray) -> RecordLayout:
    return layout_from_json(json.loads(text))


def _stored_from_bytes(written: Any) -> tuple[RecordLayout, tuple[int, ...]]:
    numbers, text = json.loads(bytes(written))
    return _from_text(text), tuple(numbers)


# JAX keeps the names: where this file is loaded once more, as notebooks do after a change, they are taken.
with contextlib.suppress(ValueError):
    jax.export.register_pytree_node_serialization(
        Records,
        serialized_name="sonde.Records",
        serialize_auxdata=lambda layout: _to_text(layout).encode(),
        deserialize_auxdata=lambda written: _from_text(bytes(written)),
    )
    jax.export.register_pytree_node_serialization(
        Record,
        serialized_name="sonde.Record",
        serialize_auxdata=lambda part: _to_text([part]).encode(),
        deserialize_auxdata=lambda written: _from_text(bytes(written))[0],
    )
    jax.export.register_pytree_node_serialization(
        AsStored,
        serialized_name="sonde.AsStored",
        serialize_auxdata=lambda parts: json.dumps([parts[1], _to_text(parts[0])]).encode(),
        deserialize_auxdata=_stored_from_bytes,
    )
