"""`nnx.jit` stays right whatever happens to the objects between two calls, and remembers no more than it may."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.transforms.traces import Model, traced

from sonde import nnx
from sonde.nnx.transforms.jit import compiled


def test_one_trace_for_many_calls_and_for_models_of_one_structure():
    f, traces = traced()
    models = [Model(start=float(i)) for i in range(3)]
    for i, model in enumerate(models):
        for _ in range(3):
            assert float(f(model, 1.0)) == (i + 1) * 4
    assert [int(m.count) for m in models] == [3, 3, 3]
    assert len(traces) == 1


def test_new_values_are_seen():
    f, traces = traced()
    model = Model()
    f(model, 1.0)
    model.w[...] = 10.0
    model.layers[0].w.value = jnp.array(3.0)
    assert float(f(model, 1.0)) == 10 * 2 * 3 * 2
    assert len(traces) == 1


CHANGES = {
    "static attribute": (lambda m: setattr(m, "scale", 3.0), 1 * 3 * 1 * 2),
    "another Variable": (lambda m: setattr(m, "w", nnx.Param(jnp.array(5.0))), 5 * 2 * 1 * 2),
    "another Variable below": (lambda m: setattr(m.layers[1], "w", nnx.Param(jnp.array(5.0))), 1 * 2 * 1 * 5),
    "another type of Variable": (lambda m: setattr(m, "w", nnx.BatchStat(jnp.array(5.0))), 5 * 2 * 1 * 2),
    "list grows": (lambda m: m.layers.append(nnx.Dict(w=nnx.Param(jnp.array(7.0)))), 1 * 2 * 1 * 2 * 7),
    "list shrinks": (lambda m: m.layers.pop(), 1 * 2 * 1),
    "list item": (lambda m: m.layers.__setitem__(0, nnx.Dict(w=nnx.Param(jnp.array(7.0)))), 1 * 2 * 7 * 2),
    "another submodule": (lambda m: setattr(m, "layers", nnx.List([])), 1 * 2),
    "sharing": (lambda m: setattr(m.layers[0], "w", m.layers[1].w), 1 * 2 * 2 * 2),
    "an array for a Variable": (lambda m: setattr(m, "w", jnp.array(5.0)), 5 * 2 * 1 * 2),
    "new attribute": (lambda m: setattr(m, "other", nnx.Param(jnp.ones(3))), 4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_calls_is_seen(change):
    f, _ = traced()
    model = Model()
    f(model, 1.0)
    apply, expected = CHANGES[change]
    apply(model)
    assert float(f(model, 1.0)) == expected
    assert float(f(model, 1.0)) == expected
    assert int(model.count) == 3


def test_a_swapped_variable_is_written_to_and_the_old_one_left_alone():
    f, traces = traced()
    model = Model()
    f(model, 1.0)
    old = model.count
    model.count = new = nnx.Variable(jnp.array(40))
    f(model, 1.0)
    f(model, 1.0)
    assert (int(old), int(new)) == (1, 42)
    assert len(traces) == 1  # another Variable is no other structure


def test_variables_that_change_places():
    model = nnx.Dict(a=nnx.Param(jnp.array(1.0)), b=nnx.Param(jnp.array(10.0)))
    f = nnx.jit(lambda m: m.a - m.b)
    assert float(f(model)) == -9
    model.a, model.b = model.b, model.a
    assert float(f(model)) == 9
    model.a = model.b
    assert float(f(model)) == 0


def test_going_back_and_forth_traces_twice():
    f, traces = traced()
    model = Model()
    for i in range(8):
        model.scale = float(2 + i % 2)
        assert float(f(model, 1.0)) == 2 * (2 + i % 2)
    assert len(traces) == 2


def test_plain_containers_are_compared_by_content():
    class Holder(nnx.Module):
        def __init__(self):
            self.items = nnx.data([nnx.Param(jnp.array(1.0)), nnx.Dict(w=nnx.Param(jnp.array(2.0)))])

    model = Holder()
    f = nnx.jit(lambda m: m.items[0] * m.items[1].w if len(m.items) > 1 else m.items[0] * 100)
    assert float(f(model)) == 2
    model.items[0] = nnx.Param(jnp.array(5.0))
    assert float(f(model)) == 10
    model.items[1] = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
    assert float(f(model)) == 15
    model.items.pop()
    assert float(f(model)) == 500


def test_metadata_is_part_of_the_structure():
    model, seen = Model(), []

    @nnx.jit
    def f(m):
        seen.append(m.w.get_metadata("role", None))
        return m.w * 1

    f(model)
    f(model)
    model.w.set_metadata(role="x")
    f(model)
    assert seen == [None, "x"]


def test_metadata_set_inside_comes_out():
    model = Model()

    @nnx.jit
    def f(m):
        m.w.set_metadata(role="x")

    f(model)
    f(model)
    assert model.w.role == "x"


def test_bare_arrays_and_numbers_among_the_data():
    class Bare(nnx.Module):
        def __init__(self):
            self.x = jnp.array(2.0)
            self.k = nnx.data(3)
            self.v = nnx.Variable(jnp.array(1.0))

    model = Bare()
    f = nnx.jit(lambda m: m.x * m.k * m.v)
    assert float(f(model)) == 6
    model.k = 4
    assert float(f(model)) == 8
    model.x = jnp.array(3.0)
    assert float(f(model)) == 12
    assert float(f(model)) == 12


def test_keywords_in_any_order_share_a_trace():
    traces = []

    @nnx.jit
    def f(model, *, a, b):
        traces.append(1)
        return model.w * a - b

    model = Model()
    for _ in range(2):
        assert float(f(model, a=5.0, b=1.0)) == 4
        assert float(f(model, b=1.0, a=5.0)) == 4
        assert float(f(b=1.0, model=model, a=5.0)) == 4
    assert len(traces) == 2  # by position and by keyword


def test_arguments_in_any_order():
    f = nnx.jit(lambda x, model, y, other, flag: model.w * x + other.w * y if flag else 0.0, static_argnums=4)
    a, b = Model(), Model(start=1.0)
    for _ in range(2):
        assert float(f(2.0, a, 3.0, b, True)) == 8
        assert float(f(2.0, b, 3.0, a, True)) == 7
        assert float(f(2.0, a, 3.0, b, False)) == 0


def test_static_arguments_of_equal_value_and_other_type():
    f = nnx.jit(lambda m, s: jnp.asarray(isinstance(s, bool)), static_argnums=1)
    model = Model()
    assert [bool(f(model, s)) for s in (1, True, 1, True)] == [False, True, False, True]


def test_unhashable_static_argument():
    with pytest.raises(ValueError, match=r"Non-hashable static arguments .* args\[1\] of type list"):
        nnx.jit(lambda m, s: 1, static_argnums=1)(Model(), [1])


def test_what_was_an_array_may_be_a_module_next_time():
    f = nnx.jit(lambda m, x: m.w * (x.w if isinstance(x, Model) else x["a"] if isinstance(x, dict) else x))
    model = Model()
    for _ in range(2):
        assert float(f(model, 3.0)) == 3
        assert float(f(model, Model(start=4.0))) == 5
        assert float(f(model, {"a": 2.0})) == 2
        assert float(f(model, {"a": nnx.Param(jnp.array(7.0))})) == 7


def test_objects_in_containers():
    f = nnx.jit(lambda d: d["a"](1.0) + d["b"][0](1.0) + d["c"])
    d = {"a": Model(), "b": [Model()], "c": 1.0}
    for i in range(3):
        d["c"] = float(i)
        assert float(f(d)) == 8 + i
    d["b"].append(Model())
    assert float(f(d)) == 10
    assert (int(d["a"].count), int(d["b"][0].count), int(d["b"][1].count)) == (4, 4, 0)


def test_states_as_arguments():
    model = Model()
    graphdef, state = nnx.split(model)
    f = nnx.jit(lambda s: nnx.merge(graphdef, s).w * 2)
    assert float(f(state)) == 2
    assert float(f(jax.tree.map(lambda x: x + 1, state))) == 4


def test_outputs_of_all_forms():
    model = Model()
    assert nnx.jit(lambda m: None)(model) is None
    assert nnx.jit(lambda m: ())(model) == ()
    assert nnx.jit(lambda m: (1, {}))(model) == (1, {})
    assert nnx.jit(lambda m: {"a": [m.w * 1, None]})(model) == {"a": [1, None]}

    def both(m):
        m(1.0)
        return (m.w * 1, {"new": nnx.Param(m.w * 3)})

    w, new = nnx.jit(both)(model)
    assert float(w) == 1 and type(new["new"]) is nnx.Param and float(new["new"]) == 3
    assert int(model.count) == 1


def test_what_changes_may_depend_on_shapes():
    @nnx.jit
    def f(m, x):
        if x.ndim:
            m.count[...] += 1
        else:
            m.w[...] += 1

    model = Model()
    for x in (jnp.ones(2), jnp.ones(()), jnp.ones(2), jnp.ones(3)):
        f(model, x)
    assert (int(model.count), float(model.w)) == (3, 2.0)


def test_donated_objects_can_be_used_afterwards():
    model = Model()
    before = model.w[...]
    f = nnx.jit(lambda m, x: m(x), donate_argnums=0)
    for _ in range(3):
        f(model, 1.0)
    assert before.is_deleted()
    assert float(model.w) == 1 and int(model.count) == 3
    x = jnp.ones(4)
    g = nnx.jit(lambda m, x: x * 2, donate_argnames="x")
    g(model, x)
    assert x.is_deleted() and not model.w[...].is_deleted()


def test_methods():
    class Stepper(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.array(0))

        @nnx.jit
        def step(self, x):
            self.n[...] += x
            return self.n * 10

    a, b = Stepper(), Stepper()
    assert [int(a.step(1)), int(a.step(1)), int(b.step(5))] == [10, 20, 50]


def test_partial_names():
    model = Model()
    for f in (nnx.jit_partial(lambda m, x: m(x), model), nnx.cached_partial(nnx.jit(lambda m, x: m(x)), model)):
        assert float(f(1.0)) == 4
    assert int(model.count) == 2


def test_threads_with_models_of_their_own():
    f, _ = traced()
    models = [Model(start=float(i)) for i in range(6)]
    wrong = []

    def work(i):
        for step in range(50):
            if step % 7 == 0:
                models[i].scale = float(1 + step % 2)  # moves the epoch for everybody
            if float(f(models[i], 1.0)) != (i + 1) * models[i].scale * 2:
                wrong.append((i, step))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert [int(m.count) for m in models] == [50] * 6


def test_a_trace_in_one_thread_is_not_seen_in_another():
    model = Model()
    inside, go_on, seen = threading.Event(), threading.Event(), []

    @nnx.jit
    def f(m):
        m.w[...] = m.w * 2
        inside.set()
        go_on.wait(20)
        return m.w * 1

    thread = threading.Thread(target=f, args=(model,))
    thread.start()
    inside.wait(20)
    seen.append(model.w[...])
    go_on.set()
    thread.join()
    assert isinstance(seen[0], jax.Array) and not isinstance(seen[0], jax.core.Tracer) and float(seen[0]) == 1
    assert float(model.w) == 2


def test_no_model_is_kept_alive():
    f, _ = traced()
    model = Model()
    f(model, 1.0)
    model.scale = 5.0
    f(model, 1.0)
    nodes = [weakref.ref(model), weakref.ref(model.layers), weakref.ref(model.layers[0])]
    array = weakref.ref(model.w[...])
    gc.disable()
    try:
        del model  # no cycles: no collection is needed
        assert [node() for node in nodes] == [None] * 3
        assert array() is None
    finally:
        gc.enable()


def test_a_model_with_a_parent_reference_is_not_kept_alive():
    child = nnx.Dict(w=nnx.Param(jnp.array(1.0)))
    parent = nnx.Dict(child=child, items=nnx.data([child]))
    child.parent = parent
    f = nnx.jit(lambda m: m.child.w * 2)
    f(parent)
    f(parent)
    dead = weakref.ref(parent)
    del parent, child
    gc.collect()
    assert dead() is None


def test_many_models_leave_nothing_behind():
    made = []
    real = compiled._Compiler

    class Kept(real):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    compiled._Compiler = Kept
    try:
        f, traces = traced()
    finally:
        compiled._Compiler = real
    for i in range(50):
        model = Model(start=float(i))
        f(model, 1.0)
    memory = made[0].memory
    assert len(memory.plans) == 1
    del model
    assert not memory.plans and memory.last is None
    assert len(traces) == 1


def test_ten_thousand_steps_do_not_grow():
    model = nnx.Dict(w=nnx.Param(jnp.array(0.0)), n=1)

    @nnx.jit
    def step(m, x):
        m.w[...] += x
        return m.w * 2

    x = jnp.array(1.0)

    def objects():
        gc.collect()
        return len(gc.get_objects())

    for i in range(300):
        model.n = i % 2
        step(model, x)
    before = objects()
    for i in range(10_000):
        if i % 10 == 0:
            model.n = i % 3
            model.w = nnx.Param(model.w[...])
        step(model, x)
    assert objects() - before < 500
    assert float(model.w) == 10_300


def test_errors_inside_are_those_of_the_function():
    f = nnx.jit(lambda m, x: m.nothing)
    with pytest.raises(AttributeError, match="nothing"):
        f(Model(), 1.0)


def test_random_state_goes_on():
    rngs = nnx.Rngs(0)
    f = nnx.jit(lambda r: jax.random.uniform(r(), (2,)))
    first, second = f(rngs), f(rngs)
    assert not np.array_equal(first, second)
    again = nnx.Rngs(0)
    np.testing.assert_array_equal(first, jax.random.uniform(again(), (2,)))
    np.testing.assert_array_equal(second, jax.random.uniform(again(), (2,)))


def test_stages_of_a_partial():
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), n=nnx.Variable(jnp.array(0)))

    def f(m, x):
        m.n[...] += 1
        return m.w * x

    g = nnx.jit_partial(f, model)
    assert g.eval_shape(2.0).shape == (2,) and g.trace(2.0).lower() is not None
    assert float(g.lower(2.0).compile()(3.0)[0]) == 3.0 and int(model.n) == 1


def test_what_was_compiled_is_counted_and_forgotten():
    step = nnx.jit(lambda model, x: model(x))
    model = Model()
    step(model, jnp.float32(1))
    step(model, jnp.float32(2))
    assert step.jitted_fn._cache_size() == 1
    step(model, jnp.ones(3))
    step(Model(3), jnp.ones(3))
    assert step.jitted_fn._cache_size() == 3
    assert nnx.cached_partial(step, model).func.jitted_fn._cache_size() == 3
    step.jitted_fn.clear_cache()
    assert step.jitted_fn._cache_size() == 0
    step(model, jnp.ones(3))
    assert step.jitted_fn._cache_size() == 1


def test_cached_partial_keeps_the_structure_of_the_moment(same):
    def run(nnx, after):
        model = nnx.Dict(a=nnx.Variable(jnp.arange(3.0)), n=3)
        f = nnx.cached_partial(nnx.jit(lambda m, x: m.a * m.n * x), model)
        f(1.0)
        after(nnx, model)
        return f(2.0).tolist()

    for after in (
        lambda nnx, m: setattr(m, "n", 5),
        lambda nnx, m: setattr(m, "a", nnx.Variable(jnp.ones(3))),
        lambda nnx, m: m.a.set_value(jnp.ones(3)),
    ):
        assert len(same(lambda nnx, after=after: run(nnx, after))) == 3


def test_cached_partial_refuses_to_lose_a_change_of_structure(same):
    def run(nnx, change):
        model = nnx.Dict(a=nnx.Variable(jnp.arange(3.0)), n=3)
        nnx.cached_partial(nnx.jit(change), model)(1.0)
        return model.a[...].tolist(), model.n

    assert same(lambda nnx: run(nnx, lambda m, x: m.a.set_value(m.a[...] + x))) == ([1.0, 2.0, 3.0], 3)
    for change in (lambda m, x: setattr(m, "n", 4), lambda m, x: setattr(m, "a", None)):
        assert same(lambda nnx, change=change: run(nnx, change)) == ("raised", "ValueError")


def test_what_a_sharding_was_asked_for_keeps_it(same):
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))

    def run(nnx, updates):
        model = nnx.Dict(w=nnx.Param(jnp.ones(4)), b=nnx.BatchStat(jnp.ones(4)))
        sharding = nnx.StateSharding({nnx.Param: over, ...: None})
        nnx.jit(lambda m: None, in_shardings=(sharding,), graph_updates=updates)(model)
        return model.w.sharding == over, model.b.sharding == over

    assert same(lambda nnx: run(nnx, True)) == (True, False)
