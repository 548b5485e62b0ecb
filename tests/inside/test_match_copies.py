"""Copies of modules, recognized by their arrays."""

import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import sonde
from sonde.core.modules.places import Place
from sonde.inside.match_copies import Copy, _named_after_all


class Pair(eqx.Module):
    left: eqx.nn.Linear
    right: eqx.nn.Linear
    change: str = eqx.field(static=True)

    def __call__(self, x):
        change = {
            "same": lambda w: w,
            "cast": lambda w: w.astype(jnp.float16),
            "masked": lambda w: jnp.where(w > 0, w, 0) * 2,
        }[self.change]
        run = jax.jit(lambda layer, x: jax.tree.map(change, layer)(x))
        return run(self.right, run(self.left, x))


def pair(change):
    keys = jax.random.split(jax.random.key(0))
    return Pair(*(eqx.nn.Linear(3, 3, key=key) for key in keys), change)


@pytest.mark.parametrize("change", ["same", "cast", "masked"])
def test_a_weight_that_was_only_changed_is_the_weight(change):
    model, x = pair(change), jnp.ones(3)
    _, records = sonde.capture(model, inside=model)(x)
    assert list(records) == ["in", "left/in", "left/out", "right/in", "right/out", "out"]
    assert jnp.array_equal(records["left/out"].value, records["right/in"].value)


def test_modules_with_the_same_arrays_are_told_apart_by_what_the_transform_was_called_with():
    model = pair("same")
    model = eqx.tree_at(lambda m: m.right, model, jax.tree.map(lambda w: w, model.left))
    paths = list(sonde.capture(model, inside=model)(jnp.ones(3))[1])
    assert paths == ["in", "left/in", "left/out", "right/in", "right/out", "out"]


def test_what_a_program_asks_for_is_compared_by_class_arguments_and_the_rest():
    one, other = jnp.ones(3), jnp.ones(3)
    of = (weakref.ref(one),)
    copy = Copy(int, (0, of), "rest")
    assert copy == Copy(int, (0, (weakref.ref(one),)), "rest") and hash(copy) == hash(Copy(int, (0, of), "rest"))
    assert copy not in (Copy(float, (0, of), "rest"), Copy(int, (1, of), "rest"), Copy(int, (0, of), "other"))
    assert copy != Copy(int, (0, (weakref.ref(other),)), "rest")


def test_a_copy_is_the_programs_own_if_it_has_arrays_and_all_of_them_are_gone():
    kept, gone = jnp.ones(3), (weakref.ref(jnp.ones(2)),)
    assert Copy(int, (gone,), "rest").is_own() and Copy(int, (gone, gone), "rest").is_own()
    assert not Copy(int, (), "rest").is_own()
    assert not Copy(int, (gone, 0), "rest").is_own()
    assert not Copy(int, (gone, (weakref.ref(kept),)), "rest").is_own()


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (("blocks/left", "blocks/right"), "blocks/left|right"),
        (("a/b/c", "a/d"), "a/b.c|d"),
        (("a", "b"), "a|b"),
        (("a", "a/b"), "a/|b"),
    ],
)
def test_a_place_that_may_be_any_of_several_has_all_their_names(texts, name):
    left = [types.SimpleNamespace(level=1, place=Place(text)) for text in texts]
    assert _named_after_all(None, left) == (Place(name), 1)
