"""A folder to type commands in, and the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sonde.cli.program import sonde_command

MODEL = """
import jax
import jax.numpy as jnp
import sonde


def loss(w, x):
    for i in range(2):
        with sonde.scope(f"layer{i}"):
            x = sonde.sow(jnp.tanh(x @ w), "out")
    return sonde.sow(jnp.mean(x**2), "loss")


def make():
    return jax.jit(jax.value_and_grad(loss)), (jnp.eye(3) / 2, jnp.ones((4, 3)))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what commands import from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    def write(text: str = MODEL, name: str = "model.py") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


class Sonde:
    """The command line, in this process."""

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(sonde_command, list(arguments))

    def ok(self, *arguments: str, code: int = 0) -> str:
        """What a command prints on stdout; it must end with `code`."""
        result = self(*arguments)
        assert result.exit_code == code, result.output + repr(result.exception)
        return result.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The JSON that a command prints, which must be all it prints there."""
        return json.loads(self.ok(*arguments, "--json", code=code), parse_constant=pytest.fail)

    def error(self, *arguments: str, code: int = 2) -> str:
        """What a command that goes wrong says, on one line; there must be no traceback and nothing on stdout."""
        result = self(*arguments)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert isinstance(result.exception, SystemExit) and "Traceback" not in result.stderr
        assert result.stdout == ""
        return " ".join(result.stderr.split())


@pytest.fixture
def sonde() -> Sonde:
    return Sonde()
