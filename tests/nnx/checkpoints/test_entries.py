"""What a checkpoint stores of a model, and under which names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.checkpoints.models import make, numbers, train

from sonde import nnx
from sonde.nnx import checkpoints
from sonde.nnx.checkpoints.entries import Entry, as_state, entries_of, show

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


@FORMATS
def test_only_some(tmp_path, name):
    (saved, _), (fresh, _) = train(nnx, 0), train(nnx, 5)
    checkpoints.save(tmp_path / name, saved)
    before = numbers(nnx, fresh)
    checkpoints.restore(tmp_path / name, fresh, only=nnx.Param)
    chosen = {tuple(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(fresh, nnx.Param))}
    expected = numbers(nnx, saved)
    assert numbers(nnx, fresh) == {path: expected[path] if path in chosen else before[path] for path in before}
    assert chosen and any(before[path] != expected[path] for path in set(before) - chosen)


@FORMATS
def test_renamed(tmp_path, name):
    def torch_like(path):
        return path.replace("blocks", "encoder/layers").replace("kernel", "weight")

    saved, fresh = make(nnx, 0), make(nnx, 5)
    checkpoints.save(tmp_path / name, saved, rename=torch_like)
    assert "encoder/layers/10/weight" in {p.removesuffix("/value") for p in checkpoints.contents(tmp_path / name)}
    checkpoints.restore(tmp_path / name, fresh, rename=torch_like)
    assert numbers(nnx, fresh) == numbers(nnx, saved)
    with pytest.raises(ValueError, match=r"rename gives a and b the same name, x\."):
        checkpoints.save(tmp_path / "x", nnx.Dict(a=nnx.Param(1.0), b=nnx.Param(2.0)), rename=lambda path: "x")
    with pytest.raises(ValueError, match=r"rename must return a name such as 'layer/kernel'; it gave '' for a\."):
        checkpoints.save(tmp_path / "x", nnx.Dict(a=nnx.Param(1.0)), rename=lambda path: "")


def test_entries_of_models_states_and_pytrees_of_them():
    model = nnx.Dict(b=nnx.List([nnx.Param(jnp.ones(1))]), a=nnx.BatchStat(jnp.zeros(2)), bare=jnp.ones(3), name="x")
    entries = entries_of(model)
    assert [entry.path for entry in entries] == [("a",), ("b", 0), ("bare",)]
    assert [entry.name for entry in entries] == [("a",), ("b", "0"), ("bare",)]
    assert [entry.in_variable for entry in entries] == [True, True, False]
    assert [e.name for e in entries_of(nnx.state(model))] == [e.name for e in entries]
    assert [e.name for e in entries_of({"m": model})] == [("m", *e.name) for e in entries]
    assert [e.name for e in entries_of(model, only=nnx.Param)] == [("b", "0")]
    for nothing in (3, jnp.ones(2), "text"):
        with pytest.raises(TypeError, match="A checkpoint holds Modules, States, or pytrees of them; got a"):
            entries_of(nothing)


def test_the_parts_of_a_value_and_back():
    variable = nnx.Variable({"x": np.ones(2), "y": (np.zeros(1), None, np.full(3, 7.0))}, mine=1)
    entry = Entry(("v",), ("v",), variable)
    names, arrays = zip(*entry.parts())
    assert names == (("x",), ("y", "0"), ("y", "2"))
    new = entry.holding([array + 1 for array in arrays])
    assert (type(new), new.mine, new is variable) == (nnx.Variable, 1, False)
    jax.tree.map(np.testing.assert_array_equal, new.get_raw_value(), jax.tree.map(lambda a: a + 1, entry.value))
    assert list(Entry((), (), nnx.Variable(None)).parts()) == []
    assert Entry((), (), np.ones(2)).holding([5]) == 5


def test_values_go_past_hooks():
    doubled = nnx.Param(np.ones(2), on_get_value=lambda v, x: x * 2)
    np.testing.assert_array_equal(Entry((), (), doubled).value, [1, 1])


def test_leaves_by_path_as_a_state():
    state = as_state({("a", 0): 1, ("b",): 2})
    assert nnx.to_pure_dict(state) == {"a": {0: 1}, "b": 2}
    assert show(("a", 0, "w")) == "a/0/w"
