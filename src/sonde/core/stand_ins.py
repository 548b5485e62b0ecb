"""Copies of models in programs that Sonde's tools compile, for captures with `inside=`.

Tools compile a call as a function of its arrays: inside, the models among the arguments are copies with tracers in
them, and most libraries keep no note of the original in a copy. The tool knows: the copy is at the position of the
model.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any

from sonde.core.asking import InsideRequest
from sonde.core.module_index import Path, at_path, outermost_in

# For a copy, by identity: references to it and to the model.
_models: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class StandIns:
    """The positions in a tree of the models that a capture looks into. Equal if one compiled program fits both.

    Attributes:
        places: The number of a model, and the keys that lead to it.
        models: The models.
    """

    places: tuple[tuple[int, Path], ...] = ()
    models: tuple[weakref.ref[Any], ...] = dataclasses.field(default=(), compare=False)

    def note(self, tree: Any) -> None:
        """Takes note of the copies in a copy of the tree."""
        for number, path in self.places:
            model, copy = self.models[number](), at_path(tree, path)
            if model is not None and copy is not model:
                _models[id(copy)] = weakref.ref(copy, functools.partial(_forget, id(copy))), weakref.ref(model)


NO_MODELS = StandIns()


def _forget(key: int, copy: weakref.ref[Any]) -> None:
    if key in _models and _models[key][0] is copy:
        del _models[key]


def stand_ins(asked: InsideRequest | None, tree: Any) -> StandIns:
    """The positions in a tree of the models that a capture looks into."""
    models = [] if asked is None else asked.known_models()
    if not models:
        return NO_MODELS
    numbers = {id(model): i for i, model in enumerate(models)}
    places = [(numbers[id(x)], path) for path, x in outermost_in(tree, ()) if id(x) in numbers]
    return StandIns(tuple(places), tuple(map(weakref.ref, models)))


def model_of(copy: Any) -> Any:
    """The model that this is a copy of, or None."""
    found = _models.get(id(copy))
    return found[1]() if found is not None and found[0]() is copy else None
