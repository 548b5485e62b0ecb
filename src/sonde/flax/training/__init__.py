"""Training of functional models: `TrainState`, with the names of `flax.training.train_state`."""

from sonde.flax.training.train_state import TrainState

__all__ = ["TrainState"]
