"""Edges of compiled programs whose circuits are known: pip install tracr-pypi, then run this file.

For each program, every edge is cut alone (`method="exact"`). The edges that change the output are compared with those
that others published: for values of another input with auto-circuit (UFO-101/auto-circuit), for zeros with ACDC
(ArthurConmy/Automatic-Circuit-Discovery). The areas of ACDC are those in the tables of the same repository.

The output counts at all positions: at the first, `BOS`, two edges of the proportion with zeros have their only effect,
as was checked by running the weights by hand.
"""

from __future__ import annotations

import itertools
from typing import Any

import haiku as hk
import jax.numpy as jnp
import numpy as np
from tracr.compiler import compiling, lib
from tracr.rasp import rasp

import sonde
from sonde.tools import Edges, attribute_edges

TOKENS, POSITIONS, END = "token_embed", "pos_embed", "end"
SENDERS = (f"{TOKENS}/out", f"{POSITIONS}/out", "transformer/*/attn/linear/out", "transformer/*/mlp/linear_2/out")
RECEIVERS = ("transformer/*/attn/{query,key,value}/in", "transformer/*/mlp/linear_1/in", END)
PUBLISHED = {
    ("proportion", "another input"): {
        (TOKENS, "layer_0/mlp"),
        ("layer_0/mlp", "layer_1/attn/value"),
        ("layer_1/attn", END),
    },
    ("reverse", "another input"): {(TOKENS, "layer_3/attn/value"), ("layer_3/attn", END)},
    ("proportion", "zeros"): {
        ("layer_1/attn", END),
        (TOKENS, "layer_1/attn/query"),
        (POSITIONS, "layer_1/attn/query"),
        (TOKENS, "layer_1/attn/key"),
        (POSITIONS, "layer_1/attn/key"),
        ("layer_0/mlp", "layer_1/attn/value"),
        (TOKENS, "layer_0/mlp"),
    },
    ("reverse", "zeros"): {
        ("layer_3/attn", END),
        ("layer_2/mlp", "layer_3/attn/query"),
        (POSITIONS, "layer_3/attn/key"),
        (TOKENS, "layer_3/attn/value"),
        ("layer_1/mlp", "layer_2/mlp"),
        ("layer_0/mlp", "layer_1/mlp"),
        (TOKENS, "layer_1/mlp"),
        (POSITIONS, "layer_1/mlp"),
        ("layer_0/attn", "layer_0/mlp"),
        (TOKENS, "layer_0/mlp"),
        (TOKENS, "layer_0/attn/value"),
    },
}

ACDC = {("proportion", "another input"): 0.6, ("reverse", "another input"): 0.2}  # with trained weights, loss as metric
ACDC |= {("proportion", "zeros"): 1.0, ("reverse", "zeros"): 1.0}


def compiled(name: str) -> tuple[Any, Any, int]:
    """A compiled program, inputs for it, and how many dimensions of the stream are its output."""
    if name == "proportion":
        program, vocabulary = lib.make_frac_prevs(rasp.tokens == "x"), {"w", "x", "y", "z"}
        texts: Any = list(itertools.product(sorted(vocabulary), repeat=4))[::5]
    else:
        length = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.TRUE))
        flip = rasp.Select(rasp.indices, length - rasp.indices - 1, rasp.Comparison.EQ)
        program, vocabulary = rasp.Aggregate(flip, rasp.tokens), {1, 2, 3}
        texts = list(itertools.permutations([1, 2, 3]))
    model = compiling.compile_rasp_to_model(program, vocabulary, max_seq_len=5, compiler_bos="BOS")
    inputs = jnp.array([model.input_encoder.encode(["BOS", *text]) for text in texts])
    return model, inputs, 1 if name == "proportion" else 3


def scored(model: Any, inputs: Any, baseline: Any, width: int) -> Edges:
    """The edges, each scored by how far the output is from that of the whole program if it is cut."""
    net = hk.transform(lambda tokens: model.get_compiled_model()(tokens, use_dropout=False))

    def stream(tokens: Any) -> Any:
        return sonde.sow(net.apply(model.params, None, tokens).transformer_output.output, END)

    whole = stream(inputs)

    def metric(found: Any) -> Any:
        return -jnp.mean((found - whole)[..., :width] ** 2)

    ask = attribute_edges(stream, SENDERS, RECEIVERS, baseline=baseline, metric=metric, inside=net, method="exact")
    return ask(inputs)


def short(path: str) -> str:
    """The name of a component."""
    for part in ("transformer/", "/linear_1", "/linear_2", "/linear", "/in", "/out"):
        path = path.replace(part, "")
    return path


def area(found: dict[tuple[str, str], float], true: set[tuple[str, str]]) -> float:
    """The area under the ROC curve."""
    right, wrong = ([x for pair, x in found.items() if (pair in true) == is_true] for is_true in (True, False))
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in right for b in wrong]))


def main() -> None:
    """Prints a line for each program and kind of ablation."""
    for (name, kind), true in PUBLISHED.items():
        model, inputs, width = compiled(name)
        edges = scored(model, inputs, 0.0 if kind == "zeros" else jnp.roll(inputs, 1, 0), width)
        found = {(short(e.sender), short(e.receiver)): abs(e.score) for e in edges}
        needed = {pair for pair, x in found.items() if x > 1e-9}
        print(
            f"{name}, {kind}: {len(edges)} edges, ROC AUC {area(found, true):.3f} (ACDC, as "
            f"published: {ACDC[name, kind]:.3f}), {len(needed & true)} of the "
            f"{len(true)} published ones; only published: {sorted(true - needed)}, only here: {sorted(needed - true)}"
        )


if __name__ == "__main__":
    main()
