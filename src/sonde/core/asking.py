"""What a run asks to see of code without sites: the door for `sonde.inside`.

The engine knows nothing of how functions and modules become sites. It keeps what was asked with what is looked for, so
that jitted functions are traced again for it, and says when it begins and ends to be in force.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol


class AskedInside(Protocol):
    """What the nested captures of a thread ask to see. Compared by identity; the same for the same requests."""

    def install(self) -> None:
        """Makes it so, until `remove`. Runs of one thread are nested."""
        ...

    def remove(self) -> None:
        """Undoes what `install` did."""
        ...

    def depths_of(self, function: Any) -> Any:
        """Which captures see the sites of a function."""
        ...

    def call_depths(self, method: str) -> frozenset[int]:
        """Which captures see the calls of a method of modules."""
        ...

    def names_functions(self) -> bool:
        """Whether functions were asked for by name, and did not all come with packages and models."""
        ...

    def names_models(self) -> bool:
        """Whether models were asked for."""
        ...

    def must_see(self, source: str) -> bool:
        """Whether what a line marks was asked for by name, and must not be left out."""
        ...

    def adopt(self, function: Any, made: Any) -> None:
        """Takes note of a function object that was made meanwhile."""
        ...


class InsideRequest(Protocol):
    """What one `inside=` asks for. Equal to another that asks for the same of the same models."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods of modules whose arguments and results are sites."""
        ...

    def known_models(self) -> list[Any]:
        """The models that are looked into, as far as they still exist."""
        ...

    def at(self, models: Sequence[Any]) -> InsideRequest:
        """The same for other models."""
        ...

    def nested_in(self, outer: AskedInside | None, depth: int) -> AskedInside:
        """What is asked for when this is the request of the capture at `depth`, in captures that ask for `outer`."""
        ...


def asked_for(inside: Any) -> InsideRequest | None:
    """What an argument `inside=` asks for; None if it is None.

    Raises:
        InsideError: Something was asked for by name that cannot be looked into.
        TypeError: It is nothing that can be looked into.
    """
    if inside is None:
        return None
    # By name: `sonde.inside` stands on the engine, and is loaded when first used.
    return importlib.import_module("sonde.inside").request_of(inside)
