"""No state of one capture is visible to the next."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from sonde.inside import heap


@pytest.mark.every(2)
def test_captures_in_any_order_give_what_each_gives_in_a_process_of_its_own():
    program = Path(__file__).with_name("varied_captures.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    assert all(answers["alone"].values())
    for when in ("after those above", "after all"):
        for name, alone in answers["alone"].items():
            for (_, records), (_, wanted) in zip(answers[when][name], alone, strict=True):
                assert list(records) == list(wanted), f"{name}, {when}"
        assert answers[when] == answers["alone"]


def test_a_search_of_the_whole_heap_keeps_nothing_alive():
    class Thing:
        pass

    thing = Thing()
    ref = weakref.ref(thing)
    gc.disable()  # what is left would be collected with the next other garbage
    try:
        functions = heap._reachable()
        assert test_a_search_of_the_whole_heap_keeps_nothing_alive in functions
        del thing, functions
        assert ref() is None
    finally:
        gc.enable()
