"""The structure epoch, and the walk that can tell whether it would find the same again."""

import threading

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx._epoch import EPOCH
from sonde.nnx._walk import walk


def model():
    return nnx.Dict(
        w=nnx.Param(jnp.ones(2)),
        layers=nnx.List([nnx.Dict(w=nnx.Param(1.0), n=1)]),
        loose=nnx.data([nnx.Param(1.0), {"a": nnx.Param(2.0)}]),
        state=nnx.data(nnx.State({"x": {"y": nnx.Param(3.0)}})),
    )


CHANGES = {
    "attribute": lambda m: setattr(m, "n", 2),
    "same attribute again": lambda m: setattr(m.layers[0], "n", 1),
    "variable replaced": lambda m: setattr(m.layers[0], "w", nnx.Param(1.0)),
    "attribute deleted": lambda m: delattr(m.layers[0], "n"),
    "item appended": lambda m: m.layers.append(nnx.Param(1.0)),
    "item set": lambda m: m.layers.__setitem__(0, nnx.Dict(w=nnx.Param(1.0), n=1)),
    "item removed": lambda m: m.layers.pop(),
    "metadata": lambda m: m.w.set_metadata(a=1),
    "metadata by state": lambda m: m.w.update_from_state(nnx.Param(jnp.ones(2), a=1)),
    "plain list": lambda m: m.loose.__setitem__(0, nnx.Param(1.0)),
    "plain list longer": lambda m: m.loose.append(nnx.Param(1.0)),
    "plain dict": lambda m: m.loose[1].__setitem__("a", nnx.Param(2.0)),
    "state": lambda m: m.state["x"].__setitem__("y", nnx.Param(3.0)),
    "state longer": lambda m: m.state.__setitem__("z", nnx.Param(3.0)),
    "item of a state deleted": lambda m: m.state.__delitem__("x"),
}


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name, graph):
    m = model()
    found = walk(m, graph=graph, who="test").watch()
    assert found.unchanged()
    CHANGES[name](m)
    assert not found.unchanged()


def test_values_may_change():
    m = model()
    found = walk(m, graph=True, who="test").watch()
    before = EPOCH.value
    m.w[...] = jnp.zeros(2)
    m.layers[0].w.set_value(5.0)
    nnx.update(m, nnx.state(m))
    assert EPOCH.value == before and found.unchanged()


def test_foreign_changes_move_the_epoch_and_not_the_answer():
    m = model()
    found = walk(m, graph=True, who="test").watch()
    nnx.Dict(a=1)
    assert EPOCH.value > found.epoch
    assert found.unchanged() and found.epoch == EPOCH.value


def test_numbers_are_never_used_twice():
    seen: list[int] = []

    def work():
        d = nnx.Dict()
        for i in range(300):
            d.x = i
            seen.append(d._stamp)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == len(seen)


def test_layouts_are_shared():
    a, b = nnx.Dict(x=1, w=nnx.Param(1)), nnx.Dict(w=nnx.Param(2), x=2)
    assert a._layout is b._layout
    assert nnx.List([1, nnx.Param(2)])._structure()[0] is nnx.List([3, nnx.Param(4)])._structure()[0]
