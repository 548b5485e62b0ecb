"""Programs that run in several processes at once, under `jax.distributed`, with two CPU devices each."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HEAD = """
import faulthandler, os, signal, sys
faulthandler.register(signal.SIGUSR1)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

index, count, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
import sonde
from sonde import store

mesh = jax.make_mesh((count, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def put(array, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
"""
SECONDS = 400  # a busy machine may stop them all for minutes


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def xla_flags(devices: int, *, trains: bool = False) -> str:
    """The flags of the tests (`tests/conftest.py`), for a process with another number of CPU devices.

    What trains runs one program for seconds: it is worth optimizing.
    """
    count, level = "--xla_force_host_platform_device_count=", "--xla_backend_optimization_level="
    flags = re.sub(rf"{count}\d+", f"{count}{devices}", os.environ["XLA_FLAGS"])
    return flags.replace(f"{level}0", f"{level}1") if trains else flags


def start(program: Path, count: int, *arguments: str) -> list[subprocess.Popen]:
    environment = {**os.environ, "XLA_FLAGS": xla_flags(2), "JAX_PLATFORMS": "cpu"}
    port = free_port()
    return [
        subprocess.Popen([sys.executable, str(program), str(i), str(count), str(port), *arguments], env=environment)
        for i in range(count)
    ]


def run(program: Path, count: int, *arguments: str) -> None:
    """Runs them to their end. One that fails ends all: the others would wait for it."""
    processes = start(program, count, *arguments)
    end = time.monotonic() + SECONDS
    try:
        while None in (codes := [p.poll() for p in processes]) and not any(codes):
            if time.monotonic() > end:
                for process in processes:
                    process.send_signal(signal.SIGUSR1)  # says where it is
                time.sleep(2)
                raise AssertionError(f"{count} processes did not end in {SECONDS} s: exit statuses {codes}")
            time.sleep(0.05)
        assert codes == [0] * count
    finally:
        for process in processes:
            process.kill()
            process.wait()
