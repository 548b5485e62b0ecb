"""Checkpoints move between Flax and Sonde in both directions, written and read the way Flax's documentation does."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import orbax.checkpoint as ocp
import pytest
from tests.nnx.checkpoints.models import make, numbers, train

from sonde import nnx
from sonde.nnx import checkpoints

BOTH = pytest.mark.parametrize("pure", [False, True], ids=["state", "pure dict"])


def flax_save(path, node, pure):
    state = fnnx.state(node)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, fnnx.to_pure_dict(state) if pure else state)


def flax_restore(path, node, pure):
    """Into a new object, by an abstract one."""
    graphdef, state = fnnx.split(node)
    with ocp.StandardCheckpointer() as checkpointer:
        if not pure:
            abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            return fnnx.merge(graphdef, checkpointer.restore(path, abstract))
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, fnnx.to_pure_dict(state))
        fnnx.replace_by_pure_dict(state, fnnx.restore_int_paths(checkpointer.restore(path, abstract)))
        return fnnx.merge(graphdef, state)


@BOTH
def test_flax_to_sonde(tmp_path, pure):
    model, optimizer = train(fnnx, 0)
    flax_save(tmp_path / "model", model, pure)
    flax_save(tmp_path / "optimizer", optimizer, pure)
    ours, opt = train(nnx, 5)
    checkpoints.restore(tmp_path / "model", ours)
    checkpoints.restore(tmp_path / "optimizer", opt)
    assert numbers(nnx, ours) == numbers(fnnx, model)
    assert numbers(nnx, opt) == numbers(fnnx, optimizer)


@BOTH
def test_sonde_to_flax(tmp_path, pure):
    model, optimizer = train(nnx, 0)
    checkpoints.save(tmp_path / "model", model, pure=pure)
    checkpoints.save(tmp_path / "optimizer", optimizer, pure=pure)
    theirs, opt = train(fnnx, 5)
    assert numbers(fnnx, flax_restore(tmp_path / "model", theirs, pure)) == numbers(nnx, model)
    assert numbers(fnnx, flax_restore(tmp_path / "optimizer", opt, pure)) == numbers(nnx, optimizer)


@BOTH
def test_model_and_optimizer_in_one(tmp_path, pure):
    model, optimizer = train(fnnx, 0)
    both = {"model": fnnx.state(model), "optimizer": fnnx.state(optimizer)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "both", {k: fnnx.to_pure_dict(v) for k, v in both.items()} if pure else both)
    ours = dict(zip(("model", "optimizer"), train(nnx, 5)))
    assert checkpoints.restore(tmp_path / "both", ours) is ours
    assert numbers(nnx, ours["model"]) == numbers(fnnx, model)
    assert numbers(nnx, ours["optimizer"]) == numbers(fnnx, optimizer)


def test_training_goes_on_as_in_flax(tmp_path):
    """The keys and counts of dropout too: two more steps give the same model as without the checkpoint."""
    model, optimizer = train(fnnx, 0)
    flax_save(tmp_path / "model", model, False)
    ours = checkpoints.restore(tmp_path / "model", make(nnx, 9))
    x = jax.numpy.ones((5, 3))
    expected, got = model(x), ours(x)
    assert abs(float(expected - got)) < 1e-4 * abs(float(expected))
    assert int(ours.drop.rngs.count[...]) == int(model.drop.rngs.count[...]) == 3


@pytest.mark.parametrize("reader", [nnx, fnnx], ids=["sonde", "flax"])
def test_states_of_sonde_in_plain_orbax(tmp_path, reader):
    """Code written for Flax works with the import changed: orbax is given a State, and an abstract one."""
    model, _ = train(nnx, 0)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", nnx.state(model))
    graphdef, state = reader.split(make(reader, 5))
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = reader.merge(graphdef, checkpointer.restore(tmp_path / "model", abstract))
    assert numbers(reader, restored) == numbers(nnx, model)


def test_checkpoint_manager_of_flax_users(tmp_path):
    model, _ = train(fnnx, 0)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(100, args=ocp.args.StandardSave(fnnx.state(model)))
    ours = checkpoints.restore(tmp_path / "run/100/default", make(nnx, 5))
    assert numbers(nnx, ours) == numbers(fnnx, model)
    with pytest.raises(FileNotFoundError, match=r"run is not itself an orbax checkpoint; .* is .*run/100/default\."):
        checkpoints.restore(tmp_path / "run", ours)
