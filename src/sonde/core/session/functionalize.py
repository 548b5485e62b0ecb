"""A call as a function of its arrays, so that it can be compiled whole, or traced for the shapes of its results.

A model is a pytree and may change its state when it is called. What runs here is a copy: the arrays of the function
and its arguments go through `jax.jit` as inputs, everything else is fixed, and no model is changed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from sonde.core.edits.hoisting import hoist
from sonde.core.marks.arrays import WithoutArrays, split_arrays
from sonde.core.modules.roots import NO_MODELS, StandIns, stand_ins
from sonde.core.session.caches import Meter, kept_with
from sonde.core.session.closures import same_value, state_of
from sonde.core.session.compiled_on_disk import keep_on_disk
from sonde.core.session.inside_protocol import InsideRequest


@dataclasses.dataclass(frozen=True)
class StaticPart(WithoutArrays):
    """A pytree without its arrays: hashable.

    Attributes:
        models: Where the models of `inside=` are.
        state: What its functions close over: a program has the values that were there when it was traced.
    """

    models: StandIns = NO_MODELS
    state: Hashable = None

    def whole(self, arrays: Sequence[Any]) -> Any:
        """The pytree with these arrays."""
        tree = super().whole(arrays)
        self.models.note(tree)
        return tree

    def as_of_now(self) -> StaticPart:
        """This static part with what its functions close over by now."""
        return dataclasses.replace(self, state=state_of(*self.leaves))


def static_and_arrays(tree: Any, request: InsideRequest | None = None) -> tuple[StaticPart, list[Any]]:
    """A pytree without its arrays, and the arrays, from which `StaticPart.whole` rebuilds it.

    Args:
        tree: The pytree.
        request: The `inside=` request where the pytree is rebuilt.
    """
    arrays, static = split_arrays(tree)
    state = state_of(*static.leaves)
    return StaticPart(static.tree, static.leaves, stand_ins(request, tree), state), arrays


def shapes_of_call(
    run: Callable[..., Any],
    f: Callable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    request: InsideRequest | None,
) -> Any:
    """What `run(f, args, kwargs)` returns, with shapes in place of arrays; `request` is its `inside=` request."""
    static, arrays = static_and_arrays((f, args, kwargs), request)
    return jax.eval_shape(lambda *arrays: run(*static.whole(arrays)), *arrays)


class JitByStaticPart:
    """Like `jax.jit` of a function whose first argument is static: a call without its arrays, such as a `StaticPart`.

    JAX would keep a static argument in its own caches after the jitted function is gone, and with it the user's
    function and everything that it refers to. Here it belongs to the jitted function.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.__qualname__ = getattr(run, "__qualname__", type(run).__qualname__)

    @staticmethod
    def shared(run: Callable[..., Any], *owners: object) -> JitByStaticPart:
        """One object for all equal functions: a tool that is made anew for the same functions compiles nothing.

        Args:
            run: The function, such as a `functools.partial` of settings and functions of the user.
            owners: The user's functions; the first that can keep something keeps it.
        """
        hoisted, arrays = hoist(run)
        key = "shared", hoisted, tuple(map(same_value, arrays))
        own = (g for g in owners if isinstance(g, types.FunctionType | jax.stages.Wrapped))
        # Programs of models alone stay until the bound on kept programs is reached: a model cannot keep anything.
        return kept_with(next(own, static_and_arrays), key, lambda _: JitByStaticPart(run))

    def at(self, static: Hashable) -> Any:
        """The jitted function of the other arguments."""
        keep_on_disk()
        # A metric, too, may read a variable that has another value now.
        state = state_of(self._run)
        return kept_with(self, (static, state), functools.partial(self._jitted, static, state))

    def _jitted(self, static: Hashable, state: Hashable, meter: Meter) -> Any:
        run, owner = self._run, weakref.ref(self)

        def traced(*args: Any) -> Any:
            result = run(static, *args)
            # A function that counts its traces changes what it reads by being traced. As in `jax.jit`, that asks for no
            # new trace: the next call, which finds the new state, gets this program.
            after = static.as_of_now() if isinstance(static, StaticPart) else static, state_of(run)
            keeper = owner()
            if after != (static, state) and keeper is not None:
                kept_with(keeper, after, lambda _: jitted)
            return result

        jitted = meter.jit(traced)
        return jitted

    def __call__(self, static: Hashable, *args: Any) -> Any:
        """Calls the function."""
        return self.at(static)(*args)
