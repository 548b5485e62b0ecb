"""Damaged and hostile files of dictionaries and records: a StoreError, before memory is taken, or what was saved."""

from __future__ import annotations

import json
import random
import resource
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tests.untrusted import groups

import sonde
from sonde import dictionaries, nnx, store
from sonde.errors import StoreError

ODD = [None, True, -1, 0, 1, 3, 2**31, 2**63, 0.5, float("nan"), "", "x", [], [1], {}, {"k": -1}]


@pytest.mark.parametrize("numbers", groups(40, 500))
def test_odd_dictionaries(tmp_path, numbers):
    made = {
        kind: dictionaries.Dictionary(4, 8, activation=kind, k=3 if kind == "topk" else None, rngs=nnx.Rngs(0))
        for kind in ("relu", "topk", "jumprelu")
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in numbers:
        rng = random.Random(seed)
        kind = sorted(made)[seed % 3]
        dictionaries.save(made[kind], tmp_path)
        config, weights = tmp_path / "cfg.json", tmp_path / "sae_weights.safetensors"
        told = json.loads(config.read_text())
        name = rng.choice([*sorted(told), "k", "d_out", "activation_fn", "activation_fn_kwargs"])
        told[name] = rng.choice(ODD)
        config.write_text(json.dumps(told))
        if rng.random() < 0.3:
            data = bytearray(weights.read_bytes())
            data[rng.randrange(len(data) // 2)] ^= 1 << rng.randrange(8)
            weights.write_bytes(bytes(data))
        start = time.monotonic()
        try:
            dictionaries.load(tmp_path)(jnp.ones(4))
        except StoreError as error:
            assert str(tmp_path) in str(error)
        assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_records_of_npz_whose_header_promises_too_much(tmp_path):
    _, records = sonde.capture(lambda x: sonde.sow(x, "h"))(np.ones(10, np.float32))
    file = tmp_path / "records.npz"
    store.save(records, file)
    good = file.read_bytes()
    for other in (b"(99,)", b"(-1,)", b"9**9,"):
        file.write_bytes(good.replace(b"(10,)", other))
        with pytest.raises(StoreError, match=r"records.npz' does not hold records"):
            store.load(file)
