"""The public surface: sorted, complete, importable, documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

import sonde

# Packages and modules, which `from sonde import *` does not load.
FACES = {"dictionaries", "errors", "flax", "inside", "linen", "models", "nnx", "report", "store", "tools"}
MOVED = {"bridge", "serialization", "struct", "training", "traverse_util"}


def test_names_are_sorted() -> None:
    assert sonde.__all__ == sorted(sonde.__all__)


@pytest.mark.parametrize("name", sorted(FACES))
def test_every_public_package_is_there_after_import_sonde(name: str) -> None:
    program = f"import sonde; print(sonde.{name}.__name__)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == [f"sonde.{name}"]


@pytest.mark.parametrize("package", [sonde, sonde.dictionaries, sonde.models, sonde.nnx, sonde.store, sonde.tools])
def test_a_stub_lists_only_public_names_and_their_homes(package: types.ModuleType) -> None:
    """A type checker and `lazy_names` read the same lines, so they can only agree if nothing else is there."""
    body = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text()).body
    assert ast.get_docstring(ast.Module(body, []))
    for statement in body[1:]:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.name == alias.asname or package is not sonde.nnx, ast.unparse(statement)
            assert getattr(package, alias.asname) is not None
            # Importing a module of that name would put the module in the place of what the name stands for.
            namesake = Path(package.__file__).with_name(f"{alias.asname}.py")
            assert statement.module == package.__name__ or not namesake.exists(), namesake


@pytest.mark.parametrize("package", ["sonde", "sonde.nnx", "sonde.tools"])
def test_dir_lists_every_name_before_it_is_loaded(package: str) -> None:
    """Completion in a shell reads `dir`; a test that used the names before would see what they left in the package."""
    script = f"""if True:
        import {package} as package
        names = dir(package)
        print(*set(package.__all__) - set(names), names == sorted(names))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_moved_module_says_its_new_name(name: str) -> None:
    moved, new = getattr(sonde, name), importlib.import_module(f"sonde.flax.{name}")
    public = next(attribute for attribute in dir(moved) if hasattr(new, attribute))
    with pytest.warns(DeprecationWarning, match=f"`sonde.{name}` is now `sonde.flax.{name}`"):
        assert getattr(moved, public) is getattr(new, public)


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


@pytest.mark.parametrize("name", ["Record", "Records", "Site"])
def test_what_a_capture_makes_has_no_public_constructor(name: str) -> None:
    with pytest.raises(TypeError, match="out of a capture|where a value is marked"):
        getattr(sonde, name)("h", ())


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'sonde' has no attribute 'captrue'"):
        _ = sonde.captrue
    with pytest.raises(AttributeError, match=r"no attribute 'steer'; nearest: sonde.tools.steer$"):
        _ = sonde.steer
    with pytest.raises(AttributeError, match=r"no attribute 'examine'; nearest: sonde.report.examine$"):
        _ = sonde.examine


def test_exceptions_have_one_root_and_say_when_they_are_raised() -> None:
    kinds = [k for k in vars(sonde.errors).values() if inspect.isclass(k)]
    assert sonde.errors.SondeError in kinds
    for kind in kinds:
        assert issubclass(kind, sonde.errors.SondeError)
        assert kind.__doc__
        assert kind.__name__.endswith("Error") or kind.__name__ == "ScopeCollectionNotFound"  # Flax's name
