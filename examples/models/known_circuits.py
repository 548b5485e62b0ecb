"""Circuits that papers found in small trained models, found again: modular addition, induction, balanced brackets.

    python examples/models/known_circuits.py FOLDER

The folder has files from two public repositories, in any folders inside it; what is missing is left out:

- `wd_10-1_mod_addition_loss_curve.pth`, `induction_head_infinite.pth`: `saved_runs/` of
  mechanistic-interpretability-grokking/progress-measures-paper
- `brackets_model_state_dict.pt`, `brackets_data.json`: in callummcdougall/ARENA_2.0

They are read without PyTorch, and the pickled code in them is not run. Lines end with what the paper says, which for
modular addition had another run of the same program, or the course, or the file itself.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import models
from sonde.tools import attention_heads, attribute_edges

Weights = dict[str, jax.Array]
START, PAD, END, OPEN, CLOSE = range(5)  # the tokens of brackets


def transformer(weights: Weights, tokens: jax.Array, *, causal: bool, padding: int | None = None) -> jax.Array:
    """The logits of a small transformer, with or without norms, biases and MLPs, with a site at every step."""
    w = weights
    x = sonde.sow(w["embed.W_E"][tokens] + w["pos_embed.W_pos"][: tokens.shape[1]], "embedded")
    visible = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)) if causal else jnp.ones((tokens.shape[1],) * 2, bool)
    visible = visible[None, None]
    if padding is not None:
        visible &= (tokens != padding)[:, None, None]
    for i in range(sum(name.endswith("attn.W_Q") for name in w)):
        with sonde.scope(f"blocks/{i}"):
            part = f"blocks.{i}.attn"
            heads = len(w[f"{part}.W_Q"])
            q, k, v = (
                jnp.einsum("bphd,hdk->bphk", norm(w, f"blocks.{i}.ln1", read), w[f"{part}.W_{name}"])
                + w.get(f"{part}.b_{name}", 0)
                for name, read in (
                    ("Q", apart(x, heads, "q_in")),
                    ("K", apart(x, heads, "k_in")),
                    ("V", apart(x, heads, "v_in")),
                )
            )
            scores = jnp.where(visible, jnp.einsum("bqhk,bphk->bhqp", q, k) / q.shape[-1] ** 0.5, -1e30)
            attention = sonde.sow(jax.nn.softmax(scores), "attn/weights")
            mixed = jnp.einsum("bhqp,bphk->bqhk", attention, v)
            results = sonde.sow(jnp.einsum("bqhk,hkd->bqhd", mixed, w[f"{part}.W_O"]), "attn/results")
            x = x + results.sum(2) + w.get(f"{part}.b_O", 0)
            if f"blocks.{i}.mlp.W_in" in w:
                read = norm(w, f"blocks.{i}.ln2", sonde.sow(x, "mlp_in"))
                hidden = jax.nn.relu(read @ w[f"blocks.{i}.mlp.W_in"] + w[f"blocks.{i}.mlp.b_in"])
                hidden = sonde.sow(hidden, "mlp/hidden")
                x = x + sonde.sow(hidden @ w[f"blocks.{i}.mlp.W_out"] + w[f"blocks.{i}.mlp.b_out"], "mlp/out")
    return sonde.sow(norm(w, "ln_final", sonde.sow(x, "end")) @ w["unembed.W_U"] + w.get("unembed.b_U", 0), "logits")


def apart(x: jax.Array, heads: int, name: str) -> jax.Array:
    """The stream as each head reads it."""
    return sonde.sow(jnp.broadcast_to(x[:, :, None], (*x.shape[:2], heads, x.shape[-1])), name)


def norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """The layer norm of this name, if there is one."""
    if f"{name}.w" not in weights:
        return x
    centered = x - x.mean(-1, keepdims=True)
    return (
        centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.w"] + weights[f"{name}.b"]
    )


def from_grokking(arrays: dict[str, np.ndarray]) -> Weights:
    """The weights of a model of the first repository, with axes as in the second."""
    weights = {}
    for name, array in arrays.items():
        name = name.removeprefix("model/").replace("attn_blocks.", "blocks.")
        if not name.startswith(("embed.", "pos_embed.", "blocks.", "unembed.")) or name.endswith("mask"):
            continue
        if name.endswith(("W_Q", "W_K", "W_V")):
            array = array.swapaxes(1, 2)
        elif name.endswith("W_O"):
            heads = len(arrays[next(n for n in arrays if n.endswith("W_Q"))])
            array = array.T.reshape(heads, -1, array.shape[0])
        elif name.endswith(("embed.W_E", "W_in", "W_out")) and not name.endswith("unembed.W_E"):
            array = array.T
        weights[name] = jnp.asarray(array)
    return weights


def modular_addition(file: Path) -> None:
    """a + b modulo 113: the model turns both into waves of few frequencies, and multiplies these."""
    arrays = models.read_named_arrays(file)
    weights, p = from_grokking(arrays), 113
    a, b = (x.reshape(-1) for x in np.meshgrid(np.arange(p), np.arange(p), indexing="ij"))
    tokens, answers = jnp.stack([a, b, np.full(p * p, p)], 1), (a + b) % p

    def run(tokens: jax.Array) -> jax.Array:
        return sonde.sow(transformer(weights, tokens, causal=True)[:, -1, :p], "answer")

    def loss(tokens: jax.Array) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(run(tokens))[jnp.arange(p * p), answers])

    logits, records = sonde.capture(jax.jit(run), "blocks/0/mlp/hidden", reduce=lambda x: x[:, -1])(tokens)
    print(f"modular addition: {jnp.mean(logits.argmax(-1) == answers):.2%} of all {p * p} sums are right")
    # The waves that neurons put into the logits.
    power = np.abs(np.fft.rfft(weights["blocks.0.mlp.W_out"] @ weights["unembed.W_U"][:, :p], axis=1)) ** 2
    power = power.sum(0) * (np.arange(57) > 0)
    keys = np.sort(np.argsort(-power)[:5])
    print(
        f"  5 frequencies {keys.tolist()} have {power[keys].sum() / power.sum():.1%} of what neurons write (paper: 5)"
    )
    # How much of each neuron waves of one frequency explain: all products of waves of a and of b.
    hidden = np.asarray(records["blocks/0/mlp/hidden"].value, np.float64)
    hidden -= hidden.mean(0)
    explained = np.stack([share_of_waves(hidden, a, b, k, p) for k in range(1, 57)])
    live = hidden.std(0) > 1e-6
    print(
        f"  {np.mean(explained.max(0)[live] > 0.85):.1%} of the neurons follow one frequency to more than 85% of their "
        "variance (paper: 84.6%)"
    )
    # The answer is right because of cos(w (a + b - c)) for the key frequencies, and of nothing else.
    waves = np.concatenate([wave(a + b, k, p) for k in keys], 1)
    to_answer = np.concatenate([wave(np.arange(p), k, p) for k in keys], 1)

    def part(y: jax.Array) -> jax.Array:
        """The part of the logits along these waves of a + b and of the answer."""
        return waves @ ((waves.T @ y @ to_answer) * np.kron(np.eye(5), np.ones((2, 2)))) @ to_answer.T

    constant = jnp.mean(logits, 0)
    share = 1 - jnp.var(logits - constant - part(logits)) / jnp.var(logits - constant)
    without = sonde.edit(loss, {"answer": lambda y: y - part(y)})(tokens)
    alone = sonde.edit(loss, {"answer": part})(tokens)
    print(f"  cos(w(a + b - c)) explains {share:.1%} of the logits (paper: 95%)")
    print(f"  loss {loss(tokens):.2g}, of these waves alone {abs(alone):.2g}, without them {without:.3g}; chance 4.73")
    if "train_loss" in arrays:
        said = 0.3 * float(arrays["train_loss"]) + 0.7 * float(arrays["test_loss"])
        print(f"  (the file: loss {said:.2g}, of 30% sums that it was trained on and 70% others)")


def wave(x: np.ndarray, frequency: int, p: int) -> np.ndarray:
    """The cosine and the sine of a frequency, as columns of length one."""
    angle = 2 * np.pi * frequency * x / p
    columns = np.stack([np.cos(angle), np.sin(angle)], 1)
    return columns / np.linalg.norm(columns, axis=0)


def share_of_waves(values: np.ndarray, a: np.ndarray, b: np.ndarray, frequency: int, p: int) -> np.ndarray:
    """How much of the variance of each column polynomials of second degree in the waves of one frequency explain."""
    of_a, of_b = (wave(x, frequency, p) for x in (a, b))
    products = [of_a[:, i] * of_b[:, j] for i, j in itertools.product(range(2), range(2))]
    columns = np.stack([*of_a.T, *of_b.T, *products], 1)
    columns /= np.linalg.norm(columns, axis=0)
    doubled = np.concatenate([wave(2 * x, frequency, p) for x in (a, b)], 1)
    basis = np.concatenate([columns, doubled], 1)
    return ((basis.T @ values) ** 2).sum(0) / (values**2).sum(0)


def induction(file: Path) -> None:
    """A head that looks for earlier copies of a token, and one before it that tells each token what came before."""
    weights = from_grokking(models.read_named_arrays(file))
    half = 20
    once = np.random.default_rng(0).integers(0, 128, (64, half))
    tokens = jnp.asarray(np.concatenate([once, once], 1))

    def run(tokens: jax.Array) -> jax.Array:
        return transformer(weights, tokens, causal=True)

    right = (run(tokens).argmax(-1)[:, :-1] == tokens[:, 1:]).mean(0)
    print(
        f"induction: {right[: half - 1].mean():.1%} of the tokens are foretold in a text, {right[half:].mean():.1%} "
        "when it is repeated"
    )
    found = attention_heads(run, "blocks/*/attn/weights")(tokens)
    previous, copies = np.asarray(found.previous), np.asarray(found.induction)
    first, second = int(previous[0].argmax()), int(copies[1].argmax())
    print(
        f"  head 0/{first} attends to the token before ({previous[0, first]:.1%}), head 1/{second} to what followed "
        f"earlier copies ({copies[1, second]:.1%})"
    )

    def after_copies(logits: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logits[:, half:-1]), tokens[:, half + 1 :, None], -1).mean()

    heads = {"blocks/*/attn/results": -2} | {f"blocks/*/{name}": -2 for name in ("q_in", "k_in", "v_in")}
    others = jnp.asarray(np.random.default_rng(1).integers(0, 128, tokens.shape))
    ask = attribute_edges(
        run, ("embedded", "blocks/*/attn/results"), ("blocks/1/{q,k,v}_in", "end"), split=heads, baseline=others,
        metric=after_copies, method="exact",
    )  # fmt: skip
    into_keys = [edge for edge in ask(tokens) if edge.receiver == f"blocks/1/k_in/{second}"]
    print(f"  its keys depend most on {into_keys[0].sender} (papers: a head that attends to the token before)")


def brackets(file: Path, data: Path) -> None:
    """Whether brackets are balanced: one head of the last layer collects what two earlier computations found."""
    weights = {name: jnp.asarray(array) for name, array in models.read_named_arrays(file).items()}
    texts = json.loads(data.read_text())[:5000]
    length = max(len(text) for text, _ in texts) + 2
    number = {"(": OPEN, ")": CLOSE}
    rows = [[START, *map(number.__getitem__, text), END] for text, _ in texts]
    tokens = jnp.asarray([row + [PAD] * (length - len(row)) for row in rows])
    balanced = np.array([is_balanced for _, is_balanced in texts])

    def run(tokens: jax.Array) -> jax.Array:
        return transformer(weights, tokens, causal=False, padding=PAD)[:, 0]

    logits, records = sonde.capture(jax.jit(run), "blocks/*/attn/results", "end", "blocks/2/attn/weights")(tokens)
    right = int((logits.argmax(-1) == balanced).sum())
    print(f"brackets: {right} of {len(texts)} are right (the course: 5000 of 5000)")
    # What each head writes along the direction that says "unbalanced", less the mean over balanced texts.
    end = records["end"].value[:, 0]
    centered = weights["unembed.W_U"] - weights["unembed.W_U"].mean(-1, keepdims=True)
    direction = weights["ln_final.w"] * (centered[:, 0] - centered[:, 1])
    results = [records[f"blocks/{i}/attn/results"].value[:, 0] for i in range(3)]
    written = [result @ (direction - direction.mean()) for result in results]
    of_heads = np.stack(written, 1) / np.std(np.asarray(end), axis=-1)[:, None, None]
    of_heads -= of_heads[balanced].mean(0)
    says = of_heads[~balanced].mean(0)
    most = [f"{i // says.shape[1]}.{i % says.shape[1]} ({says.flat[i]:.1f})" for i in np.argsort(-says, axis=None)]
    print(f"  heads say of unbalanced texts that they are, in logits: {', '.join(most)} (the course: 2.0 and 2.1 most)")
    starts_open = np.array([text[0] == "(" for text, _ in texts])
    to_first = records["blocks/2/attn/weights"].value[starts_open, 0, 0, 1].mean()
    print(f"  head 2.0 attends to the first bracket with {to_first:.2f} (the course: about 0.5)")


def main(folder: Path) -> None:
    """Looks for the files, and explains the models in them."""
    here = {file.name: file for file in folder.rglob("*") if file.is_file()}
    tasks = {
        modular_addition: ("wd_10-1_mod_addition_loss_curve.pth",),
        induction: ("induction_head_infinite.pth",),
        brackets: ("brackets_model_state_dict.pt", "brackets_data.json"),
    }
    for explain, names in tasks.items():
        if missing := [name for name in names if name not in here]:
            print(f"{explain.__name__}: left out, {', '.join(missing)} is not in {folder}")
        else:
            explain(*(here[name] for name in names))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
