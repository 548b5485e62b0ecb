"""What the page may ask for: the listed operations, and nothing else.

An operation is a function of a `Job` and of plain data from the page; it returns plain data. What it raises reaches the
page as a text. Every message of the page says the whole state that it is about (the prompt, the changes), so that two
browsers do not disturb each other and a page can ask again after the server was restarted.
"""

from __future__ import annotations

import base64
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from sonde.report.plain_json import plain
from sonde.viewer.changes import Change
from sonde.viewer.runs import Runs

Subjects = dict[str, Any]
"""What is on a page, by name."""
Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}
"""By name; filled where they are written."""


class Cancelled(Exception):
    """The page no longer wants the answer."""


@dataclasses.dataclass
class Job:
    """One question of the page while it is answered.

    Attributes:
        subjects: What was opened, by name.
        say: Sends part of the answer, or how far it is, before it is finished.
        cancelled: Set when the page no longer wants the answer.
    """

    subjects: Mapping[str, Any]
    say: Callable[[Mapping[str, Any]], object] = lambda news: None
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)

    def progress(self, done: int, total: int, text: str = "", **more: Any) -> None:
        """Tells how far it is. Raises Cancelled if the page does not want the answer."""
        if self.cancelled.is_set():
            raise Cancelled
        self.say({"done": done, "total": total, "text": text, **more})

    def runs(self, subject: str) -> Runs:
        """The runs of a program that was opened."""
        opened = self.subjects.get(subject)
        if not isinstance(opened, Runs):
            raise ValueError(f"there is no program {subject!r} here; there are {', '.join(map(repr, self.subjects))}")
        return opened


def operation(f: Operation) -> Operation:
    """Lists a function as an operation, under its name."""
    OPERATIONS[f.__name__] = f
    return f


def answer(job: Job, name: str, data: Mapping[str, Any]) -> Any:
    """The answer to a question.

    Raises:
        ValueError: There is no such operation, or it takes other arguments.
    """
    if name not in OPERATIONS:
        raise ValueError(f"there is no operation {name!r}")
    function = OPERATIONS[name]
    taken = function.__code__.co_varnames[1 : function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    unknown = sorted(set(data) - set(taken))
    if unknown:
        raise ValueError(f"{name} takes {', '.join(taken)}, not {', '.join(unknown)}")
    return function(job, **data)


def changes_of(changes: Any) -> tuple[Change, ...]:
    """The changes that are switched on, from plain data."""
    return tuple(Change.of(change) for change in changes or () if change.get("on", True))


def packed(values: Any, kind: Literal["f32", "f64"] = "f32") -> dict[str, Any]:
    """An array for the page: its shape, and its numbers as floats of 32 bits, or of 64 to keep integers exact."""
    numbers = np.ascontiguousarray(values, {"f32": "<f4", "f64": "<f8"}[kind])
    return {"shape": list(numbers.shape), kind: base64.b64encode(numbers.tobytes()).decode("ascii")}


__all__ = ["OPERATIONS", "Cancelled", "Job", "answer", "changes_of", "operation", "packed", "plain"]
