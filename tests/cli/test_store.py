"""`sonde harvest` and `sonde store`."""

from __future__ import annotations

import numpy as np

from sonde import store

PROGRAM = """
import numpy as np
import sonde


def batches():
    return lambda x: sonde.sow(x * 2, "h"), [np.full((3, 2), i, np.float32) for i in range(4)]


def masked():
    f, given = batches()
    return f, given, {"keep": lambda x: x[:, 0] > 1}
"""


def test_harvest_list_check_and_merge(sonde, write, folder):
    write(PROGRAM, "program.py")
    found = sonde.json("harvest", "program:batches", "one", "--sites", "h", "--dtype", "float16")
    assert found["batches"] == 4 and found["arrays"][0]["shape"] == [12, 2] and found["arrays"][0]["dtype"] == "float16"
    assert "12" in sonde.ok("store", "ls", "one")
    assert "Nothing is damaged" in sonde.ok("store", "check", "one")
    sonde.ok("harvest", "program:batches", "two", "--sites", "h", "--dtype", "float16")
    assert sonde.json("store", "merge", "one", "two", "both")["arrays"][0]["shape"] == [24, 2]
    np.testing.assert_array_equal(store.open("both")["h"][12:], store.open("one")["h"][:])
    sonde.ok("harvest", "program:masked", "three")
    assert store.open("three")["h"].shape == (6, 2)


def test_damage_ends_with_1(sonde, write, folder):
    write(PROGRAM, "program.py")
    sonde.ok("harvest", "program:batches", "one")
    for file in (folder / "one" / "values" / "h" / "c").rglob("*"):
        if file.is_file():
            file.unlink()
    assert sonde.json("store", "check", "one", code=1)["damage"][0]["array"] == "values/h"
    assert "the program computes something else" in sonde.error("store", "repair", "program:masked", "one")
    assert sonde.json("store", "repair", "program:batches", "one")["repaired"][0]["array"] == "values/h"
    assert "Nothing was damaged" in sonde.ok("store", "repair", "program:batches", "one")
    assert "Nothing is damaged" in sonde.ok("store", "check", "one")


def test_what_cannot_be_done_is_said(sonde, write, folder):
    write(PROGRAM, "program.py")
    said = sonde.error("store", "ls", "nowhere")
    assert "there is no store" in said and said.endswith("More: `sonde explain StoreError`.")
    assert "matches none" in sonde.error("harvest", "program:batches", "one", "--sites", "g")
    sonde.ok("harvest", "program:batches", "one")
    assert "dtype was None, now 'float16'" in sonde.error("harvest", "program:batches", "one", "--dtype", "float16")
    assert "needs (f, batches)" in sonde.error("harvest", "program:np", "two")
