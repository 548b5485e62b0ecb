"""`nn.named_call`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sonde.linen.modules.methods import override_named_call
from sonde.linen.transforms.lift import Body, Bridge, lift


def named_call(class_fn: Callable[..., Any], force: bool = True) -> Any:
    """A module class or method whose calls have names in profiles, whatever the process-wide setting is.

    Args:
        class_fn: The module class, or a method.
        force: Whether to name calls; with False, `class_fn` is returned as it is.
    """
    if not force:
        return class_fn
    if isinstance(class_fn, type):
        original = class_fn.__call__

        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with override_named_call(True):
                return original(self, *args, **kwargs)

        return type(class_fn.__name__, (class_fn,), {"__module__": class_fn.__module__, "__call__": call})

    def run(bridge: Bridge, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with override_named_call(True):
            return body(bridge.scopes, *args, **kwargs)

    return lift(class_fn, run, label="named_call")
