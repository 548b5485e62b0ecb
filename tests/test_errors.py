"""The exception tree: every error names a page, and the tree drawn in the docstring is the one there is."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from pathlib import Path

import pytest

from sonde import errors
from sonde.cli.explain import page_of

ROOT = Path(__file__).parents[1]
CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.SondeError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_prints_the_address_of_a_page_that_exists(cls: type[errors.SondeError]) -> None:
    error = cls("what went wrong")
    assert str(error) == "what went wrong"
    printed = "".join(traceback.format_exception_only(error))
    last = printed.splitlines()[-1]
    assert last.startswith("What to do: ") and len(cls.todo.split()) > 4
    if cls is not errors.SondeError:
        family = Path(cls.page).stem
        assert last.endswith(f" More: `sonde explain {family}`.")
        assert page_of(cls) == (ROOT / cls.page).read_text()
    assert (ROOT / cls.page).is_file()
    if issubclass(cls, errors.LinenError):
        assert cls.__name__ in (ROOT / cls.page).read_text()


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_a_copy_prints_it_once(again: object) -> None:
    assert callable(again)
    assert "".join(traceback.format_exception_only(again(errors.CaptureError("x")))).count("What to do") == 1


def test_the_tree_in_the_docstring_is_complete() -> None:
    assert errors.__doc__
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__)
    assert sorted(drawn) == sorted(c.__name__ for c in CLASSES if errors.SondeError in c.__bases__)
    said = re.search(r"LinenError +the root of (\d+) errors", errors.__doc__)
    assert said
    assert int(said[1]) == sum(issubclass(c, errors.LinenError) for c in CLASSES) - 1
