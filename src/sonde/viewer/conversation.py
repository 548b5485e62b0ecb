"""The conversation with one open page: questions are answered in threads, and sent back as they are ready.

What carries the messages is not known here: a websocket (`server.py`), or the connection of a notebook (`notebook.py`).
A question is `{"id": 3, "op": "read", "args": {...}}`; an answer has its `id` and a `result`, an `error`, `news` before
the answer is finished, or `cancelled`.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sonde.report.failure import failure
from sonde.viewer import (  # noqa: F401  (they list their operations)
    experiments,
    explained,
    graphs,
    layers,
    reading,
    saved,
    sites,
    stored,
    training,
)
from sonde.viewer.operations import Cancelled, Job, Subjects, answer

_THREADS = 32  # questions that are answered at a time; those that compute take turns, those that only read do not wait
_NAME = "sonde-view-question"
_TOO_MUCH = "There was not enough memory for this. What was remembered has been forgotten; try a shorter prompt, or fewer changes at a time."  # noqa: E501


def threads() -> concurrent.futures.ThreadPoolExecutor:
    """Threads that answer questions."""
    return concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=_NAME)


def unfinished() -> bool:
    """Whether a question is still being answered after the threads were shut down."""
    return any(thread.name.startswith(_NAME) for thread in threading.enumerate())


class Conversation:
    """The conversation with one page. When the page closes, what it asked is cancelled.

    Args:
        subjects: What was opened, by name.
        pool: Where questions are answered.
        send: Sends a message to the page; it is called in any thread.
    """

    def __init__(
        self, subjects: Subjects, pool: concurrent.futures.Executor, send: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self.subjects, self.pool, self.send = subjects, pool, send
        self.jobs: dict[int, Job] = {}

    def take(self, text: str) -> None:
        """Takes a message of the page."""
        try:
            message = json.loads(text)
            number, name = int(message["id"]), str(message["op"])
            arguments = message.get("args", {})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # not from our page
        if name == "cancel":
            if number in self.jobs:
                self.jobs[number].cancelled.set()
            return
        job = self.jobs[number] = Job(self.subjects, lambda news: self.send({"id": number, "news": news}))
        self.pool.submit(self._answer, number, job, name, arguments)

    def _answer(self, number: int, job: Job, name: str, arguments: Any) -> None:
        try:
            self.send({"id": number, **answered(job, name, arguments)})
        finally:
            self.jobs.pop(number, None)

    def close(self) -> None:
        """Cancels what was asked."""
        for job in list(self.jobs.values()):
            job.cancelled.set()


def answered(job: Job, name: str, arguments: Any) -> dict[str, Any]:
    """The answer, or what went wrong, in a form that the page can show."""
    try:
        if job.cancelled.is_set():
            raise Cancelled
        if not isinstance(arguments, dict):
            raise ValueError("the arguments of a question are named")
        return {"result": answer(job, name, arguments)}
    except Cancelled:
        return {"cancelled": True}
    except Exception as error:
        if _is_out_of_memory(error):
            for subject in job.subjects.values():
                subject.clear()
            return {"error": {"kind": "out of memory", "text": _TOO_MUCH, "source": ""}}
        told = failure(error, "", only_compiled=False)
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else told.message
        return {"error": {"kind": told.kind, "text": text, "source": told.source, "code": told.code}}


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
