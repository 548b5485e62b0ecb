"""Targets: what can be named, where its arguments come from, and errors when something is missing."""

from __future__ import annotations

import json
import sys

import pytest


def test_a_function_that_returns_a_program(write, sonde) -> None:
    write()
    for target in ("model:make", "model.py:make"):
        assert "layer1/out" in sonde.ok("sites", target)


def test_a_file_in_another_folder_imports_its_neighbors(write, sonde, folder) -> None:
    write("WIDTH = 3\n", "far/sizes.py")
    write(
        "from sizes import WIDTH\nimport sonde\n"
        "def f(x): return sonde.sow(x * WIDTH, 'h')\nf.example_inputs = (1.0,)\n",
        "far/net.py",
    )
    assert "h" in sonde.ok("sites", "far/net.py:f")
    assert "h" in sonde.ok("sites", str(folder / "far" / "net.py") + ":f")


def test_two_targets_of_one_file_are_one_module(write, sonde) -> None:
    write(
        "print('once')\nimport sonde, numpy as np\n"
        "def f(x): return sonde.sow(x, 'h')\nf.example_inputs = (np.ones(3),)\n",
        "twice.py",
    )
    result = sonde("compare", "twice.py:f", "twice.py:f")
    assert result.exit_code == 0 and result.stdout.count("once") == 1


def test_a_module_in_a_package_and_dotted_names(write, sonde) -> None:
    write("", "nets/__init__.py")
    write(
        "import sonde\nexample_inputs = (1.0,)\n"
        "class Zoo:\n    @staticmethod\n    def f(x): return sonde.sow(x, 'h')\n",
        "nets/zoo.py",
    )
    assert "h" in sonde.ok("sites", "nets.zoo:Zoo.f")


def test_a_file_named_like_a_module_of_the_standard_library(write, sonde) -> None:
    import json

    write("import sonde\ndef f(): return (lambda x: sonde.sow(x, 'mine')), (1.0,)\n", "json.py")
    assert "mine" in sonde.ok("sites", "json.py:f")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    "inputs",
    [
        "f.example_inputs = (1.0, 2.0)",
        "f.example_inputs = {'x': 1.0, 'y': 2.0}",
        "f.example_inputs = lambda: (1.0, 2.0)",
        "example_inputs = (1.0, 2.0)",
        "def example_inputs(): return {'x': 1.0, 'y': 2.0}",
        "f = f, (1.0, 2.0)",
        "f = f, (1.0,), {'y': 2.0}",
        "g = f\ndef f(): return g, [1.0, 2.0]",
        "g = f\ndef f(unused=1): return g, (1.0,), {'y': 2.0}",
        "g = f\ndef f(): return g\nexample_inputs = (1.0, 2.0)",
    ],
)
def test_where_arguments_come_from(write, sonde, inputs: str) -> None:
    write(f"import sonde, jax.numpy as jnp\ndef f(x, y): return sonde.sow(jnp.add(x, y), 'h')\n{inputs}\n")
    assert sonde.json("report", "model:f")["sites"][0]["value"]["max"] == 3


def test_one_example_input(write, sonde) -> None:
    write("import sonde, numpy as np\ndef f(x): return sonde.sow(x, 'h')\nf.example_inputs = np.ones(5)\n")
    assert sonde.json("sites", "model:f")["sites"][0]["arrays"] == [{"shape": [5], "dtype": "float32"}]


def test_a_model(write, sonde) -> None:
    write(
        "from sonde import nnx\nimport jax.numpy as jnp\n"
        "model = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))\n"
        "example_inputs = (jnp.ones((1, 3, 4)),)\n"
    )
    assert "weights" in sonde.ok("sites", "model:model")


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_no_colon(sonde) -> None:
    assert "A target is module:name or path/to/file.py:name, got 'model'" in sonde.error("sites", "model")


def test_no_such_module(write, sonde) -> None:
    write()
    error = sonde.error("report", "modle:make")
    assert "There is no module 'modle' (target modle:make)" in error and "Nearest: model" in error


def test_no_such_file(write, sonde) -> None:
    write()
    assert "There is no file 'modle.py' (target modle.py:make). Nearest: model.py." in sonde.error(
        "report", "modle.py:make"
    )


def test_no_such_name(write, sonde) -> None:
    write()
    assert "model has no 'lss' (target model:lss). Nearest: loss." in sonde.error("report", "model:lss")
    assert "model has no 'xyzzy' (target model:xyzzy). Nearest: loss, make." in sonde.error("report", "model:xyzzy")
    assert "model.loss has no 'deeper'" in sonde.error("report", "model:loss.deeper")


def test_the_users_module_fails_to_import(write, sonde) -> None:
    write("import jax\n\nvalue = undefined + 1\n")
    error = sonde.error("report", "model:f")
    assert "model cannot be imported (target model:f): NameError: name 'undefined' is not defined" in error
    assert "model.py:3: value = undefined + 1" in error


def test_the_users_module_imports_something_missing(write, sonde) -> None:
    write("import not_installed_anywhere\n")
    error = sonde.error("report", "model:f")
    assert "model cannot be imported" in error and "No module named 'not_installed_anywhere'" in error
    assert "model.py:1" in error


def test_the_users_module_has_a_syntax_error(write, sonde) -> None:
    write("def f(x:\n    return x\n")
    error = sonde.error("report", "model.py:f")
    assert "SyntaxError" in error and "model.py:1: def f(x:" in error


def test_the_users_module_ends_the_process(write, sonde) -> None:
    write("import sys\nsys.exit(0)\n")
    assert 'put what it runs under if __name__ == "__main__"' in sonde.error("report", "model:f")


def test_a_file_that_belongs_to_a_package(write, sonde) -> None:
    write("", "nets/__init__.py")
    write("from . import sizes\n", "nets/zoo.py")
    assert "name it as package.module:name" in sonde.error("report", "nets/zoo.py:f")


def test_no_arguments_known(write, sonde) -> None:
    write()
    error = sonde.error("report", "model:loss")
    assert "model:loss needs arguments, but none are known: loss(w, x)." in error
    assert "--input file.npz" in error and "loss.example_inputs" in error


def test_a_maker_that_returns_something_else(write, sonde) -> None:
    write("def make(): return 3\n")
    error = sonde.error("report", "model:make")
    assert (
        "was called to make a program, but it returned an int. It should return (f, args) or (f, args, kwargs)" in error
    )


def test_a_maker_that_fails(write, sonde) -> None:
    write("def make():\n    return 1 / 0\n")
    error = sonde.error("report", "model:make")
    assert "model:make was called to make a program and failed: ZeroDivisionError: division by zero" in error
    assert "model.py:2: return 1 / 0" in error


def test_not_callable(write, sonde) -> None:
    write("width = 3\n")
    assert "model:width is an int. A target is a function, a model, or" in sonde.error("report", "model:width")


ARGUMENTS = """
import sonde
def f(x, y=2.0): return sonde.sow(x * y, "h")
def whole(*args, **kwargs): return sonde.sow(args[0], "h")
size = 3
"""


@pytest.mark.parametrize(
    ("name", "typed", "type_of_h"),
    [
        ("f", "jnp.ones((size, 2))", "float32[3,2]"),
        ("f", "jnp.ones(2), 1.0", "float32[2]"),
        ("f", "y=jnp.ones(4), x=np.float32(1)", "float32[4]"),
        ("f", "(jnp.float32(1))  # one", "float32[]"),
        ("whole", "*[jnp.ones(5)]", "float32[5]"),
    ],
)
def test_arguments_that_are_typed(write, sonde, name, typed, type_of_h) -> None:
    write(ARGUMENTS)
    assert type_of_h in sonde.ok("sites", f"model.py:{name}", "--args", typed)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (
            "1.0, 2.0, 3.0",
            "model.py:f cannot be called with --args '1.0, 2.0, 3.0': too many positional arguments. It is f",
        ),
        ("z=1", "model.py:f cannot be called with --args 'z=1'"),
        ("nothing", "NameError: name 'nothing' is not defined"),
        ("1.0,,", "SyntaxError: invalid syntax"),
    ],
)
def test_arguments_that_do_not_fit(write, sonde, typed, text) -> None:
    write(ARGUMENTS)
    assert text in sonde.error("sites", "model.py:f", "--args", typed)


def test_arrays_of_a_file_replace_arguments_that_are_typed(write, sonde, folder) -> None:
    import numpy as np

    write(ARGUMENTS)
    np.savez(folder / "y.npz", y=np.ones(7, np.float32))
    assert "float32[7]" in sonde.ok("sites", "model.py:f", "--args", "1.0", "--input", "y.npz")


MAIN = """
import jax, jax.numpy as jnp, sonde
runs = []
init = jax.jit(lambda: jnp.ones(3))
@jax.jit
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sum(sonde.sow(w * x, "h") ** 2))(w)
def main():
    w = init()
    for i in range(1000):
        w = step(w, jnp.arange(3.0))
        runs.append(i)
def nothing():
    len(runs)
"""


def test_the_step_of_a_main_that_returns_nothing(folder, sonde):
    """It is not trained to the end first."""
    (folder / "loop.py").write_text(MAIN)
    data = json.loads(sonde.ok("report", "loop.py:main", "--grads", "--json"))
    (site,) = data["sites"]
    assert site["path"] == "h" and site["gradient"]["norm"] > 0 and site["value"]["max"] < 2
    assert len(sys.modules["loop"].runs) == 1
    assert "runs by itself and returns nothing" in sonde.error("report", "loop.py:nothing")
    sys.modules.pop("loop")
