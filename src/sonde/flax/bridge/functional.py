"""`functional`: a class of nnx Modules as a pair of functions, `init` and `apply`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from sonde import nnx


@dataclasses.dataclass
class Functional:
    """A Module that is made by `init` and called by `apply`.

    Attributes:
        module_type: The class of the Module.
        graphdef: Its structure; None before `init`.
        args: The arguments of the class.
        kwargs: Its keyword arguments.
    """

    module_type: Callable[..., Any]
    graphdef: nnx.GraphDef[Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def init(self, *, rngs: nnx.Rngs | None = None) -> Any:
        """Makes the Module and returns its state."""
        keywords = dict(self.kwargs) if rngs is None else {**self.kwargs, "rngs": rngs}
        self.graphdef, state = nnx.split(self.module_type(*self.args, **keywords))
        return state

    def apply(self, *states: Any) -> Any:
        """An object to call like the Module; the call returns the result, and the structure and state afterwards."""
        if self.graphdef is None:
            raise ValueError("Functional.apply needs the structure that `init` finds: call `init` first.")
        return self.graphdef.apply(*states)


def functional(cls: Callable[..., Any]) -> Callable[..., Functional]:
    """A function with the arguments of a class of Modules that returns a `Functional`.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> linear = nnx.bridge.functional(nnx.Linear)(2, 3)
        >>> state = linear.init(rngs=nnx.Rngs(0))
        >>> y, (graphdef, state) = linear.apply(state)(jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """

    def make(*args: Any, **kwargs: Any) -> Functional:
        return Functional(cls, None, args, kwargs)

    return make
