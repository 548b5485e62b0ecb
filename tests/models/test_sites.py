"""The sites of the table exist, cost nothing unless captured, and agree under every form of attention."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.cases import CASES, apart, inputs, oracle, outputs, write_checkpoint

import sonde
from sonde import models, nnx, ops

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/how-to/pretrained-models.md"
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9]])


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return models.load(write_checkpoint(tmp_path_factory.mktemp("models") / "gemma3", oracle("gemma3")))


def test_every_site_of_the_table_is_there_and_no_other(gemma: Any) -> None:
    gemma.set_attributes(per_head=True)
    found = sonde.sites(gemma)(TOKENS)
    gemma.set_attributes(per_head=False)
    paths = {re.sub(r"blocks/\d+/", "blocks/12/", info.path) for info in found}
    of_norms = ("/normalized", "/factor")
    inside_norms = {path for path in paths if path.endswith(of_norms)}
    assert paths - inside_norms == {names.site for names in models.SITES if not names.site.endswith(of_norms)}
    config = gemma.config
    sizes = {"batch": 1, "one": 1, "length": 6, "keys": 6, "heads": config.heads, "key-heads": config.key_heads}
    sizes |= {"depth": config.depth, "width": config.width, "hidden": config.hidden, "vocabulary": config.vocabulary}
    shapes = {info.path: info.shape for info in found}
    for names in models.SITES:
        assert shapes[names.site.replace("/12/", "/1/")] == tuple(sizes[axis] for axis in names.shape.split()), (
            names.site
        )


CANONICAL = "embedded logits".split()
IN_BLOCKS = (
    "in norm1 attn/q attn/k attn/v attn/scores attn/weights attn/heads attn/out mid mlp/pre mlp/hidden mlp/out out"
)
EVERY = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "gpt_neox", "phi", "phi3", "bert_masked", "vit_classes"]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", EVERY)
def test_every_architecture_has_the_same_sites_as_a_list_and_as_a_scan(name: str, tmp_path: Path) -> None:
    stored, given = oracle(name), inputs(CASES[name])
    folder = write_checkpoint(tmp_path, stored)
    run = sonde.capture(nnx.jit(outputs))
    _, listed = run(models.load(folder), given)
    _, scanned = run(models.load(folder, layers="scan"), given)
    config = models.load(folder).config
    wanted = {*CANONICAL, *(f"blocks/{i}/{site}" for i in range(config.layers) for site in IN_BLOCKS.split())}
    wanted |= {f"blocks/{i}/norm2" for i in range(config.layers) if not config.shares_norm}
    wanted |= {"norm"} if config.final_norm else set()
    assert wanted <= set(listed)
    assert set(listed) == set(scanned)
    for path, record in listed.items():
        # A norm is where rounding shows: one axis of a scan may be summed in another order.
        assert apart(scanned[path].value, record.value) < 1e-4, path


def test_the_page_has_the_table() -> None:
    listed = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert listed == [(names.site, names.shape) for names in models.SITES]


def test_results_add_up_to_the_output(gemma: Any) -> None:
    logits = jax.jit(gemma)(TOKENS)
    gemma.set_attributes(per_head=True)
    capture = sonde.capture(gemma, "blocks/0/attn/results", "blocks/0/attn/out")
    again, records = jax.jit(capture)(TOKENS)
    assert apart(again, logits) < 1e-5
    assert apart(records["blocks/0/attn/results"].value.sum(-2), records["blocks/0/attn/out"].value) < 1e-5
    without = lambda site: sonde.edit(gemma, {site: lambda x: x.at[..., 1, :].set(0)})
    silenced, by_heads = (jax.jit(without(f"blocks/0/attn/{site}"))(TOKENS) for site in ("results", "heads"))
    gemma.set_attributes(per_head=False)
    assert apart(silenced, by_heads) < 1e-5


def test_fused_attention_has_sites_that_cost_nothing_unasked() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    q = jax.random.normal(keys[0], (2, 5, 4, 8))
    k, v = (jax.random.normal(key, (2, 5, 2, 8)) for key in keys[1:])
    at = jnp.arange(5)[None]
    mask = ops.visible(at, at)

    def run(implementation: Any, q: jax.Array) -> jax.Array:
        return ops.grouped_attention(q, k, v, mask=mask, implementation=implementation)

    plain, records = sonde.capture(run)(None, q)
    fused, seen = sonde.capture(run)("xla", q)
    assert apart(fused, plain) < 1e-5
    for site in ("scores", "weights", "heads"):
        assert apart(seen[site].value, records[site].value) < 1e-5

    def flops(f: Any) -> float:
        return jax.jit(f).lower(q).compile().cost_analysis()["flops"]

    unasked = flops(lambda q: sonde.capture(lambda q: run("xla", q), "heads")(q))
    assert unasked == flops(lambda q: run("xla", q))
    assert flops(lambda q: sonde.capture(lambda q: run("xla", q), "weights")(q)) > unasked
    # Edits and gradients reach the heads.
    edited = sonde.edit(run, {"weights": lambda w: w * 2})("xla", q)
    assert apart(edited, 2 * plain) < 1e-5
    grads = sonde.capture(jax.grad(lambda q: run("xla", q).sum()), "weights", grads=True)(q)[1]["weights"].grad
    assert float(jnp.abs(grads).max()) > 0


def test_visible_by_hand() -> None:
    rng = np.random.default_rng(0)
    queries, keys = rng.integers(0, 9, (2, 4)), rng.integers(0, 9, (2, 6))
    valid = rng.random((2, 6)) < 0.7
    found = ops.visible(jnp.asarray(queries), jnp.asarray(keys), window=3, valid=jnp.asarray(valid))
    for b in range(2):
        for i in range(4):
            for j in range(6):
                back = queries[b, i] - keys[b, j]
                assert bool(found[b, i, j]) == (0 <= back < 3 and bool(valid[b, j]))


def test_rotation_keeps_what_depends_on_distance() -> None:
    rotary = ops.Rotary(8, theta=100.0)
    q, k = (jax.random.normal(key, (1, 1, 1, 8)) for key in jax.random.split(jax.random.key(3)))

    def product(a: int, b: int) -> float:
        at = [ops.rotate(x, *ops.rotary_tables(jnp.array([[p]]), rotary)) for x, p in ((q, a), (k, b))]
        return float((at[0] * at[1]).sum())

    assert abs(product(7, 3) - product(104, 100)) < 1e-4
    assert abs(product(7, 3) - product(7, 4)) > 1e-3
    both = [ops.rotate(x, *ops.rotary_tables(jnp.array([[5]]), rotary), interleaved=True) for x in (q, k)]
    assert abs(float((both[0] * both[1]).sum()) - float((q * k).sum())) < 1e-4
    with pytest.raises(sonde.errors.LayerInputError, match="known are default, linear"):
        ops.Rotary(8, kind="other")


def test_layers_of_their_own() -> None:
    gated = nnx.MLP(4, 6, activation=nnx.silu, gated=True, use_bias=False, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 4))
    by_hand = (nnx.silu(x @ gated.gate.kernel[...]) * (x @ gated.up.kernel[...])) @ gated.down.kernel[...]
    assert apart(gated(x), by_hand) < 1e-6
    norm = nnx.OffsetRMSNorm(4, rngs=nnx.Rngs(0))
    norm.scale[...] = jnp.array([0.0, 1.0, -1.0, 0.5])
    expected = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * jnp.array([1.0, 2.0, 0.0, 1.5])
    assert apart(norm(x), expected) < 1e-6
