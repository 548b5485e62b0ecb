"""No state of one capture is visible to the next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


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
