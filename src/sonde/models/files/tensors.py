"""Tensors by name, as every kind of file offers them; their numbers are read on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor in a file.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The dtype of its numbers when read.
        read: Returns its numbers; a view of the file if they are stored in that form.
        release: Releases the memory of the file's pages, after the numbers were copied.
        where: The file, for messages.
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
