"""Tools that discard the result of a training step must not donate its arguments."""

import jax
import jax.numpy as jnp
import pytest

from sonde import first_nonfinite, sow
from sonde.tools import compare, extract, logit_lens, monitor, summarize


@jax.jit
def plain(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sum(sow(w * x, "h") ** 2))(w)


donating = jax.jit(plain.__wrapped__, donate_argnums=0)
TOOLS = {
    "first_nonfinite": first_nonfinite,
    "summarize": summarize,
    "compare": lambda f: compare(f, f),
    "logit_lens": lambda f: logit_lens(f, readout=lambda h: h, k=1),
    "extract": lambda f: extract(f, {"h": "h"}),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("step", [donating, lambda w, x: donating(w, x) * 2], ids=["jitted", "called"])
def test_arguments_are_not_donated(tool, step):
    w, x = jnp.ones(3), jnp.arange(3.0)
    for _ in range(2):
        TOOLS[tool](step)(w, x)
    assert not w.is_deleted()


def test_a_monitored_step_donates_as_it_did():
    step = monitor(donating, {"h": ["mean"]}, every=2)
    w = jnp.ones(3)
    for _ in range(3):
        before = w
        w = step(w, jnp.arange(3.0))
        assert before.is_deleted()
