"""The API reference that the site's build makes from docstrings has every public name, with a text."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from tests.site_hooks import site_hook

import sonde

hook = site_hook("api_reference")


@pytest.mark.parametrize("name", hook.MODULES)
def test_every_public_name_has_an_entry(name: str) -> None:
    page = hook.page(name)
    module = importlib.import_module(name)
    entries = re.findall(r"^## (.*)\n\n(.*)", page.replace(r"\_", "_"), re.MULTILINE)
    assert [title for title, _ in entries] == hook.public_names(module)
    assert {title for title, _ in entries} >= set(getattr(module, "__all__", ()))
    assert all(text.strip() for _, text in entries)
    assert "-> '" not in page  # annotations as they are written, without quotes
    assert not re.search(r" at 0x[0-9a-f]+", page)  # an address in memory would differ in every build


def test_the_modules_that_users_import_have_a_page() -> None:
    packages = re.findall(
        r"^from sonde import (\w+) as", Path(sonde.__file__).with_suffix(".pyi").read_text(), re.MULTILINE
    )
    # What `sonde.flax` and `sonde.inside` offer has pages of its own.
    named = {f"sonde.{package}" for package in packages} - {"sonde.flax", "sonde.inside"}
    assert len(named) > 5
    assert {"sonde", "sonde.tools", "sonde.nnx", "sonde.linen"} <= set(hook.MODULES)
    assert named <= set(hook.MODULES)
