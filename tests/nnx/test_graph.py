import gc
import os
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import optax
import pytest

from sonde import errors, nnx
from sonde.nnx.graph_contexts import RefMap


def shared(nnx):
    class M(nnx.Module):
        def __init__(self):
            self.a = nnx.Param(jnp.ones(2))
            self.b = nnx.BatchStat(jnp.zeros(2))
            self.c = self.a
            self.arr = jnp.ones(3)
            self.sub = nnx.Dict(w=nnx.Param(3.0), n=1)
            self.same = self.sub

    return M()


def tree(nnx):
    return nnx.Dict(
        w=nnx.Param(jnp.ones(2), role="x"),
        layers=nnx.List([nnx.Dict(w=nnx.Param(float(i)), mean=nnx.BatchStat(0.0), n=i) for i in range(3)]),
        arr=jnp.ones(1),
        name="tree",
    )


MODELS = {
    "shared": shared,
    "tree": tree,
    "dict": lambda nnx: {"b": [nnx.Param(2), 3, jnp.ones(1)], "a": nnx.Param(1), "c": None},
    "tuple": lambda nnx: (tree(nnx), 5, jnp.ones(1)),
    "optax": lambda nnx: optax.adam(1e-3).init({"k": jnp.ones(2)}),
    "state": lambda nnx: {"s": nnx.state(tree(nnx))},
    "variable": lambda nnx: nnx.Param(jnp.ones(1)),
    "array": lambda nnx: jnp.ones(1),
    "number": lambda nnx: 3,
}


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_split_and_merge(same, name, graph):
    same(lambda nnx: nnx.split(MODELS[name](nnx), graph=graph)[1])
    same(lambda nnx: nnx.merge(*nnx.split(MODELS[name](nnx), graph=graph)))
    same(lambda nnx: nnx.clone(MODELS[name](nnx), graph=graph))
    same(lambda nnx: nnx.graphdef(MODELS[name](nnx), graph=graph) == nnx.graphdef(MODELS[name](nnx), graph=graph))


@pytest.mark.parametrize("filters", [("Param", ...), ("Param",), ("BatchStat", "Param", ...), (..., "Param"), (...,)])
def test_split_by_filters(same, filters):
    def by(nnx):
        return [getattr(nnx, f) if isinstance(f, str) else f for f in filters]

    for model in (tree, shared):
        same(lambda nnx: nnx.split(model(nnx), *by(nnx))[1:])
        same(lambda nnx: nnx.state(model(nnx), *by(nnx)))
        same(lambda nnx: nnx.merge(*nnx.split(model(nnx), *by(nnx))))
        same(lambda nnx: nnx.pop(model(nnx), *by(nnx)))


def test_identities(same):
    def use(nnx):
        m = shared(nnx)
        graphdef, state = nnx.split(m)
        merged, copy, cloned = nnx.merge(graphdef, state), nnx.merge(graphdef, state, copy=True), nnx.clone(m)
        return (
            state["a"] is m.a,
            merged.a is m.a,
            merged.a is merged.c,
            merged.sub is merged.same,
            copy.a is m.a,
            cloned.a is m.a,
            cloned.a is cloned.c,
            cloned.a[...] is m.a[...],
            nnx.clone(m, variables=False).a is m.a,
            nnx.clone(m, arrays=True).a[...] is m.a[...],
        )

    same(use)
    same(lambda nnx: nnx.clone(shared(nnx), variables=False, arrays=True))


def test_graphdef_is_hashable_and_a_static_pytree():
    a, b = nnx.graphdef(tree(nnx)), nnx.graphdef(tree(nnx))
    assert a == b and hash(a) == hash(b) and jax.tree.leaves(a) == []
    assert a != nnx.graphdef(shared(nnx))
    hash(nnx.graphdef(nnx.Dict(sizes=[1, 2])))  # a static list does not get in the way
    assert nnx.graphdef(nnx.Dict(n=1)) != nnx.graphdef(nnx.Dict(n=2))
    assert a.type is nnx.Dict and a.num_leaves == 8

    @jax.jit
    def f(graphdef, state):
        return nnx.merge(graphdef, state).w.sum()

    assert f(*nnx.split(tree(nnx))) == 2


BAD_MERGES = {
    "missing": lambda nnx, g, s: nnx.merge(g, nnx.State({"a": s["a"]})),
    "extra": lambda nnx, g, s: nnx.merge(g, s, nnx.State({"zz": s["a"]})),
    "twice": lambda nnx, g, s: nnx.merge(g, s, s),
    "none": lambda nnx, g, s: nnx.merge(g),
    "pure": lambda nnx, g, s: nnx.merge(g, nnx.as_pure(s)),
    "dict": lambda nnx, g, s: nnx.merge(g, nnx.to_pure_dict(s)),
    "flat": lambda nnx, g, s: nnx.merge(g, nnx.to_flat_state(s)),
    "other types": lambda nnx, g, s: nnx.merge(g, nnx.map_state(lambda p, x: nnx.Cache(1), s)),
}


@pytest.mark.parametrize("name", BAD_MERGES)
def test_merging_what_fits_or_not(same, name):
    same(lambda nnx: BAD_MERGES[name](nnx, *nnx.split(shared(nnx))))


def test_a_bad_merge_names_the_paths():
    graphdef, state = nnx.split(tree(nnx))
    del state["layers"][1]["w"]
    state["layers"]["extra"] = nnx.Param(1)
    with pytest.raises(ValueError, match=r"missing: layers/1/w; not expected: layers/extra"):
        nnx.merge(graphdef, state)
    with pytest.raises(ValueError, match="the graphdef has 8 leaves, and 2 are given"):
        nnx.unflatten(graphdef, [1, 2])


UPDATES = {
    "array": lambda nnx: {"a": jnp.zeros(2)},
    "variable": lambda nnx: {"a": nnx.Param(jnp.zeros(2), k=1)},
    "other type": lambda nnx: {"a": nnx.BatchStat(7)},
    "alias": lambda nnx: {"c": nnx.Param(7)},
    "plain attribute": lambda nnx: {"arr": jnp.zeros(2)},
    "nested": lambda nnx: {"sub": {"w": 5}},
    "new": lambda nnx: {"new": nnx.Param(1)},
    "new static": lambda nnx: {"zz": 3},
    "dict into variable": lambda nnx: {"a": {"x": 1}},
    "state": lambda nnx: nnx.map_state(lambda p, x: x * 3, nnx.state(shared(nnx))),
}


@pytest.mark.parametrize("name", UPDATES)
def test_update(same, name):
    def use(nnx):
        m = shared(nnx)
        before = m.a
        nnx.update(m, UPDATES[name](nnx))
        return m, m.a is before, m.a is m.c

    same(use)


def test_an_update_that_fails_changes_nothing():
    m = tree(nnx)
    m.pair = nnx.data((jnp.ones(1), nnx.Param(1.0)))
    nnx.update(m, {"pair": {1: 5.0}})
    assert m.pair[1].get_value() == 5.0
    with pytest.raises(ValueError, match="Cannot update pair/0: its parent is a tuple"):
        nnx.update(m, {"w": jnp.zeros(2), "pair": {0: jnp.zeros(1)}})
    assert m.w.sum() == 2

    def inside(x):
        nnx.update(m, {"w": x})

    with pytest.raises(errors.TraceContextError):
        jax.jit(inside)(jnp.zeros(2))
    assert m.w.sum() == 2


def test_pop_removes_every_reference():
    m = shared(nnx)
    popped = nnx.pop(m, nnx.Param)
    assert nnx.to_flat_state(popped).paths == (("a",), ("same", "w"))
    assert not hasattr(m, "a") and not hasattr(m, "c")
    nnx.pop(l := nnx.List([nnx.Param(1), nnx.BatchStat(2), nnx.Param(3)]), nnx.Param)
    assert len(l) == 1 and isinstance(l[0], nnx.BatchStat)
    with pytest.raises(ValueError, match="at least one filter"):
        nnx.pop(m)
    with pytest.raises(ValueError, match="out of a tuple"):
        nnx.pop((nnx.Param(1),), nnx.Param)


@pytest.mark.parametrize("name", ["split", "state", "clone", "graphdef", "iter_graph", "iter_modules", "flatten"])
def test_trees_have_no_aliases(same, name):
    use = lambda nnx: list(getattr(nnx, name)(shared(nnx), graph=False))
    assert same(use) == ("raised", "ValueError")
    with pytest.raises(ValueError, match=rf"Duplicate Param found at paths:\n\n  - a\n  - c\n\nnnx\.{name} was asked"):
        use(nnx)


def test_an_object_that_contains_itself():
    m = nnx.Dict(w=nnx.Param(1.0))
    m.me = m
    merged = nnx.merge(*nnx.split(m))
    assert merged.me is merged and merged is not m
    with pytest.raises(ValueError, match="Duplicate Dict"):
        nnx.split(m, graph=False)
    endless = nnx.Dict(x=nnx.data([]))
    endless.x.append(endless.x)
    with pytest.raises(ValueError, match="Duplicate list"):
        nnx.split(endless)


def test_iteration(same):
    def paths(nnx, **options):
        mine = [(p, type(v).__name__) for p, v in nnx.iter_graph(tree(nnx), **options)]
        return [x for x in mine if not any(str(k).startswith("_") for k in x[0])]

    same(paths)
    same(lambda nnx: paths(nnx, graph=False))
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(shared(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx), graph=False)])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_module_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in tree(nnx).iter_children()])
    same(lambda nnx: [p for p, m in tree(nnx).iter_modules()])


def test_duplicates(same):
    same(lambda nnx: nnx.find_duplicates(shared(nnx)))
    same(lambda nnx: nnx.find_duplicates(shared(nnx), only=nnx.Module))
    same(lambda nnx: nnx.find_duplicates(tree(nnx)))


def test_mapping(same):
    same(lambda nnx: nnx.map(lambda path, x: x * 2, shared(nnx)))
    same(lambda nnx: nnx.map(lambda path, x: x * 2, tree(nnx), graph=False))
    same(lambda nnx: nnx.map(lambda path, x: path, tree(nnx), recreate_variables=False).w)

    def recursive(nnx, **options):
        seen = []

        def f(path, value):
            if not any(str(k).startswith("_") for k in path):
                seen.append((path, type(value).__name__))
            return value

        m = tree(nnx)
        out = nnx.recursive_map(f, m, **options)
        return seen, out is m, out.w is m.w

    same(recursive)
    same(lambda nnx: recursive(nnx, graph=False))


def test_pure(same):
    same(lambda nnx: nnx.as_pure(nnx.state(tree(nnx))))
    same(lambda nnx: nnx.as_pure(shared(nnx)).a)
    same(lambda nnx: nnx.pure({"x": nnx.Param(1)}))


def test_set_metadata_and_with_vars(same):
    def use(nnx):
        m = tree(nnx)
        nnx.set_metadata(m, frozen=True, only=nnx.BatchStat)
        nnx.set_metadata(m, seen=1)
        other = nnx.with_vars(m)
        return m, other, other.w is m.w

    same(use)


def test_flatten_with_common_references():
    a, b = nnx.Param(1.0), nnx.Param(2.0)
    seen, known = RefMap(), {}
    first, second = nnx.flatten(nnx.Dict(x=a, y=b), ref_index=seen), nnx.flatten(nnx.Dict(z=a), ref_index=seen)
    assert list(second[1]) == []
    one, two = nnx.unflatten(*first, index_ref=known), nnx.unflatten(*second, index_ref=known)
    assert one.x is two.z
    assert nnx.flatten(nnx.Dict(x=a), with_paths=False)[1][0] is a


def test_trees_with_shared_references():
    m = shared(nnx)
    one, two, n = nnx.from_tree(nnx.to_tree((m, m, 3)))
    assert one is two and one is not m and one.a is m.a and n == 3
    doubled = nnx.from_tree(jax.tree.map(lambda x: x * 2, nnx.to_tree((m, m.sub))))
    assert doubled[0].sub is doubled[1] and doubled[0].a.sum() == 4


def test_prefix(same):
    same(lambda nnx: nnx.prefix({"a": nnx.Param(1), "b": nnx.BatchStat(2)}, {nnx.Param: 0, ...: None}, graph=False))
    axes = nnx.prefix(tree(nnx), {nnx.Param: 0, ...: 1})
    assert jax.tree.leaves(axes) == [1, 1, 0, 1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"arr \(ArrayImpl\) is matched by no filter"):
        nnx.prefix(tree(nnx), {nnx.Variable: 0}, graph=False)


def test_unpack(same):
    def use(nnx):
        params, rest = nnx.unpack(tree(nnx), nnx.Param, ...)
        return nnx.merge(params, rest), nnx.merge(nnx.unpack(tree(nnx))), list(params)

    same(use)


def test_call(same):
    def use(nnx):
        class Counter(nnx.Module):
            def __init__(self):
                self.n = nnx.Variable(jnp.array(0))

            def __call__(self, x):
                self.n[...] += x
                return self.n + 0

        pure = nnx.split(Counter())
        for _ in range(2):
            out, pure = jax.jit(lambda p: nnx.call(p)(2))(pure)
        nested = nnx.split(nnx.Dict(a=Counter()))
        return out, nnx.merge(*pure).n, nnx.call(nested).a(5)[0], nnx.call(nnx.split(nnx.Dict(a=Counter())))["a"](1)[0]

    same(use)


def test_graph_mode():
    m = shared(nnx)
    with nnx.set_graph_mode(False):
        with pytest.raises(ValueError, match="Duplicate Param"):
            nnx.split(m)
        with nnx.set_graph_mode(True):
            nnx.split(m)
        nnx.split(m, graph=True)
    nnx.split(m)
    assert nnx.set_graph_mode.current_value() is True
    nnx.set_graph_mode(False)
    try:
        assert nnx.set_graph_mode.current_value() is False
    finally:
        nnx.set_graph_mode(True)


@pytest.mark.parametrize("name", ["set_graph_mode", "set_graph_updates"])
def test_settings_hold_for_a_block_a_function_or_for_good(same, name):
    def use(n):
        setting = getattr(n, name)

        @setting(False)
        def nested(depth):
            return (setting.current_value(), *(nested(depth - 1) if depth else ()))

        with setting(True):  # the state that the test runs in does not count
            inside = nested(2)
            after = setting.current_value()
            with setting(False):
                block = setting.current_value()
        before = setting.current_value()
        setting(not before)
        changed = setting.current_value()
        setting(before)
        return inside, after, block, changed is not before

    same(use)
    with pytest.raises(TypeError, match="takes True or False, got 3"):
        getattr(nnx, name)(3)


def test_graph_mode_from_the_environment():
    program = "from sonde import nnx; print(nnx.set_graph_mode.current_value())"
    for text, expected in (("false", "False"), ("true", "True")):
        env = {**os.environ, "NNX_GRAPH_MODE": text, "JAX_PLATFORMS": "cpu"}
        assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True).strip() == expected


def test_paths_and_keys_move_to_flax_and_back(same):
    """A state of one implementation, as a pure dict, fits the other."""
    from flax import nnx as flax

    ours, theirs = tree(nnx), tree(flax)
    state = flax.state(theirs)
    flax.replace_by_pure_dict(state, jax.tree.map(lambda x: x + 1, nnx.to_pure_dict(nnx.state(ours))))
    back = nnx.state(ours)
    nnx.replace_by_pure_dict(back, flax.to_pure_dict(state))
    nnx.update(ours, back)
    assert ours.w.tolist() == [2, 2] and ours.layers[2].w.get_value() == 3.0


@pytest.mark.parametrize(
    "use",
    [
        lambda model: nnx.merge(*nnx.split(model)),
        lambda model: nnx.update(model, nnx.to_pure_dict(nnx.state(model))),
        lambda model: nnx.merge(*nnx.split(model, nnx.Param, ...)),
        lambda model: nnx.map(lambda path, leaf: leaf, model),
        lambda model: list(nnx.iter_graph(model)),
        lambda model: nnx.to_flat_state(nnx.state(model)),
        lambda model: nnx.traversals.flatten_mapping(nnx.state(model)),
        lambda model: nnx.find_duplicates(model),
        lambda model: nnx.clone(model),
        lambda model: nnx.jit(lambda m: m.w[...] + 1)(model),
    ],
)
def test_nothing_keeps_a_model_until_garbage_is_collected(use):
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), inner=nnx.Dict(a=nnx.BatchStat(jnp.zeros(1)), b=nnx.List([1, 2])))
    use(model)  # what is kept for the next call, such as a compiled function, is made by the first
    gc.collect()
    gc.disable()
    try:
        model = nnx.Dict(
            w=nnx.Param(jnp.ones(2)), inner=nnx.Dict(a=nnx.BatchStat(jnp.zeros(1)), items=nnx.List([1, 2]))
        )
        seen = [weakref.ref(model), weakref.ref(model.inner)]
        use(model)
        del model
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
