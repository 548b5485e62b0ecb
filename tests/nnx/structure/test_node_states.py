"""Objects in pytrees as states, and transforms built from both conversions; compared with Flax."""

import importlib

import jax
import jax.numpy as jnp
import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_objects_come_back_shared_and_with_variables_of_their_own(same):
    def there_and_back(nnx):
        m = nnx.Dict(w=nnx.Param(jnp.float32(1)), n=2)
        one, two, plain = nnx.from_tree(nnx.to_tree((m, [m], 3)))
        one.w[...] += 1
        return one is two[0], one is m, one.w is m.w, float(m.w[...]), plain

    assert same(there_and_back)[:4] == (True, False, False, 1.0)
    doubled = nnx.from_tree(jax.tree.map(lambda x: x * 2, nnx.to_tree((shared(nnx), 1))))
    assert doubled[0].a.sum() == 4 and doubled[1] == 2


def test_a_second_one_has_no_leaves():
    model = tree(nnx)
    first, second, plain = nnx.to_tree((model, [model], 2.5))
    assert [leaf for _, leaf in nnx.to_flat_state(first.state)] == [
        leaf for _, leaf in nnx.to_flat_state(nnx.state(model))
    ]
    assert not nnx.to_flat_state(second[0].state) and plain == 2.5


def test_paths_of_leaves_are_keys(same):
    def keys(nnx):
        tree = nnx.to_tree({"m": nnx.Dict(a=nnx.Dict(w=nnx.Param(1.0)))})
        return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]

    assert same(keys) == ["['m'].states[0]['a']['w'].value"]


def test_a_variable_that_is_alone():
    w = nnx.Param(2.0)
    one, two = nnx.from_tree(nnx.to_tree((w, w)))
    assert one is two and one.get_value() == 2.0


def test_functions_that_split_and_merge_get_paths_and_prefixes(same):
    def run(nnx):
        met = []

        def split(context, path, prefix, x):
            met.append((jax.tree_util.keystr(path), prefix))
            return nnx.NodeStates.from_split(*context.split(x, nnx.Param, ...)) if not isinstance(x, int) else -x

        def merge(context, path, prefix, x):
            met.append((jax.tree_util.keystr(path), prefix))
            return context.merge(x.graphdef, *x.states) if isinstance(x, nnx.NodeStates) else x

        value = {"m": nnx.Dict(a=nnx.Param(jnp.ones(2)), b=nnx.BatchStat(jnp.float32(2))), "n": 3}
        pure = nnx.to_tree(value, prefix={"m": 0, "n": None}, split_fn=split, map_non_graph_nodes=True)
        met.append([len(jax.tree.leaves(state)) for state in pure["m"].states])
        back = nnx.from_tree(pure, prefix=1, merge_fn=merge, map_non_graph_nodes=True)
        nnx.to_tree(value, split_fn=lambda context, path, prefix, x: met.append(type(x).__name__))
        return met, back["n"], float(back["m"].b[...])

    assert same(run)[1:] == (-3, 2.0)


def test_a_shared_variable_has_one_prefix(same):
    def run(nnx, prefix):
        m = nnx.Dict(w=nnx.Param(1.0), b=nnx.BatchStat(1.0))
        return len(jax.tree.leaves(nnx.to_tree((m, 1, {"b": m}), prefix=prefix)))

    assert same(lambda nnx: run(nnx, (0, None, 0))) == 3
    assert same(lambda nnx: run(nnx, (0, None, 1))) == ("raised", "ValueError")
    axes = nnx.StateAxes({nnx.Param: 0, ...: None}), nnx.StateAxes({nnx.Param: 1, ...: None})
    with pytest.raises(ValueError, match=r"the Param at \[0\]\.w is also at \[2\]\['b'\]\.w.* 0 .* 1 "):
        run(nnx, (axes[0], None, axes[1]))
    m = nnx.Dict(w=nnx.Param(1.0))
    assert len(jax.tree.leaves(nnx.to_tree((m, m), prefix=(0, 1), check_aliasing=False))) == 1


def test_a_transform_by_hand_with_an_axis_for_each_state(same):
    def run(nnx):
        m = nnx.Dict(w=nnx.Param(jnp.float32(2)), n=nnx.BatchStat(jnp.arange(3.0)))
        axes = nnx.NodeStates.from_prefixes((None, 0))

        def split(context, path, prefix, x):
            return nnx.NodeStates.from_split(*context.split(x, nnx.Param, ...))

        def inside(pure, x):
            (model,) = nnx.from_tree((pure,), ctxtag="t", is_inner=True)
            model.n[...] += x * model.w
            return nnx.to_tree(model, ctxtag="t", split_fn=split)

        with nnx.update_context("t"):
            pure = nnx.to_tree(m, ctxtag="t", split_fn=split)
            out = jax.vmap(inside, in_axes=(axes, 0), out_axes=axes)(pure, jnp.ones(3))
            back = nnx.from_tree(out, ctxtag="t", is_inner=False)
        return back is m, m.n[...].tolist()

    assert same(run) == (True, [2.0, 3.0, 4.0])


def test_what_is_asked_of_states_alone():
    alone = nnx.NodeStates.from_states(1, 2)
    with pytest.raises(ValueError, match="has no graphdef"):
        _ = alone.graphdef
    with pytest.raises(ValueError, match="2 states"):
        _ = alone.state
    assert "(1, 2)" in repr(alone)
    with pytest.raises(ValueError, match="needs is_inner"):
        nnx.from_tree(alone, ctxtag="t")
    with pytest.raises(ValueError, match="No update context is open"):
        nnx.to_tree(nnx.Dict(), ctxtag="t")


def test_split_inputs_and_merge_inputs(same):
    def run(nnx):
        general = importlib.import_module(f"{nnx.__name__}.transforms.general")
        counter = nnx.Dict(n=nnx.BatchStat(jnp.array(0)))

        @general.merge_inputs(ctxtag="mine")
        def more(counter, by):
            counter.n[...] += by
            return counter

        none = general.merge_inputs(lambda counter, by: counter, ctxtag="mine")
        chosen = general.split_inputs(jax.lax.cond, ctxtag="mine")
        found = [chosen(which, more, none, counter, 2) is counter for which in (True, False)]
        jitted = general.split_inputs(ctxtag="mine")(jax.jit(more))
        return found, jitted(counter, 3) is counter, int(counter.n[...])

    assert same(run)[1:] == (True, 5)
