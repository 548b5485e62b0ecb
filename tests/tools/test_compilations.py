"""Other numbers compile nothing: in edits, and in every tool, made anew for the same program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import TOKENS, both

import sonde
from sonde import Edit, models, sow, tools
from sonde.tools import ablate, steer

X = jnp.arange(6.0).reshape(2, 3)
DIRECTIONS = np.asarray(jax.random.normal(jax.random.key(0), (3, 3)))
RECORDS = [sonde.capture(lambda x: sow(x, "h"))(X * i)[1]["h"] for i in range(3)]


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(name: str, *_: Any, **__: Any) -> None:
        if name.endswith("backend_compile_duration"):
            seen.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def network(x: Any) -> Any:
    return jnp.sin(sow(x * 3, "h")) ** 2


def looped(x: Any) -> Any:
    with sonde.scope("blocks/*"):
        return jax.lax.scan(lambda c, _: (sow(jnp.sin(c), "h"), None), x, length=3)[0]


jitted, jitted_loop = jax.jit(network), jax.jit(looped)
step = jax.jit(jax.grad(lambda x: network(x).sum()))
MODEL = models.from_config(
    {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 4, "num_attention_heads": 2,
     "intermediate_size": 8, "vocab_size": 16}
)  # fmt: skip
DIRECTIONS_OF_MODEL = [jnp.full(4, 0.1 * i) for i in range(3)]


class Adding:
    def __init__(self, direction: Any) -> None:
        self.direction = direction

    def __call__(self, h: Any) -> Any:
        return h + self.direction


def with_global(direction: Any) -> Any:
    """A function that reads a global, as in a notebook."""
    names = {"direction": direction}
    exec("def helper(h):\n    return h + direction\n\ndef f(h):\n    return helper(h) * 2", names)
    return names["f"]


LOG: list[Any] = []


def logging(h: Any) -> Any:
    LOG.append(h)
    return h * 2


CALLS: dict[str, Callable[[int], Any]] = {
    "edit of a jitted function": lambda i: sonde.edit(jitted, {"h": lambda h, d=DIRECTIONS[i]: h + d})(X),
    "edit of Python with a jitted function": lambda i: sonde.edit(
        lambda x: jitted(x) + 1, {"h": lambda h, d=DIRECTIONS[i]: h + d}
    )(X),
    "edit of a step": lambda i: sonde.edit(step, {"h": lambda h, d=DIRECTIONS[i]: h * d})(X),
    "edit of a gradient": lambda i: sonde.edit(step, {"h": Edit(grad=lambda g, d=DIRECTIONS[i]: g * d)})(X),
    "global": lambda i: sonde.edit(jitted, {"h": with_global(DIRECTIONS[i])})(X),
    "object": lambda i: sonde.edit(jitted, {"h": Adding(DIRECTIONS[i])})(X),
    "number of NumPy": lambda i: sonde.edit(jitted, {"h": lambda h, s=np.float32(i): h * s})(X),
    "log": lambda i: sonde.edit(jitted, {"h": logging})(X),
    "log in Python": lambda i: sonde.edit(lambda x: jitted(x) + 1, {"h": logging})(X),
    "array": lambda i: sonde.edit(jitted, {"h": X * i})(X),
    "number": lambda i: ablate(jitted, "h", value=float(i))(X),
    "record": lambda i: sonde.edit(jitted, {"h": RECORDS[i]})(X),
    "record in Python": lambda i: sonde.edit(lambda x: jitted(x) + 1, {"h": RECORDS[i]})(X),
    "row of a loop": lambda i: sonde.edit(jitted_loop, {"blocks/1/h": lambda h, d=DIRECTIONS[i]: h + d})(X),
    "steer": lambda i: steer(jitted, {"h": DIRECTIONS[i]}, scale=0.5 * i)(X),
    "steered generate": lambda i: (
        steer(models.generate, {"blocks/0/out": DIRECTIONS_OF_MODEL[i]})(MODEL, [[1, 2]], max_new_tokens=2).tokens
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_numbers_compile_nothing(name: str, compilations: list[str]) -> None:
    call = CALLS[name]
    jax.block_until_ready(call(0))
    jax.block_until_ready(call(1))
    compilations.clear()
    jax.block_until_ready(call(2))
    assert compilations == []


# ---------------------------------------------------------------------------------------------------------------------
# Every tool
# ---------------------------------------------------------------------------------------------------------------------

TEXTS = [(TOKENS + 3 * i) % 20 for i in range(4)]
VECTORS = [np.asarray(jax.random.normal(jax.random.key(i), (16,))) for i in range(4)]


def metric(logits: Any) -> Any:
    return logits[0, -1, 3] - logits[0, -1, 4]


def one_logit(logits: Any) -> Any:
    return logits[3] - logits[4]


def loss(weights: Any, example: Any) -> Any:
    return jnp.sum(weights * example)


def unembed(h: Any) -> Any:
    return both()["list"].embed.attend(h)


def readout(h: Any) -> Any:
    return both()["list"].embed.attend(both()["list"].norm(h))


class Asked(NamedTuple):
    """A program that a tool is made for, and the text and the vector of a call."""

    f: Callable[[Any], Any]
    text: Any
    other: Any
    vector: Any


OUT = "blocks/*/out"
# Each is made anew for every call, as in a loop over prompts.
TOOLS: dict[str, Callable[[Asked], Any]] = {
    "capture": lambda a: sonde.capture(a.f, OUT)(a.text)[1],
    "sites": lambda a: str(sonde.sites(a.f)(a.text)),
    "edit": lambda a: sonde.edit(a.f, {"blocks/1/out": lambda h, d=a.vector: h + d})(a.text),
    "ablate": lambda a: tools.ablate(a.f, "blocks/1/out", value=float(a.vector[0]))(a.text),
    "steer": lambda a: tools.steer(a.f, {"blocks/1/out": a.vector})(a.text),
    "patch_sweep": lambda a: tools.patch_sweep(a.f, OUT, metric=metric)(a.text, a.other).restored,
    "patch_sweep of directions": lambda a: (
        tools.patch_sweep(a.f, OUT, metric=metric, directions=a.vector)(a.text, a.other).restored
    ),
    "patch_paths": lambda a: (
        tools.patch_paths(a.f, "blocks/*/attn/out", "blocks/*/mlp_in", metric=metric)(a.text, a.other).scores
    ),
    "attribute": lambda a: tools.attribute(a.f, OUT, metric=metric, baseline=float(a.vector[0]))(a.text),
    "attribute along a line": lambda a: tools.attribute(a.f, OUT, metric=metric, method="integrated")(a.text),
    "attribute_edges": lambda a: tools.attribute_edges(a.f, "blocks/*/attn/out", "blocks/*/mlp_in", metric=metric)(
        a.text
    ),
    "site_gradients": lambda a: tools.site_gradients(a.f, OUT, metric=metric)(a.text),
    "logit_lens": lambda a: tools.logit_lens(a.f, OUT, readout=readout)(a.text),
    "jacobian_lens": lambda a: tools.jacobian_lens(a.f, OUT, last="blocks/2/out", skip=1)(a.text),
    "tuned_lens": lambda a: tools.tuned_lens(a.f, OUT, readout=readout)([a.text, a.other]),
    "extract": lambda a: tools.extract(a.f, {"blocks/1/out": "h"})(a.text),
    "top_examples": lambda a: tools.top_examples(a.f, OUT, k=2)([a.text, a.other]),
    "summarize": lambda a: tools.summarize(a.f, OUT)(a.text),
    "first_nonfinite": lambda a: sonde.first_nonfinite(a.f)(a.text),
    "trace_back": lambda a: tools.trace_back(a.f, lambda y: y > 1e9)(a.text),
    "compare": lambda a: tools.compare(a.f, a.f)(a.text),
    "probe": lambda a: tools.probe({"h": np.outer(np.arange(40.0), a.vector)}, np.arange(40) % 2),
    "attention_heads": lambda a: tools.attention_heads(a.f, "blocks/*/attn/weights")(a.text).induction,
    "logit_attribution": lambda a: tools.logit_attribution(
        a.f, "blocks/*/attn/out", residual="blocks/2/out", readout=readout, metric=lambda y: y[0, 3] - y[0, 2]
    )(a.text),
    "qk_attribution": lambda a: (
        tools.qk_attribution(
            a.f, "blocks/1/attn", head=1, query=4, key=2, senders=("embedded", "blocks/0/*/out"), split={}
        )(a.text).table
    ),
    "interchange": lambda a: tools.interchange(a.f, "blocks/1/out", directions=a.vector[None])(a.text, a.other),
    "interchange that is trained": lambda a: (
        tools.interchange(a.f, "blocks/1/out").train([((a.text,), (a.other,), np.array([3]))], size=1, steps=2).losses
    ),
    "curve of edges": lambda a: (
        tools.attribute_edges(a.f, "blocks/*/attn/out", "blocks/*/mlp_in", metric=metric, baseline=(a.other,))(a.text)
        .curve([0, 0.5])
        .faithfulness
    ),
    "statistics": lambda a: [
        (found.mean, found.histogram, found.samples)
        for found in tools.statistics(
            a.f, [a.text, a.other], OUT, keep=lambda t: t > 2, reduce=lambda h: h * 2, histogram=True, samples=2
        ).values()
    ],
    "compare_parameters": lambda a: str(tools.compare_parameters({"w": np.outer(a.vector, a.vector)}, {"w": a.vector})),
    "map_parameters": lambda a: str(tools.map_parameters({"w": np.outer(a.vector, a.vector)}, {"v": a.vector})),
    "logit_effects": lambda a: tools.logit_effects(a.vector[None], unembed, k=3),
    "example_grad_norms": lambda a: tools.example_grad_norms(loss)(a.vector, a.vector[None] * 2),
}


@functools.cache
def jitted_model(kind: str) -> Any:
    model = both()[kind]
    return jax.jit(lambda text: model(text))


@pytest.mark.every(5)
@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_a_tool_that_is_made_anew_compiles_nothing(kind: str, name: str, compilations: list[str]) -> None:
    f = jitted_model(kind)
    for i in range(3):
        compilations.clear()
        jax.block_until_ready(jax.tree.leaves(TOOLS[name](Asked(f, TEXTS[i], TEXTS[i + 1], VECTORS[i]))))
    assert compilations == []


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_a_model_that_is_not_jitted_compiles_no_more_than_without(kind: str, compilations: list[str]) -> None:
    """Of a scan that runs without `jax.jit`, JAX itself compiles a program for every call."""
    model, own = both()[kind], []
    for i in range(3):
        compilations.clear()
        jax.block_until_ready(model(TEXTS[i]))
        own = list(compilations)
    for run in (
        lambda i: sonde.capture(model, OUT)(TEXTS[i]),
        lambda i: sonde.edit(model, {"blocks/1/out": lambda h, d=VECTORS[i]: h + d})(TEXTS[i]),
        lambda i: tools.steer(model, {"blocks/1/out": VECTORS[i]})(TEXTS[i]),
        lambda i: tools.site_gradients(model, OUT, metric=metric)(TEXTS[i]),
    ):
        for i in range(3):
            compilations.clear()
            jax.block_until_ready(jax.tree.leaves(run(i)))
        assert len(compilations) <= len(own)


def test_every_tool_is_here() -> None:
    are_functions = {name for name in tools.__all__ if name[0].islower()}
    elsewhere = {
        "assert_same_program",  # is `compare`
        "saved_residuals",  # only traces
        "compare_training",  # compares steps that change their arguments, each by `compare`
        "torch_records",  # has no program of JAX
        "monitor",  # is part of the user's step
    }
    assert are_functions - elsewhere == are_functions & {name.split()[0] for name in TOOLS}
