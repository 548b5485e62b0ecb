"""Odd files, for tests of what reads files that others wrote."""

from __future__ import annotations

import copy
import os
import random
import struct
import time
from typing import Any

import pytest

ODD = [
    None, True, False, -1, 0, 1, 3, 7, 2**31, 2**63, 10**40, -(2**31), 0.5, 1.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "16", "..", "\0", [], [1], ["x"], [None], [[]], {}, {"x": 1}, {"": {}}, [1] * 100,
]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy of something from JSON, with one to three odd entries somewhere in it."""
    changed = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        at = changed
        while isinstance(at, (dict, list)) and at:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = rng.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                at = at[key]
                continue
            if rng.random() < 0.15 and isinstance(at, dict):
                del at[key]
            else:
                at[key] = copy.deepcopy(rng.choice(ODD))  # it may be changed next
            break
    return changed


def flipped(data: bytes, rng: random.Random, first: int, last: int) -> bytes:
    """Bytes, some of which are changed, cut off or repeated, between two places."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if first >= last:  # all of it is cut off
            break
        at = rng.randrange(first, last)
        kind = rng.randrange(5)
        if kind == 0:
            changed[at : at + 1] = bytes([changed[at] ^ (1 << rng.randrange(8))])
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, 2**62, 2**64 - 1]))
        elif kind == 2:
            changed[at : at + 4] = bytes(rng.randrange(256) for _ in range(4))
        elif kind == 3:
            del changed[at : at + rng.choice([1, 8, 100])]
        else:
            changed[at:at] = changed[at : at + rng.choice([1, 8, 100])]
        last = min(last, len(changed))
        first = min(first, max(last - 1, 0))
    return bytes(changed)


def groups(share: int, whole: int, size: int = 25) -> list[Any]:
    """Ranges of seeds: the first ones in each run, all in the thorough one. `FUZZ`, such as a date, chooses others."""
    first = int(os.environ.get("FUZZ") or 0) * 10_000
    thorough = [
        pytest.param(range(first + i, first + min(i + size, whole)), marks=pytest.mark.thorough)
        for i in range(share, whole, size)
    ]
    return [range(first, first + share), *thorough]


def quickly(start: float) -> None:
    assert time.monotonic() - start < 5, "took too long"
