"""Probes of all layers in one compiled call against a loop of scikit-learn's fits of the same objective."""

from __future__ import annotations

import time

import numpy as np
from sklearn.linear_model import LogisticRegression

from measure import Row, main
from sonde.tools import probe

LAYERS, ROWS, WIDTH = 8, 4000, 256


def measure() -> list[Row]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, ROWS)
    mix = rng.standard_normal((WIDTH, WIDTH)) * np.geomspace(0.3, 2, WIDTH)  # directions of very different size
    values = {
        f"blocks/{i}/out": ((rng.standard_normal((ROWS, WIDTH)) + 0.05 * i * labels[:, None]) @ mix).astype(np.float32)
        for i in range(LAYERS)
    }
    found = probe(values, labels)  # compiles
    mine, theirs = [], []
    for _ in range(2):
        start = time.perf_counter()
        found = probe(values, labels)
        mine.append(time.perf_counter() - start)
        start = time.perf_counter()
        order = np.random.default_rng(0).permutation(ROWS)
        fitted, apart = order[ROWS // 5 :], order[: ROWS // 5]
        scores = [
            LogisticRegression().fit(x[fitted], labels[fitted]).score(x[apart], labels[apart]) for x in values.values()
        ]
        theirs.append(time.perf_counter() - start)
    away = max(abs(a - b) for a, b in zip(found.accuracy.values(), scores))
    detail = f"{min(mine):.2f} s against {min(theirs):.2f} s; accuracies differ by at most {away:.3f}"
    return [Row("probe of 8 layers against a loop of scikit-learn, time", min(mine) / min(theirs), 0.1, detail=detail)]


if __name__ == "__main__":
    main(measure)
