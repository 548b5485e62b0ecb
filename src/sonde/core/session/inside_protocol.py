"""The interface to `sonde.inside`: what a run wants to see of code without sites.

The engine does not know how functions and modules become sites. It stores each request in the capture state
(`core/session/session.py`), so that jitted functions are traced again for it, and says when a request begins and ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sonde import _jax

# Called with the arrays that went into a site and those that came out, if a library must know them for the same.
PASSED_SITES: list[Callable[[Sequence[Any], Sequence[Any]], None]] = []


class ActiveRequests(Protocol):
    """The requests of the nested captures of a thread. Compared by identity; equal requests are one object."""

    def run(self, outer: InsideRun | None) -> InsideRun:
        """What these requests will change while a session runs; `outer` is what the session around has changed."""
        ...

    def depths_of(self, function: Any) -> Any:
        """Which captures see the sites of a function."""
        ...

    def call_depths(self, function: Any) -> frozenset[int]:
        """Which captures see the calls of a function, a method of modules."""
        ...

    def hook_depths(self, hook: Callable[..., Any], method: str) -> frozenset[int]:
        """Which captures see the calls of a method of modules that are observed by a hook."""
        ...

    def names_functions(self) -> bool:
        """Whether the request names functions, not only packages and models."""
        ...

    def names_models(self) -> bool:
        """Whether the request names models."""
        ...

    def must_see(self, source: str) -> bool:
        """Whether the request names what a line marks, so that it must not be left out."""
        ...


class InsideRun(Protocol):
    """What `sonde.inside` changes in the program's functions while a session runs, and which of them are open."""

    def begin(self) -> None:
        """Makes functions and modules sites."""
        ...

    def end(self) -> None:
        """Undoes that, also if `begin` was cut short. It may be called twice."""
        ...


class InsideRequest(Protocol):
    """The request of one `inside=`. Equal to another with the same request for the same models."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods of modules whose arguments and results are sites."""
        ...

    def known_models(self) -> list[Any]:
        """The models that `inside=` names and that still exist."""
        ...

    def at(self, models: Sequence[Any]) -> InsideRequest:
        """This request for other models."""
        ...

    def nested_in(self, outer: ActiveRequests | None, depth: int) -> ActiveRequests:
        """All requests in force if this one belongs to the capture at `depth`; `outer` are those around it."""
        ...


def inside_request(inside: object) -> InsideRequest | None:
    """The request of an argument `inside=`; None if it is None.

    Raises:
        InsideError: Something that is named cannot be looked into.
        TypeError: It is not something that can be looked into.
    """
    if inside is None:
        return None
    # By name: `sonde.inside` stands on the engine, and is loaded when first used.
    return importlib.import_module("sonde.inside.request").request_of(inside)


def change_libraries(changes: _jax.InPlace) -> None:
    """Adds what must be changed in other libraries while a capture runs to the changes that sessions make."""
    importlib.import_module("sonde.inside.libraries.changes").add_changes(changes)
