"""Which random programs were run, and which are run by the tests."""

from __future__ import annotations

import os

# How deep the transforms of a program are nested.
DEPTH = 3

# In `make test`.
QUICK = range(24)

# In `make test-thorough`, unless `SEEDS=a:b` asks for others.
THOROUGH = range(1000, 5000)

# XLA does not come back from the form by hand, which has neither sites nor a mesh.
NEVER_END: frozenset[int] = frozenset()


def requested() -> range:
    """The seeds that `make test-thorough` is to run."""
    asked = os.environ.get("SEEDS", "")
    if not asked:
        return THOROUGH
    first, colon, last = asked.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise ValueError(f"SEEDS is a range of seeds such as 5000:6000, got {asked!r}")
    return range(int(first), int(last))


def in_chunks(seeds: range) -> list[range]:
    """The seeds in portions for one test each."""
    return [seeds[i : i + 100] for i in range(0, len(seeds), 100)]
