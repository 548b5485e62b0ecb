"""What people asked for in public threads about ports that do not agree, in a few lines each.

MaxText 4727 and 4726 (a pipeline that checks converted checkpoints), MaxText 1839 (a checker of logits against a model
of Hugging Face), Neuronpedia 235 (one checkpoint under two versions of a library).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import scope, sow
from sonde.cli.entry import main
from sonde.tools import assert_same_program, compare, map_parameters

RNG = np.random.default_rng(0)
STATES = [RNG.normal(size=(1, 6, 8)).astype(np.float32) for _ in range(12)]
WEIGHT = (RNG.normal(size=(8, 5)) / 3).astype(np.float32)
X = RNG.normal(size=(4, 8)).astype(np.float32)


def test_the_first_layer_that_diverges_in_lists_of_hidden_states() -> None:
    """MaxText 4727: states of both models by layer, one of them moved by 0.05, in another a NaN; the rest follows."""
    hugging_face = {f"hidden_states/{i}": x for i, x in enumerate(STATES)}
    moved = {f"hidden_states/{i}": x + 0.05 * (i >= 10) for i, x in enumerate(STATES)}
    assert compare(hugging_face, {name: x.copy() for name, x in hugging_face.items()})().first is None
    found = compare(hugging_face, moved)()
    assert found.first is not None and found.first.path == "hidden_states/10"
    assert found.jumps(1)[0][0].path == "hidden_states/10"
    broken = dict(hugging_face)
    broken["hidden_states/3"] = np.where(np.arange(8) == 2, np.nan, STATES[3])
    found = compare(hugging_face, broken)()
    assert found.first is not None and (found.first.path, found.first.beyond) == ("hidden_states/3", 6)


def test_golden_logits_in_a_file_with_an_exit_code_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """MaxText 4726: a forward pass of the converted checkpoint against golden logits, as a step of CI with a report."""
    monkeypatch.chdir(tmp_path)
    np.savez("golden.npz", logits=np.tanh(X) @ WEIGHT)
    np.savez("model.npz", weight=WEIGHT, x=X)
    program = """
import jax.numpy as jnp, numpy as np
stored = np.load("model.npz")
def run(x, scale=1.0):
    return jnp.tanh(x * scale) @ stored["weight"]
right = lambda: (run, (stored["x"],))
wrong = lambda: (run, (stored["x"], 1.01))
"""
    Path("converted.py").write_text(program)
    command = ["compare", "golden.npz", "converted.py:right", "--json"]
    assert main(command) == 0
    assert json.loads(capfd.readouterr().out)["same"] is True
    command[2] = "converted.py:wrong"
    assert main(command) == 1
    assert json.loads(capfd.readouterr().out)["first"]["path"] == "logits"
    assert main([*command, "--norm", "0.05"]) == 0  # a tolerance of the user's own, as their checker takes one


@pytest.mark.transformers
def test_both_checkpoints_run_and_their_logits_are_compared() -> None:
    """MaxText 1839: no golden logits, which are of no use after fine-tuning: both models run, in both directions."""
    import torch

    class Original(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.layers = torch.nn.Embedding(11, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)] * 1)
            self.layers.append(torch.nn.Linear(8, 8))
            self.head = torch.nn.Linear(8, 11, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                x = x + torch.nn.functional.silu(layer(x))
            return self.head(x)

    original = Original().eval()
    named = {name: p.detach().numpy() for name, p in original.named_parameters()}
    stacked = {
        "embedding": named["embed.weight"],
        "layers": {
            "kernel": np.stack([named[f"layers.{i}.weight"].T for i in range(2)]),
            "bias": np.stack([named[f"layers.{i}.bias"] for i in range(2)]),
        },
        "logits": named["head.weight"].T,
    }

    def maxtext(ids: Any, params: Any = stacked) -> Any:
        step = lambda x, layer: (x + jax.nn.silu(x @ layer["kernel"] + layer["bias"]), None)
        x = jax.lax.scan(step, jnp.asarray(params["embedding"])[ids], params["layers"])[0]
        return x @ params["logits"]

    ids = np.array([[3, 1, 4, 1, 5]])
    assert_same_program(original, maxtext, (ids,))
    there, back = map_parameters(named, stacked), map_parameters(stacked, named)
    assert not (there.missing or there.surplus or back.missing or back.surplus)
    wrong = {**stacked["layers"], "kernel": stacked["layers"]["kernel"].swapaxes(1, 2)}
    untransposed = {**stacked, "layers": wrong}
    found = compare(original, lambda ids: maxtext(ids, untransposed))(ids)
    assert found.first is not None and "with the weight [8, 8] transposed, in 2 places" in str(found.parting)


@pytest.mark.every(2)
def test_one_checkpoint_under_two_versions_of_a_library() -> None:
    """Neuronpedia 235: a version scaled the rotary frequencies of all layers, not only of those that see everything."""
    frequencies = 100.0 ** (-np.arange(4) / 4)
    kinds = ["window", "window", "full", "window"]

    def forward(x: Any, scaled: tuple[str, ...]) -> Any:
        for i, kind in enumerate(kinds):
            with scope(f"layers/{i}"):
                angle = np.arange(4)[:, None] * frequencies / (8.0 if kind in scaled else 1.0)
                a, b = jnp.split(x, 2, -1)
                turned = jnp.concatenate(
                    [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1
                )
                x = sow(x + jnp.tanh(sow(turned, "rotated") @ jnp.asarray(WEIGHT @ WEIGHT.T)), "out")
        return x

    found = compare(lambda x: forward(x, ("full",)), lambda x: forward(x, ("full", "window")))(X)
    assert found.first is not None and found.first.path == "layers/0/rotated"
    assert "before layers/0/rotated" in str(found.parting)
    assert all(drift.differs for drift in found.drifts)
    same = compare(lambda x: forward(x, ("full",)), lambda x: forward(x, ("full",)))(X)
    assert same.first is None and len(same.drifts) == 8
