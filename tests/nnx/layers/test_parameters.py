"""Making the parameters of a layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx
from sonde.errors import LayerInputError
from sonde.nnx.layers.parameters import chosen, new_param, optional_param, value_of


def test_missing_rngs_is_said():
    with pytest.raises(TypeError, match=r"Linear.__init__\(\) missing 1 required keyword-only argument: 'rngs'"):
        nnx.Linear(3, 4)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="Rngs has no stream 'params'"):
        nnx.Linear(3, 4, rngs=nnx.Rngs(dropout=0))


ONES = jax.nn.initializers.ones


def test_a_parameter_is_what_the_initializer_draws():
    """For the key that the stream `params` gives, as in the plain call."""
    init = jax.nn.initializers.normal()
    rngs, same_rngs = nnx.Rngs(0), nnx.Rngs(0)
    made = [new_param(None, rngs, init, (2, 3), jnp.float32, {}) for _ in range(2)]
    for param in made:
        np.testing.assert_allclose(param[...], init(same_rngs.params(), (2, 3), jnp.float32), rtol=1e-6)
    assert not np.array_equal(made[0][...], made[1][...])
    assert int(rngs.params.count[...]) == 2


def test_shape_kind_and_metadata():
    made = new_param(None, nnx.Rngs(0), ONES, (2, 3), jnp.bfloat16, {"role": "w"}, kind=nnx.BatchStat, drawn_as=(6,))
    assert (type(made), made.shape, made.dtype, made.role) == (nnx.BatchStat, (2, 3), jnp.bfloat16, "w")
    wrapped = nnx.with_metadata(ONES, mine=1)
    made = new_param(None, nnx.Rngs(0), wrapped, (2, 3), jnp.float32, {"role": "w"}, drawn_as=(3, 2))
    assert (made.shape, made.mine, made.role) == ((2, 3), 1, "w")


def test_a_parameter_that_is_absent():
    layer = nnx.Dict(w=optional_param(False, None, None, ONES, (2,), jnp.float32, {}))
    assert layer.w is None
    assert value_of(layer.w) is None
    layer.w = nnx.Param(jnp.ones(2))  # the place is there: it may be filled later
    assert float(value_of(layer.w).sum()) == 2.0


def test_what_is_no_rngs_is_named():
    with pytest.raises(LayerInputError, match=r"Dict: `rngs` must be an nnx.Rngs .*, got 3. Write Dict\(...,"):
        new_param(nnx.Dict(), 3, ONES, (2,), jnp.float32, {})


def test_the_call_says_more_than_the_constructor():
    layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    assert chosen(layer, "deterministic", False, True) is False
    assert chosen(layer, "deterministic", None, True) is True
    with pytest.raises(ValueError, match=r"Dropout: `deterministic` is not set.*nnx.view\(model"):
        chosen(layer, "deterministic", None, None)
    with pytest.raises(ValueError) as caught:
        chosen(nnx.Dict(), "decode", None, None)
    assert "nnx.view" not in str(caught.value)
