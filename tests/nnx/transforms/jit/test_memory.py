import gc
import weakref

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.transforms.jit import compiled
from sonde.nnx.transforms.jit.memory import KNOWN_STRUCTURES


@pytest.fixture
def watched(monkeypatch):
    """`nnx.jit`, and the memory of what it last made."""
    made = []

    class Kept(compiled._Compiler):
        def __init__(self, options):
            super().__init__(options)
            made.append(self)

    monkeypatch.setattr(compiled, "_Compiler", Kept)

    def make(f, **options):
        jitted = nnx.jit(f, **options)
        return jitted, made[-1].memory

    return make


def model():
    return nnx.Dict(a=nnx.Param(jnp.ones(2)), b=nnx.List([nnx.Param(jnp.zeros(2))]), n=1)


def test_a_changed_model_has_a_plan_for_each_structure_it_had(watched):
    f, memory = watched(lambda m: m.a * m.n)
    m = model()
    for n in (1, 2, 1, 2, *range(3, 10)):
        m.n = n
        assert float(f(m)[0]) == n
    (entry,) = memory.plans.values()
    assert len(entry[1]) == KNOWN_STRUCTURES


def test_a_replaced_variable_goes_into_the_plan(watched):
    f, memory = watched(lambda m: m.a + m.b[0])
    m = model()
    f(m)
    plan = memory.last.plan
    m.b[0] = nnx.Param(jnp.full(2, 5.0))
    assert float(f(m)[0]) == 6.0 and memory.last.plan is plan
    m.b[0] = m.a  # now it is shared: another structure
    assert float(f(m)[0]) == 2.0 and memory.last.plan is not plan


def test_plans_keep_no_model_alive(watched):
    f, memory = watched(lambda m: m.a[...])
    m = model()
    f(m)
    ref = weakref.ref(m)
    del m
    gc.collect()
    assert ref() is None and not memory.plans and memory.last is None


def test_containers_among_the_data_are_looked_at_every_time(watched):
    f, memory = watched(lambda m: m.x[0] * 1)
    held = [nnx.Param(jnp.ones(()))]
    m = nnx.Dict(x=nnx.data(held))
    assert float(f(m)) == 1.0 and memory.last is None
    held[0] = nnx.Param(jnp.full((), 4.0))
    assert float(f(m)) == 4.0


def test_a_plan_holds_while_the_attributes_are_the_same_objects(watched):
    f, memory = watched(lambda m: m.a * m.n - m.b)
    m = nnx.Dict(a=nnx.Param(jnp.full(2, 3.0)), b=nnx.Param(jnp.zeros(2)), n=1)
    assert float(f(m)[0]) == 3.0
    plan = memory.last.plan
    m.n, m.n = 2, 1  # and back
    assert float(f(m)[0]) == 3.0 and memory.last.plan is plan
    a = m.a
    del m.a
    m.a = a  # the last attribute now
    assert float(f(m)[0]) == 3.0 and memory.last.plan is plan
    m.a, m.b = m.b, m.a  # the same objects under each other's names
    assert float(f(m)[0]) == -3.0 and memory.last.plan is not plan
    m.part = nnx.Dict(c=2)
    assert float(f(m)[0]) == -3.0
    plan, m.part = memory.last.plan, nnx.Dict(c=3)  # a new object, whatever its address
    assert float(f(m)[0]) == -3.0 and memory.last.plan is not plan
