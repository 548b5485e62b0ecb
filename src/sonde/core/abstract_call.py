"""A call that is only traced, for the shapes of what it gives: nothing is computed, and no model is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sonde.core.asking import InsideRequest
from sonde.core.stand_ins import stand_ins


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
    leaves, tree = jax.tree.flatten((f, args, kwargs))
    traced = [i for i, x in enumerate(leaves) if hasattr(x, "shape") and hasattr(x, "dtype")]
    models = stand_ins(asked, (f, args, kwargs))

    def of_arrays(*arrays: Any) -> Any:
        now = dict(zip(traced, arrays))
        call = jax.tree.unflatten(tree, [now.get(i, x) for i, x in enumerate(leaves)])
        models.note(call)
        return run(*call)

    return jax.eval_shape(of_arrays, *[leaves[i] for i in traced])
