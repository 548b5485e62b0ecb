"""Building layers: the time that 300 `Linear` layers take, against Flax's, interleaved in one run."""

import time

from flax import nnx as flax_nnx

from sonde import nnx

BOUND, LAYERS, ROUNDS = 0.25, 300, 7


def seconds(where) -> float:
    rngs = where.Rngs(0)
    start = time.perf_counter()
    for _ in range(LAYERS):
        where.Linear(8, 8, rngs=rngs)
    return time.perf_counter() - start


def main() -> None:
    best = {}
    for _ in range(ROUNDS):
        for where in (nnx, flax_nnx):
            best[where] = min(seconds(where), best.get(where, float("inf")))
    ratio = best[nnx] / best[flax_nnx]
    verdict = "ok" if ratio <= BOUND else "MISSED"
    print(f"building {LAYERS} Linear layers: {ratio:.3f} of Flax's time, bound {BOUND}: {verdict}")


if __name__ == "__main__":
    main()
