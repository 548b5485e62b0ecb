"""What importing and using Sonde installs in JAX: without a running capture, JAX behaves as it does without Sonde."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@functools.cache
def answers(way: str) -> dict[str, Any]:
    """What JAX does in a process without Sonde, in one that imports it, or in one that has used it."""
    return json.loads(python("tests/plain_jax_probe.py", way))


# What using Sonde does not change, importing it does not change either: that alone is left to the thorough run.
WITH_SONDE = pytest.mark.parametrize("way", [pytest.param("imported", marks=pytest.mark.thorough), "used"])


@WITH_SONDE
@pytest.mark.parametrize("probe", ["programs", "compiled", "counts", "errors", "leaks"])
def test_jax_does_the_same(way: str, probe: str) -> None:
    plain, with_sonde = answers("without")[probe], answers(way)[probe]
    assert list(with_sonde) == list(plain)
    for what, expected in plain.items():
        assert with_sonde[what] == expected, what


@WITH_SONDE
def test_only_our_effect_is_allowed_in_addition(way: str) -> None:
    plain, with_sonde = answers("without")["tables"][0], answers(way)["tables"][0]
    ours = ["SiteEffect"] if way == "used" else []  # nothing is changed before the first capture
    for name, types in plain.items():
        assert sorted([*types, *ours]) == with_sonde[name], name


@WITH_SONDE
def test_rules_are_added_for_our_primitives_alone(way: str) -> None:
    plain, with_sonde = answers("without")["tables"][1], answers(way)["tables"][1]
    for name, primitives in plain.items():
        assert set(primitives) <= set(with_sonde[name])
        added = set(with_sonde[name]) - set(primitives)
        assert all(primitive.startswith("sonde_") for primitive in added), (name, added)


@WITH_SONDE
def test_no_function_of_jax_is_ours_when_no_capture_runs(way: str) -> None:
    assert answers(way)["replaced"] == []


@WITH_SONDE
def test_what_was_compiled_before_sonde_came_is_traced_once_more_at_most(way: str) -> None:
    # A user context is part of the key of jit's cache, so that the first one there is makes new keys.
    assert answers("without")["traced"] == 1 <= answers(way)["traced"] <= 2
