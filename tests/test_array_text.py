import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import summary

from sonde._array_text import describe, human_size, indexed, short_place, size_and_bytes


def test_types_read_as_in_jax():
    x = jnp.ones((2, 3), jnp.bfloat16)
    assert describe(x) == jax.typeof(x).str_short().replace("bf16", "bfloat16") == "bfloat16[2,3]"
    assert describe(jnp.float32(1)) == "float32[]"
    assert describe("a") == "str 'a'"


def test_an_index_follows_its_name():
    assert indexed("h", (0, 1)) == "h[0,1]"


@pytest.mark.parametrize("n", [0, 1, 999, 1000, 1001, 1500, 1_000_000, 1_000_001, 123_456_789, 2_500_000_000])
def test_sizes_are_those_of_flax(n):
    assert human_size(n) == summary._bytes_repr(n)


def test_sizes_of_a_tree():
    tree = {"a": np.ones((2, 3), np.float32), "b": [jnp.ones(4, jnp.int8), "no array"], "key": jax.random.key(0)}
    assert size_and_bytes(tree) == (6 + 4 + 1, 24 + 4 + jax.random.key(0).dtype.itemsize)


def test_a_place_has_no_folder_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_place("/somewhere/model.py:7") == "model.py:7"
    assert short_place("/somewhere/model.py") == "model.py"
    assert short_place(f"{tmp_path}/models/attention.py:7 in loss") == "models/attention.py:7 in loss"
    # An environment below the working folder: the place is that of the package.
    packages = tmp_path / ".venv/lib/python3.11/site-packages"
    monkeypatch.syspath_prepend(str(packages))
    assert short_place(f"{packages}/optax/losses.py:7") == "optax/losses.py:7"
    assert short_place("/tmp/marimo_7/__marimo__cell_Hbol_.py:3") == "cell Hbol:3"
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert short_place(f"{tmp_path}/models/attention.py:7") == "models/attention.py:7"
    assert short_place("<string>:7") == "<string>:7"
