"""The interface to what finds out of what a module was copied, for libraries that store nothing about it in copies.

Transforms take modules apart and rebuild them. The engine does not know how to recognize such a copy: a library that
needs it says with its `ModuleKind` what does, and a capture that meets its modules makes a `CopyFinder`.
`sonde/inside/match_copies.py` is the one that there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sonde import _jax
    from sonde.core.modules.call_stack import CallStack
    from sonde.core.modules.places import Place


class CopyKey:
    """What a traced function has used of the program around to find the original of a copy; compared by `==`."""

    @property
    def kind(self) -> CopyKind:
        """How the copy was recognized."""
        raise NotImplementedError

    def is_own(self) -> bool:
        """Whether the function made all of the copy itself, so that nothing of it depends on the program around."""
        raise NotImplementedError


class FollowedArrays(Protocol):
    """The arrays that a capture follows outside traced programs.

    Attributes:
        shapes: The shapes that they had when the capture began; jitted functions are traced for them.
    """

    shapes: frozenset[tuple[int, ...]]

    def note(self, primitive: _jax.Primitive, params: dict[str, Any], inputs: Sequence[Any], outputs: Any) -> None:
        """Notes what a primitive has computed."""
        ...

    def can_be_change(self, params: dict[str, Any]) -> bool:
        """Whether a jitted call may return something that must be noted."""
        ...


class CopyFinder(Protocol):
    """Finds the originals of copies, for one capture."""

    @property
    def followed(self) -> FollowedArrays:
        """What the program has computed from the arrays of the models."""
        ...

    def find(
        self, stack: CallStack, module: Any, is_called: bool
    ) -> tuple[tuple[Place, int] | None, Sequence[CopyKey]]:
        """The place of the module that a module is a copy of, which is called or only passed on.

        Returns:
            The place and the number of the segment that it counts from, if there is such a module; and for every
            segment what it has used.
        """
        ...

    def find_again(self, stack: CallStack, key: CopyKey, values: Sequence[Any] | None) -> tuple[Place, int] | None:
        """The place of a copy that is made from other arguments, in a segment that starts now."""
        ...

    def meet(self, stack: CallStack, module: Any) -> None:
        """Notes that the program uses a module that was found by its identity."""
        ...

    def may_be_model(self, stack: CallStack, module: Any) -> bool:
        """Whether a module that is no copy may turn out to be the model, when it is called."""
        ...


class CopyKind(Protocol):
    """How the copies of a library's modules are recognized."""

    def finder(self, roots: Sequence[Any], trees: Sequence[Any], trace_around: _jax.Trace) -> CopyFinder:
        """What finds them in one capture.

        Args:
            roots: The modules that the captured call is about.
            trees: Trees that it is called with, which may hold the arrays of a model.
            trace_around: The trace that was active when the capture began.
        """
        ...
