"""Files of checkpoints: tensors by name, memory-mapped, read when a device asks for them."""

from sonde.models.files.tensors import Tensor, Tensors

__all__ = ["Tensor", "Tensors"]
