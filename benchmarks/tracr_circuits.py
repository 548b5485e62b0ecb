"""Edges of compiled programs whose circuits are known: pip install tracr-pypi, then run this file.

For each program, every edge is cut alone (`method="exact"`). The edges that change the output are compared with those
that others published: for values of another input with auto-circuit (UFO-101/auto-circuit), for zeros with ACDC
(ArthurConmy/Automatic-Circuit-Discovery). The areas of ACDC are those in the tables of the same repository.

Programs that nobody has published edges of are compared with their weights run by hand, in NumPy, edge by edge.

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


PROGRAMS = ("hist", "sort", "pair balance")


def compiled(name: str) -> tuple[Any, Any, int | None]:
    """A compiled program, inputs for it, and how many dimensions of the stream are its output; all, if None."""
    width, vocabulary = None, {1, 2, 3}
    texts: Any = list(itertools.permutations([1, 2, 3]))
    if name == "proportion":
        program, vocabulary = lib.make_frac_prevs(rasp.tokens == "x"), {"w", "x", "y", "z"}
        texts, width = list(itertools.product(sorted(vocabulary), repeat=4))[::5], 1
    elif name == "reverse":
        length = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.TRUE))
        flip = rasp.Select(rasp.indices, length - rasp.indices - 1, rasp.Comparison.EQ)
        program, width = rasp.Aggregate(flip, rasp.tokens), 3
    elif name == "hist":
        program, texts = lib.make_hist(), list(itertools.product([1, 2, 3], repeat=3))[::3]
    elif name == "sort":
        program = lib.make_sort_unique(rasp.tokens, rasp.tokens)
    else:
        program, vocabulary = lib.make_pair_balance(rasp.tokens, "(", ")"), {"(", ")", "a"}
        texts = list(itertools.product("()a", repeat=3))[::4]
    model = compiling.compile_rasp_to_model(program, vocabulary, max_seq_len=5, compiler_bos="BOS")
    inputs = jnp.array([model.input_encoder.encode(["BOS", *text]) for text in texts])
    return model, inputs, width


def scored(model: Any, inputs: Any, baseline: Any, width: int | None) -> Edges:
    """The edges, each scored by how far the output is from that of the whole program if it is cut."""
    net = hk.transform(lambda tokens: model.get_compiled_model()(tokens, use_dropout=False))

    def stream(tokens: Any) -> Any:
        return sonde.sow(net.apply(model.params, None, tokens).transformer_output.output, END)

    whole = stream(inputs)

    def metric(found: Any) -> Any:
        return -jnp.mean((found - whole)[..., :width] ** 2)

    ask = attribute_edges(stream, SENDERS, RECEIVERS, baseline=baseline, metric=metric, inside=net, method="exact")
    return ask(inputs)


class ByHand:
    """The weights of a compiled program, run in NumPy, in double precision, with one edge cut at a time."""

    def __init__(self, model: Any, inputs: np.ndarray, others: np.ndarray | None) -> None:
        self.config, self.inputs = model.model_config, inputs
        self.weights = {n: {k: np.asarray(v, np.float64) for k, v in w.items()} for n, w in model.params.items()}
        self.layers = sum(name.endswith("attn/query") for name in self.weights)
        self.whole, self.senders = self.run(inputs)
        self.others = self.run(others)[1] if others is not None else dict.fromkeys(self.senders, 0.0)

    def run(self, tokens: Any, cut: tuple[str, str] | None = None) -> tuple[Any, dict[str, Any]]:
        """The stream at the end, and what each component writes."""
        table = self.weights[POSITIONS]["embeddings"][np.arange(tokens.shape[1])]
        written = {TOKENS: self.weights[TOKENS]["embeddings"][tokens]}
        written[POSITIONS] = np.broadcast_to(table, written[TOKENS].shape)

        def read(receiver: str) -> Any:
            return sum(self.others[s] if (s, receiver) == cut else value for s, value in written.items())

        def linear(name: str, x: Any) -> Any:
            weights = self.weights[f"transformer/{name}"]
            return x @ weights["w"] + weights.get("b", 0.0)

        for i in range(self.layers):
            place = f"layer_{i}/attn"
            parts = (linear(f"{place}/{n}", read(f"{place}/{n}")) for n in ("query", "key", "value"))
            q, k, v = (x.reshape(*x.shape[:2], self.config.num_heads, -1) for x in parts)
            scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
            if self.config.causal:
                scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -1e30)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = np.einsum("bhqk,bkhd->bqhd", shares / shares.sum(-1, keepdims=True), v)
            written[place] = linear(f"{place}/linear", mixed.reshape(*mixed.shape[:2], -1))
            hidden = self.config.activation_function(linear(f"layer_{i}/mlp/linear_1", read(f"layer_{i}/mlp")))
            written[f"layer_{i}/mlp"] = linear(f"layer_{i}/mlp/linear_2", np.asarray(hidden, np.float64))
        return read(END), written

    def lost(self, cut: tuple[str, str]) -> float:
        """How far the output is from that of the whole program if an edge is cut."""
        return float(np.mean((self.run(self.inputs, cut)[0] - self.whole) ** 2))


def short(path: str) -> str:
    """The name of a component."""
    for part in ("transformer/", "/linear_1", "/linear_2", "/linear", "/in", "/out"):
        path = path.replace(part, "")
    return path


def area(found: dict[tuple[str, str], float], true: set[tuple[str, str]]) -> float:
    """The area under the ROC curve."""
    right, wrong = ([x for pair, x in found.items() if (pair in true) == is_true] for is_true in (True, False))
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in right for b in wrong]))


def with_published() -> None:
    """Prints a line for each program and kind of ablation with published edges."""
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


def with_weights_by_hand() -> None:
    """Prints a line for each of the other programs and kinds of ablation."""
    for name, kind in itertools.product(PROGRAMS, ("another input", "zeros")):
        model, inputs, width = compiled(name)
        others = None if kind == "zeros" else jnp.roll(inputs, 1, 0)
        edges = scored(model, inputs, 0.0 if others is None else others, width)
        by_hand = ByHand(model, np.asarray(inputs), None if others is None else np.asarray(others))
        found = {(short(e.sender), short(e.receiver)): abs(e.score) for e in edges}
        true = {pair: by_hand.lost(pair) for pair in found}
        off = max(abs(found[pair] - x) for pair, x in true.items()) / max(true.values())
        needed = {pair for pair, x in true.items() if x > 1e-9}
        print(
            f"{name}, {kind}: {len(edges)} edges, {len(needed)} needed, ROC AUC {area(found, needed):.3f}, scores off "
            f"by {off:.1e} of the largest from the weights by hand"
        )


if __name__ == "__main__":
    with_published()
    with_weights_by_hand()
