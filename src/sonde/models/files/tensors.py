"""What every kind of file offers: tensors by name, whose numbers are read when they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: what its numbers will be.
        read: its numbers; a view of the file where the file has them as they are.
        release: gives the memory of the file's pages back, after the numbers were copied.
        where: the file, for messages.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    release: Callable[[], None]
    where: str

    @property
    def bytes(self) -> int:
        """How many bytes its numbers take."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


Tensors = dict[str, Tensor]
