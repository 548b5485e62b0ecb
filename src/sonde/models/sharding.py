"""Places the parameters of a model on one device, or spreads them over a mesh.

Over a mesh, the wide axis of every large parameter is split, so that the devices share the heads of attention, the
hidden features of MLPs, and the vocabulary; parameters that cannot be split evenly are on all devices. The compiler
adds the communication.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

# The axis to split, counted from the end, by the path of the parameter.
_SPLIT: tuple[tuple[str, int], ...] = (
    (r"attn/[qkv]/(kernel|bias)$", -1),
    (r"attn/o/kernel$", -2),
    (r"mlp/(up|gate)/(kernel|bias)$", -1),
    (r"mlp/down/kernel$", -2),
    (r"(^|/)embed/embedding$", -2),
    (r"(^|/)head/kernel$", -1),
)
_NAMES = ("model", "tensor", "tp")


def sharding_of(path: str, shape: tuple[int, ...], mesh: Mesh | None) -> Any:
    """The sharding of a parameter.

    Args:
        path: Of the parameter.
        shape: Of the parameter.
        mesh: The devices; None for the default device. Parameters are split over its axis `model`, `tensor` or `tp`, or
            else over its last one.
    """
    if mesh is None:
        return None
    mesh = Mesh(mesh.devices, mesh.axis_names)  # of whatever axis types: the compiler spreads the work
    axis = next((name for name in _NAMES if name in mesh.axis_names), mesh.axis_names[-1])
    places: list[Any] = [None] * len(shape)
    for pattern, split in _SPLIT:
        if re.search(pattern, path) and shape[split] % mesh.shape[axis] == 0:
            places[split] = axis
    return NamedSharding(mesh, PartitionSpec(*places))


def place(view: np.ndarray, dtype: DTypeLike, sharding: Any) -> jax.Array:
    """Puts numbers on their devices; each device reads and converts only the part it needs.

    Args:
        view: The numbers, which may still be in a file.
        dtype: The dtype to convert them to.
        sharding: Their sharding; None for the default device.
    """

    def part(index: Any) -> np.ndarray:
        chosen = view[index]
        if chosen.dtype != dtype:
            chosen = chosen.astype(dtype)
        return chosen if chosen.flags.aligned else chosen.copy()

    # Wait, because a copy in progress takes extra memory.
    if sharding is None:
        return jax.device_put(part(...)).block_until_ready()
    return jax.make_array_from_callback(view.shape, sharding, part).block_until_ready()
