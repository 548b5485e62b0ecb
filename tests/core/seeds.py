"""Which random programs were run, and which are run by the tests.

A program is `checking.drawn(seed, DEPTH)`. If the drawing changes, the same seeds give other programs.
"""

from __future__ import annotations

# How deep the transforms of a program are nested.
DEPTH = 3

# In `make test`.
QUICK = range(50000, 50008)

# In `make test-thorough`; `make test-programs SEEDS=a:b` runs any.
THOROUGH = range(1000, 5000)

# Runs of several processes side by side, each with every sixteenth seed: the JAX, the seeds, how many of them agreed,
# how many JAX itself could not run, and those that did not agree with the engine as it was then.
RUNS = (
    (
        "0.11.2",
        "40000 to 43404, without gaps up to 41748",
        {"agreed": 2612, "more than JAX can do": 7},
        """40056 40078 40092 40123 40193 40276 40336 40375 40470 40623 40749 40759 40795 40983 41294 41400 41527 41582
        41593 41683 41693 41896 41903 41967 42064 42104 42124 42148 42383 42594 42631 42711 43034 43331""",
    ),
    (
        "0.10.2",
        "50000 to 53586, without gaps up to 50764",
        {"agreed": 2506, "more than JAX can do": 5},
        """50139 50157 50166 50302 50305 50336 50349 50624 51124 51207 51375 51462 51486 51766 51779 51843 52101 52373
        52770 52847 52988 53426""",
    ),
    (
        "0.11.2",
        "80000 to 84321, without gaps up to 82521",
        {"agreed": 3439, "more than JAX can do": 6},
        "80358 80413 80527 80628 80707 81273 81468 82016 82415 82471 83579",
    ),
    (
        "0.11.2",
        "90000 to 91746, without gaps up to 90884",
        {"agreed": 1258, "more than JAX can do": 2},
        "90509 90939",
    ),
    ("0.12.0.1", "70000 to 70055, without gaps", {"agreed": 56}, ""),
    ("0.10.2", "70200 to 70274, without gaps", {"agreed": 75}, ""),
    # From here on the programs have the kinds `Pullbacks`, `Instead` and `Cond(keeps=)`; seeds before mean others now.
    ("0.12.0.1", "3,984 from 120000", {"agreed": 3975}, "120740, and eight more"),
    ("0.11.2", "1,692 from 130000", {"agreed": 1691}, "130474"),
    ("0.10.2", "2,109 from 140000", {"agreed": 2108}, "140707"),
    ("0.12.0.1", "1,976 from 150000", {"agreed": 1975}, "150356"),
    (
        "0.11.2",
        "5,373 from 200000",
        {"agreed": 5330, "more than JAX can do": 38},
        "200021 201592 201627 202981 204709",
    ),
    ("0.12.0.1", "6,014 from 300000", {"agreed": 5969, "more than JAX can do": 44}, "302620"),
    (
        "0.10.2",
        "7,987 from 500000",
        {"agreed": 7940, "more than JAX can do": 40},
        "500995 501701 501950 502556 502757 505601 506053",
    ),
    ("0.12.0.1", "6,325 from 600000", {"agreed": 6280, "more than JAX can do": 44}, "600792"),
    ("0.11.2", "5,673 from 700000", {"agreed": 5640, "more than JAX can do": 33}, ""),
    ("0.10.2", "9,441 from 800000", {"agreed": 9368, "more than JAX can do": 70}, "805292 807308 807734"),
    # All of those since 120000 agree by now; in 500995 JAX itself gets a second derivative wrong.
    ("0.12.0.1", "2,572 from 900000", {"agreed": 2556, "more than JAX can do": 16}, ""),
    ("0.11.2", "2,264 from 950000", {"agreed": 2247, "more than JAX can do": 17}, ""),
    # From here on sites also mark what came in itself, and one value can have two; seeds before mean others now.
    ("0.12.0.1", "4,077 from 1100000", {"agreed": 4054, "more than JAX can do": 22}, "1103497"),
    ("0.10.2", "10,526 from 2000000", {"agreed": 10466, "more than JAX can do": 59}, "2009476"),
    ("0.12.0.1", "5,212 from 2100000", {"agreed": 5178, "more than JAX can do": 33}, "2104044"),
    ("0.11.2", "6,256 from 2200000", {"agreed": 6203, "more than JAX can do": 52}, "2200461"),
    # These four agree by now: 2009476 is more than JAX can do, and 2200461 had another order by hand.
    # From here on there are named loops, collectives and meshes of four devices, and half of the programs are edited:
    # by functions, by rules, and by what was recorded for another input. Seeds before mean others now.
    ("0.12.0.1", "71 from 900000", {"agreed": 64, "not compared": 7}, ""),
    ("0.10.2", "166 from 9100000 and from 9110000", {"agreed": 145, "not compared": 21}, ""),
)

# XLA does not come back from the form by hand, which has neither sites nor a mesh.
NEVER_END: frozenset[int] = frozenset()


def in_chunks(seeds: range) -> list[range]:
    """The seeds in portions for one test each."""
    return [seeds[i : i + 100] for i in range(0, len(seeds), 100)]
