"""Makes the pictures of the README and the site again: `make pictures`.

SmolLM2 comes from the package registry; pages are photographed by Chromium, which has to be installed.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from rich.console import Console

import sonde
from sonde import models
from sonde.report import examine
from sonde.tools import attention_heads, patch_sweep
from sonde.tools.reading.attention_heads import KINDS

HERE = Path(__file__).parent
SOURCE = Path(sonde.__file__).resolve().parent.parent
FRAME = "<!doctype html><meta charset=utf-8><body style='font: 14px sans-serif; margin: 16px; background: white'>"


def photograph(page: Path, name: str, size: tuple[int, int]) -> None:
    """A page as Chromium shows it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("make pictures needs Chromium: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--virtual-time-budget=4000"]
    target = [f"--window-size={size[0]},{size[1]}", f"--screenshot={HERE / name}", page.as_uri()]
    subprocess.run([browser, *options, *target], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Writes `records.png`, `terminal.svg`, `report.png`, `sweep.png` and `heads.png` beside this file."""
    folder = Path(tempfile.mkdtemp())
    model = models.load(models.path("smollm2"), layers="scan")
    tokenizer = model.tokenizer
    clean, corrupt = (
        jnp.asarray([tokenizer.encode(f"{city} is the capital city of the country of")]) for city in ("Paris", "Rome")
    )

    wanted = ("embedded", "blocks/{0..2}/attn/{scores,weights}", "blocks/{0..2}/mlp/*", "blocks/{0..2}/out")
    _, records = sonde.capture(model, *wanted)(clean)
    tree = records._repr_html_().replace("<details><summary", "<details open><summary", 1)  # one picture
    (folder / "records.html").write_text(FRAME + tree)
    photograph(folder / "records.html", "records.png", (1000, 560))

    report = examine(model)(clean)
    terminal = Console(record=True, width=110, file=io.StringIO())
    terminal.print(report)
    drawn = terminal.export_svg(title="sonde report")
    (HERE / "terminal.svg").write_text(
        re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    )  # no font from elsewhere
    report.write(folder / "report.html")
    page = (folder / "report.html").read_text()
    (folder / "report.html").write_text(page.replace(f"{SOURCE}/", ""))  # not where this machine has the source
    photograph(folder / "report.html", "report.png", (1200, 1000))

    right, wrong = tokenizer.one(" France"), tokenizer.one(" Italy")
    sweep = patch_sweep(model, "blocks/*/out", metric=lambda logits: logits[0, -1, right] - logits[0, -1, wrong])(
        (clean,), (corrupt,)
    )
    (folder / "sweep.html").write_text(FRAME + sweep.html(tokens=tokenizer.pieces(np.asarray(clean)[0])))
    photograph(folder / "sweep.html", "sweep.png", (560, 580))

    once = np.random.default_rng(0).integers(1000, 40000, (1, 24))
    heads = attention_heads(model, "blocks/*/attn/weights")(jnp.asarray(np.concatenate([once, once], 1)))
    columns = [f"{kind} {head}" for kind in KINDS for head in range(heads.induction.shape[1])]
    (folder / "heads.html").write_text(FRAME + heads.html(tokens=columns))
    photograph(folder / "heads.html", "heads.png", (930, 640))


if __name__ == "__main__":
    main()
