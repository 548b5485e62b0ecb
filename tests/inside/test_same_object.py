"""What went into a site and what came out are one object to code that was not written for Sonde."""

import types

import jax
import jax.numpy as jnp

import sonde
from sonde.inside.libraries.changes import share_masks
from sonde.inside.same_object import _SAME, is_same, note, note_all, same_as


def test_what_came_out_of_a_site_is_what_went_in():
    seen = []

    def f(x):
        y, z = x * 2, x * 3
        note(y, z)
        seen.append((is_same(y, z), is_same(x, y), same_as(y) == [y, z], same_as(x) == [x]))
        return z

    sonde.capture(jax.jit(f))(1.0)
    assert seen[-1] == (True, False, True, True)


def test_without_foreign_code_nothing_is_noted(monkeypatch):
    monkeypatch.setattr(_SAME, "keeps_alive", False)

    def f(x):
        y = x * 2
        note_all([x], [y])
        assert same_as(x) == [x]
        return y

    sonde.capture(jax.jit(f))(1.0)


def test_what_a_library_keeps_belongs_to_all_of_them(monkeypatch):
    monkeypatch.setattr(_SAME, "keeps_alive", False)
    kept = {}
    library = types.ModuleType("library")
    library.get_tensor_attr = lambda array, name: kept.get((id(array), name))
    library.set_tensor_attr = lambda array, name, value: kept.update({(id(array), name): value})
    get, give = (change.new for change in share_masks(library))

    @jax.jit
    def f(x):
        y = x * 2
        give(x, "mask", 1)
        note(x, y)
        assert get(y, "mask") == 1
        give(y, "mask", None)
        assert get(x, "mask") is None
        return y

    f(jnp.float32(1.0))


def test_a_value_that_vmap_does_not_map_does_not_outlive_it(monkeypatch):
    """It comes out of its site as a value of the trace outside, which keeps it for the backward pass."""
    monkeypatch.setattr(_SAME, "keeps_alive", False)

    @jax.custom_jvp
    def double(x):
        return x * 2

    @double.defjvp
    def rule(primals, tangents):
        slope = jnp.cos(primals[0])
        return double(*primals), slope * tangents[0]

    f = jax.hessian(lambda x: double(x).sum())
    with jax.checking_leaks():
        _, records = sonde.capture(f, grads=True, inside=rule)(jnp.ones(3))
    assert any(path.endswith("rule/slope") for path in records)
