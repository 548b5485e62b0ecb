"""The masks that Keras keeps with arrays, by their identity, also while no capture looks inside its layers."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sonde import _jax
from sonde.core import with_capture_state
from sonde.inside.same_object import keep_all_alive, same_as


def changes(masking: ModuleType) -> Sequence[_jax.Change]:
    """In this module of Keras, all objects that stand for one array share its mask."""
    get, give = masking.get_tensor_attr, masking.set_tensor_attr
    keep_all_alive()

    def mask_of(array: Any, name: str) -> Any:
        with with_capture_state(None):
            return next((mask for x in same_as(array) if (mask := get(x, name)) is not None), None)

    def give_mask(array: Any, name: str, mask: Any) -> None:
        with with_capture_state(None):  # marked, Keras's function would be given other objects
            for x in same_as(array):
                give(x, name, mask)

    return _jax.Change(masking, "get_tensor_attr", mask_of), _jax.Change(masking, "set_tensor_attr", give_mask)
