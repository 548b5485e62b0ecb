"""Checkpoints that cannot be read: raises an error that names the path, whatever error the library raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

# Errors that do not come from damaged files.
_OTHERS = (ModuleNotFoundError, PermissionError, MemoryError, jax.errors.JaxRuntimeError)


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """A context for the calls of a library that read a checkpoint.

    Raises:
        ValueError: The checkpoint is damaged.
    """
    try:
        yield
    except _OTHERS:
        raise
    except Exception as error:
        raise ValueError(
            f"The checkpoint {path} is damaged: it cannot be read ({type(error).__name__}: {error}). Nothing was "
            "restored."
        ) from error
