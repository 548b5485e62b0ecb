"""Each kind of problem is found where it is planted, is described in words, and is not found elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde.report import examine
from sonde.report.findings import SEVERITIES
from sonde.tools.numerics.families import families, natural


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def findings(f, *args, grads=False):
    return examine(f, grads=grads)(*args).findings


def only(found, kind):
    mine = [f for f in found if f.kind == kind]
    assert len(mine) == 1, found
    assert mine[0].help
    return mine[0]


def deep(gain, layers=8):
    def loss(x):
        for i in range(layers):
            with sonde.scope(f"blocks/{i}"):
                x = sonde.sow(x * gain, "out")
        return jnp.sum(x)

    return loss


def test_gradients_vanish():
    f = only(findings(jax.grad(deep(0.2, 12)), normal(8, 8), grads=True), "gradients-vanish")
    assert f.severity == "problem"
    assert f.path == "blocks/0/out"
    assert "Gradients vanish from blocks/11 to blocks/0 (at out): their rms goes from 1 to 2e-08." in f.text
    assert "residual" in f.help


def test_gradients_explode_and_values_too():
    found = findings(jax.grad(deep(4.0)), normal(8, 8), grads=True)
    assert only(found, "gradients-explode").severity == "warning"
    values = only(found, "values-explode")
    assert values.text.startswith("Values explode from blocks/0 to blocks/7")
    assert values.path == "blocks/7/out"


def test_values_vanish():
    assert only(findings(deep(0.1), normal(8, 8)), "values-vanish").severity == "problem"


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_a_gentle_slope_is_fine(gain):
    assert findings(jax.grad(deep(gain, 6)), normal(8, 8), grads=True) == ()


def test_depth_is_in_the_order_of_numbers():
    assert natural("blocks/10/x") > natural("blocks/9/x")
    (members,) = families([(f"blocks/{i}/mlp", i) for i in (10, 2, 1, 0)]).values()
    assert [i for _, i in members] == [0, 1, 2, 10]


def test_dead_units():
    def f(x):
        bias = jnp.where(jnp.arange(100) < 43, -100.0, 5.0)
        with sonde.scope("blocks/2"):
            return sonde.sow(jax.nn.relu(x + bias), "mlp")

    f = only(findings(f, normal(128, 100)), "dead-units")
    assert f.text == "43% of the units in blocks/2/mlp never fire."
    assert f.severity == "warning"


def test_dead_units_of_many_layers_are_one_finding():
    def f(x):
        for i in range(4):
            x = sonde.sow(jax.nn.relu(x + jnp.where(jnp.arange(20) < 10 + i, -100.0, 5.0)), f"layers/{i}")

    found = only(findings(f, normal(128, 20)), "dead-units")
    assert found.text == "65% of the units in layers/3 never fire. The same in 3 other sites of layers/*."
    assert set(found.also) == {"layers/0", "layers/1", "layers/2"}


def test_dead_units_in_one_iteration_of_a_loop():
    def f(x):
        def body(c, shift):
            return c, sonde.sow(jax.nn.relu(x + shift), "h")

        return jax.lax.scan(body, 0.0, jnp.array([[5.0] * 10, [-100.0] * 6 + [5.0] * 4]))

    assert only(findings(f, normal(100, 10)), "dead-units").text == "60% of the units in h never fire in iteration 1."


def test_first_infinity_in_a_loop_names_iteration_and_line():
    def f(x):
        def body(c, _):
            return sonde.sow(c * 1e6, "scores"), None

        return jax.lax.scan(body, x, length=9)[0]

    f = findings(f, jnp.ones(3))[0]
    assert (f.severity, f.kind, f.path) == ("problem", "nonfinite", "scores")
    assert f.text.startswith("First Inf in scores, iteration 6, line ")
    assert "mul of 1e+36 * 1e+06. 3 of 3 elements. Not finite at the end: result." in f.text
    assert f.source.rpartition(":")[0] == __file__


def test_first_nan_backward():
    def loss(x):
        x = sonde.sow(x, "x")
        return jnp.sum(sonde.sow(jnp.sqrt(x) * 0, "root"))

    f = findings(jax.grad(loss), jnp.zeros(4), grads=True)[0]
    assert f.text.startswith("First Inf in the gradient at x, line ")
    assert "div of 0.5 / 0." in f.text
    assert "sqrt" in f.help


def test_minus_infinity_in_a_mask_is_a_note():
    def f(x):
        scores = sonde.sow(jnp.where(jnp.tril(jnp.ones((9, 9), bool)), x, -jnp.inf), "scores")
        return sonde.sow(jax.nn.softmax(scores), "weights")

    (note,) = findings(f, normal(9, 9))
    assert (note.severity, note.kind, note.path) == ("note", "minus-inf", "scores")


def test_minus_infinity_at_the_end_is_a_problem():
    assert findings(lambda x: sonde.sow(jnp.log(x), "logs"), jnp.zeros(4))[0].severity == "problem"


def test_minus_infinity_that_reaches_the_result_is_a_problem():
    def f(x):
        logs = sonde.sow(jnp.log(x), "logs")
        return sonde.sow(logs.sum(), "total") * 2

    (found,) = findings(f, jnp.array([0.0, 1.0, 2.0]))
    assert (found.severity, found.kind, found.path) == ("problem", "nonfinite", "logs")
    assert ": log(0)." in found.text and "Not finite at the end: result" in found.text and "mask" not in found.text


def test_ones_beside_a_mask_are_not_saturated():
    f = lambda x: jax.nn.softmax(sonde.sow(jnp.where(x > 0, 1.0, -jnp.inf), "allowed"))
    assert [found.kind for found in findings(f, normal(64, 64))] == ["minus-inf"]


def test_a_nan_after_a_mask_is_found():
    def f(x):
        scores = sonde.sow(jnp.where(jnp.zeros((9, 9), bool), x, -jnp.inf), "scores")
        return sonde.sow(jax.nn.softmax(scores), "weights")

    f = findings(f, normal(9, 9))[0]
    assert (f.severity, f.path) == ("problem", "weights")
    assert "scores holds -Inf." in f.text


@pytest.mark.parametrize("squash", [jnp.tanh, jax.nn.sigmoid])
def test_saturation(squash):
    f = lambda x: sonde.sow(squash(x * 50), "gate")
    found = only(findings(f, normal(64, 64)), "saturated")
    assert "of the elements of gate are saturated: at the ends of" in found.text
    assert findings(lambda x: sonde.sow(squash(x), "gate"), normal(64, 64)) == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_near_overflow(dtype):
    largest = float(jnp.finfo(dtype).max)
    f = lambda x: sonde.sow(x * (largest / 20), "h")
    x = jnp.linspace(-3, 3, 40).astype(dtype)
    found = only(findings(f, x), "near-overflow")
    assert found.text.startswith("h reaches ") and dtype in found.text
    assert findings(f, x / 10) == ()


def test_underflow_of_half_precision_gradients():
    def loss(x):
        return (sonde.sow(x, "h") * jnp.float16(3e-6)).sum()

    found = only(findings(jax.grad(loss), normal(64).astype("float16"), grads=True), "underflow")
    assert found.text == "100% of the gradient at h is too small for float16 to hold exactly."


def test_zero_and_constant_values():
    found = findings(lambda x: sonde.sow(x * 0, "nothing") + sonde.sow(x * 0 + 2.5, "same"), normal(8, 8))
    assert only(found, "zero-values").text == "nothing is zero everywhere."
    assert only(found, "constant-values").text == "same is 2.5 everywhere."


def test_gradients_that_are_zero_are_told_from_those_that_never_came():
    def loss(x):
        h = sonde.sow(x * 2, "h")
        sonde.sow(x * 3, "aside")
        return jnp.sum(sonde.sow(jax.nn.relu(h - 1000), "dead")) + jnp.sum(x)

    found = findings(jax.grad(loss), normal(4, 4), grads=True)
    assert only(found, "zero-gradients").path == "h"
    unreached = only(found, "unreached")
    assert (unreached.severity, unreached.path) == ("note", "aside")
    assert unreached.text == "No gradient comes to aside: the loss does not use it."


def attention(scores):
    return lambda: sonde.sow(jax.nn.softmax(scores), "attn/weights")


def test_attention_collapsed():
    scores = jnp.zeros((2, 4, 16, 16)).at[:, 1, :, 7].set(100.0) + normal(2, 4, 16, 16)
    found = only(findings(attention(scores)), "attention-collapsed")
    assert found.text == "Head 1 of attn/weights looks at position 7 only."
    assert found.severity == "warning"
    scores = jnp.zeros((2, 8, 16, 16)).at[:, 1:7, :, 7].set(100.0) + normal(2, 8, 16, 16)
    found = only(findings(attention(scores)), "attention-collapsed")
    assert found.text == "Heads 1, 2, 3, 4 and more of attn/weights look at position 7 only."
    at_first = jnp.zeros((2, 1, 16, 16)).at[..., 0].set(100.0)
    assert only(findings(attention(at_first)), "attention-collapsed").severity == "note"


def test_attention_uniform():
    found = only(findings(attention(jnp.zeros((2, 4, 16, 16)))), "attention-uniform")
    assert found.text == "Every head of attn/weights looks at all positions alike."
    scores = jnp.zeros((2, 4, 16, 16)).at[:, 2:].set(normal(2, 2, 16, 16))
    found = only(findings(attention(scores)), "attention-uniform")
    assert found.text == "Heads 0 and 1 of attn/weights look at all positions alike."


def test_sharp_attention_to_different_positions_is_fine():
    assert findings(attention(100.0 * jnp.eye(16) * jnp.ones((2, 4, 1, 1)))) == ()


def test_values_grow_over_a_loop():
    f = lambda x: jax.lax.scan(lambda c, _: (sonde.sow(c * 3, "h"), None), x, length=20)[0]
    found = only(findings(f, normal(5)), "loop-values-grow")
    assert "in iteration 0 and" in found.text and "in iteration 19." in found.text


def test_gradients_vanish_over_a_loop():
    def loss(x):
        return jax.lax.scan(lambda c, _: (sonde.sow(c * 0.2, "h") + 0.0, None), x, length=12)[0].sum()

    assert only(findings(jax.grad(loss), normal(5), grads=True), "loop-gradients-vanish").path == "h"


def test_jump_of_scale():
    f = lambda x: sonde.sow(sonde.sow(x, "a") * 1e6, "b")
    found = only(findings(f, normal(50)), "jump")
    assert found.path == "b" and "1e+06 times" in found.text
    assert findings(lambda x: sonde.sow(sonde.sow(x, "a") * 100, "b"), normal(50)) == ()


def test_no_sites():
    (found,) = findings(lambda x: x, 1.0)
    assert (found.kind, found.severity) == ("no-sites", "note")


def test_most_serious_first():
    def f(x):
        sonde.sow(x * 0 + 1, "same")
        sonde.sow(x * 0, "nothing")
        return sonde.sow(x / 0, "inf")

    ranks = [SEVERITIES.index(f.severity) for f in findings(f, normal(8, 8))]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}


def test_rms_of_masked_scores_leaves_the_mask_out():
    x = np.concatenate([np.ones(50), np.full(50, -1e9)])
    (site,) = examine(lambda x: sonde.sow(x, "s"))(jnp.asarray(x)).sites
    assert 0.7 < site.values[0].rms < 1.6


def test_a_result_that_is_not_finite_is_a_problem_without_any_site() -> None:
    problem, note = examine(lambda x: jnp.log(x).sum())(jnp.zeros(3)).findings
    assert problem.severity == "problem" and "log(0)" in problem.text and "a zero" in problem.help
    assert note.kind == "no-sites" and "nothing else" in note.text
