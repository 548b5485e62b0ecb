"""Lets several processes continue together, or stop together.

If one process left after an error, the others would wait in their next program. So errors are exchanged: when work that
every process does is finished (`together`), and after every batch (`Company`), without waiting. The exchange is a small
program on one device of each process, started by the thread that starts the other programs, in the same order
everywhere.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sonde.errors import StoreError
from sonde.tools.execution.host_transfer import in_turn

_TEXT = 400  # bytes of a message that are sent to the others
_BEHIND = 2  # batches that a process may be ahead of the reports from the others


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A block of work, without programs, that all processes do. Waits for all; an error in one is raised in all."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    agree(error)


def agree(error: Exception | None) -> None:
    """Waits for all processes, and raises an error if one of them has one."""
    if jax.process_count() > 1:
        text = b"" if error is None else f"{type(error).__name__}: {error}".encode()[:_TEXT]
        said = gathered(text)
        if error is None and any(said):
            number = next(i for i, text in enumerate(said) if text)
            raise StoreError(f"process {number} failed: {said[number].decode(errors='replace')}")
    if error is not None:
        raise error


def check_alike(what: str, text: bytes) -> None:
    """Raises StoreError on all processes if `text` is not the same everywhere."""
    if jax.process_count() > 1 and len(set(gathered(text[:_TEXT]))) > 1:
        raise StoreError(f"{what} is not the same for all processes: give a folder that all share")


def gathered(text: bytes) -> list[bytes]:
    """The short texts of all processes."""
    everyone = np.asarray(_exchanged(np.frombuffer(text.ljust(_TEXT, b"\0"), np.uint8)))
    return [row.tobytes().rstrip(b"\0") for row in everyone]


class Company:
    """Errors of this process and of the others, batch by batch."""

    def __init__(self) -> None:
        self._news: collections.deque[Any] = collections.deque()

    def tell(self, error: Exception | None, *, leaves: bool) -> bool:
        """Reports the error of this process, if any, and whether it wants to leave; to be called after each batch.

        Returns:
            Whether to leave: a process wants to; on all processes after the same batch.

        Raises:
            StoreError: This process failed, or another one did; on all processes after the same batch.
        """
        if jax.process_count() == 1:
            if error is not None:
                raise error
            return leaves
        self._news.append(_exchanged(np.array([error is not None, leaves], np.uint8)))
        if len(self._news) <= _BEHIND:
            return False
        told = np.asarray(self._news.popleft())
        if told[:, 0].any():
            agree(error)
        return bool(told[:, 1].any())


def on_every_process(array: Any) -> Any:
    """A small array, copied to every process. Does not wait if programs keep their order."""
    if array is None or array.is_fully_addressable or array.is_fully_replicated:
        return array
    if isinstance(array.sharding, NamedSharding):
        return in_turn(_copied(array.sharding.mesh)(array))
    return multihost_utils.process_allgather(array, tiled=True)


def _exchanged(array: np.ndarray) -> jax.Array:
    """The arrays of all processes, stacked, on every process. Does not wait if programs keep their order."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[i] for i in sorted(firsts)]), ("processes",))
    shape = (len(firsts), *array.shape)
    mine = jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec("processes")), lambda _: array[None])
    return in_turn(_copied(mesh)(mine))


@functools.cache
def _copied(mesh: Mesh) -> Any:
    return jax.jit(jnp.copy, out_shardings=NamedSharding(mesh, PartitionSpec()))
