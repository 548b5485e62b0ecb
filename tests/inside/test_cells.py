"""Code is looked into however it was compiled: cells and their magics, prompts, doctests, `python -c`, `exec`."""

from __future__ import annotations

import doctest
import importlib
import linecache
import os
import subprocess
import sys
import textwrap
import types

import jax.numpy as jnp
import numpy as np
import pytest
from tests.notebook_shell import notebook

import sonde
from sonde.errors import InsideError

X = jnp.linspace(0.1, 1.0, 4)

# What a function calls is imported beside it: Python then compiles calls in it in another way than if it stood alone.
LAYER = '''
import jax.numpy as jnp
from jax import nn

def layer(x):
    """Has a closure, a call over two lines, a default and a comprehension."""
    y = jnp.tanh(x)
    def scaled(v, by=jnp.float32(2.0)):
        return v * by + y.sum()
    z = (jnp
         .exp(scaled(y)))
    parts = [nn.relu(z) for _ in range(2)]
    return parts[0] + parts[1]

class Model:
    def __call__(self, x):
        h = jnp.sin(x)
        return super().__class__ and layer(h)
'''
PATHS = ["layer/x", "layer/y", "layer/scaled/v", "layer/scaled/by", "layer/scaled/return", "layer/z", "layer/return"]


def check(layer, model, names=()):
    """Looks into a function and a class, in every way that they can be named."""
    y = np.tanh(X)
    expected = 2 * np.maximum(np.exp(y * 2 + y.sum()), 0)
    for inside in (layer, *names):
        result, records = sonde.capture(layer, inside=inside)(X)
        np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert [path for path in PATHS if path not in records] == [], inside
        np.testing.assert_allclose(records["layer/y"].value, y, rtol=1e-5)
    _, records = sonde.capture(model, inside=[type(model), *names])(X)
    np.testing.assert_allclose(records["Model.__call__/h"].value, np.sin(X), rtol=1e-5)


def in_a_cell(shell):
    shell.run(LAYER)


def under_time(shell):
    shell.run(f"%%time\n{LAYER}")


def under_time_with_a_value(shell):
    shell.run(f"%%time\n{LAYER}\n1 + 1")


def under_capture(shell):
    shell.run(f"%%capture printed\n{LAYER}")


def under_two_magics(shell):
    shell.run(f"%%capture printed\n%%time\n{LAYER}")


def beside_an_await(shell):
    shell.run(f"import asyncio\n{LAYER}\nawait asyncio.sleep(0)")


def beside_magics(shell):
    shell.run(f"%precision 3\nfiles = !true\n{LAYER}")


def after_a_future_import(shell):
    shell.run("from __future__ import annotations")
    shell.run(LAYER)


def with_a_future_import_in_the_middle(shell):
    shell.run(f"import os\nfrom __future__ import annotations\n{LAYER}")


def twice(shell):
    shell.run(LAYER.replace("sin", "cos").replace("tanh", "cos"))
    shell.run(LAYER)


def last_in_a_conditional(shell):
    shell.run("if True:\n" + textwrap.indent(LAYER, "    "))


WAYS = [
    in_a_cell,
    under_time,
    under_time_with_a_value,
    under_capture,
    under_two_magics,
    beside_an_await,
    beside_magics,
    after_a_future_import,
    with_a_future_import_in_the_middle,
    twice,
    last_in_a_conditional,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_cells(way):
    with notebook() as shell:
        way(shell)
        check(shell.namespace["layer"], shell.namespace["Model"](), names=["__main__", "__main__:*"])


def test_a_function_in_a_notebook_that_has_no_source_is_not_dropped_in_silence():
    with notebook() as shell:
        shell.run(LAYER)
        shell.run("exec('def made(x):\\n    return x + 1')")
        made = shell.namespace["made"]
        with pytest.raises(InsideError, match=r"looks? into __main__.made .*no source.*linecache"):
            sonde.capture(made, inside=made)
        with pytest.warns(UserWarning, match=r"inside='__main__' leaves out made .*no source"):
            inside = sonde.Inside("__main__")
        assert [(out.name, "no source" in out.reason) for out in inside.left_out] == [("made", True)]


def test_a_cell_that_a_tool_changed_says_so():
    import ast

    class Doubled(ast.NodeTransformer):
        def visit_Constant(self, node):
            return ast.copy_location(ast.Constant(node.value * 2), node) if type(node.value) is int else node

    with notebook() as shell:
        shell._shell.ast_transformers.append(Doubled())
        shell.run("def f(x):\n    return x * 2")
        f = shell.namespace["f"]
        assert f(1) == 4
        with pytest.raises(InsideError, match="its source has changed"):
            sonde.capture(f, inside=f)


@pytest.mark.parametrize("decorated", ["", "@jax.jit\n"], ids=["plain", "jitted"])
def test_functions_that_autoreload_has_replaced(tmp_path, monkeypatch, decorated):
    """It compiles each changed function from the text of its syntax tree: on line 1, and in a class of its own."""
    text = "import jax\n\n\n" + LAYER.replace("def layer", f"{decorated}def layer")
    path = tmp_path / "reloaded_by_ipython.py"
    path.write_text(text.replace("sin", "cos").replace("tanh", "cos"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        with notebook() as shell:
            shell.run("%load_ext autoreload\n%autoreload 2\nimport reloaded_by_ipython as module")
            layer, model = shell.namespace["module"].layer, shell.namespace["module"].Model()
            later = os.stat(path).st_mtime + 10
            path.write_text(text)
            os.utime(path, (later, later))
            shell.run("module")
            if not decorated:  # autoreload cannot reach into the old one
                check(layer, model, names=["reloaded_by_ipython", str(path)])
            check(shell.namespace["module"].layer, shell.namespace["module"].Model(), names=["reloaded_by_ipython"])
    finally:
        sys.modules.pop("reloaded_by_ipython", None)


def test_a_doctest():
    """Each example is compiled alone; its source is known while the doctest runs."""
    lines = ["import jax.numpy as jnp", "from jax import nn"]
    text = "".join(f">>> {line}\n" for line in lines)
    function, model = LAYER.strip().partition("class Model")[0].split("\n", 3)[3], LAYER.partition("class Model")[2]
    for block in (function, "class Model" + model):
        first, *others = block.strip().splitlines()
        text += f">>> {first}\n" + "".join(f"... {line}\n" for line in others)
    text += ">>> check(layer, Model())\n"
    test = doctest.DocTestParser().get_doctest(text, {"check": check, "__name__": __name__}, "a_doctest", None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_text_that_was_compiled_with_a_name_and_registered(monkeypatch):
    name = "<made by hand>"
    monkeypatch.setitem(linecache.cache, name, (len(LAYER), None, LAYER.splitlines(keepends=True), name))
    namespace = {"__name__": "made_by_hand"}
    exec(compile(LAYER, name, "exec"), namespace)
    check(namespace["layer"], namespace["Model"]())


def test_functions_of_an_edited_file_that_only_moved(tmp_path, monkeypatch):
    """They are what they were, on another line."""
    path = tmp_path / "a_file_with_a_header.py"
    path.write_text(LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module(path.stem)
    try:
        path.write_text("# A header.\n\nimport os\n" + LAYER)
        os.utime(path, (1, 1))
        check(module.layer, module.Model(), names=[path.stem, str(path)])
    finally:
        del sys.modules[path.stem]


def test_two_classes_with_the_same_method_are_told_apart_after_they_moved(tmp_path, monkeypatch):
    text = "class A:\n    def f(self, x):\n        y = x\n        return y\n\n"
    path = tmp_path / "two_alike.py"
    path.write_text(text + text.replace("A", "B"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module(path.stem)
    try:
        path.write_text("# Moved.\n" + text + text.replace("A", "B"))
        os.utime(path, (1, 1))
        assert list(sonde.capture(module.B().f, inside=module.B)(X)[1]) == ["B.f/x", "B.f/y", "B.f/return"]
    finally:
        del sys.modules[path.stem]


PROMPT = f"""
import code, sys
sys.path.insert(0, {os.getcwd()!r})
prompt = code.InteractiveInterpreter(vars(sys.modules["__main__"]))
prompt.runsource("def typed(x):\\n    return x + 1\\n")
from tests.inside.test_cells import check
check(layer, Model(), names=["__main__:layer"])
import sonde
try:
    sonde.capture(typed, inside=typed)
except sonde.errors.InsideError as error:
    assert "no source" in str(error) and "file" in str(error), error
else:
    raise SystemExit("no error")
"""


def test_the_text_after_python_c():
    done = subprocess.run([sys.executable, "-c", LAYER + PROMPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["<stdin>", "<string>", "<made>"])
def test_code_without_source_says_what_to_do(kind, monkeypatch):
    namespace = {"__name__": "nowhere"}
    exec(compile("def f(x):\n    return x", kind, "exec"), namespace)
    with pytest.raises(InsideError, match=r"there is no source.*(write|register)"):
        sonde.capture(namespace["f"], inside=namespace["f"])
    module = types.ModuleType("nowhere")
    exec(compile("def f(x):\n    return x", kind, "exec"), vars(module))
    with pytest.raises(InsideError, match=r"sys.modules has another or none of that name; name its functions"):
        sonde.Inside(module)
    monkeypatch.setitem(sys.modules, "nowhere", module)
    with pytest.raises(InsideError, match=r"nowhere: there is no source.*(write|register)"):
        sonde.Inside(module)


def test_the_short_name_of_a_module_is_answered_with_its_name():
    with notebook() as shell:
        shell.run("import jax.numpy as jnp")
        with pytest.raises(InsideError, match=r"no module 'jnp'; write 'jax.numpy', or inside=jnp without quotes"):
            sonde.Inside("jnp")


def test_a_notebook_of_marimo_that_runs_as_a_script(tmp_path, monkeypatch):
    """Cells are functions in the file; marimo compiles their bodies as modules, with the lines of the file."""
    body = textwrap.indent(LAYER.strip(), "    ")
    text = f"import marimo\napp = marimo.App()\n\n@app.cell\ndef _(other):\n{body}\n    return layer, Model\n"
    path = tmp_path / "notebook_of_marimo.py"
    path.write_text(text)
    monkeypatch.setitem(sys.modules, "marimo", types.ModuleType("marimo"))
    first = text.splitlines().index("    import jax.numpy as jnp")
    namespace = {"__name__": "__main__"}
    exec(compile("\n" * first + LAYER.strip(), str(path), "exec"), namespace)
    check(namespace["layer"], namespace["Model"]())
    monkeypatch.delitem(sys.modules, "marimo")
    _, records = sonde.capture(namespace["layer"], inside=namespace["layer"])(X)  # known by now
    assert "layer/y" in records
