"""Programs that run in several processes at once, under `jax.distributed`, with two CPU devices each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

HEAD = """
import os, sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

index, count, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.distributed.initialize(f"127.0.0.1:{port}", count, index, initialization_timeout=60, heartbeat_timeout_seconds=10)
import sonde
from sonde import store

mesh = jax.make_mesh((count, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def put(array, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
"""


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(program: Path, count: int, *arguments: str) -> list[subprocess.Popen]:
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    port = _port()
    return [
        subprocess.Popen([sys.executable, str(program), str(i), str(count), str(port), *arguments], env=environment)
        for i in range(count)
    ]


def run(program: Path, count: int, *arguments: str) -> None:
    processes = start(program, count, *arguments)
    try:
        assert [p.wait(180) for p in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
