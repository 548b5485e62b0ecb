"""Pages that are files: a report that was opened, and the live page with the answers that it has been given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.viewer.assets import whole_page
from sonde.viewer.operations import Job, Subjects, answer, operation


class SavedReport:
    """A page of `sonde report`, or one that was saved, on disk.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name

    @property
    def card(self) -> dict[str, Any]:
        """What the page needs to know of it."""
        return {"kind": "report", "name": self.name}

    def clear(self) -> None:
        """Nothing is remembered."""


@operation
def empty_page(job: Job, subject: str) -> dict[str, str]:
    """The page as one file, into which the page puts what it has been told."""
    if subject not in job.subjects:
        raise ValueError(f"there is no {subject!r} here")
    return {"text": whole_page(f"{subject} · Sonde", {"answers": {}})}


def key_of(name: str, arguments: Mapping[str, Any]) -> str:
    """The text by which a saved page finds an answer; `connection.js` makes the same.

    Example:
        >>> key_of("read", {"subject": "m", "prompt": None, "changes": []})
        'read {"subject":"m"}'
    """
    said = {name: value for name, value in arguments.items() if value is not None and value != []}
    return f"{name} {json.dumps(said, ensure_ascii=False, separators=(',', ':'), sort_keys=True)}"


def first_answers(subjects: Subjects) -> dict[str, Any]:
    """Answers to what a page asks when it is opened, for a page that nothing answers later."""
    job, answers = Job(subjects), {}

    def ask(name: str, **arguments: Any) -> Any:
        answers[key_of(name, arguments)] = reply = answer(job, name, arguments)
        return reply

    first = ask("hello")["subjects"][0]
    if first["kind"] != "program":
        return answers
    place: dict[str, Any] = {"subject": first["name"]}
    path = ask("sites", **place)["first"]
    if path:
        at = place | {"path": path, "call": 0, "part": 0}
        facts = ask("site", **at)
        ask("picture", **at, **facts["drawn"], index=[0] * len(facts["shape"]), against=False)
    ask("read", **place)
    ask("glances", **place)
    return answers
