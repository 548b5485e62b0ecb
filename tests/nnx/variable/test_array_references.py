"""Array references among the attributes of Modules, and Variables that keep their value in one."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax import nnx as flax_nnx
from sonde import nnx
from sonde.errors import TraceContextError
from sonde.flax import release as _flax_release
from sonde.flax.release import follows
from sonde.nnx.variable import metadata
from sonde.nnx.variable.array_references import is_reference, load, referring, store


def holder(nnx, *, shared=False):
    class Holder(nnx.Module):
        def __init__(self):
            self.a = jax.new_ref(jnp.float32(1))
            self.w = nnx.Param(jnp.float32(2))
            if shared:
                self.b = self.a

    return Holder()


def is_ref(x):
    return isinstance(x, jax.Ref)


def structure_of(nnx):
    m = holder(nnx, shared=True)
    graphdef, state = nnx.split(m)
    merged = nnx.merge(graphdef, state)
    flat = [(path, is_ref(leaf)) for path, leaf in nnx.to_flat_state(state)]
    nnx.update(m, {"a": jnp.float32(5)})
    clone = nnx.clone(m)
    return (
        flat,
        merged.a is m.a,
        merged.a is merged.b,
        clone.a is m.a,
        m.a[...],
        nnx.is_data(m.a),
        len(jax.tree.leaves(m)),
    )


def written_in_jit(nnx):
    m = holder(nnx, shared=True)
    before = m.a

    @nnx.jit
    def f(m):
        m.a[...] += 1
        m.b[...] += m.w[...]
        m.c = jax.new_ref(m.w[...] * 3)
        return m.a, m

    out, same_model = f(m)
    return out is before, same_model is m, m.a is before, before[...], is_ref(m.c), m.c[...]


def replaced_in_jit(nnx):
    m = holder(nnx)
    before = m.a

    @nnx.jit
    def f(m):
        m.a = jax.new_ref(m.w[...] * 3)

    f(m)
    return is_ref(m.a), m.a is before, m.a[...], before[...]


def arguments(nnx):
    r = jax.new_ref(jnp.float32(1))

    @nnx.jit
    def f(r, again):
        r[...] += 1
        return r, r is again

    out, one = f(r, r)
    return out is r, one, r[...]


def other_transforms(nnx):
    m = holder(nnx)

    def loss(m):
        m.a[...] = jax.lax.stop_gradient(m.w[...] * 3)
        return m.w[...] ** 2 * m.a[...]

    grads = nnx.grad(loss)(m)
    after_grad = m.a[...]
    nnx.remat(lambda m: m.a.__setitem__(..., m.a[...] + 1))(m)
    nnx.cond(True, lambda m: m.a.__setitem__(..., m.a[...] + 1), lambda m: None, m)

    class Rows(nnx.Module):
        def __init__(self):
            self.a = jax.new_ref(jnp.arange(3.0))

    rows = Rows()
    nnx.vmap(lambda m: m.a.__setitem__(..., m.a[...] * 2))(rows)
    made = nnx.vmap(lambda i: holder(nnx))(jnp.arange(3))
    return grads["w"][...], after_grad, m.a[...], rows.a[...], is_ref(made.a), made.a[...]


def trees_have_no_shared_references(nnx):
    nnx.split(holder(nnx, shared=True), graph=False)


@pytest.mark.parametrize(
    "program",
    [structure_of, written_in_jit, replaced_in_jit, arguments, other_transforms, trees_have_no_shared_references],
)
def test_a_reference_among_the_attributes_is_treated_as_in_flax(same, program):
    same(program)


def test_a_new_reference_may_be_returned_and_loops_may_write_to_one():
    m = nnx.jit(lambda: holder(nnx))()
    assert is_ref(m.a) and m.a[...] == 1

    @nnx.scan(in_axes=(nnx.StateAxes({...: None}), nnx.Carry, 0))
    def f(m, c, x):
        m.a[...] += x
        return c + 1, c

    f(m, 0, jnp.arange(3.0))
    assert m.a[...] == 4


def variable_by_reference(nnx):
    v = nnx.Param(jnp.ones(3), ref=True, role="w")
    held = v.get_raw_value()
    v[...] = jnp.zeros(3)
    v[1] = 5.0
    v.value = v.value + 1
    other, plain = v.copy(), v.copy(ref=False)
    other[...] = jnp.ones(3)
    doubled = copy.deepcopy(v)
    doubled[...] = v * 2
    kept = (v.get_raw_value() is held, is_ref(other.get_raw_value()), is_ref(plain.get_raw_value()))
    return kept, v.ref, v.role, v[...], other[...], plain[...], doubled[...], is_ref(v.get_value()), jnp.sin(v), v[1:]


def refused(what):
    def program(nnx):
        v = nnx.Param(jnp.ones(2), ref=True)
        what(nnx, v)

    return program


def test_a_variable_keeps_its_value_in_a_reference(same):
    same(variable_by_reference)
    same(lambda nnx: is_ref(nnx.Param(1.0, ref=True).get_raw_value()))
    for what in (
        lambda nnx, v: nnx.Param(jax.new_ref(jnp.ones(2))),
        lambda nnx, v: v.set_value(jnp.ones(3)),
        lambda nnx, v: v.set_value(jax.new_ref(jnp.ones(2))),
        lambda nnx, v: nnx.Param({"a": jnp.ones(2)}, ref=True),
        lambda nnx, v: nnx.with_vars([v, v], ref=False),
    ):
        assert same(refused(what))[0] == "raised"
    v = pickle.loads(pickle.dumps(nnx.Param(jnp.ones(2), ref=True)))
    assert is_ref(v.get_raw_value()) and v[0] == 1


#: Which Variables hold references: from Flax 0.12.12 on, `hijax` alone does not suffice.
FOLLOWS_ARRAYS = follows(0, 12, 12)
KINDS = ["ref"] if FOLLOWS_ARRAYS else ["ref", "hijax"]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_jit_writes_to_such_variables(same, kind):
    def program(nnx):
        # Flax 0.12.8 has no gradient for this program with `hijax=True`.
        v = nnx.Param(jnp.float32(1), **{"ref" if nnx is flax_nnx else kind: True})

        @jax.jit
        def given(v, x):
            v[...] = v[...] + x
            return v[...]

        @jax.jit
        def closed_over(x):
            v[...] = v[...] * x

        first = given(v, 2.0)
        closed_over(4.0)
        jax.lax.scan(lambda c, x: (c, v.__setitem__(..., v[...] + x)), None, jnp.arange(3.0))
        grad = jax.grad(lambda x: (v.__setitem__(..., jax.lax.stop_gradient(x)), x * v[...])[1])(3.0)
        return first, v[...], grad

    same(program)


@pytest.mark.parametrize("kind", KINDS)
def test_training_under_plain_jit_has_the_numbers_of_flax(same, kind):
    def program(nnx):
        is_plain = nnx is flax_nnx and kind == "hijax"  # Flax's numbers, in the way that every version of it has
        with nnx.var_defaults(**{kind: not is_plain}):
            norms = [nnx.BatchNorm(4, rngs=nnx.Rngs(0))] if kind == "hijax" else []  # else JAX refuses Flax's
            model = nnx.Sequential(nnx.Linear(2, 4, rngs=nnx.Rngs(0)), *norms)
            optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)

        aim = jnp.array([1.0, -2.0, 0.5, 0.0])

        def step(x):
            graphdef, params, rest = nnx.split(model, nnx.Param, ...)

            def loss(params):
                return ((nnx.merge(graphdef, params, rest)(x) - aim) ** 2).mean()

            value, grads = jax.value_and_grad(loss)(nnx.with_vars(params, hijax=False, ref=False))
            optimizer.update(model, grads)
            return value

        def plain_step(x):
            value, grads = nnx.value_and_grad(lambda model: ((model(x) - aim) ** 2).mean())(model)
            optimizer.update(model, grads)
            return value

        run = plain_step if is_plain else jax.jit(step)
        losses = [run(jnp.cos(jnp.arange(12.0)).reshape(6, 2)) for _ in range(3)]
        weights = nnx.state(nnx.with_vars(model, hijax=False, ref=False))
        return [round(float(x), 4) for x in losses], optimizer.step[...], jax.tree.map(lambda x: x.round(4), weights)

    same(program)


def test_gradients_with_respect_to_such_variables():
    with nnx.var_defaults(ref=True):
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    plain = nnx.with_vars(model, ref=False)

    def loss(m):
        m.bias[...] += 1
        return (m(jnp.ones((1, 2))) ** 2).sum()

    got, expected = nnx.grad(loss)(model), nnx.grad(loss)(plain)
    assert jnp.array_equal(got["kernel"][...], expected["kernel"][...])
    assert is_ref(model.bias.get_raw_value()) and jnp.array_equal(model.bias[...], jnp.ones(2))


@pytest.fixture
def written_inside(monkeypatch):
    """`hijax` as in Flax 0.12.8."""
    monkeypatch.setattr(_flax_release, "FOLLOWED", (0, 12, 8))
    metadata._plain.cache_clear()
    yield
    metadata._plain.cache_clear()


@pytest.fixture
def arrays_everywhere(monkeypatch):
    """`hijax` as in Flax 0.12.12."""
    monkeypatch.setattr(_flax_release, "FOLLOWED", (0, 12, 12))
    metadata._plain.cache_clear()
    yield
    metadata._plain.cache_clear()


def test_values_that_are_arrays_everywhere(arrays_everywhere):
    def program(nnx):
        v = nnx.Param(jnp.arange(3.0), hijax=True)
        (leaf,) = jax.tree.leaves(v)
        read = jnp.sum(leaf), np.asarray(leaf), optax.tree.norm({"v": v})
        doubled = jax.tree.map(lambda x: x * 2, v)
        moved = optax.apply_updates({"v": v}, {"v": jax.tree.map(jnp.ones_like, v)})["v"]
        v[...] = v[...] + 1
        return (
            read,
            (jnp.asarray(doubled), jnp.asarray(moved), v.get_value()),
            (jax.jit(lambda v: v[...] * 2)(v), jax.jit(lambda x: x * v[...])(2.0)),
        )

    ours = program(nnx)
    if FOLLOWS_ARRAYS:
        jax.tree.map(np.testing.assert_array_equal, ours, program(flax_nnx))
        gradient = lambda nnx: jax.grad(lambda v: (v**2).sum())(nnx.Param(jnp.arange(3.0), hijax=True)).get_value()
        np.testing.assert_array_equal(gradient(nnx), gradient(flax_nnx))
    assert ours[1][2].tolist() == [1, 2, 3]


def leaves_as_arrays(nnx):
    class Net(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.arange(6.0).reshape(2, 3), hijax=True)
            self.key = nnx.Variable(jax.random.key(0), hijax=True)

    model = Net()
    state = nnx.state(model, nnx.Param)
    (w,) = jax.tree.leaves(state)
    tx = optax.adamw(0.1)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, state), tx.init(state), state)
    moved = optax.apply_updates(state, updates)
    read = jnp.sum(w), np.asarray(w), w @ w.T, w[0], w.mean(0), len(w), w.shape, w.dtype, w.T, 2 / (1 + w), -w
    norm = optax.global_norm(state), optax.tree.norm(moved)
    nnx.update(model, moved)
    values = jax.tree.leaves(moved), model.w[...], jax.random.key_data(model.key.get_value())
    return jax.tree.map(np.asarray, (read, norm, values))


def test_leaves_of_variables_with_hijax_act_as_arrays(same):
    same(leaves_as_arrays)


def test_leaves_act_as_arrays_under_transforms_of_jax(written_inside):
    v = nnx.Param(jnp.arange(6.0).reshape(2, 3), hijax=True)
    array = v[...]

    def uses(x):
        moved = jax.tree.map(lambda w, update: w - update, x, optax.scale(0.1).update(jnp.ones_like(x), None)[0])
        rows = jax.vmap(lambda row: row.sum() * row)(x)
        last, sums = jax.lax.scan(lambda c, _: (c + x.sum(), x.mean()), 0.0, length=3)
        return (
            moved,
            rows,
            last,
            sums,
            x @ x.T,
            x.at[0].set(7),
            x.reshape(3, 2),
            1 - x,
            jax.lax.cond(True, lambda: x * 2, lambda: x + 0),
        )

    (leaf,) = jax.tree.leaves(v)
    expected = jax.jit(uses)(array)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(uses)(leaf), expected)
    kernel = lambda x, w: jax.checkpoint(lambda x: (x * w).sum())(x)
    gradient = jax.jit(lambda w: jax.grad(kernel)(jnp.ones(3), w))
    np.testing.assert_array_equal(gradient(leaf), gradient(array))

    @jax.jit
    def writes(x):
        before = x + 0
        x[...] = x * 2
        return before, x.sum()

    before, total = writes(leaf)
    np.testing.assert_array_equal(before, array)
    assert total == 30 and v.sum() == 30
    held = {leaf: "leaf"}
    assert held[leaf] == "leaf"
    with pytest.raises(AttributeError, match="no_such_attribute"):
        leaf.no_such_attribute


def test_metadata_that_would_not_reach_the_caller_are_refused(written_inside):
    v = nnx.Param(jnp.ones(2), hijax=True, role="old")

    def changes(v):
        v.set_metadata("role", "new")
        return v.sum()

    for forbidden in (changes, lambda v: v.del_metadata("role")):
        with pytest.raises(TraceContextError, match="only the value reaches the caller"):
            jax.jit(forbidden)(v)
    assert nnx.jit(changes)(v) == 2 and v.role == "new"
    v.set_metadata("role", "outside")
    assert v.role == "outside"


def test_arrays_are_not_written_to_under_transforms_of_jax(arrays_everywhere):
    v = nnx.Param(jnp.arange(3.0), hijax=True)

    def writes(v):
        v[...] = v[...] + 1
        return v[...]

    for transformed in (jax.jit(writes), jax.vmap(writes), jax.jit(lambda _: writes(v))):
        with pytest.raises(TraceContextError, match=r"(with hijax=True was changed inside|a trace level other than)"):
            transformed(v)
    nnx.jit(writes)(v)
    assert v[...].tolist() == [1, 2, 3]
    back = jax.jit(lambda v: v)(v)
    back[...] = jnp.zeros(3)
    assert back.hijax and not back.sum()


def test_a_tree_in_a_variable(written_inside):
    v = nnx.Variable({"a": jnp.float32(0), "b": jnp.float32(2)}, hijax=True)

    @jax.jit
    def f(v):
        v["a"] += 1
        v["b"] *= 2

    f(v)
    assert (v["a"], v["b"]) == (1, 4)
    v = nnx.Variable({}, hijax=True)

    def grow(v):
        v["new"] = jnp.ones(2)

    with pytest.raises(TraceContextError, match="cannot change its structure, shape or dtype inside a transformed"):
        jax.jit(grow)(v)
    grow(v)
    assert is_ref(jax.tree.leaves(v)[0]) and isinstance(v, nnx.variablelib.HijaxVariable)


def test_metadata_decides_how_a_value_is_kept():
    v = nnx.Param(jnp.ones(2))
    v.set_metadata(ref=True)
    held = v.get_raw_value()
    assert is_ref(held)
    nnx.update(v, nnx.Param(jnp.zeros(2), role="new"))
    assert v.get_raw_value() is held and v.ref and v.role == "new" and held[0] == 0


def test_values_go_in_and_out_of_references():
    held = referring({"a": jnp.ones(2), "b": "text"})
    assert is_reference(held["a"]) and held["b"] == "text" and not is_reference(jnp.ones(2))
    assert not store(held, {"a": jnp.ones(2), "b": "text"})  # what is no array has no reference to be written to
    held = referring([jnp.ones(2), 1.0])
    assert store(held, [jnp.zeros(2), 3.0]) and load(held)[1] == 3
    assert not store(held, [jnp.zeros(3), 3.0]) and not store(held, [jnp.zeros(2)])
    assert jnp.array_equal(load(held)[0], jnp.zeros(2))
    assert bool(jax.jit(lambda r: jnp.array(is_reference(r)))(held[0]))
