"""Files that are edited, loaded again or changed on import: what is marked is what runs, or an error."""

from __future__ import annotations

import ast
import importlib
import itertools
import os
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde._array_text import short_place
from sonde.errors import InsideError

X = jnp.linspace(0.1, 1.0, 4)
_seconds = itertools.count(1_000_000_000)


class File:
    """A module that is written, loaded and edited."""

    def __init__(self, folder, name):
        self.path = folder / f"{name}.py"
        self.name = name

    def write(self, text):
        self.path.write_text(text)
        second = next(_seconds)  # a file that is written twice in one moment has one time of change
        os.utime(self.path, (second, second))

    def load(self):
        importlib.invalidate_caches()
        known = sys.modules.get(self.name)
        return importlib.import_module(self.name) if known is None else importlib.reload(known)

    def names(self, module):
        """Everything that means the function `f` or its file."""
        return [module.f, module, self.name, f"{self.name}:f", f"{self.name}:*", str(self.path), f"{self.path}:f"]


@pytest.fixture
def file(tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"edited_{abs(hash(request.node.name))}"
    yield File(tmp_path, name)
    sys.modules.pop(name, None)


TEXT = "def f(x):\n    y = x * 2\n    return y\n"
EDITS = {
    "a constant": TEXT.replace("2", "3"),
    "its type": TEXT.replace("2", "2.0"),
    "an operator": TEXT.replace("*", "+"),
    "a name": TEXT.replace("y", "z"),
    "a statement more": TEXT.replace("    return", "    x = y\n    return"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_was_edited_is_an_error_until_it_is_loaded_again(file, edit):
    file.write(TEXT)
    module = file.load()
    file.write(EDITS[edit])
    for name in file.names(module):
        with pytest.raises(InsideError, match=r"its source has changed since it was loaded|no function of that name"):
            sonde.capture(module.f, inside=name)
    file.write(TEXT)  # as it was
    for name in file.names(module):
        result, records = sonde.capture(module.f, inside=name)(X)
        np.testing.assert_array_equal(result, X * 2)
        assert list(records) == ["f/x", "f/y", "f/return"], name
    file.write(EDITS[edit])
    module = file.load()
    for name in file.names(module):
        result, records = sonde.capture(module.f, inside=name)(X)
        np.testing.assert_array_equal(result, module.f(X))
        np.testing.assert_array_equal(records["f/return"].value, module.f(X))


def test_operands_that_change_places(file):
    file.write("def f(x, y):\n    return x - y\n")
    module = file.load()
    file.write("def f(x, y):\n    return y - x\n")
    with pytest.raises(InsideError, match="its source has changed"):
        sonde.capture(module.f, inside=module.f)


def test_functions_of_an_edited_file_that_stayed_the_same(file):
    file.write(TEXT + "\ndef g(x):\n    return x\n")
    module = file.load()
    file.write(TEXT + "\ndef g(x):\n    return x + 1\n")
    inside = sonde.Inside(module)
    assert [name.partition(" ")[0] for name in inside.functions] == ["f"]
    (out,) = inside.left_out
    assert (out.name, "has changed" in out.reason) == ("g", True)
    assert out.place == short_place(f"{file.path}:5")


CHECKED = """
def f(x):
    y: object = x * 2
    assert y is not None

    def g(v):
        return v + 1

    return g(y)
"""


def statement(text, place):
    """A statement at the place of another."""
    (new,) = ast.parse(text).body
    for node in ast.walk(new):
        ast.copy_location(node, place)
    return new


class Checks(ast.NodeTransformer):
    """Changes a file on import as type checkers and pytest do."""

    def visit_AnnAssign(self, node):
        return [node, statement("check(y)", node)]

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.decorator_list.append(ast.copy_location(ast.Name("check", ast.Load()), node))
        node.decorator_list.append(ast.parse("check").body[0].value)  # a tool may leave it on line 1
        return node

    def visit_Assert(self, node):
        return statement("if not check(True):\n    raise AssertionError", node)


def test_what_a_tool_adds_on_import_is_allowed(file):
    def load():
        made = {"check": lambda value: value}
        tree = ast.fix_missing_locations(Checks().visit(ast.parse(CHECKED)))
        exec(compile(tree, str(file.path), "exec"), made)
        return made["f"]

    file.write(CHECKED)
    f = load()
    result, records = sonde.capture(f, inside=f)(X)
    np.testing.assert_array_equal(result, X * 2 + 1)
    assert "f/g/return" in records
    for old, new in [("x * 2", "x * 3"), ("v + 1", "v + 2"), ("g(y)", "g(x)")]:
        file.write(CHECKED.replace(old, new))
        f = load()
        with pytest.raises(InsideError, match="its source has changed"):
            sonde.capture(f, inside=f)


def test_expressions_that_are_deeper_than_calls_may_be(file):
    terms = " + ".join(["x"] * 900)
    file.write(f"def f(x):\n    y = {terms}\n    return y\n\nTEXT = {' + '.join(['str(1)'] * 900)}\n")
    f = file.load().f
    before = sys.getrecursionlimit()
    _, records = sonde.capture(f, inside=sonde.Inside(f, expressions=True))(X)
    np.testing.assert_allclose(records["f/y"].value, X * 900, rtol=1e-5)
    assert len(records) == 902
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("head", ["for i{} in range(1):", "with nullcontext():", "while True:"])
def test_blocks_that_are_nested_as_deeply_as_python_allows(file, head):
    def nested(name, n):
        lines = ["    " * i + head.format(i) for i in range(1, n + 1)]
        return "\n".join([f"def {name}(x):", *lines, "    " * (n + 1) + "y = x", "    " * (n + 1) + "return y"]) + "\n"

    file.write("from contextlib import nullcontext\n" + nested("most", 20) + nested("f", 19))
    module = file.load()
    assert list(sonde.capture(module.f, inside=module)(X)[1]) == ["f/x", "f/y", "f/return"]
    (out,) = sonde.Inside(module).left_out
    assert out.name == "most"
    with pytest.raises(InsideError, match=r"most .*nested as deeply as Python allows"):
        sonde.Inside(module.most)


def test_a_file_that_is_running_has_not_changed(file):
    file.write(
        f"import sonde\n{TEXT}\nclass Now:\n    seen = sonde.Inside(__file__)\n\n"
        "def g():\n    return [sonde.Inside(__file__) for _ in 'a'] + list(sonde.Inside(__file__) for _ in 'a')\n"
    )
    module = file.load()
    assert [inside.left_out for inside in (module.Now.seen, *module.g())] == [()] * 3
