"""The public surface: sorted, complete, importable, documented."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import sonde

# Modules of their own, not part of `from sonde import *`.
FACES = {
    "bridge",
    "dictionaries",
    "linen",
    "models",
    "nnx",
    "report",
    "serialization",
    "store",
    "struct",
    "tools",
    "training",
    "traverse_util",
}


def test_names_are_sorted() -> None:
    assert sonde.__all__ == sorted(sonde.__all__)


def test_names_are_complete() -> None:
    """What `__init__` takes from the package is what it offers."""
    tree = ast.parse(Path(sonde.__file__).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("sonde")]
    taken = {alias.asname or alias.name for node in imports for alias in node.names}
    assert taken == {*sonde.__all__, *FACES}


@pytest.mark.parametrize("name", sorted({*sonde.__all__, *FACES}))
def test_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(sonde, name)
    assert name in dir(sonde)
    if name == "__version__":
        assert found[0].isdigit()
        return
    text = inspect.getdoc(found)
    assert text and len(text.split()) >= 4
    assert not text.startswith(f"{name}("), "the signature that dataclasses write is no documentation"


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'sonde' has no attribute 'captrue'"):
        _ = sonde.captrue


def test_exceptions_have_one_root_and_say_when_they_are_raised() -> None:
    kinds = [k for k in vars(sonde.errors).values() if inspect.isclass(k)]
    assert sonde.errors.SondeError in kinds
    for kind in kinds:
        assert issubclass(kind, sonde.errors.SondeError)
        assert kind.__doc__
        assert kind.__name__.endswith("Error") or kind.__name__ == "ScopeCollectionNotFound"  # Flax's name
