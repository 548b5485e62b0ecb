"""A call that is only traced, for the shapes of what it gives: nothing is computed, and no model is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sonde.core.arrays import split_arrays
from sonde.core.asking import InsideRequest
from sonde.core.module_roots import stand_ins


def shapes_of_call(run: Callable[..., Any], f: Any, args: Any, kwargs: Any, asked: InsideRequest | None) -> Any:
    """What `run(f, args, kwargs)` returns, with shapes in the place of arrays.

    A model is a pytree and may change its state when it is called: `run` gets a copy of all three, with tracers.

    Args:
        run: The function to trace.
        f: A callable.
        args: Its positional arguments, with arrays or shapes.
        kwargs: Its keyword arguments.
        asked: What is looked into.
    """
    traced, rest = split_arrays((f, args, kwargs))
    models = stand_ins(asked, (f, args, kwargs))

    def of_arrays(*arrays: Any) -> Any:
        call = rest.whole(arrays)
        models.note(call)
        return run(*call)

    return jax.eval_shape(of_arrays, *traced)
