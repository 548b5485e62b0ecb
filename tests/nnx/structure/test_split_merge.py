import gc
import weakref

import jax.numpy as jnp
import optax
import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx
from sonde.nnx.structure.contexts import RefMap

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
    with pytest.raises(ValueError, match="the graphdef has 8 leaves, but 2 were given"):
        nnx.unflatten(graphdef, [1, 2])


def test_pop_of_lists_and_what_it_refuses():
    nnx.pop(l := nnx.List([nnx.Param(1), nnx.BatchStat(2), nnx.Param(jnp.ones(1)), nnx.Param(3)]), nnx.Param)
    assert len(l) == 1 and isinstance(l[0], nnx.BatchStat)
    with pytest.raises(ValueError, match="at least one filter"):
        nnx.pop(l)
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


def test_pure(same):
    same(lambda nnx: nnx.as_pure(nnx.state(tree(nnx))))
    same(lambda nnx: nnx.as_pure(shared(nnx)).a)
    same(lambda nnx: nnx.pure({"x": nnx.Param(1)}))


def test_flatten_with_common_references():
    a, b = nnx.Param(1.0), nnx.Param(2.0)
    seen, known = RefMap(), {}
    first, second = nnx.flatten(nnx.Dict(x=a, y=b), ref_index=seen), nnx.flatten(nnx.Dict(z=a), ref_index=seen)
    assert list(second[1]) == []
    one, two = nnx.unflatten(*first, index_ref=known), nnx.unflatten(*second, index_ref=known)
    assert one.x is two.z
    assert nnx.flatten(nnx.Dict(x=a), with_paths=False)[1][0] is a


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
