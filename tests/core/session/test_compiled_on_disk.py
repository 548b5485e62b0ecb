"""What a tool compiled is found on disk by the next process, unless that is off or a folder is set."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys
import jax, jax.numpy as jnp, sonde
from sonde.tools import site_gradients
if sys.argv[1:] and sys.argv[1]:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
if len(sys.argv) < 3:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append("cache_hits" in name))
before = jax.config.jax_compilation_cache_dir
def f(x):
    return jnp.sum(sonde.sow(jnp.sin(x), "h") ** 2)
site_gradients(f)(jnp.ones(3))
least = jax.config.jax_persistent_cache_min_compile_time_secs
print(repr(before), repr(jax.config.jax_compilation_cache_dir), any(hits), least)
"""


def run(home: Path, *args: str, **settings: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "SONDE_COMPILED")}
    env |= {"XDG_CACHE_HOME": str(home), **settings}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *args], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_next_process_finds_it(tmp_path: Path) -> None:
    before, folder, hit, _ = run(tmp_path)
    assert (before, hit) == ("None", "False") and str(tmp_path / "sonde/compiled") in folder
    place = Path(folder.strip("'"))
    entries = [file for file in place.iterdir() if file.is_file()]
    assert entries
    old = place / "old"
    old.write_text("")
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    assert run(tmp_path)[2] == "True"
    assert not old.exists() and entries[0].exists()


@pytest.mark.every(3)
@pytest.mark.parametrize("how", ["off", "set", "named"])
def test_the_switch(tmp_path: Path, how: str) -> None:
    other = str(tmp_path / "other")
    if how == "off":
        assert run(tmp_path, SONDE_COMPILED="off")[1] == "None"
    elif how == "set":
        assert run(tmp_path, other)[1] == repr(other)
    else:
        assert run(tmp_path, SONDE_COMPILED=other)[1].startswith(f"'{other}")
    assert not (tmp_path / "sonde").exists()


def test_programs_that_take_less_than_jax_keeps_are_kept_too(tmp_path: Path) -> None:
    assert float(run(tmp_path, "", "as it is")[3]) < 0.5
    asked = run(tmp_path, "", "as it is", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="7")
    assert float(asked[3]) == 7
