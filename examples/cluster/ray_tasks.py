"""Ray tasks harvest into one store; one of them dies in the middle, and Ray starts it again.

pip install ray
python ray_tasks.py FOLDER [ADDRESS]
"""

import os
import pathlib
import signal
import sys

import numpy as np
import program
import ray

from sonde import store


class Deadly(program.Batches):
    """Batches of which the twentieth kills the process that reads it, once."""

    def __init__(self, folder):
        self.mark = pathlib.Path(f"{folder}.died")

    def __getitem__(self, i):
        if i == 20 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


@ray.remote(num_cpus=1, max_retries=3)
def work(folder):
    return program.work(folder, Deadly(folder)).n_batches


def main(folder, address=None):
    ray.init(address, include_dashboard=False, runtime_env={"working_dir": str(pathlib.Path(__file__).parent)})
    print("batches in the store, as each task saw it at its end:", ray.get([work.remote(folder) for _ in range(3)]))
    kept = store.open(folder)
    expected = np.concatenate([program.model(batch) for batch in map(program.Batches().__getitem__, range(64))])
    assert kept.finished and store.check(folder) == []
    print("a task died:", Deadly(folder).mark.exists())
    print("largest difference from the model in one process:", np.abs(kept["block/out"][:] - expected).max())


if __name__ == "__main__":
    main(*sys.argv[1:])
