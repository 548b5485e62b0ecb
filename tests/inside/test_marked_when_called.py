"""Functions of a package with many files are marked when they are first called."""

import importlib
import inspect
import sys
import threading

import jax.numpy as jnp
import pytest

import sonde

FILE = """
def first(x, /, y=2.0, *args, inner=0.0, **more):
    h = x * y + inner + sum(args) + sum(more.values())
    return h

def never(x):
    unused = x * 3.0
    return unused

def closed(factor):
    def apply(x):
        h = x * factor
        return h
    return apply

class Layer:
    def __call__(self, x):
        h = super().__init__() or x + 1.0
        return h
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "many_files"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for number in range(10):
        (folder / f"part{number}.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [importlib.import_module(f"many_files.part{number}") for number in range(10)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "many_files"]:
        del sys.modules[name]


def test_every_call_is_seen_and_no_other_file_is_marked(package):
    part, other = package[3], package[4]
    codes = part.first.__code__, part.never.__code__, other.first.__code__
    during = []

    def f(x):
        made = part.closed(4.0)
        during.append((part.first.__code__, part.never.__code__, other.first.__code__))
        a = part.first(x, 3.0, 1.0, inner=2.0, self=5.0) + part.first(x)
        return part.Layer()(made(a))

    x = jnp.float32(1.0)
    for _ in range(2):
        value, records = sonde.capture(f, inside=sys.modules["many_files"])(x)
        assert value == f(x) == (3.0 + 8.0 + 2.0) * 4.0 + 1.0
        assert [float(v) for v in records["first/h"].values] == [11.0, 2.0]
        assert float(records["closed.apply/h"].value) == 52.0 and float(records["Layer.__call__/h"].value) == 53.0
        assert not any(path.startswith("never") for path in records)
        assert (part.first.__code__, part.never.__code__, other.first.__code__) == codes
    assert all(new is not old for new, old in zip(during[0], codes))


def test_a_function_looks_as_it_did(package):
    part = package[0]

    def looks():
        code = part.first.__code__
        return inspect.signature(part.first), code.co_filename, code.co_firstlineno, code.co_qualname

    def f(x):
        return part.never(x), looks()

    (_, during), _ = sonde.capture(f, inside=sys.modules["many_files"])(jnp.float32(1.0))
    assert during == looks()


def test_other_threads_run_what_they_ran(package):
    part, results = package[0], []

    def f(x):
        thread = threading.Thread(target=lambda: results.append(part.never(2.0)))
        thread.start()
        thread.join()
        return part.never(x)

    value, records = sonde.capture(f, inside=sys.modules["many_files"])(jnp.float32(1.0))
    assert results == [6.0] and value == 3.0 and records["never/unused"].value == 3.0
