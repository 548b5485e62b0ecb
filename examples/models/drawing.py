"""The pictures of the examples, as PNG files in the folder that `PICTURES` names (`build/pictures` by default)."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def save(name: str) -> None:
    folder = Path(os.environ.get("PICTURES", "build/pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    plt.tight_layout()
    plt.savefig(folder / f"{name}.png", dpi=120)
    plt.close()
    print(f"picture: {folder / f'{name}.png'}")


def heat(name: str, values: np.ndarray, columns: list[str], *, title: str, text=None, rows: str = "layer"):
    """A cell for every row and column, with a text in it if there is one; the last row on top."""
    plt.figure(figsize=(2 + 0.75 * len(columns), 2 + 0.22 * len(values)))
    plt.imshow(values, origin="lower", aspect="auto", cmap="viridis")
    plt.colorbar()
    for i, row in enumerate(text or []):
        for j, cell in enumerate(row):
            plt.text(j, i, cell, ha="center", va="center", fontsize=6, color="white")
    plt.xticks(range(len(columns)), columns, rotation=60, fontsize=8)
    plt.ylabel(rows)
    plt.title(title, fontsize=9)
    save(name)


def lines(
    name: str, series: dict[str, np.ndarray], *, title: str, x: str, y: str, at: np.ndarray | None = None
) -> None:
    """A line for every series."""
    plt.figure(figsize=(6, 3.2))
    for label, values in series.items():
        plt.plot(np.arange(len(values)) if at is None else at, values, ".-", label=label)
    plt.xlabel(x)
    plt.ylabel(y)
    plt.title(title, fontsize=9)
    plt.legend(fontsize=8)
    save(name)
