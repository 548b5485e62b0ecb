"""Gradients at sites, where nothing before them is differentiated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.layered import FORMS, LAYERS, W, X, by_hand, metric
from tests.tools.scanned import TOKENS, both

import sonde
from sonde import nnx
from sonde.errors import NoSuchSiteError
from sonde.tools import site_gradients


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["list", "scan"])
def test_a_model_of_tokens(kind: str) -> None:
    model = both()[kind]
    of = lambda logits: logits[0, -1, 3] - logits[0, -1, 2]
    number, records = site_gradients(model, "embedded", "blocks/*/mlp/out", metric=of)(TOKENS)
    assert float(number) == pytest.approx(float(of(model(TOKENS))), rel=1e-5)
    for path in ("embedded", "blocks/1/mlp/out"):
        by_edit = jax.grad(lambda new, p=path: of(sonde.edit(model, {p: lambda _: new})(TOKENS)))
        np.testing.assert_allclose(records[path].grad, by_edit(records[path].value), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_loops(form: str) -> None:
    f, name = FORMS[form]
    _, records = site_gradients(lambda x: metric(f(x)))(X)
    _, seen = by_hand(X)
    assert len(records) == len(seen) == 4 * LAYERS == 4 * len(W)
    for path, value in seen.items():
        gradient = jax.grad(lambda new, p=path: metric(by_hand(X, {p: lambda _: new})[0]))(value)
        np.testing.assert_allclose(records[name(path)].grad, gradient, rtol=1e-3, atol=1e-4)


def test_constants_and_values_that_are_marked_in_place() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.array([2.0, 3.0]))

        def __call__(self, tokens: Any) -> Any:
            h = self.w[...] * tokens
            self.sow(nnx.Intermediate, "h", h)
            return jnp.sum(h**2) + sonde.sow(jnp.ones(()), "one") * 5

    for patterns in ((), ("h", "one"), ("h",)):
        _, records = site_gradients(Model(), *patterns)(jnp.array([1, 2]))
        np.testing.assert_allclose(records["h"].grad, [4, 12])
        if patterns != ("h",):
            np.testing.assert_allclose(records["one"].grad, 5)


def test_gradients_of_other_values_are_no_part_of_the_program() -> None:
    """The gradients of the weights would make the program of a model with tokens much larger."""
    f = lambda w, tokens: jnp.sum(sonde.sow(jnp.eye(7)[tokens] @ w, "read") @ w)
    program = jax.make_jaxpr(site_gradients(f, "read"))(jnp.ones((7, 7)), jnp.arange(3))
    assert str(program).count("dot_general") == 3  # two of the program, and the gradient of what is read


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"a number, got float32\[2\]; give a metric="):
        site_gradients(lambda x: sonde.sow(x, "h"))(jnp.ones(2))
    with pytest.raises(NoSuchSiteError, match="'g'"):
        site_gradients(lambda x: jnp.sum(sonde.sow(x, "h")), "g")(jnp.ones(2))
