"""Files of checkpoints: tensors by name, memory-mapped, read when a device needs them."""

from sonde.models.files.tensors import Tensor, Tensors

__all__ = ["Tensor", "Tensors"]
