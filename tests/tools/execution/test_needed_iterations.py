"""Loops end after the last iteration that results depend on, and results stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import _jax
from sonde.tools import extract
from sonde.tools.execution.needed_iterations import only_needed

W = jax.random.normal(jax.random.key(0), (6, 4, 4)) / 2
X = jnp.linspace(-1.0, 1.0, 4)


def lengths(f, *args):
    """How long the loops of a traced program are, those in jitted functions too."""

    def of(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive is _jax.scan_p:
                yield equation.params["length"]
            for inner in _jax.sub_jaxprs(equation.params):
                yield from of(_jax.open_jaxpr(inner))

    return list(of(jax.make_jaxpr(lambda *args: only_needed(f, *args))(*args).jaxpr))


def layers(w, x, reverse=False):
    def step(x, w):
        h = jnp.tanh(x @ w)
        return x + h, (h, 2 * x)

    return jax.lax.scan(step, x, w, reverse=reverse)


CASES = {
    "one row": (lambda w, x: layers(w, x)[1][0][2:3], [3]),
    "the later of two rows": (lambda w, x: (layers(w, x)[1][0][0:1], layers(w, x)[1][1][3:4]), [1, 4]),
    "both of one loop": (lambda w, x: (lambda found: (found[0][:1], found[1][1:4]))(layers(w, x)[1]), [4]),
    "in a jitted function": (lambda w, x: jax.jit(layers)(w, x)[1][0][1:2] + 1, [2]),
    "in two": (lambda w, x: jax.jit(lambda w, x: jax.jit(layers)(w, x)[1])(w, x)[1][4:5], [5]),
    "constants": (lambda w, x: jax.lax.scan(lambda c, i: (c * x, c + w[0, 0]), x, None, 6)[1][:2], [2]),
    "what is carried": (lambda w, x: (layers(w, x)[0], layers(w, x)[1][0][:1]), [6, 1]),
    "every row": (lambda w, x: layers(w, x)[1][0].sum(0), [6]),
    "a computed row": (lambda w, x: layers(w, x)[1][0][jnp.argmax(x)], [6]),
    "another axis": (lambda w, x: layers(w, x)[1][0][:, :1], [6]),
    "turned first": (lambda w, x: layers(w, x)[1][0].T[:1], [6]),
    "from the last to the first": (lambda w, x: layers(w, x, reverse=True)[1][0][:1], [6]),
    "the argument itself": (lambda w, x: (w, 3.0, layers(w, x)[1][0][:1]), [1]),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_end_after_the_last_needed_row(name):
    f, expected = CASES[name]
    assert lengths(f, W, X) == expected
    jax.tree.map(np.testing.assert_allclose, jax.jit(lambda w, x: only_needed(f, w, x))(W, X), f(W, X))


def test_what_has_an_effect_runs_to_the_end():
    seen = []

    def f(w, x):
        def step(x, w):
            jax.debug.callback(lambda x: seen.append(x), x)
            return jnp.tanh(x @ w), x

        return jax.lax.scan(step, x, w)[1][:1]

    jax.block_until_ready(jax.jit(lambda w, x: only_needed(f, w, x))(W, X))
    jax.effects_barrier()
    assert len(seen) == 6


@pytest.mark.parametrize("row", [0, 2, 5])
def test_a_feature_of_one_layer_costs_what_it_costs_in_a_list(row):
    def stacked(w, x):
        def step(x, w):
            return x + sonde.sow(jnp.tanh(x @ w), "h"), None

        with sonde.scope("blocks/*"):
            return jax.lax.scan(step, x, w)[0]

    ask = extract(jax.jit(stacked), {f"blocks/{row}/h": "h"})
    np.testing.assert_allclose(ask(W, X)["h"], layers(W, X)[1][0][row], rtol=1e-5)
    assert jax.make_jaxpr(ask)(W, X).pretty_print().count(f"length={row + 1}\n") == 1
