"""Grain on both sides of a store: its dataset gives the batches of a harvest, and its workers read the store.

pip install grain
python grain_input.py FOLDER [WORKERS]
"""

import grain
import numpy as np
import program
from absl import app

from sonde import store


def batches():
    """Documents in a random order, in batches. Grain computes any batch by its number, as units of a harvest need."""
    documents = grain.MapDataset.range(2048).map(lambda i: np.random.default_rng(i).standard_normal(64, np.float32))
    return documents.seed(0).shuffle().batch(32)


def read(folder, workers):
    """All rows of the store, in another random order, in minibatches that other processes read."""
    rows = grain.MapDataset.source(store.open(folder)["block/out"]).seed(1).shuffle().to_iter_dataset().batch(64)
    return rows.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=workers)) if workers else rows


def main(folder, workers="2"):
    kept = program.work(folder, batches())
    print(f"{kept.n_batches} batches, {len(kept['block/out'])} rows, all right: {store.check(folder) == []}")
    whole = np.concatenate([program.model(batch) for batch in batches()])
    assert np.allclose(kept["block/out"][:], whole, rtol=1e-2, atol=1e-2)
    drawn = np.concatenate(list(read(folder, int(workers))))
    print("each row once:", np.array_equal(np.unique(drawn, axis=0), np.unique(kept["block/out"][:], axis=0)))


if __name__ == "__main__":
    app.run(lambda arguments: main(*arguments[1:]))  # Grain's workers read flags of the command line
