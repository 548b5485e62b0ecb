"""Linear layers and embeddings against Flax."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.errors import LayerInputError

DTYPES = [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}, {"dtype": jnp.float16}]


@pytest.mark.every(5)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3)], ids=str)
@pytest.mark.parametrize("options", DTYPES, ids=str)
@pytest.mark.parametrize("use_bias", [True, False])
def test_linear(same, draw, shape, options, use_bias):
    x = draw(*shape)
    same(lambda n, rngs: n.Linear(3, 4, use_bias=use_bias, rngs=rngs, **options), lambda n, m: m(x))


@pytest.mark.parametrize("init", ["he_uniform", "normal", "orthogonal"])
def test_linear_with_another_initializer(same, draw, init):
    x = draw(2, 3)

    def make(n, rngs):
        kernel_init = getattr(n.initializers, init)()
        return n.Linear(3, 4, kernel_init=kernel_init, bias_init=n.initializers.normal(), rngs=rngs)

    same(make, lambda n, m: m(x))


def test_linear_options_reach_the_product(draw):
    seen = []

    def dot_general(*args, **kwargs):
        seen.append(kwargs)
        return jax.lax.dot_general(*args, **kwargs)

    layer = nnx.Linear(
        3,
        4,
        dot_general=dot_general,
        precision="highest",
        preferred_element_type=jnp.float32,
        dtype=jnp.bfloat16,
        rngs=nnx.Rngs(0),
    )
    assert layer(draw(2, 3)).dtype == jnp.float32
    assert seen == [{"precision": "highest", "preferred_element_type": jnp.float32}]


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "n_in, n_out, axis, batch",
    [
        (3, 4, -1, {}),
        ((5, 3), (4, 2), (1, 2), {}),
        ((5, 3), 4, (2, 1), {}),
        ((2, 3), 4, (0, -1), {}),
        (3, (4, 6), -1, {0: 2}),
        (3, 4, -1, {0: 2, 1: 5}),
    ],
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_linear_general(same, draw, n_in, n_out, axis, batch, use_bias):
    x = draw(2, 5, 3)

    def make(n, rngs):
        bias_init = n.initializers.normal()
        return n.LinearGeneral(
            n_in, n_out, axis=axis, batch_axis=batch, use_bias=use_bias, bias_init=bias_init, rngs=rngs
        )

    same(make, lambda n, m: m(x))


def test_linear_general_takes_a_class_of_products(draw):
    class Twice:
        def __call__(self, *args, **kwargs):
            return 2 * jax.lax.dot_general(*args, **kwargs)

    x = draw(2, 3)
    plain = nnx.LinearGeneral(3, 4, rngs=nnx.Rngs(0))(x)
    assert jnp.allclose(nnx.LinearGeneral(3, 4, dot_general_cls=Twice, rngs=nnx.Rngs(0))(x), 2 * plain)


@pytest.mark.parametrize(
    "equation, kernel, bias",
    [
        ("nta,ab->ntb", (3, 4), None),
        ("nta,ab->ntb", (3, 4), (4,)),
        ("...a,abc->...bc", (3, 4, 6), (4, 6)),
        ("nta,abc->nctb", (3, 4, 6), (6, 4)),
    ],
)
def test_einsum(same, draw, equation, kernel, bias):
    x = draw(2, 5, 3)

    def make(n, rngs):
        return n.Einsum(equation, kernel, bias, bias_init=n.initializers.normal(), rngs=rngs)

    same(make, lambda n, m: m(x))


def test_einsum_with_an_equation_of_the_call(same, draw):
    x = draw(2, 3)
    same(lambda n, rngs: n.Einsum("nta,ab->ntb", (3, 4), (4,), rngs=rngs), lambda n, m: m(x, "na,ab->nb"))


@pytest.mark.every(3)
@pytest.mark.parametrize("options, rows", list(itertools.product(DTYPES, [1, 7])))
def test_embed(same, options, rows):
    indices = jnp.array([[1, 2], [0, 1]])
    same(lambda n, rngs: n.Embed(rows, 4, rngs=rngs, **options), lambda n, m: m(indices))


@pytest.mark.parametrize("options", DTYPES, ids=str)
def test_attend(same, draw, options):
    query = draw(2, 5, 4)
    same(lambda n, rngs: n.Embed(7, 4, rngs=rngs, **options), lambda n, m: m.attend(query))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: nnx.Linear(3, 4, rngs=nnx.Rngs(0))(d(2, 5)),
            "Linear: `inputs` has the wrong number of input features: expected 3 along axis -1, got 5 in float32[2,5].",
        ),
        (
            lambda d: nnx.Linear(3, 4, rngs=None),
            "Linear: `rngs` must be an nnx.Rngs to draw initial parameters from, got None. Write Linear(..., "
            "rngs=nnx.Rngs(0)).",
        ),
        (
            lambda d: nnx.LinearGeneral((3,), 4, axis=(0, 1), rngs=nnx.Rngs(0)),
            "LinearGeneral: in_features=(3,) and axis=(0, 1) must have one entry for every contracted axis.",
        ),
        (
            lambda d: nnx.LinearGeneral(3, 4, batch_axis={1: 2}, rngs=nnx.Rngs(0)),
            "LinearGeneral: the axes of batch_axis, (1,), must be the first axes in order: (0,), (0, 1) and so on.",
        ),
        (
            lambda d: nnx.LinearGeneral((5, 3), 4, axis=(0, 1), rngs=nnx.Rngs(0))(d(5, 4)),
            "LinearGeneral: `inputs` has the wrong number of input features: expected 3 along axis 1, got 4 in "
            "float32[5,4].",
        ),
        (
            lambda d: nnx.Einsum("ab,bc", (3, 4), rngs=nnx.Rngs(0)),
            "Einsum: the einsum equation 'ab,bc' has no '->' before the result; write it as in 'nd,dk->nk'.",
        ),
        (
            lambda d: nnx.Einsum("ab,bc->ac", (3, 4), rngs=nnx.Rngs(0))(d(2, 5)),
            "Einsum: `inputs` has the wrong number of elements for letter 'b' of 'ab,bc->ac': expected 3 along axis "
            "1, got 5 in float32[2,5].",
        ),
        (
            lambda d: nnx.Embed(3, 4, rngs=nnx.Rngs(0))(d(2)),
            "Embed: `inputs` must hold integers (indices), got float32[2].",
        ),
        (
            lambda d: nnx.Embed(3, 4, rngs=nnx.Rngs(0)).attend(d(2, 5)),
            "Embed: `query` has the wrong number of features: expected 4 along axis -1, got 5 in float32[2,5].",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
