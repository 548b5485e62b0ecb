"""Reports for the tests of the page: with problems, with hostile names, with 500 sites, with nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde.report import HeatMap, Lines, Text, examine

NASTY = [
    "</script><img src=x onerror=window.hacked=1>",
    "<b>bold</b>&amp;\"quotes' `ticks` ${window.hacked=1} {{data}} \\u003c \\",
    "<!--<script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "line\u2028and\u2029separators\n\ttabs",
    "日本語 🙂 \u202eright to left\u202c",
    "x" * 3000,
    "a/" + "deep/" * 30 + "end",
    "100%25 #hash?query",
    "constructor/__proto__/toString",
]


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def troubled():
    """A small transformer by hand: vanishing gradients, dead units, an overflow in a loop, attention, feature maps."""

    def loss(x):
        image = sonde.sow(jax.nn.relu(normal(2, 12, 12, 6, seed=3)), "stem/features")
        x = x + image.mean()
        for i in range(6):
            with sonde.scope(f"blocks/{i}"):
                scores = sonde.sow(x @ x.swapaxes(-1, -2) / 4, "attn/scores")
                weights = sonde.sow(jax.nn.softmax(jnp.stack([scores, scores * 4], 1)), "attn/weights")
                x = sonde.sow(weights.mean(1) @ x * 0.2, "out")
                bias = jnp.where(jnp.arange(16) < 7, -9.0, 0.5)
                x = x + 0.01 * sonde.sow(jax.nn.relu(x + bias), "mlp")

        def body(c, _):
            return sonde.sow(c * 1e6, "steps"), None

        last, _ = jax.lax.scan(body, jnp.abs(x).mean() + jnp.arange(4.0) + 1, length=9)
        return jnp.sum(x) + 0 * jnp.sum(jnp.nan_to_num(last, posinf=0)), last

    report = examine(jax.value_and_grad(loss, has_aux=True), grads=True, title="A troubled model")(normal(8, 16, 16))
    steps = np.arange(300)
    curve = 3 * np.exp(-steps / 80) + 0.05
    report.add(Text(title="What this is", text="A model with trouble.\n\nEvery part of the page is on it."))
    report.add(
        Lines(
            title="Training",
            caption="The loss on the batch of each step, and on held-out sequences.",
            lines={"train": curve, "held out": curve * 1.1 + 0.1},
            x_title="step",
            y_title="loss",
        )
    )
    report.add(
        HeatMap(
            title="Patching",
            caption="How much of the lost metric comes back when one head is patched: 1 is all of it.",
            values=np.array([[0.02, -0.11, 0.05, 0.0], [0.04, 0.93, -0.02, np.nan]]),
            rows=["layer 0", "layer 1"],
            columns=[f"head {i}" for i in range(4)],
            row_title="layer",
            column_title="head",
        )
    )
    tokens = [f"tok{i}" for i in range(24)]
    report.add(
        HeatMap(
            title="The induction head",
            caption="Each token looks at the one after its earlier copy.",
            values=np.eye(24, k=-11) * 0.9 + 0.01,
            rows=tokens,
            columns=tokens,
            row_title="query",
            column_title="key",
        )
    )
    return report


def hostile():
    """Names that look like markup, and every kind of number."""
    odd = [jnp.nan, jnp.inf, -jnp.inf, 3e38, 1e-45, 0.0]

    def f():
        for name, value in zip(NASTY, odd * 2):
            sonde.sow({"<i>part</i>": jnp.full((4, 4), value), "k": jax.random.key(0), "e": jnp.zeros((0, 3))}, name)
        sonde.sow(jnp.array([[True, False]]), "bools")
        sonde.sow(jnp.arange(5), "ints")
        sonde.sow(jnp.array(1 + 2j), "complex")
        sonde.sow("text", "only text")
        raise ValueError(NASTY[0] + "\u2028" + NASTY[1])

    report = examine(f, title=NASTY[0])()
    report.add(Text(title=NASTY[0], text=NASTY[1], caption=NASTY[2]))
    report.add(HeatMap(title=NASTY[1], values=[[np.nan, np.inf], [-np.inf, 1e300]], rows=NASTY[:2], columns=NASTY[5:7]))
    report.add(HeatMap(title="nothing finite", values=[[np.nan]]))
    return report.add(Lines(title=NASTY[2], lines={NASTY[0]: [np.nan, np.inf, 1.0], NASTY[5]: [1, 2, 3]}, log=True))


@functools.cache
def large():
    """500 sites with values and gradients."""

    def loss(x):
        for i in range(125):
            with sonde.scope(f"blocks/{i}"):
                for name in ("attn/query", "attn/out", "mlp/hidden", "stream"):
                    x = sonde.sow(x * 1.001, name)
        return jnp.sum(x)

    return examine(jax.value_and_grad(loss), grads=True, title="Large")(normal(64, 64))


TOKENS = "The quick brown fox saw the quick brown dog and the quick fox".split()


@functools.cache
def deep():
    """A language model of 30 layers in one scan with a name, nine sites each, with tokens."""
    n, heads, width = len(TOKENS), 12, 48

    def block(x, w):
        sow = sonde.sow
        h = sow(x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), "norm")
        q, k, v = (sow((h @ w[i]).reshape(n, heads, -1), f"attn/{name}") for i, name in enumerate("qkv"))
        scores = jnp.einsum("qhd,khd->hqk", q, k) / 2
        weights = sow(jax.nn.softmax(jnp.where(jnp.tri(n, dtype=bool), scores, -jnp.inf)), "attn/weights")
        x = sow(x + 0.2 * sow(jnp.einsum("hqk,khd->qhd", weights, v).reshape(n, -1), "attn/out"), "mid")
        return sow(x + 0.2 * sow(jnp.tanh(h @ w[3]), "mlp"), "out"), None

    def loss(x):
        with sonde.scope("blocks/*"):
            x, _ = jax.lax.scan(block, x, normal(30, 4, width, width, seed=5) * width**-0.5)
        return jnp.sum(x**2)

    look = examine(jax.jit(jax.value_and_grad(loss)), grads=True, title="A deep model", tokens=TOKENS)
    return look(normal(n, width, seed=7))


def many_heads():
    """More heads than a page draws, and names longer than a label."""
    report = examine(lambda x: sonde.sow(jax.nn.softmax(x), "weights"), title="Many heads")(normal(80, 6, 6))
    return report.add(HeatMap(title="Long names", values=[[1.0, 2.0], [3.0, 4.0]], rows=list(LONG)))


LONG = tuple(f"decoder/blocks/{i}/{'nested/' * 10}attention/output/{name}" for i, name in ((3, "kernel"), (4, "bias")))


def extreme():
    """Numbers at both ends of what a float can hold."""
    most, least = np.finfo(np.float64).max, np.finfo(np.float64).tiny
    ends = [-most, -1.0, 0.0, least, most]

    def f():
        sonde.sow(jnp.array([[-1.0, 1.0], [0.0, 0.5]]) * jnp.finfo(jnp.float32).max, "largest")
        sonde.sow(jnp.full((3, 3), jnp.finfo(jnp.float32).max), "constant")

    report = examine(f, title="Extreme")()
    for title, values in {
        "both": [ends],
        "above": [[0.0, most]],
        "below": [[-most, -most / 2]],
        "one": [[most]],
    }.items():
        report.add(HeatMap(title=title, values=values))
        report.add(HeatMap(title=f"{title}, not signed", values=values, signed=False))
        report.add(Lines(title=f"{title}, as a line", lines={"y": values[0]}))
        report.add(Lines(title=f"{title}, as places", lines={"y": np.arange(len(values[0]))}, x=values[0]))
    report.add(HeatMap(title="given ends", values=[[0.0, 1.0]], low=-np.inf, high=np.inf))
    return report.add(HeatMap(title="given numbers", values=[[0.0, 1.0]], low=-most, high=most))


def many_findings():
    def f(x):
        for name in "abcdefghijklmnopqrst":
            sonde.sow(x * 0, name)

    return examine(f, title="Many findings")(normal(8, 8))


def empty():
    return examine(lambda x: x, title="Empty")(1.0)


def healthy():
    def f(x):
        return sonde.sow(sonde.sow(x, "a") * 2, "b")

    return examine(f, title="Well")(normal(8, 8))
