"""Results by path, and in rows."""

import pytest

from sonde.core.records.collections import ByPath, Rows


def test_a_path_that_is_not_there_is_answered_with_the_nearest():
    given = {"blocks/0/mlp": 1, "head": 2}
    found = ByPath(given)
    assert (dict(found), len(found), found["head"]) == (given, 2, 2)
    given["more"] = 3
    assert "more" not in found
    with pytest.raises(KeyError, match="'blocks/0/mlq'.*nearest: 'blocks/0/mlp'"):
        found["blocks/0/mlq"]
    with pytest.raises(TypeError):
        found["head"] = 3  # pyright: ignore[reportIndexIssue]


def test_rows_are_read_by_number_and_slice():
    rows = Rows(iter("abc"))
    assert (rows[0], rows[-1], rows[1:], list(rows), len(rows), "b" in rows) == (
        "a",
        "c",
        ("b", "c"),
        [*"abc"],
        3,
        True,
    )
