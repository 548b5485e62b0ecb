"""What packages asked of Flax under `sonde.alias`: names that Sonde lacks, names from Flax itself, changes they made.

`sonde.alias_report()` shows it; `sonde.flax.alias` writes it.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Literal

Answer = Literal["from Sonde", "from Flax", "missing", "set"]
_BETWEEN = ("sonde.flax.alias", "importlib", "importlib._bootstrap", "importlib._bootstrap_external")
_EXPLAINED: dict[str, str] = {
    "missing": "not there: these names raised an error, which the package may have caught",
    "set": "set by a package: Sonde's own code does not look there",
    "from Flax": "from Flax itself: objects of Sonde may not fit",
    "from Sonde": "from Sonde",
}


class AliasWarning(UserWarning):
    """A package asks something of Flax that Sonde cannot do for it."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """Something that a package asked of Flax.

    Attributes:
        name: The name of a module of Flax, or of something in one.
        answer: What it got; "set" if the package set the name.
        where: The file and the line that asked first.
    """

    name: str
    answer: Answer
    where: str


class AliasReport(tuple[Ask, ...]):
    """What was asked, in the order in which it was asked first; its text is grouped by the answers."""

    def __str__(self) -> str:
        if not self:
            return "sonde.alias: nothing was asked of Flax"
        lines = []
        for answer, meaning in _EXPLAINED.items():
            asks = sorted((ask for ask in self if ask.answer == answer), key=lambda ask: ask.name)
            if asks:
                lines += [f"{meaning}:", *(f"  {ask.name}  ({ask.where})" for ask in asks)]
        return "\n".join(lines)


_asks: dict[tuple[str, Answer], Ask] = {}


def report() -> AliasReport:
    """What was asked so far."""
    return AliasReport(_asks.values())


def clear() -> None:
    """Forgets what was asked."""
    _asks.clear()


def note(name: str, answer: Answer, warning: str | None = None) -> None:
    """Keeps what a package asked, unless Sonde or Flax itself asked it.

    Args:
        name: What was asked for.
        answer: What the package got.
        warning: The text of a warning to give.
    """
    frame, depth = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame, depth = frame.f_back, depth + 1
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] in ("flax", "sonde"):
        return
    _asks.setdefault((name, answer), Ask(name, answer, f"{frame.f_code.co_filename}:{frame.f_lineno}"))
    if warning is not None:
        warnings.warn(f"{name}: {warning}", AliasWarning, stacklevel=depth)
