"""The paths of Modules, found when they are called: under every transform, through copies, in containers."""

import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import nnx

X = jnp.arange(3.0) * 0.3 + 0.1


class Leaf(nnx.Module):
    def __init__(self, w):
        self.w = nnx.Param(jnp.asarray(w, jnp.float32))

    def __call__(self, x):
        return sonde.sow(jnp.sin(x * self.w[...]), "y")


class Block(nnx.Module):
    def __init__(self, w):
        self.mlp = Leaf(w)

    def __call__(self, x):
        return self.mlp(x) + x


def call(module, x):
    return module(x)


def body(x, layer):
    return layer(x), None


def expected(weights, x=X):
    found = []
    for w in weights:
        found.append(jnp.sin(x * w))
        x = found[-1] + x
    return found


jitted, nnx_jitted, remat = jax.jit(call), nnx.jit(call), jax.checkpoint(call)
nnx_remat = nnx.remat(call)

RUNS = {
    "itself": call,
    "jax.jit": jitted,
    "nnx.jit": nnx_jitted,
    "nnx.jit, tree": nnx.jit(call, graph=False),
    "jax.jit in jax.jit": jax.jit(lambda m, x: jitted(m, x)),
    "jax.checkpoint": remat,
    "nnx.remat": nnx_remat,
    "jit of remat": jax.jit(lambda m, x: remat(m, x)),
    "closure in jit": lambda m, x: jax.jit(lambda x: m(x))(x),
    "partial in jit": lambda m, x: jax.jit(functools.partial(m))(x),
    "vmap": lambda m, x: jax.vmap(call, (None, 0))(m, x[None])[0],
    "nnx.vmap": lambda m, x: nnx.vmap(call, in_axes=(None, 0))(m, x[None])[0],
    "cond": lambda m, x: lax.cond(x.sum() > 0, call, lambda m, x: x, m, x),
    "nnx.cond": lambda m, x: nnx.cond(x.sum() > 0, call, lambda m, x: x, m, x),
    "switch": lambda m, x: lax.switch(0, [call, call], m, x),
    "custom_vjp": lambda m, x: custom(m, x),
    "dict in jit": lambda m, x: jax.jit(lambda d: d["m"][0](d["x"]))({"m": [m], "x": x}),
    "clone": lambda m, x: nnx.clone(m)(x),
    "copy in jit": lambda m, x: jax.jit(lambda m, x: nnx.clone(m)(x))(m, x),
    "merge": lambda m, x: nnx.merge(*nnx.split(m))(x),
    "merge in jit": lambda m, x: merged(*nnx.split(m), x),
    "tree map": lambda m, x: jax.tree.map(lambda v: v * 1, m)(x),
    "view": lambda m, x: nnx.view(m, raise_if_not_found=False)(x),
    "nnx.call": lambda m, x: nnx.call(nnx.split(m))(x)[0],
    "bound method": lambda m, x: jax.jit(m.__call__)(x),
}
merged = jax.jit(lambda graphdef, state, x: nnx.merge(graphdef, state)(x), static_argnums=0)
custom = jax.custom_vjp(call)
custom.defvjp(lambda m, x: (m(x), None), lambda _, ct: (None, ct))


class Model(nnx.Module):
    def __init__(self, run, n=3):
        self.blocks = nnx.List([Block(float(i + 1)) for i in range(n)])
        self.run = run

    def __call__(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x


def check(records, x=X, prefix="", weights=(1.0, 2.0, 3.0)):
    want = expected(weights, x)
    assert list(records) == [f"{prefix}blocks/{i}/mlp/y" for i in range(len(weights))]
    for record, value in zip(records.values(), want):
        np.testing.assert_allclose(np.reshape(record.value, X.shape), value, rtol=1e-6)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", RUNS)
def test_blocks_that_run_in_another_way(name):
    model = Model(RUNS[name])
    for _ in range(2):
        _, records = sonde.capture(model)(X)
        check(records)
    _, records = sonde.capture(jax.jit(call))(model, X)
    check(records)


OUTER = {
    "argument": lambda m, x: m(x),
    "jax.jit": jitted,
    "nnx.jit": nnx_jitted,
    "remat": remat,
    "clone": lambda m, x: nnx.clone(m)(x),
    "view": lambda m, x: nnx.view(m, raise_if_not_found=False)(x),
    "merge": lambda m, x: nnx.merge(*nnx.split(m))(x),
    "merge in jit": lambda m, x: merged(*nnx.split(m), x),
    "made inside": lambda m, x: Model(m.run)(x),
    "made in jit": lambda m, x: jax.jit(lambda x: Model(m.run)(x))(x),
    "dict": lambda m, x: (lambda d: d["model"](x))({"model": m}),
}


@pytest.mark.parametrize("inner", ["itself", "jax.jit", "nnx.remat", "merge in jit"])
@pytest.mark.parametrize("name", OUTER)
def test_a_model_that_comes_in_another_way(name, inner):
    model = Model(RUNS[inner])
    _, records = sonde.capture(OUTER[name])(model, X)
    check(records)
    graphdef, state = nnx.split(model)
    _, records = sonde.capture(lambda state, x: OUTER[name](nnx.merge(graphdef, state), x))(state, X)
    check(records)


def test_containers_of_models():
    model = Model(call)
    for f, argument in (
        (lambda d, x: d["model"](x), {"model": model, "other": 3}),
        (lambda d, x: d[1][0](x), (1, [model])),
    ):
        check(sonde.capture(f)(argument, X)[1])
        check(sonde.capture(jax.jit(f))(argument, X)[1])
        check(sonde.capture(lambda d, x, f=f: jax.jit(f)(d, x))(argument, X)[1])
    out = sonde.edit(lambda d, x: d["model"](x), {"blocks/2/mlp/y": jnp.zeros_like})({"model": model}, X)
    np.testing.assert_allclose(out, model(X) - expected((1.0, 2.0, 3.0))[2], rtol=1e-5)


def test_several_models_in_containers():
    def f(models, x):
        return models["b"](models["a"](x))

    two = {"a": Block(1.0), "b": Block(2.0)}
    assert list(sonde.capture(f)(two, X)[1]) == ["a/mlp/y", "b/mlp/y"]
    assert list(sonde.capture(jax.jit(f))(two, X)[1]) == ["a/mlp/y", "b/mlp/y"]
    assert list(sonde.capture(lambda m, x: jax.jit(f)(m, x))(two, X)[1]) == ["a/mlp/y", "b/mlp/y"]
    blocks = [Block(1.0), Block(2.0)]
    assert list(sonde.capture(lambda x, b: b[1](b[0](x)))(X, blocks)[1]) == ["0/mlp/y", "1/mlp/y"]
    assert list(sonde.capture(lambda a, b, x: b[0](a[0](x)))([blocks[0]], [blocks[1]], X)[1]) == [
        "0/0/mlp/y",
        "1/0/mlp/y",
    ]


def test_scans_with_one_body():
    class Coder(nnx.Module):
        def __init__(self):
            self.encoder = nnx.List([Leaf(jnp.array([1.0, 2.0]))])
            self.decoder = Leaf(jnp.array([3.0, 4.0]))

        def __call__(self, x):
            x, _ = lax.scan(body, x, self.encoder[0])
            return lax.scan(body, x, self.decoder)[0]

    for f in (call, jax.jit(call), lambda m, x: nnx.jit(call)(m, x)):
        _, records = sonde.capture(f)(Coder(), X)
        assert list(records) == ["encoder/0/y", "decoder/y"]
        first = jnp.sin(X)
        np.testing.assert_allclose(records["encoder/0/y"].value, [first, jnp.sin(first * 2)], rtol=1e-6)


def test_a_function_is_traced_once_for_all_blocks():
    traces = []

    def inner(mlp, x):
        traces.append(1)
        return mlp(x)

    inner = jax.jit(inner)

    class Caller(nnx.Module):
        def __init__(self, w):
            self.mlp = Leaf(w)

        def __call__(self, x):
            return inner(self.mlp, x) + x

    class Caller3(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Caller(1.0), Caller(2.0), Caller(3.0)])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    check(sonde.capture(Caller3())(X)[1])
    assert len(traces) == 1
    check(sonde.capture(Caller3())(X)[1])  # another model, the same places
    assert len(traces) == 1


def test_fresh_models_do_not_trace_again():
    traces = []

    @nnx.jit
    def step(model, x):
        traces.append(1)
        return model(x)

    for _ in range(3):
        check(sonde.capture(lambda m, x: step(m, x))(Model(call), X)[1])
    assert len(traces) == 1


def test_a_shared_module_has_its_first_path():
    class Tied(nnx.Module):
        def __init__(self):
            self.decoder = Block(2.0)
            self.encoder = Block(3.0)
            self.encoder.mlp = self.decoder.mlp

        def __call__(self, x):
            return self.decoder(self.encoder(x))

    for f in (call, jitted, nnx_jitted):
        _, records = sonde.capture(lambda m, x, f=f: f(m, x))(Tied(), X)
        paths = list(records)
        if f is jitted:  # as a pytree, the two are two
            assert paths == ["encoder/mlp/y", "decoder/mlp/y"]
        else:
            assert paths == ["decoder/mlp/y"] and len(records[paths[0]].values) == 2


def test_a_module_that_another_one_is_given():
    class User(nnx.Module):
        def __init__(self):
            self.own = Leaf(1.0)

        def __call__(self, x, table):
            return jitted(table, self.own(table(x)))

    class Giver(nnx.Module):
        def __init__(self):
            self.users = nnx.List([User(), User()])
            self.table = Leaf(2.0)

        def __call__(self, x):
            for user in self.users:
                x = user(x, self.table)
            return x

    for f in (call, jax.jit(call), lambda m, x: jax.jit(lambda x: m(x))(x)):
        _, records = sonde.capture(f)(Giver(), X)
        assert sorted(records) == ["table/y", "users/0/own/y", "users/1/own/y"]
        assert len(records["table/y"].values) == 4


def test_a_replaced_module_does_not_record_under_its_old_path():
    class Swapping(nnx.Module):
        def __init__(self):
            self.layer = Leaf(1.0)

        def __call__(self, x):
            old = self.layer
            self.layer = Leaf(2.0)
            return self.layer(old(x))

    _, records = sonde.capture(Swapping())(X)
    assert list(records) == ["Leaf/y", "layer/y"]
    np.testing.assert_allclose(records["layer/y"].value, jnp.sin(2 * jnp.sin(X)), rtol=1e-6)

    model = Model(call)
    old = model.blocks[1]

    def f(model, x):
        model.blocks[1] = Block(5.0)
        return model(old(x))

    _, records = sonde.capture(f)(model, X)
    assert list(records) == ["mlp/y", "blocks/0/mlp/y", "blocks/1/mlp/y", "blocks/2/mlp/y"]


def test_swapped_modules_change_places():
    class Turning(nnx.Module):
        def __init__(self):
            self.a, self.b = Leaf(1.0), Leaf(2.0)

        def __call__(self, x):
            self.a, self.b = self.b, self.a
            return self.a(x)

    for f in (call, lambda m, x: nnx.jit(call)(m, x)):
        _, records = sonde.capture(f)(Turning(), X)
        assert list(records) == ["a/y"]
        np.testing.assert_allclose(records["a/y"].value, jnp.sin(2 * X), rtol=1e-6)


def test_one_closure_under_two_roots():
    model = Model(call)
    f = jax.jit(lambda x: model.blocks[0](x))
    for _ in range(2):
        assert list(sonde.capture(lambda m, x: f(x))(model, X)[1]) == ["blocks/0/mlp/y"]
        assert list(sonde.capture(lambda m, x: f(x))(model.blocks[0], X)[1]) == ["mlp/y"]
        assert list(sonde.capture(lambda m, x: f(x))(model.blocks, X)[1]) == ["0/mlp/y"]


def test_scopes_of_the_user():
    class Scoped(nnx.Module):
        def __init__(self):
            self.a = Leaf(1.0)

        def __call__(self, x):
            with sonde.scope("part"):
                return sonde.sow(self.a(x), "out") + jitted(self.a, x)

    class Two(nnx.Module):
        def __init__(self):
            self.s = Scoped()

        def __call__(self, x):
            with sonde.scope("two"):
                return jax.jit(lambda x: self.s(x))(x)

    _, records = sonde.capture(Two())(X)
    assert sorted(records) == ["s/a/y", "s/part/out"]
    assert len(records["s/a/y"].values) == 2

    def f(x):
        with sonde.scope("first"):
            y = Two()(x)
        with sonde.scope("second"):
            return jax.jit(lambda x: Two()(x))(y)

    _, records = sonde.capture(f)(X)
    assert sorted(records) == ["first/s/a/y", "first/s/part/out", "second/s/a/y", "second/s/part/out"]


def test_nested_captures_inside_a_model():
    class Looking(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block(1.0), Block(2.0)])

        def __call__(self, x):
            seen = []
            for block in self.blocks:
                x, records = sonde.capture(jitted)(block, x)
                seen.append(records)
            return x, seen

    (_, seen), records = sonde.capture(Looking())(X)
    assert [list(r) for r in seen] == [["mlp/y"], ["mlp/y"]]
    assert list(records) == ["blocks/0/mlp/y", "blocks/1/mlp/y"]


def test_gradients_and_edits_have_the_same_paths():
    model = Model(jitted)

    def loss(model, x):
        return jnp.sum(model(x) ** 2)

    _, records = sonde.capture(nnx.grad(loss), grads=True)(model, X)
    check(records)
    out = model(X)
    np.testing.assert_allclose(records["blocks/2/mlp/y"].grad, 2 * out, rtol=1e-5)
    zeros = sonde.edit(model, {"blocks/*/mlp/y": jnp.zeros_like})(X)
    np.testing.assert_allclose(zeros, X)


# ---------------------------------------------------------------------------------------------- structures


def test_structures_are_what_they_are_without_a_capture():
    model = Model(call)
    outside = {}

    def look(model, x):
        a, b = model.blocks[0], model.blocks[1]
        leaves, tree = jax.tree.flatten(a)
        paths, tree_with_path = jax.tree_util.tree_flatten_with_path(a)
        doubled = jax.tree.map(lambda p, q: p + q, a, b)
        keyed = jax.tree_util.tree_map_with_path(lambda path, p: p * len(path), a)
        transposed = jax.tree.transpose(
            jax.tree.structure(a), jax.tree.structure([0, 0]), jax.tree.map(lambda p: [p, p], a)
        )
        facts = {
            "structure": jax.tree.structure(a) == jax.tree.structure(b),
            "hash": hash(jax.tree.structure(a)) == hash(jax.tree.structure(b)),
            "set": len({jax.tree.structure(a), jax.tree.structure(b), outside.get("tree", jax.tree.structure(a))}),
            "with path": tree_with_path == tree == jax.tree.structure(b),
            "keys": [jax.tree_util.keystr(path) for path, _ in paths],
            "unflatten": jax.tree.structure(jax.tree.unflatten(tree, leaves)) == jax.tree.structure(b),
            "graphdef": nnx.graphdef(a) == nnx.graphdef(b) and hash(nnx.graphdef(a)) == hash(nnx.graphdef(b)),
            "not graphdef": nnx.graphdef(model) == nnx.graphdef(a),
            "split": nnx.split(a)[0] == nnx.split(b)[0],
            "leaves": len(jax.tree.leaves(a)),
            "all": bool(jax.tree.all(jax.tree.map(lambda p, q: p.shape == q.shape, a, b))),
            "reduce": jax.tree.reduce(lambda s, p: s + p.size, a, 0),
            "map": float(doubled.mlp.w[...]),
            "keyed": float(keyed.mlp.w[...]),
            "transposed": [float(t.mlp.w[...]) for t in transposed],
            "broadcast": jax.tree_util.tree_structure(jax.tree.broadcast(a, b)) == tree,
            "is None": jax.tree.structure(a) == jax.tree.structure(None),
            "repr": str(jax.tree.structure(a)) == str(jax.tree.structure(b)),
        }
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *model.blocks)
        x, _ = lax.scan(body, x, stacked)
        x = lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0], c[1] + 1), (a, 0))[0](x)
        x = lax.cond(True, lambda: a, lambda: b)(x)
        x = lax.fori_loop(0, 2, lambda i, m: jax.tree.map(lambda p: p + 1, m), a)(x)
        return facts, lax.scan(lambda m, _: (jax.tree.map(lambda p: p * 2, m), None), b, length=2)[0](x)

    plain, y = look(model, X)
    outside["tree"] = jax.tree.structure(model.blocks[0])
    assert plain["structure"] and plain["graphdef"] and plain["split"] and not plain["not graphdef"]
    for capture in (sonde.capture, lambda f: nnx.capture(f, nnx.Intermediate)):
        (facts, z), _ = capture(look)(model, X)
        assert facts == plain
        np.testing.assert_allclose(z, y, rtol=1e-6)


def test_stacked_layers_are_where_the_caller_has_them():
    class Stacking(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block(1.0), Block(2.0)])

        def __call__(self, x):
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.blocks)
            return lax.scan(body, x, stacked)[0]

    _, records = sonde.capture(Stacking())(X)
    assert len(records) == 1
    ((_, record),) = records.items()
    np.testing.assert_allclose(record.value, expected((1.0, 2.0)), rtol=1e-6)


def test_nothing_is_kept():
    def run():
        model = Model(jax.jit(lambda m, x: m(x)))
        f, g = jax.jit(lambda x: model(x)), nnx.jit(lambda m, x: m(x))
        sonde.capture(model)(X)
        sonde.capture(lambda x: f(x))(X)
        sonde.capture(lambda m, x: g(m, x))(model, X)
        nnx.capture(g, nnx.Intermediate)(model, X)
        return [weakref.ref(x) for x in (model, model.blocks[1], model.run, f, f.__wrapped__, g)]

    refs = run()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


def test_threads_have_their_own_paths():
    shared = jax.jit(call)
    models = [Model(shared), nnx.List([Model(shared)])]
    errors = []

    def work(model, f, prefix):
        try:
            for _ in range(3):
                check(sonde.capture(f)(model, X)[1], prefix=prefix)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(models[0], call, "")),
        threading.Thread(target=work, args=(models[1], lambda m, x: m[0](x), "0/")),
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


def test_after_an_error_inside_paths_are_right():
    class Failing(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block(1.0), Block(2.0)])

        def __call__(self, x):
            try:
                jitted(self.blocks[0], "no array")
            except TypeError:
                pass
            try:
                jax.jit(lambda m, x: m(x) @ jnp.ones(7))(self.blocks[0], x)
            except TypeError:
                pass
            return jitted(self.blocks[1], x)

    _, records = sonde.capture(Failing())(X)
    assert list(records) == ["blocks/1/mlp/y"]
