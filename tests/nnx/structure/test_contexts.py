"""Several objects as one graph, and changed graphs brought back to their objects: the same as Flax."""

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.contexts import IndexMap, RefMap
from sonde.nnx.structure.split_merge import flatten, unflatten


def test_split_and_merge_share(same):
    def use(n):
        inner = n.Dict(w=n.Param(jnp.ones(2)), k=3)
        outer = n.Dict(a=inner, b=n.List([inner.w]))
        with n.split_context() as ctx:
            first = ctx.split(outer, n.Param, ...)
            second = ctx.split(inner, n.Param, ...)
        sizes = [len(n.to_flat_state(s)) for s in (*first[1:], *second[1:])]
        with n.merge_context() as ctx:
            x, y = ctx.merge(*first), ctx.merge(*second)
        return sizes, x.a is y, x.b[0] is y.w, n.state(x)

    same(use)


def swap(n, m):
    m.a, m.b = m.b, m.a


def cycle(n, m):
    m.me = m
    m.a.w[...] += 1


def nest(n, m):
    m.b = n.Dict(inner=m.a, new=n.Param(jnp.zeros(1)))
    del m.a
    m.flag = "text"


def drop(n, m):
    del m.a


@pytest.mark.parametrize("change", [swap, cycle, nest, drop], ids=lambda f: f.__name__)
def test_changes_come_back(same, change):
    def use(n):
        m = n.Dict(a=n.Dict(w=n.Param(jnp.ones(2))), b=n.Dict(w=n.Param(jnp.zeros(3)), k=1))
        a, b, w = m.a, m.b, m.a.w
        with n.update_context("test"):
            with n.split_context("test") as ctx:
                parts = ctx.split(m)

            @jax.jit
            def inside(graphdef, state):
                with n.merge_context("test", True) as ctx:
                    copy = ctx.merge(graphdef, state)
                change(n, copy)
                with n.split_context("test") as ctx:
                    return ctx.split(copy)

            parts = inside(*parts)
            with n.merge_context("test", False) as ctx:
                out = ctx.merge(*parts)
        where = {k: [v is a, v is b, v is m] for k, v in m.items() if isinstance(v, n.Module)}
        return out is m, where, m.get("flag"), w[...], a.w is w

    same(use)


def test_contexts_must_be_open():
    with pytest.raises(ValueError, match="No update context is open for 'x'"), nnx.split_context("x"):
        pass
    with pytest.raises(ValueError, match="takes both ctxtag and inner, or neither"), nnx.merge_context("x"):
        pass
    with nnx.update_context("x") as context:
        assert nnx.current_update_context("x") is context


def test_maps_by_identity():
    a, b = nnx.Param(1.0), nnx.Param(1.0)
    refs = RefMap([(a, 0), (b, 1)])
    assert refs[a] == 0 and refs[b] == 1 and nnx.Param(1.0) not in refs and len(refs) == 2
    assert list(IndexMap.from_refmap(refs)) == [0, 1] and RefMap.from_indexmap({5: a})[a] == 5
    del refs[a]
    assert list(refs) == [b]


def test_flatten_and_unflatten_onto_objects():
    m = nnx.Dict(a=nnx.Dict(w=nnx.Param(1.0)), b=nnx.Dict())
    a, b, refs = m.a, m.b, RefMap()
    graphdef, state = flatten(m, ref_index=refs)
    inside = IndexMap()
    copy = unflatten(graphdef, state, index_ref=inside)
    copy.a, copy.b = copy.b, copy.a
    graphdef, state = flatten(copy, ref_index=RefMap(), ref_outer_index=RefMap.from_indexmap(inside))
    assert unflatten(graphdef, state, outer_index_outer_ref=IndexMap.from_refmap(refs)) is m
    assert m.a is b and m.b is a
