"""Which sentences mean the same? MiniLM turns them into vectors whose products measure similarity."""

from __future__ import annotations

import numpy as np
from drawing import heat

from sonde import models

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A woman carries a small child.",
    "The stock market fell sharply today.",
]
model = models.load(models.path("minilm"))
vectors = np.asarray(models.sentence_vectors(model, TEXTS))
likeness = vectors @ vectors.T
for i, j in ((0, 1), (2, 3), (0, 4)):
    print(f"{likeness[i, j]:+.4f}  {TEXTS[i]}  {TEXTS[j]}")
heat("sentences", likeness, [f"{text[:14]}…" for text in TEXTS], title="how alike sentences are", rows="sentence")
