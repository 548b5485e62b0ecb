"""What an `inside=` argument means: objects that stand for several functions, or hide one."""

from __future__ import annotations

import functools
import importlib
import linecache
import sys
import types
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import optax
import pytest

import sonde
from sonde.errors import InsideError

X = jnp.linspace(0.1, 1.0, 4)


@functools.singledispatch
def chosen(x):
    y = x + 1
    return y


@chosen.register(tuple)
def of_a_tuple(x):
    y = x[0] * 2
    return y


class Methods:
    def __init__(self, size):
        self._size = size

    @property
    def size(self):
        got = self._size * 1
        return got

    @size.setter
    def size(self, value):
        new = value * 2
        self._size = new

    def scaled(self, by, x):
        y = x * by
        return y

    tripled = functools.partialmethod(scaled, 3)

    @functools.singledispatchmethod
    def method(self, x):
        y = x
        return y

    @method.register(tuple)
    def _(self, x):
        z = x[0]
        return z


def sets(x):
    methods = Methods(x)
    methods.size = x
    return methods.size


@pytest.mark.parametrize(
    ("run", "inside", "path"),
    [
        (lambda x: chosen((x,)), chosen, "of_a_tuple/y"),
        (lambda x: chosen(x), chosen, "chosen/y"),
        (sets, Methods.size, "Methods.size/new"),
        (sets, Methods.size, "Methods.size/got"),
        (lambda x: Methods(x).tripled(x), Methods.tripled, "Methods.scaled/y"),
        (lambda x: Methods(x).tripled(x), vars(Methods)["tripled"], "Methods.scaled/y"),
        (lambda x: Methods(x).method((x,)), vars(Methods)["method"], "Methods._/z"),
    ],
)
def test_objects_that_stand_for_functions(run, inside, path):
    assert path in sonde.capture(run, inside=inside)(X)[1]


def hidden_by(function):
    return lambda x: function(x) * 1


@hidden_by
def decorated(x):
    y = x + 1
    return y


def replaced(x):
    old = x
    return old


def replacement(x):
    new = x
    return new


def test_a_name_means_the_function_that_has_it_now(monkeypatch):
    monkeypatch.setitem(globals(), "replaced", replacement)
    assert "replacement/new" in sonde.capture(lambda x: replaced(x), inside=f"{__name__}:replaced")(X)[1]
    paths = list(sonde.capture(decorated, inside=f"{__name__}:decorated")(X)[1])
    assert paths == ["decorated/x", "decorated/y", "decorated/return"]


def test_a_pattern_has_the_package_itself_and_imports_it(tmp_path, monkeypatch):
    folder = tmp_path / "found_by_pattern"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import inner\n\ndef top(x):\n    y = x\n    return y\n")
    (folder / "inner.py").write_text("def f(x):\n    z = x\n    return z\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = [name.partition(" ")[0] for name in sonde.Inside("found_by_pattern.*").functions]
    assert names == ["f", "top"]
    with pytest.raises(InsideError, match="there is no module 'found_by_patterns'"):
        sonde.Inside("found_by_patterns.*")
    with pytest.raises(InsideError, match="no function of that name; nearest: nothing"):
        sonde.Inside("found_by_pattern.*:qqqq")


@pytest.mark.parametrize("name", ["jax.scipy", "jax.scipy.*"])
def test_parts_of_jax_that_are_imported_on_first_use_are_there(name, monkeypatch):
    jax.scipy.integrate
    private = importlib.import_module("jax._src.scipy.integrate")
    for module in (jax.scipy.integrate, private):  # as if nobody had
        monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.delattr(jax.scipy, "integrate")

    def area(x):
        return jax.scipy.integrate.trapezoid(x)

    assert "trapezoid/y" in sonde.capture(area, inside=name)(X)[1]


def test_what_is_not_written_in_python():
    with pytest.raises(InsideError, match="cannot look into math: it has no functions that are written in Python"):
        sonde.Inside("math")
    with pytest.raises(InsideError, match=r"class builtins\.int: it has no methods written in Python"):
        sonde.Inside(int)


def test_a_module_in_an_archive(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("in_an_archive.py", "def f(x):\n    y = x * 2\n    return y\n")
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    module = importlib.import_module("in_an_archive")
    for inside in (module, module.f, "in_an_archive:f"):
        assert list(sonde.capture(module.f, inside=inside)(X)[1]) == ["f/x", "f/y", "f/return"]


def test_a_notebook_as_a_module(monkeypatch):
    """A notebook has no file; every cell has one of its own."""
    notebook = types.ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)
    cells = [
        "import jax\nfrom functools import partial\n@jax.jit\ndef f(x):\n    y = x * 2\n    return y\n",
        "class A:\n    def __call__(self, x):\n        h = f(x)\n        return h\n",
    ]
    for i, cell in enumerate(cells):
        monkeypatch.setitem(linecache.cache, f"<cell {i}>", (len(cell), None, cell.splitlines(keepends=True), ""))
        exec(compile(cell, f"<cell {i}>", "exec"), vars(notebook))
    for inside in (notebook, "a_notebook", "a_notebook:*"):
        paths = list(sonde.capture(notebook.A(), inside=inside)(X)[1])
        assert paths == [f"A.__call__/{n}" for n in ("x", "f/x", "f/y", "f/return", "h", "return")]
    empty = types.ModuleType("empty_notebook")
    monkeypatch.setitem(sys.modules, "empty_notebook", empty)
    with pytest.raises(InsideError, match="cannot look into empty_notebook: it has no functions"):
        sonde.Inside(empty)


def test_a_file_that_was_loaded_under_another_name(tmp_path, monkeypatch):
    """`python ./train.py` and relative folders in `sys.path` give files such names."""
    (tmp_path / "below").mkdir()
    (tmp_path / "respelled.py").write_text(
        "def f(x):\n    y = x * 2\n    return y\n\nclass C:\n    def g(self, x):\n        z = f(x)\n        return z\n"
        "    async def later(self):\n        pass\n"
    )
    monkeypatch.syspath_prepend(f"{tmp_path}/below/..")
    module = importlib.import_module("respelled")
    try:
        path = str(tmp_path / "respelled.py")
        assert module.f.__code__.co_filename != path
        names = lambda inside: set(sonde.capture(module.C().g, inside=inside)(X)[1])
        assert names(f"{path}:f") == {"f/x", "f/y", "f/return"}
        assert names(f"{path}:C") == names(module.C) == {"C.g/x", "C.g/z", "C.g/return"}
        assert {name.rpartition("/")[2] for name in names(path)} == {"x", "y", "z", "return"}
        for inside in (f"{path}:C", f"{path}:C.*", "respelled:C*"):
            assert [out.name for out in sonde.Inside(inside).left_out] == ["C.later"]
    finally:
        del sys.modules["respelled"]


WRONG = [
    ("optx", InsideError, "there is no module 'optx'; nearest: 'optax'"),
    ("optax/losses", InsideError, "there is no module 'optax/losses'; write packages with dots"),
    ("equinox.nn:Linear.__cal__", InsideError, "has no '__cal__'; nearest: '__call__'"),
    (jax.jit(jnp.sin).lower(1.0), TypeError, "Lowered, .*; name the function that it was made from"),
    (jax.jit(jnp.sin).lower(1.0).compile(), TypeError, "Compiled, .*; name the function that it was made from"),
    (np.add, TypeError, "ufunc, .*; name the functions that call it"),
    ({"w": jnp.ones(3)}, TypeError, "dict, .*; name the model that these are the values of"),
    (optax.sgd(0.1), TypeError, r"name those that it has: inside=\[x.init, x.update\]"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG, ids=[text[:20] for *_, text in WRONG])
def test_an_error_says_what_to_name_instead(wrong, error, text):
    with pytest.raises(error, match=text):
        sonde.Inside(wrong)


def test_methods_that_no_module_has():
    model = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(TypeError, match="takes a list of names, got the string 'encode'"):
        sonde.Inside(model, methods="encode")
    with pytest.raises(TypeError, match="no module of the model has a method 'encode'; nearest: "):
        sonde.Inside(model, methods=["encode"])
    with pytest.raises(TypeError, match="is for models, and there is none"):
        sonde.Inside(jax.nn.relu, methods=["encode"])
