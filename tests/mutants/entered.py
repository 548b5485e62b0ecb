"""A plugin for pytest: which functions of the source each test enters. Writes them to the file `SONDE_ENTERED`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_SOURCE = os.environ["SONDE_SOURCE"] + os.sep
_entered: dict[str, list[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Notes the functions that begin while a test runs."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        for code in codes:
            if code.co_filename.startswith(_SOURCE):
                place = f"{code.co_filename.removeprefix(_SOURCE)}:{code.co_firstlineno}"
                _entered.setdefault(place, []).append(item.nodeid)


def pytest_sessionfinish() -> None:
    """Writes what was noted."""
    Path(os.environ["SONDE_ENTERED"]).write_text(json.dumps(_entered))
