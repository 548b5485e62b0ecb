"""Processes that start in milliseconds, to be killed: forks of one that has imported everything and started nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from tests.processes import xla_flags

HEAD = """
import os, sys, traceback, warnings

warnings.filterwarnings("ignore")
import jax, jax.numpy as jnp
import numpy as np
import google_crc32c, optax, tensorstore
import sonde
from sonde import store
from sonde.store.writing import harvest
"""
LOOP = """
said = os.dup(1)
os.dup2(2, 1)  # libraries print
os.write(said, b"ready\\n")
for line in sys.stdin:
    count, *arguments = line.split()
    processes = []
    for number in range(int(count)):
        process = os.fork()
        if not process:
            try:
                main(number, *arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        processes.append(process)
    os.write(said, (" ".join(map(str, processes)) + "\\n").encode())
    ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    os.write(said, (" ".join(map(str, ends)) + "\\n").encode())
"""


class Forks:
    """Runs `main(number, *arguments)` of a program in new processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def start(self, count: int, *arguments: object) -> list[int]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, (count, *arguments))) + "\n")
        self._process.stdin.flush()
        return list(map(int, self._line().split()))

    def ends(self) -> list[int]:
        """Waits for the processes that were started last; returns their exit codes."""
        return list(map(int, self._line().split()))

    def run(self, count: int, *arguments: object) -> None:
        self.start(count, *arguments)
        assert self.ends() == [0] * count


@contextlib.contextmanager
def forks(program: str, devices: int = 1) -> Iterator[Forks]:
    environment = {**os.environ, "XLA_FLAGS": xla_flags(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", HEAD + program + LOOP]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            yield Forks(process)
        finally:
            process.kill()


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
