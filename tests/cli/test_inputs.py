"""Input files: arrays that replace arguments."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from sonde.cli.exit_codes import Unusable
from sonde.cli.inputs import read_arrays, with_arrays

F = "import sonde\ndef f(x, y): return sonde.sow(x - y, 'h')\n"


@pytest.mark.parametrize("names", [("x", "y"), ("arg0", "arg1"), ("x", "arg1"), ("arg0", "y")])
def test_arrays_by_name_and_by_number(write, sonde, names: tuple[str, str]) -> None:
    write(F)
    np.savez("in.npz", **dict(zip(names, (np.full(2, 5.0), np.full(2, 3.0)))))
    assert sonde.json("report", "model:f", "--input", "in.npz")["sites"][0]["value"]["max"] == 2


def test_savez_without_names(write, sonde) -> None:
    write(F)
    np.savez("in.npz", np.full(2, 5.0), np.full(2, 3.0))
    assert sonde.json("report", "model:f", "--input", "in.npz")["sites"][0]["value"]["max"] == 2


def test_npy(write, sonde) -> None:
    write("import sonde\ndef f(x, y=1): return sonde.sow(x - y, 'h')\n")
    np.save("in.npy", np.full(2, 5.0))
    assert sonde.json("report", "model:f", "--input", "in.npy")["sites"][0]["value"]["max"] == 4


def test_arrays_take_the_place_of_arguments_that_are_there(write, sonde) -> None:
    write(F + "def make(): return f, (1.0, 2.0)\nf.example_inputs = (10.0, 2.0)\n")
    np.savez("in.npz", y=np.float32(0))
    assert sonde.json("report", "model:make", "--input", "in.npz")["sites"][0]["value"]["max"] == 1
    assert sonde.json("report", "model:f", "--input", "in.npz")["sites"][0]["value"]["max"] == 10


def test_places() -> None:
    def f(a, b=2, *rest, c=3, **more): ...

    assert with_arrays(f, (1,), {}, {"arg1": 5, "arg2": 6, "c": 7, "d": 8}, "t") == ((1, 5, 6), {"c": 7, "d": 8})
    assert with_arrays(f, (), {"a": 1}, {"a": 2}, "t") == ((2,), {})

    def g(a=1, b=2): ...

    assert with_arrays(g, (), {}, {"b": 5}, "t") == ((), {"b": 5})
    with pytest.raises(Unusable, match="has an array for argument 4, but none for 1"):
        with_arrays(f, (1,), {}, {"arg4": 5}, "t")


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_no_such_file(write, sonde) -> None:
    write(F)
    assert "There is no file 'in.npz' to read inputs from." in sonde.error("report", "model:f", "--input", "in.npz")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 broken"])
def test_not_an_npz(write, sonde, folder, content: bytes) -> None:
    write(F)
    (folder / "in.npz").write_bytes(content)
    error = sonde.error("report", "model:f", "--input", "in.npz")
    assert "'in.npz' cannot be read as an .npz or .npy file" in error


def test_a_truncated_npz(write, sonde, folder) -> None:
    write(F)
    np.savez("in.npz", x=np.zeros(1000), y=np.zeros(1000))
    (folder / "in.npz").write_bytes((folder / "in.npz").read_bytes()[:500])
    assert "cannot be read as an .npz" in sonde.error("report", "model:f", "--input", "in.npz")


def test_a_header_that_promises_too_much_takes_no_memory(folder) -> None:
    np.save("in.npy", np.zeros(100_000_000 // 8))
    data = (folder / "in.npy").read_bytes()[:1000]
    (folder / "in.npy").write_bytes(data)
    with zipfile.ZipFile("in.npz", "w") as archive:
        archive.writestr("x.npy", data)
    for name in ("in.npy", "in.npz"):
        with pytest.raises(Unusable, match=r"has the shape \(12500000,\) by its header"):
            read_arrays(name)


def test_python_objects_are_not_unpickled(folder) -> None:
    np.savez("in.npz", x=np.array([{}, None], dtype=object))
    with pytest.raises(Unusable, match="'in.npz' cannot be read .*: x holds Python objects"):
        read_arrays("in.npz")


def test_text_is_no_array(folder) -> None:
    np.savez("in.npz", x=np.array(["a"]))
    with pytest.raises(Unusable, match="Array 'x' of 'in.npz' has dtype <U1, which JAX does not support"):
        read_arrays("in.npz")


def test_a_name_that_is_no_parameter(write, sonde) -> None:
    write("import sonde\ndef f(image, label): return sonde.sow(image, 'h')\n")
    np.savez("in.npz", imgae=np.zeros(2), label=np.zeros(2))
    error = sonde.error("report", "model:f", "--input", "in.npz")
    assert "model:f has no parameter for the array 'imgae' of the input file" in error
    assert "Its parameters are image, label; nearest: image." in error


def test_a_missing_argument(write, sonde) -> None:
    write(F)
    np.savez("in.npz", y=np.zeros(2))
    error = sonde.error("report", "model:f", "--input", "in.npz")
    assert "cannot be called with the arrays y of the input file: missing a required argument: 'x'" in error
