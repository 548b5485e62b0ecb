"""Newly initialized networks have no findings: false alarms make a tool useless."""

import jax
import jax.numpy as jnp
import pytest
from tests.report.healthy import MODELS

import sonde
from sonde.report import examine


@pytest.mark.every(3)
@pytest.mark.parametrize("name", MODELS)
def test_fresh_network_has_no_findings(name):
    f, args = MODELS[name](0)
    report = examine(jax.jit(f), grads=True)(*args)
    assert report.failure is None
    assert [(x.kind, x.text) for x in report.findings] == []
    assert any(site.gradients for site in report.sites)


def test_masked_scores_are_no_trouble():
    def f(x):
        scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), x @ x.T, -1e9)
        return sonde.sow(jax.nn.softmax(sonde.sow(scores, "scores")), "weights")

    report = examine(f)(jax.random.normal(jax.random.key(0), (16, 8)) / 3)
    assert report.findings == ()


def test_one_hot_codes_flags_and_counters_are_no_trouble():
    def f(tokens):
        code = sonde.sow(jax.nn.one_hot(tokens, 50), "code")
        sonde.sow(tokens > 2, "flags")
        sonde.sow(jnp.sign(tokens - 2.0), "signs")
        return sonde.sow(jnp.arange(64) * 0, "count"), code

    assert examine(f)(jnp.tile(jnp.arange(5), 40)).findings == ()


def test_biases_that_start_at_zero_and_tuples_of_weights_are_no_trouble():
    def network(weights, x):
        for kernel, bias in weights:
            x, kernel, bias = sonde.sow((x, kernel, bias), "operands")
            x = sonde.sow(jnp.tanh(x @ kernel + bias), "out")
        return x

    x, kernel = jax.random.normal(jax.random.key(0), (64, 32)), jax.random.normal(jax.random.key(1), (32, 32)) / 6
    found = examine(network)([(kernel, jnp.zeros(32))] * 2, x).findings
    assert {(x.severity, x.kind) for x in found} == {("note", "zero-values")}
    found = examine(lambda x: sonde.sow(x * 0, "h"))(x).findings
    assert [(x.severity, x.kind) for x in found] == [("warning", "zero-values")]


def test_few_examples_do_not_make_units_dead():
    f = lambda x: sonde.sow(jax.nn.relu(x), "h")
    assert examine(f)(jax.random.normal(jax.random.key(0), (4, 100))).findings == ()


def test_counters_and_long_rows_of_attention_are_no_trouble():
    def f(x):
        jax.lax.scan(lambda t, _: (sonde.sow(t + 1, "time"), None), 0.0, length=3000)
        return sonde.sow(jax.nn.softmax(sonde.sow(x, "scores")), "weights")

    assert examine(f)(jax.random.normal(jax.random.key(0), (3, 20_000))).findings == ()


def test_eight_bits_may_be_full():
    assert examine(lambda x: sonde.sow(x, "h"))(jnp.linspace(-440, 440, 99).astype(jnp.float8_e4m3fn)).findings == ()
