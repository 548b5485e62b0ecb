"""`sonde port`: a model folder of Hugging Face against a port."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.transformers

PORT = """
import numpy as np
from sonde import models

def made(epsilon):
    model = models.load("folder")
    model.blocks[1].norm1.epsilon = epsilon
    return model, (np.array([[3, 1, 4, 1, 5]]),)

def right():
    return made(1e-6)

def wrong():
    return made(1e-2)

def function():
    model, args = made(1e-6)
    return lambda ids: model(ids), args
"""


def test_a_folder_against_a_port(write, sonde, tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained("folder")
    write(PORT)
    right = sonde.json("port", "folder", "model.py:right")
    assert right["same"] and len(right["parameters"]["matched"]) == 21 and not right["parameters"]["missing"]
    by_name = {row["first"]: row for row in right["parameters"]["matched"]}
    assert by_name["model.layers.1.self_attn.q_proj.weight"]["layout"] == "transposed (1, 0)"
    wrong = " ".join(sonde.ok("port", "folder", "model.py:wrong", "--out", "page.html", code=1).split())
    assert "with eps=1e-06 in place of 0.01" in wrong and "blocks/1/norm1" in wrong
    assert "first difference" in Path("page.html").read_text()
    assert str(Path.cwd()) not in wrong.replace(str(Path("page.html").resolve()), "")
    assert "def ported(first):" in sonde.ok("port", "folder", "model.py:right", "--code")
    assert "Parameters are not compared: the port is no model" in sonde("port", "folder", "model.py:function").stderr
