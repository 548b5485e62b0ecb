"""The installed command in a separate process: with click and without, on a terminal and not."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from sonde.cli import output
from sonde.cli.entry import main

ROOT = Path(__file__).resolve().parents[2]

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "click":
            raise ModuleNotFoundError("No module named 'click'", name="click")
sys.meta_path.insert(0, Block())
"""


def process(*command: str, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    environment = {**env, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)


def test_the_script_in_pyproject_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["sonde"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_without_click() -> None:
    code = (
        "import sonde, sonde.report, sonde.tools\nprint({'click', 'sonde.cli', 'sonde.demo'} & set(sys.modules))\n"
        "from sonde.cli.entry import main\nsys.exit(main(['--help']))"
    )
    done = process("-W", "error", "-c", BLOCKED + code)
    assert done.stdout == "set()\n"  # importing Sonde loads nothing of the command line
    assert done.returncode == 2
    assert done.stderr == "The command line of Sonde needs click: pip install 'sonde-jax[cli]'\n"


@pytest.mark.every(2)
def test_a_process_finds_the_program_and_ends_with_the_code(write) -> None:
    write("import sonde, numpy as np\ndef f(x): return sonde.sow(x, 'größe')\nf.example_inputs = (np.ones(2),)\n")
    plain = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}  # a stream that cannot show everything
    done = process("-W", "error", "-m", "sonde.cli", "sites", "model:f", env=plain)
    assert done.returncode == 0 and "gr??e" in done.stdout and done.stderr == ""
    assert "\x1b[" not in done.stdout  # no colors without a terminal
    done = process("-W", "error", "-m", "sonde.cli", "report", "nothing:f")
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr


def test_main_returns_exit_codes(write, capsys: pytest.CaptureFixture[str]) -> None:
    write()
    write("import sonde\ndef f(x): raise KeyboardInterrupt\nf.example_inputs = (1.0,)\n", "stopped.py")
    write(
        "import jax.numpy as jnp, sonde\ndef f(x): return sonde.sow(x / 0, 'h')\nf.example_inputs = (jnp.ones(2),)\n",
        "bad.py",
    )
    assert main(["--version"]) == 0
    assert main(["nonfinite", "bad.py:f"]) == 1
    assert main(["sites", "model:make"]) == 0
    assert main(["sites", "model:nothing"]) == 2
    assert main(["sites", "stopped:f"]) == 130
    captured = capsys.readouterr()
    assert "layer0/out" in captured.out and "'h'" in captured.out
    assert "Error: model has no 'nothing'" in captured.err and captured.err.endswith("Interrupted.\n")


def test_a_reader_that_stops_early(write) -> None:
    write()
    command = f"{sys.executable} -W error -m sonde.cli sites model:make --json | head -c 1"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert done.stdout == "{" and done.stderr == ""


def test_progress_is_shown_to_people_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for watched in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(
            output, "console", lambda *, stderr=False, s=stream, w=watched: Console(file=s, force_terminal=w)
        )
        with output.busy("starting") as say:
            say("half way", 0.5)
        shown[watched] = stream.getvalue()
    assert "half way" in shown[True] and shown[False] == ""


@pytest.mark.parametrize("arguments", [["--help"], ["report", "--help"], ["store", "--help"], ["explain", "inside"]])
def test_help_and_pages_do_without_jax(arguments) -> None:
    code = (
        f"import sys\nfrom sonde.cli.entry import main\nassert main({arguments!r}) == 0\n"
        "print({'jax', 'numpy', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = process("-W", "error", "-c", code)
    assert done.stderr == "set()\n" and done.stdout


def test_completion_does_without_jax() -> None:
    completing = {"_SONDE_COMPLETE": "bash_complete", "COMP_WORDS": "sonde report --ins", "COMP_CWORD": "2"}
    code = (
        "import sys, atexit\natexit.register(lambda: print('jax' in sys.modules))\n"
        "from sonde.cli.entry import main\nmain()"
    )
    done = process("-c", code, env=os.environ | completing)
    assert done.stdout == "plain,--inside\nFalse\n", done.stderr


DONATING = """
import functools, jax, jax.numpy as jnp

@jax.jit
def look_at(w):
    return jnp.log(w)  # NaN from the third step on

@functools.partial(jax.jit, donate_argnums=0)
def step(w):
    return w - 0.4

w = jnp.ones(3)
for i in range(8):
    look_at(w)
    w = step(w)
print("done")
"""

EAGER = """
import jax, jax.numpy as jnp

def step(w):
    return jax.value_and_grad(lambda w: jnp.sum(jnp.sqrt(w)))(w)

w = jnp.ones(3)
for i in range(9):
    value, gradient = step(w)
    w = w - 0.9 * gradient
    if jnp.isnan(value):
        raise FloatingPointError("the loss is NaN")
"""


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("text", "call", "made"),
    [(DONATING, "call 3 of look_at", "log(-0.2"), (EAGER, "call 2 of", "sqrt(-")],
    ids=["arguments-donated-later", "gradients-without-jit"],
)
def test_run_finds_the_call(tmp_path: Path, text: str, call: str, made: str) -> None:
    (tmp_path / "script.py").write_text(text)
    done = process("-W", "error", "-m", "sonde.cli", "run", "--bundle", "", str(tmp_path / "script.py"))
    assert done.returncode == 1 and call in done.stderr and made in done.stderr, done.stderr


def test_run_says_what_was_looked_at_if_a_script_raises(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import jax\njax.jit(lambda x: x + 1)(1.0)\nraise KeyError('other')\n")
    done = process("-m", "sonde.cli", "run", str(tmp_path / "script.py"))
    assert done.returncode == 1 and "KeyError: 'other'" in done.stderr
    assert "no NaN or Inf was made in the 1 call of transformed functions and loops before this" in done.stderr
