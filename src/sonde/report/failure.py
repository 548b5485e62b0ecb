"""The failure of a program: the exception, the line of the user's code, the last site before it."""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from pathlib import Path

import jax

import sonde
from sonde.report.findings.finding import Finding

_LIBRARIES = (str(Path(jax.__file__).parent), str(Path(sonde.__file__).parent))
_HELP = (
    "The values up to the failure are below; the last site that was reached is the nearest known place before it. "
    "Compare its shape and dtype with what the line expects."
)
_ONLY_COMPILED = (
    "The program runs to its end when nothing is compiled, so the code gets a tracer where it needs a number: use "
    "jnp.where, lax.cond or static_argnums for the condition."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """An exception that came out of the program.

    Attributes:
        error: The exception.
        kind: The name of its type.
        message: Its text.
        source: The innermost line of the user's code, as `file:line`; `""` if unknown.
        code: The text of that line.
        last_site: The path of the last site that was reached; `""` if none was.
        only_compiled: Whether the program succeeds when nothing is compiled.
    """

    error: Exception
    kind: str
    message: str
    source: str
    code: str
    last_site: str
    only_compiled: bool

    @property
    def finding(self) -> Finding:
        """The finding to report first."""
        first_line = self.message.strip().partition("\n")[0]
        after = f" after {self.last_site}" if self.last_site else " before the first site"
        where = f" on line {self.source.rpartition(':')[2]} ({self.code})" if self.source else ""
        text = f"The program failed{after}{where}: {self.kind}: {_short(first_line)}"
        hint = _ONLY_COMPILED if self.only_compiled else _HELP
        return Finding("problem", "failure", self.last_site, text, hint, self.source)


def failure(error: Exception, last_site: str, *, only_compiled: bool) -> Failure:
    """Describes an exception."""
    lines = [
        (f"{frame.filename}:{frame.lineno}", frame.line or "")
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_LIBRARIES, "<frozen")) and "site-packages" not in frame.filename
    ]
    source, code = lines[-1] if lines else ("", "")
    if lines and isinstance(error, RecursionError):  # the line that recurs, and not where Python happened to stop
        source, code = Counter(lines).most_common(1)[0][0]
    return Failure(error, type(error).__name__, str(error), source, _short(code), last_site, only_compiled)


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
