"""The kinds of Variables, which filters select by."""

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.nnx.variable.kinds import HijaxVariable

KINDS = ("Param", "BatchStat", "Cache", "Intermediate", "Perturbation")


def test_filters_select_by_kind(same):
    def use(nnx):
        model = nnx.Dict(**{name.lower(): getattr(nnx, name)(jnp.ones(1)) for name in KINDS})
        return {name: list(nnx.state(model, getattr(nnx, name))) for name in KINDS}

    same(use)


def test_a_perturbation_is_an_intermediate(same):
    same(lambda nnx: [issubclass(getattr(nnx, a), getattr(nnx, b)) for a in KINDS for b in KINDS])


def test_variables_with_hijax_are_asked_for_by_isinstance():
    plain, kept = nnx.Param(jnp.ones(2)), nnx.Param(jnp.ones(2), hijax=True)
    assert isinstance(kept, HijaxVariable) and isinstance(kept, nnx.Param)
    assert not isinstance(plain, HijaxVariable) and not isinstance(jnp.ones(2), HijaxVariable)
    assert jax.tree.structure(plain) != jax.tree.structure(kept)
