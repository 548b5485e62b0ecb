"""The demo's training, once in a test run: it takes seconds, and both the demo and its tutorial need the model."""

from __future__ import annotations

import functools
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from sonde.demo import training
from sonde.demo.training import Trained

_train = training.train

# A program that runs for seconds is worth optimizing, unlike those of other tests (`tests/conftest.py`).
_OPTIMIZING_JAX = types.ModuleType("jax")
vars(_OPTIMIZING_JAX).update(
    {**vars(jax), "jit": functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "1"})}
)


def _train_once(seed: int, on_progress: Callable[[int, float], None] = lambda step, loss: None) -> Trained:
    """What `sonde.demo.training.train` does, or did in another process of this run."""
    file = Path(os.environ["SONDE_TEST_RUN"], f"trained-{seed}")
    if not file.exists():
        told: list[tuple[int, float]] = []
        trained = _train(seed, lambda *args: told.append(args))
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps((trained, told)))
        unfinished.replace(file)
    trained, told = pickle.loads(file.read_bytes())
    for step, loss in told:
        on_progress(step, loss)
    return trained


def use_one_training(patch: pytest.MonkeyPatch) -> None:
    """Until the patch ends, the demo and the tutorial train each seed once in a run.

    A third of the work is enough for seed 0; the thorough tests train five seeds as the demo does.
    """
    for name, value in {"BATCH": 16, "FREE": 100, "RISING": 200, "FEWEST_STEPS": 300}.items():
        patch.setattr(f"sonde.demo.training.{name}", value)
    patch.setattr("sonde.demo.story.FEWEST_STEPS", 300)
    patch.setattr("sonde.demo.training.jax", _OPTIMIZING_JAX)
    patch.setattr("sonde.demo.training.train", _train_once)
    patch.setattr("sonde.demo.story.train", _train_once)
