"""Modules that are copies: a transform rebuilds a model from its arrays, and its modules are other objects then.

A copy that a module around it has is found by identity, like any module. Only one that is called by a plain function
(`loss(model, x)` with `model.encoder(x)` in it) needs more: the model is then a variable of a function that runs, and
stands for the model that was asked for.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from sonde.core.module_index import Origin, module_kind, path_between


class _Models(threading.local):
    def __init__(self) -> None:
        self.asked: list[Any] = []  # weak references to the models that the captures of this thread look into


models = _Models()
_FRAMES = 60


def origin_of_copy(module: Any) -> Origin | None:
    """The module, in a model that is looked into, that a module is a copy of; None if that cannot be said."""
    known = [model for ref in models.asked if (model := ref()) is not None]
    if not known or any(path_between(model, module) is not None for model in known):
        return None
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        for value in list(frame.f_locals.values()) if frame.f_code.co_name != "<module>" else ():
            for model in known:
                if type(value) is type(model) and module_kind(value) is not None:
                    path = path_between(value, module)
                    if path is not None:
                        return _below(model, path)
        frame = frame.f_back
    return None


def _below(model: Any, path: tuple[Any, ...]) -> Origin | None:
    for key in path:
        kind = module_kind(model)
        try:
            model = kind.child(model, key) if kind is not None else model[key]
        except Exception:
            return None
    return Origin(model, None)
