"""A finding: one sentence about what is wrong, where, and what usually helps."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from sonde._array_text import short_place
from sonde.display import InNotebook

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""From the most serious to the least."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding(InNotebook):
    """Something the user should know.

    Attributes:
        severity: `"problem"` (the result cannot be trusted), `"warning"` (training will probably suffer) or `"note"`.
        kind: A fixed name for what was found, such as `"dead-units"`; they are listed in docs/concepts/findings.md.
        path: The path of its site; `""` if it has none.
        text: What was found, in one sentence.
        help: What usually helps.
        source: The line of the user's code, if known.
        also: The paths of further sites with the same problem.
        weight: How bad it is among those of the same severity and kind: larger is worse.
    """

    severity: Severity
    kind: str
    path: str
    text: str
    help: str
    source: str = ""
    also: tuple[str, ...] = ()
    weight: float = 0.0

    def __rich__(self) -> Any:
        from rich.text import Text

        lines = [f"{self.severity}: {self.text}", self.help, short_place(self.source)]
        return Text("\n".join(filter(None, lines)))
