"""Processes that run too long, grow too large, print too much, or leave children behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from sonde.cli import limited_process
from sonde.cli.limited_process import Finished, Limits, run_limited


def run(code: str, folder: Path, *, seconds: float = 60, gigabytes: float | None = None) -> Finished:
    return asyncio.run(run_limited([sys.executable, "-c", code], folder, Limits(seconds, gigabytes)))


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_what_it_prints_and_its_exit_code(tmp_path: Path) -> None:
    code = "import sys, os; print(os.getcwd()); print('error', file=sys.stderr); print(sys.stdin.read()); sys.exit(3)"
    assert run(code, tmp_path) == Finished(3, f"{tmp_path}\n\n", "error\n")


def test_a_process_that_runs_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    code = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True); {child}"
    )
    start = time.monotonic()
    done = run(code, tmp_path, seconds=1)
    assert done.exceeded == "it ran longer than 1 seconds" and done.code < 0
    assert time.monotonic() - start < 20
    deadline = time.monotonic() + 10
    while is_running(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(done.stdout))


def test_a_child_that_goes_on_does_not_keep_the_answer(tmp_path: Path) -> None:
    """It is in a session of its own."""
    code = (
        "import subprocess, sys; print('done', flush=True); "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(8)'], start_new_session=True)"
    )
    start = time.monotonic()
    assert run(code, tmp_path).exceeded == ""
    assert time.monotonic() - start < 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read where Linux tells it")
def test_a_process_that_uses_too_much_memory_is_ended(tmp_path: Path) -> None:
    code = "import time; x = bytearray(300_000_000); x[::4096] = b'1' * len(x[::4096]); time.sleep(60)"
    done = run(code, tmp_path, gigabytes=0.2)
    assert done.exceeded == "it used more than 0.2 GB of memory"


def test_output_without_end_is_cut(tmp_path: Path) -> None:
    done = run("print('first'); [print('x' * 999) for _ in range(20_000)]; print('last')", tmp_path)
    assert done.stdout.startswith("first\n") and done.stdout.endswith("last\n") and "\n...\n" in done.stdout
    assert len(done.stdout) < 3_000_000


def test_a_process_that_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_process, "_MOST_PRINTED", 1_000_000)
    assert run("while True: print('x' * 999)", tmp_path).exceeded == "it printed more than 1,000,000 bytes"


def test_a_cancelled_call_ends_its_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    async def cancelled() -> None:
        task = asyncio.ensure_future(run_limited([sys.executable, "-c", code], tmp_path, Limits(60)))
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(cancelled())
    process = int(file.read_text())
    deadline = time.monotonic() + 10
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process)
    assert os.getpid() != process
