"""The structure epoch: `nnx.jit` sees every change of structure, announced or not."""

import threading

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.epoch import EPOCH, EXPOSED


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


HIDDEN = {
    "vars": lambda m: vars(m).update(n=3),
    "__dict__": lambda m: m.layers[0].__dict__.__setitem__("n", 4),
    "variable": lambda m: vars(m).update(w=nnx.Param(jnp.full(2, 7.0))),
}


def seen(m):
    """What a function sees of a model: values, and static attributes."""
    static = [getattr(x, "n", None) for x in (m, *m.layers)]
    return nnx.to_pure_dict(nnx.state(m)), [-1 if n is None else n for n in static], sorted(m.w.get_metadata())


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", [*CHANGES, *HIDDEN])
def test_nnx_jit_sees_changes(name, graph):
    m, names = model(), []

    @nnx.jit(graph=graph)
    def f(m):
        values, static, metadata = seen(m)
        names[:] = metadata
        return values, static

    f(m)
    f(m)
    {**CHANGES, **HIDDEN}[name](m)
    for _ in range(2):
        expected = seen(m)
        same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), f(m), expected[:2])
        assert all(jax.tree.leaves(same))
        assert names == expected[2] or "metadata" not in name


def test_attributes_that_were_handed_out_are_compared_at_every_call():
    m = nnx.Dict(sub=nnx.Dict(n=1))
    f = nnx.jit(lambda m: m.sub.n * jnp.ones(()))
    held = vars(m.sub)
    for n in (1, 2, 2, 3, 1):
        held["n"] = n
        assert float(f(m)) == n


def test_values_do_not_move_the_epoch():
    m = model()
    before = EPOCH.value
    m.w[...] = jnp.zeros(2)
    m.layers[0].w.set_value(5.0)
    nnx.update(m, nnx.state(m))
    assert EPOCH.value == before


def test_showing_a_model_does_not_hand_out_its_attributes():
    m = model()
    repr(m), dir(m), nnx.clone(m), nnx.split(m), m.w, list(m)
    assert id(m) not in EXPOSED
    vars(m)
    assert id(m) in EXPOSED


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
