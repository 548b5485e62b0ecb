"""Submodules that are passed to transforms alone, as copies: each keeps its path and its own values.

Every library has a model of two submodules of one class, `two(tanh(one(x)))`, that are called through a transform of
the library or of JAX. Paths are compared for all of them, without computing anything; values, gradients and edits for
those that nest, with the same computed by hand.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import weakref
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from penzai import pz

import sonde
from flax import nnx

X = jnp.linspace(-1.0, 1.0, 3)
PATHS = {"in", "out", "one/in", "one/out", "two/in", "two/out"}


def call(module, x):
    return module(x)


def carried(module, x):
    """Rematerialized in a scan that carries the module."""

    def body(carry, _):
        module, x = carry
        return (module, jax.checkpoint(call)(module, x)), None

    return jax.lax.scan(body, (module, x), None, length=1)[0][1]


def with_own_rule(module, x):
    f = jax.custom_vjp(call)
    f.defvjp(lambda m, x: (m(x), (m, x)), lambda saved, g: jax.vjp(call, *saved)[1](g))
    return f(module, x)


def mapped(module, x):
    return jax.vmap(call, in_axes=(None, 0))(module, x[None])[0]


def looped(module, x):
    return jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, s[1], s[1](s[2])), (0, module, x))[2]


def merged_in_jit(module, x):
    graph, state = nnx.split(module)
    return jax.jit(lambda state, x: nnx.merge(graph, state)(x))(state, x)


JAX = {
    "jit": lambda m, x: jax.jit(call)(m, x),
    "checkpoint": lambda m, x: jax.checkpoint(call)(m, x),
    "vmap": mapped,
    "remat in scan": carried,
    "cond": lambda m, x: jax.lax.cond(x.sum() < 100, call, lambda m, x: x, m, x),
    "switch": lambda m, x: jax.lax.switch(1, [lambda m, x: x, call], m, x),
    "fori": lambda m, x: jax.lax.fori_loop(0, 1, lambda i, s: (s[0], s[0](s[1])), (m, x))[1],
    "while": looped,
    "jvp of jit": lambda m, x: jax.jvp(lambda x: jax.jit(call)(m, x), (x,), (x,))[0],
    "vmap in jit of jit": lambda m, x: jax.jit(lambda m, x: jax.vmap(jax.jit(call), (None, 0))(m, x[None])[0])(m, x),
    "keywords": lambda m, x: jax.jit(lambda *, x, a: a(x))(a=m, x=x),
    "a static argument": lambda m, x: jax.jit(lambda n, m, x: m(x) * n, static_argnums=0)(1, m, x),
    "custom_vjp in jit": lambda m, x: jax.jit(with_own_rule)(m, x),
    "closed over": lambda m, x: jax.jit(lambda x: m(x))(x),
    "cast in jit": lambda m, x: jax.jit(lambda m, x: jax.tree.map(lambda a: a.astype(jnp.float32) * 1.0, m)(x))(m, x),
}
EQUINOX = {
    "filter_jit": lambda m, x: eqx.filter_jit(call)(m, x),
    "filter_jit of it": lambda m, x: eqx.filter_jit(m)(x),
    "filter_checkpoint": lambda m, x: eqx.filter_checkpoint(m)(x),
    "filter_vmap": lambda m, x: eqx.filter_vmap(call, in_axes=(None, 0))(m, x[None])[0],
    "filter_closure_convert": lambda m, x: eqx.filter_closure_convert(m, x)(x),
    "tree_at": lambda m, x: eqx.tree_at(lambda m: m.weight, m, m.weight * 1.0)(x),
}
FLAX = {
    "nnx.jit": lambda m, x: nnx.jit(call)(m, x),
    "nnx.remat": lambda m, x: nnx.remat(call)(m, x),
    "nnx.remat in nnx.jit": lambda m, x: nnx.jit(lambda m, x: nnx.remat(call)(m, x))(m, x),
    "nnx.vmap": lambda m, x: nnx.vmap(call, in_axes=(None, 0))(m, x[None])[0],
    "nnx.cond": lambda m, x: nnx.cond(x.sum() < 100, call, lambda m, x: x, m, x),
    "nnx.scan": lambda m, x: nnx.scan(lambda x, m: m(x), length=1, in_axes=(nnx.Carry, None), out_axes=nnx.Carry)(x, m),
    "split and merge": lambda m, x: nnx.merge(*nnx.split(m))(x),
    "merge in jit": merged_in_jit,
    "clone": lambda m, x: nnx.clone(m)(x),
}
LINEN = {
    "remat": linen.remat,
    "jit": linen.jit,
    "remat of jit": lambda cls: linen.remat(linen.jit(cls)),
    "vmap": lambda cls: linen.vmap(cls, variable_axes={"params": None}, split_rngs={"params": False}),
}
HAIKU = {
    "remat": lambda m, x: hk.remat(m)(x),
    "vmap": lambda m, x: hk.vmap(m, split_rng=False)(x[None])[0],
    "scan": lambda m, x: hk.scan(lambda x, _: (m(x), None), x, None, length=1)[0],
    "cond": lambda m, x: hk.cond(x.sum() < 100, m, lambda x: x, x),
    "remat in scan": lambda m, x: hk.scan(lambda x, _: (hk.remat(m)(x), None), x, None, length=1)[0],
}
KERAS = {
    "jit": lambda m, x: jax.jit(lambda x: m(x))(x),
    "checkpoint": lambda m, x: jax.checkpoint(lambda x: m(x))(x),
    "keras.remat": lambda m, x: importlib.import_module("keras").remat(m)(x),  # takes long to import
    "scan": lambda m, x: jax.lax.scan(lambda x, _: (m(x), None), x, None, length=1)[0],
}


def equinox_model(how):
    class Two(eqx.Module):
        one: eqx.nn.Linear
        two: eqx.nn.Linear

        def __call__(self, x):
            return how(self.two, jnp.tanh(how(self.one, x)))

    return Two(*(eqx.nn.Linear(3, 3, key=key) for key in jax.random.split(jax.random.key(0))))


def flax_model(how):
    class Two(nnx.Module):
        def __init__(self):
            self.one = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
            self.two = nnx.Linear(3, 3, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return how(self.two, jnp.tanh(how(self.one, x)))

    return Two()


@pz.pytree_dataclass
class Scaled(pz.nn.Layer):
    scale: Any

    def __call__(self, x, /, **_):
        return self.scale @ x


def penzai_model(how):
    @pz.pytree_dataclass
    class Two(pz.nn.Layer):
        one: Scaled
        two: Scaled

        def __call__(self, x, /, **_):
            return how(self.two, jnp.tanh(how(self.one, x)))

    return Two(*(Scaled(jax.random.normal(key, (3, 3))) for key in jax.random.split(jax.random.key(0))))


MODELS = {
    "equinox": (equinox_model, {**JAX, **EQUINOX}),
    "flax.nnx": (flax_model, {**JAX, **FLAX}),
    "penzai": (penzai_model, JAX),
}


def paths(f, model, *args):
    found: list[str] = []

    def run(*args):
        found.extend(sonde.capture(f, inside=model)(*args)[1])
        return 0

    jax.eval_shape(run, *args)
    return set(found)


@pytest.mark.parametrize("library", MODELS)
def test_submodules_alone_keep_their_paths(library):
    make, transforms = MODELS[library]
    for name, how in transforms.items():

        def run(x, make=make, how=how):
            model = make(how)
            _, records = sonde.capture(call, inside=model)(model, x)
            found.update({path: len(record.values) for path, record in records.items()})
            return 0

        found: dict[str, int] = {}
        jax.eval_shape(run, X)
        assert found == dict.fromkeys(PATHS, 1), name


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("equinox", "filter_checkpoint"),
        ("equinox", "filter_jit of it"),
        ("flax.nnx", "nnx.remat in nnx.jit"),
        ("penzai", "remat in scan"),
    ],
)
def test_values_gradients_and_edits_by_path(library, name):
    make, transforms = MODELS[library]
    model: Any = make(transforms[name])
    plain: Any = make(call)
    at_one = plain.one(X)
    rest = lambda h: plain.two(jnp.tanh(h)).sum()

    @jax.jit
    def loss(x):
        if library != "flax.nnx":
            return model(x).sum()
        graph, state = nnx.split(model)  # Flax refuses to change Variables from outside the jit
        return nnx.merge(graph, jax.tree.map(lambda a: a + 0, state))(x).sum()

    gradients = jax.vmap(jax.grad(loss))  # jit in grad in vmap
    _, records = sonde.capture(gradients, "*/out", inside=model, grads=True)(X[None])
    np.testing.assert_allclose(jnp.ravel(records["one/out"].value), at_one, rtol=1e-5)
    np.testing.assert_allclose(jnp.ravel(records["two/out"].value), plain.two(jnp.tanh(at_one)), rtol=1e-5)
    np.testing.assert_allclose(jnp.ravel(records["one/out"].grad), jax.grad(rest)(at_one), rtol=1e-5)
    edited = sonde.edit(loss, {"one/out": lambda h: 2 * h}, inside=model)
    np.testing.assert_allclose(edited(X), rest(2 * at_one), rtol=1e-5)


def test_named_submodules_in_transforms_of_their_library():
    for name, how in LINEN.items():
        cls = how(linen.Dense)

        class Two(linen.Module):
            @linen.compact
            def __call__(self, x, cls=cls):
                return cls(3, name="two")(jnp.tanh(cls(3, name="one")(x)))

        model = Two()
        assert paths(lambda x, m=model: m.init_with_output(jax.random.key(0), x)[0], model, X[None]) == PATHS, name
    for name, how in HAIKU.items():

        def forward(x, how=how):
            one, two = hk.Linear(3, name="one"), hk.Linear(3, name="two")
            if hk.running_init():
                return two(one(x))
            return how(two, jnp.tanh(how(one, x)))

        net = hk.transform(forward)
        params = net.init(jax.random.key(0), X)
        assert paths(lambda x, n=net, p=params: n.apply(p, None, x), net, X) == PATHS - {"in", "out"}, name
    import keras

    for name, how in KERAS.items():

        class Both(keras.Model):
            def __init__(self, how):
                super().__init__()
                self.one, self.two, self.how = keras.layers.Dense(3), keras.layers.Dense(3), how

            def call(self, x):
                return self.how(self.two, keras.ops.tanh(self.how(self.one, x)))

        both: Any = Both(call)
        both(X[None])
        both.how = how
        assert paths(lambda x, m=both: m(x), both, X[None]) == PATHS, name


def test_methods_under_remat():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.one, self.two = nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)

        @nnx.remat
        def __call__(self, x):
            return self.two(self.one(x))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs), Block(rngs)])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    net = Net(nnx.Rngs(0))
    _, records = sonde.capture(nnx.grad(lambda net, x: net(x).sum()), "**/out", inside=net)(net, X)
    assert set(records) == {
        "out",
        *(f"blocks/{i}/{name}out" for i in range(2) for name in ("", "one/", "two/")),
    }
    hand = net.blocks[0].two(net.blocks[0].one(X))
    np.testing.assert_allclose(records["blocks/0/two/out"].value, hand, rtol=1e-5)
    np.testing.assert_allclose(records["blocks/1/one/out"].value, net.blocks[1].one(hand), rtol=1e-5)


def test_one_jitted_function_for_several_modules():
    shared = eqx.filter_jit(call)
    model = equinox_model(lambda m, x: shared(m, x))
    other = equinox_model(lambda m, x: shared(m, x))
    for asked in (model, other, model):
        _, records = sonde.capture(asked, "*/out", inside=asked)(X)
        np.testing.assert_allclose(records["one/out"].value, asked.one(X), rtol=1e-5)
        assert set(records) == {"one/out", "two/out"}


class Layers(eqx.Module):
    one: eqx.nn.Linear
    two: eqx.nn.Linear
    left: eqx.nn.Lambda
    right: eqx.nn.Lambda

    def __call__(self, x, how):
        return how(self, x)


def layers() -> Any:
    keys = jax.random.split(jax.random.key(0))
    linear = [eqx.nn.Linear(3, 3, key=key) for key in keys]
    return Layers(linear[0], linear[1], eqx.nn.Lambda(jnp.tanh), eqx.nn.Lambda(jnp.tanh))


def test_modules_without_arrays_are_known_by_what_a_transform_was_called_with():
    model = layers()

    def run(m, x):
        return jax.jit(call, static_argnums=0)(m.right, jax.jit(lambda x: m.left(x))(x))

    assert paths(lambda x: model(x, run), model, X) == {"in", "out", "left/in", "left/out", "right/in", "right/out"}

    def alone(m, x):  # Equinox hands over what both have in common
        return eqx.filter_jit(call)(m.left, x)

    assert paths(lambda x: model(x, alone), model, X) == {"in", "out", "left|right/in", "left|right/out"}


def test_modules_that_nothing_tells_apart_are_named_after_both():
    model = layers()
    model = dataclasses.replace(model, two=eqx.tree_at(lambda m: m.bias, model.one, model.one.bias))
    assert model.one is not model.two
    run = lambda m, x: eqx.filter_jit(m.two)(eqx.filter_jit(m.one)(x))
    assert paths(lambda x: model(x, run), model, X) == {"in", "out", "one|two/in", "one|two/out"}


def test_modules_that_are_in_no_model_are_numbered():
    model = layers()

    def run(m, x):
        new: Any = [eqx.nn.Linear(3, 3, key=jax.random.key(i)) for i in range(2)]
        for i in range(3):
            x = eqx.nn.Linear(3, 3, key=jax.random.key(i))(x)
        return m.one(new[1](new[0](new[0](x))))

    for f in (run, eqx.filter_jit(run)):
        _, records = sonde.capture(lambda x, f=f: model(x, f), "**/out", inside=model)(X)
        counts = {path: len(record.values) for path, record in records.items()}
        assert counts == {"Linear/out": 3, "Linear_1/out": 2, "Linear_2/out": 1, "one/out": 1, "out": 1}


def lens(f, *args, inside, **options):
    _, records = sonde.capture(f, "**/out", inside=inside, **options)(*args)
    return {path: len(record.values) for path, record in records.items()}


class Single(eqx.Module):
    one: eqx.nn.Linear

    def __call__(self, x):
        return self.one(x)


def linear(seed: int) -> Any:
    return eqx.nn.Linear(3, 3, key=jax.random.key(seed))


def test_a_new_module_does_not_take_the_path_of_the_only_one_that_is_like_it():
    model = Single(linear(0))
    for f in (lambda x: linear(5)(model(x)), eqx.filter_jit(lambda x: linear(5)(model(x)))):
        assert lens(f, X, inside=model) == {"one/out": 1, "out": 1, "Linear/out": 1}
    called_with = lambda x: eqx.filter_jit(call)(linear(5), model(x))
    assert lens(called_with, X, inside=model) == {"one/out": 1, "out": 1, "Linear/out": 1}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, eqx.filter_jit])
def test_another_model_of_the_same_class(jit):
    student, teacher = Single(linear(0)), Single(linear(1))
    own, other = {"one/out": 1, "out": 1}, {"0/one/out": 1, "0/out": 1}
    f = jit(lambda teacher, student, x: student(x) - teacher(x))
    assert lens(f, teacher, student, X, inside=student) == {**own, **other}
    _, records = sonde.capture(f, inside=student)(teacher, student, X)
    np.testing.assert_allclose(records["one/out"].value, student(X), rtol=1e-6)
    np.testing.assert_allclose(records["0/one/out"].value, teacher(X), rtol=1e-6)
    assert lens(f, teacher, student, X, inside=teacher) == {**own, "1/one/out": 1, "1/out": 1}
    assert lens(f, teacher, student, X, inside=[student, teacher]) == {**own, **other}
    closed = jit(lambda x: student(x) - teacher(x))
    known = {**own, "teacher/one/out": 1, "teacher/out": 1}
    assert lens(closed, X, inside=student) == known
    half = jit(lambda student, x: jax.vmap(lambda x: student(x) - teacher(x))(x[None]))
    assert lens(half, student, X, inside=student) == known
    one = teacher  # the name of an attribute of the model
    assert set(lens(jit(lambda student, x: student(x) - one(x)), student, X, inside=student)) - {*own} == {
        "one_1/one/out",
        "one_1/out",
    }


def test_which_of_two_is_the_model_must_be_known():
    model, other = Single(linear(0)), [Single(linear(1))]
    f = lambda models, x: models[0](x) + model(x)
    with pytest.raises(sonde.errors.ScopeError, match="taken for the model"):
        sonde.capture(lambda x: f(other, x), inside=model)(X)
    later = lambda models, x: model(x) + models[0](x)
    found = lens(lambda x: later(other, x), X, inside=model)
    assert found == {"one/out": 1, "out": 1, "Single/one/out": 1, "Single/out": 1}
    run = lambda a, b, x: a(x) + b(x)
    with pytest.raises(sonde.errors.ScopeError, match="2 modules of the class Single"):
        jax.jit(sonde.capture(run, inside=model))(model, other[0], X)


@pytest.mark.parametrize("jit", [lambda f: f, eqx.filter_jit])
def test_a_model_that_is_trained_is_the_model(jit):
    model: Any = equinox_model(call)
    updated = jax.tree.map(lambda w: w * 0.9, model)
    params, static = eqx.partition(updated, eqx.is_array)
    alone = {"two/out": 1}
    assert lens(jit(lambda m, x: jax.tree.map(lambda w: w * 0.9, m).two(x)), model, X, inside=model) == alone
    assert lens(jit(lambda m, x: m.two(x)), updated, X, inside=model) == alone
    assert lens(jit(lambda p, x: eqx.combine(p, static).two(x)), params, X, inside=model) == alone

    def train(m, x):
        for _ in range(3):
            grads = eqx.filter_grad(lambda m: (m(x) ** 2).sum())(m)
            m = eqx.apply_updates(m, jax.tree.map(lambda g: -0.1 * g, grads))
        return m.two(x)

    for _ in range(2):  # the second time JAX has compiled everything
        assert lens(jit(train), model, X, inside=model) == {"one/out": 3, "two/out": 4, "out": 3}

    def in_a_loop(m, x):
        params, static = eqx.partition(m, eqx.is_array)

        def step(params, _):
            grads = jax.grad(lambda p: (eqx.combine(p, static)(x) ** 2).sum())(params)
            return jax.tree.map(lambda a, b: a - 0.1 * b, params, grads), None

        return eqx.combine(jax.lax.scan(step, params, None, length=3)[0], static).two(x)

    assert lens(jit(in_a_loop), model, X, inside=model) == {"one/out": 1, "two/out": 2, "out": 1}


@pytest.mark.parametrize("jit", [lambda f: f, eqx.filter_jit])
def test_gradients_in_the_form_of_the_model_are_not_the_model(jit):
    model: Any = equinox_model(call)

    def accumulate(m, xs):
        def step(total, x):
            grads = eqx.filter_grad(lambda m: (m(x) ** 2).sum())(m)
            return jax.tree.map(jnp.add, total, grads), None

        return jax.lax.scan(step, jax.tree.map(jnp.zeros_like, m), xs)[0]  # the model is called after this is passed

    assert lens(jit(accumulate), model, X[None], inside=model) == {"one/out": 1, "two/out": 1, "out": 1}


def test_a_part_of_a_copy_keeps_its_path_when_its_arrays_are_mixed_with_others():
    class Pair(nnx.Module):
        def __init__(self):
            self.fast, self.slow = (nnx.Linear(3, 3, rngs=nnx.Rngs(i)) for i in range(2))

        def __call__(self, x):
            return self.fast(x) - self.slow(x)

    def step(pair, x):
        loss = pair(x)
        mixed = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, nnx.state(pair.slow), nnx.state(pair.fast))
        nnx.update(pair.slow, mixed)
        return loss + pair.slow(x)

    for jit in (lambda f: f, nnx.jit):
        pair = Pair()
        assert lens(jit(step), pair, X, inside=pair) == {"fast/out": 1, "slow/out": 2, "out": 1}


def test_a_model_whose_state_is_an_argument():
    model: Any = flax_model(call)
    graph, state = nnx.split(model)
    later = jax.tree.map(lambda w: w * 0.9, state)
    alone = lambda state, x: nnx.merge(graph, state).two(x)
    for f in (alone, jax.jit(alone)):
        assert lens(f, later, X, inside=model) == {"two/out": 1}


def test_modules_that_are_stacked_are_named_after_all():
    class Stack(eqx.Module):
        blocks: list

        def __call__(self, x):
            stacked = jax.tree.map(lambda *w: jnp.stack(w), *self.blocks)
            return jax.lax.scan(lambda x, block: (block(x), None), x, stacked)[0]

    model = Stack([linear(i) for i in range(3)])
    assert lens(eqx.filter_jit(model), X, inside=model) == {"blocks/0|1|2/out": 1, "out": 1}


def test_modules_in_no_model_are_numbered_over_all_traced_functions():
    model = Single(linear(0))
    f, g = jax.jit(lambda x: linear(5)(x)), jax.jit(lambda x: linear(6)(linear(7)(x)))
    both = jax.jit(lambda x: g(f(x)))
    three = {"Linear/out": 1, "Linear_1/out": 1, "Linear_2/out": 1}
    own = {"one/out": 1, "out": 1}
    for run in (lambda x: g(f(model(x))), lambda x: f(g(model(x))), lambda x: both(model(x))):
        for _ in range(2):
            assert lens(run, X, inside=model) == {**own, **three}
    assert lens(lambda x: f(f(model(x))), X, inside=model) == {**own, "Linear/out": 2}
    assert lens(lambda x: linear(9)(f(linear(8)(model(x)))), X, inside=model) == {**own, **three}
    _, records = sonde.capture(lambda x: f(g(model(x))), inside=model)(X)
    np.testing.assert_allclose(records["Linear/out"].value, linear(7)(model(X)), rtol=1e-6)
    np.testing.assert_allclose(records["Linear_2/in"].value, records["Linear_1/out"].value)


def test_an_array_is_not_kept_alive_by_what_is_known_of_it():
    model = Single(linear(0))
    made: list[Any] = []

    def run(m, x):
        new = jax.tree.map(lambda w: w * 2, m)
        made.append(weakref.ref(new.one.weight))
        return eqx.filter_jit(call)(new, x)

    sonde.capture(run, inside=model)(model, X)
    gc.collect()
    assert made[0]() is None


def test_weights_that_get_another_shape_outside_of_jit_are_the_weights():
    def mapped_over(m, x):
        return jax.vmap(call)(jax.tree.map(lambda a: a[None], m), x[None])[0]

    model: Any = equinox_model(mapped_over)
    for _ in range(2):  # the second time JAX has compiled everything
        assert lens(model, X, inside=model) == {"one/out": 1, "two/out": 1, "out": 1}
        assert lens(lambda x: jax.grad(lambda x: model(x).sum())(x), X, inside=model) == {
            "one/out": 1,
            "two/out": 1,
            "out": 1,
        }
