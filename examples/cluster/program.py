"""What every process of a cluster runs: takes units of batches from a list until all are in the store.

    python program.py FOLDER

Slurm, Kubernetes and Ray start it as often as there are machines: docs/how-to/many-processes.md has the commands.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import store

W1, W2 = (jax.random.normal(jax.random.key(i), (64, 64)) / 8 for i in range(2))


def model(x):
    h = sonde.sow(jnp.tanh(x @ W1), "block/hidden")
    return sonde.sow(h @ W2 + x, "block/out")


class Batches:
    """Any batch by its number: each process reads only those that it computes."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return np.random.default_rng(i).standard_normal((32, 64)).astype(np.float32)


def work(folder, batches=None):
    """Takes part in the harvest. Returns when all units are done, by whichever process."""
    return store.harvest(model, batches or Batches(), folder, dtype="float16", unit=4, lease=10, progress=False)


if __name__ == "__main__":
    print(work(sys.argv[1]))
