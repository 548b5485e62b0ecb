"""Makes the pictures of `sonde view` again, with a browser driven as in the tests: a part of `make pictures`."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))  # for tests.chromium

from tests.chromium import chromium, set_size  # noqa: E402

import sonde  # noqa: E402
from sonde import demo, dictionaries, models, nnx  # noqa: E402
from sonde.demo.viewing import DEFECTIVE, TRAINED, subjects  # noqa: E402
from sonde.viewer.open import joined, opened_file, subject_of  # noqa: E402
from sonde.viewer.runs import Runs  # noqa: E402
from sonde.viewer.server import Served  # noqa: E402

OUT = "blocks/12/out"
SETTLED = (
    "const view = document.getElementById('view');"
    "return view?.firstElementChild && !view.hasAttribute('aria-busy')"
    " && !document.querySelector('.status.busy, progress:not([hidden])')"
    " && !/…$/.test(document.querySelector('output')?.textContent ?? '')"
)


class Camera:
    """Takes pictures of a page in several states."""

    def __init__(self, driver: Any, served: Served) -> None:
        self.driver, self.address = driver, served.address

    def take(self, name: str, size: tuple[int, int], *, act: str = "", scroll: str = "", **state: Any) -> None:
        """A picture of a state; `act` is run first, and `scroll` is the selector of what stands at the top."""
        set_size(self.driver, *size)
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{urllib.parse.quote(json.dumps(state))}")
        self.settle()
        if act:
            self.driver.execute_script(act)
            self.settle()
        if scroll:
            self.driver.execute_script(f"document.querySelector({scroll!r})?.scrollIntoView()")
        self.driver.save_screenshot(str(HERE / name))

    def settle(self) -> None:
        """Waits until nothing is awaited."""
        from selenium.webdriver.support.ui import WebDriverWait

        for _ in range(2):  # a view may ask again when its first answer is there
            WebDriverWait(self.driver, 300).until(lambda driver: driver.execute_script(SETTLED))
            self.driver.execute_async_script("setTimeout(arguments[0], 700)")


def of_demo(driver: Any) -> None:
    """The tutorial: the induction head and the defect of the demo."""
    served = Served(dict(subjects(demo.tell(0, lambda text, share: None))))
    camera = Camera(driver, served)
    brightest = (
        "const cells = [...document.querySelectorAll('#view .card')].pop().querySelectorAll('svg rect.hit, canvas');"
        "cells[0]?.scrollIntoView({block: 'center'})"
    )
    camera.take("view-heads.png", (1360, 900), subject=TRAINED, view="attention", act=brightest)
    camera.take(
        "view-head.png", (1360, 900), subject=TRAINED, view="attention", path="layers/1/weights", head=_head(served)
    )
    change = {"on": True, "kind": "ablate", "path": "layers/1/weights", "call": 0, "chosen": {"1": [_head(served)]}}
    camera.take("view-zero.png", (1360, 640), subject=TRAINED, path="stream/1", changes=[change])
    camera.take("view-defect.png", (1360, 700), subject=DEFECTIVE, path="layers/1/scores")
    served.close()


def _head(served: Served) -> int:
    """The head with the most attention to what came after an earlier copy."""
    from sonde.viewer.operations import Job, answer

    found = answer(Job(served.subjects), "heads", {"subject": TRAINED})
    scores = np.frombuffer(base64.b64decode(found["induction"]["f32"]), "<f4").reshape(found["induction"]["shape"])
    return int(scores[-1].argmax())


def of_smollm2(driver: Any) -> None:
    """The how-to page: SmolLM2, a store with a dictionary, a training run."""
    folder = Path(tempfile.mkdtemp())
    model = models.load(models.path("smollm2"), layers="scan")
    text = "".join(page.read_text() for page in sorted((HERE.parent / "how-to").glob("[a-e]*.md")))
    ids = np.asarray(model.tokenizer.encode(text), np.int32)[: 96 * 64].reshape(-1, 64)
    kept = sonde.store.harvest(
        model,
        [jnp.asarray(ids[i : i + 16]) for i in range(0, 96, 16)],
        folder / "texts",
        OUT,
        keys=lambda t: {"tokens": t},
    )
    autoencoder = dictionaries.Dictionary(576, 1024, activation="topk", k=16, rngs=nnx.Rngs(0))
    batches = kept.batches(256, row_axes=2, shuffle=True, epochs=None)
    dictionaries.train(autoencoder, batches, steps=300, learning_rate=2e-3)
    rng = np.random.default_rng(0)
    lines = []
    for step in range(2000):
        row = {"step": step, "loss": 3 * np.exp(-step / 400) + 0.1 * rng.random()}
        norms = {f"blocks/{i}/out/norm": 1 + 0.1 * i + 0.05 * rng.random() for i in range(12)}
        norms["blocks/7/out/norm"] *= 1 + max(0, step - 1340) / 20
        lines.append(json.dumps(row | norms))
    (folder / "run.jsonl").write_text("\n".join(lines) + "\n")
    here = {OUT: autoencoder}
    program = {"smollm2": Runs(subject_of(model, title="smollm2", dictionaries=here))}
    served = Served(joined([program, dict(opened_file(str(folder)))], here))
    camera = Camera(driver, served)
    camera.take("view.png", (1360, 900), subject="smollm2", path="blocks/5/attn/weights")
    camera.take("view-lens.png", (1360, 900), subject="smollm2", view="lens")
    camera.take("view-run.png", (1360, 900), subject="run.jsonl")
    camera.take(
        "view-features.png", (1360, 900), subject="smollm2", view="features", path=OUT, feature=9, scroll="#feature"
    )
    served.close()


def main() -> None:
    """Writes the files `view*.png` beside this one."""
    with chromium() as driver:
        of_demo(driver)
        of_smollm2(driver)


if __name__ == "__main__":
    main()
