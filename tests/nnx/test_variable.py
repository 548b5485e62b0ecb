import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import errors, nnx

OPERATIONS = {
    "add": lambda v: (v + 1, 1 + v, v + v, v + np.ones(3), np.ones(3) + v),
    "sub": lambda v: (v - 1, 1 - v),
    "mul": lambda v: (v * 2, 2 * v),
    "div": lambda v: (v / 2, 2 / (v + 1), v // 2, 7 // (v + 1), v % 2, 7 % (v + 1)),
    "pow": lambda v: (v**2, 2**v),
    "matmul": lambda v: (v @ v, v @ jnp.ones((3, 2)), jnp.ones((2, 3)) @ v),
    "unary": lambda v: (-v, +v, abs(v)),
    "compare": lambda v: (v == 1, v == v),
    "index": lambda v: (v[0], v[...], v[1:], v[-1]),
    "attributes": lambda v: (v.shape, v.ndim, v.size, str(v.dtype), v.T, v.sum(), v.at[0].set(5)),
    "jnp": lambda v: (jnp.sum(v), jnp.asarray(v), jnp.dot(v, v), np.asarray(v)),
    "iterate": lambda v: (list(v), len(v), 1.0 in v, bool(v)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_behaves_like_its_array(same, name):
    same(lambda nnx: OPERATIONS[name](nnx.Param(jnp.arange(3.0))))


def test_integers_and_scalars(same):
    same(lambda nnx: (int(nnx.Param(3)), float(nnx.Param(3)), [0, 1, 2, 3][nnx.Param(3)]))
    same(lambda nnx: (~nnx.Param(1), nnx.Param(6) & 3))
    same(lambda nnx: (nnx.Param(1) | 2, 1 ^ nnx.Param(3), nnx.Param(1) << 2, 8 >> nnx.Param(1)))


def test_more_than_flax_offers():
    assert (nnx.Param(2) < 3) and (nnx.Param(2) >= 2)
    assert divmod(nnx.Param(7), 2) == (3, 1)
    assert complex(nnx.Param(1)) == 1 + 0j
    assert not nnx.Param(jnp.array(0))
    assert (nnx.Param(jnp.arange(2)) != 1).tolist() == [True, False]


WRITES = [
    (jnp.arange(3.0), ..., 3),
    (jnp.arange(3.0), ..., np.ones(3)),
    (jnp.arange(3.0), ..., jnp.ones(5)),
    (jnp.arange(3.0), slice(0, 2), 7),
    (jnp.arange(3.0), ..., jnp.ones(3, jnp.bfloat16)),
    (np.arange(3.0), ..., 3),
    (np.arange(3.0), 0, 9),
    ([1, 2], 0, 5),
    ({"a": 1}, "b", 5),
    (3, ..., 4),
]


@pytest.mark.parametrize("case", range(len(WRITES)))
def test_writing_in_place(same, case):
    value, index, new = WRITES[case]

    def write(nnx):
        v = nnx.Param(copy.copy(value))
        v[index] = new
        return v

    same(write)


def test_in_place_operators_are_refused():
    v = nnx.Param(jnp.ones(2))
    with pytest.raises(NotImplementedError, match=r"variable\[\.\.\.\] \+= x"):
        v += 1


def test_value_and_its_methods(same):
    def use(nnx):
        v = nnx.Variable(jnp.arange(3.0), a=1)
        v.value = jnp.ones(3)
        v.set_value(5.0, index=0)
        return v, v.value, v.get_value(index=0), v.get_raw_value(), v.copy(b=2), v.replace(3), v.replace(a=7)

    same(use)


def test_metadata(same):
    def use(nnx):
        v = nnx.Param(1.0, a=1)
        v.set_metadata(b=2)
        v.set_metadata("c", 3)
        seen = v.get_metadata(exclude_required=True)
        has = v.has_metadata("b"), v.a, v.get_metadata("c"), v.get_metadata("nope", 4)
        v.del_metadata("a")
        v2 = nnx.Param(0.0)
        v2.set_metadata({"z": 1})
        return v, seen, has, v2

    same(use)


@pytest.mark.parametrize(
    "bad",
    [
        lambda v: v.get_metadata("nope"),
        lambda v: v.del_metadata("nope"),
        lambda v: v.set_metadata(1, 2, 3),
        lambda v: v.nope,
        lambda v: setattr(v, "nope", 1),
        lambda v: hash(v),
    ],
)
def test_bad_use_raises_the_same(same, bad):
    assert same(lambda nnx: bad(nnx.Param(jnp.ones(2))))[0] == "raised"


def test_setting_an_attribute_says_what_to_do():
    with pytest.raises(AttributeError, match=r"set_metadata\(role=value\)"):
        nnx.Param(1).role = "x"


def test_copy_from_and_update_from_state(same):
    def use(nnx):
        v = nnx.Param(1.0, a=1)
        v.copy_from(nnx.Param(2.0, b=2))
        w = nnx.Param(0.0)
        w.update_from_state(nnx.BatchStat(3.0, c=1))
        return v, w

    same(use)
    same(lambda nnx: nnx.Param(1).copy_from(nnx.BatchStat(1)))


def test_hooks(same):
    def use(nnx):
        v = nnx.Param(
            1,
            on_get_value=lambda var, x: x + 1,
            on_set_value=lambda var, x: x * 2,
            on_create_value=lambda var, x: x + 10,
        )
        seen = [v.get_raw_value(), v.get_value(), v.create_value(4)]
        v.set_value(5)
        return [*seen, v.get_raw_value(), v.get_value()]

    same(use)


def test_hooks_of_a_class(same):
    def use(nnx):
        axes = []

        class Hooked(nnx.Variable):
            def on_get_value(self, x):
                return x + 1

            def on_set_value(self, x):
                return x * 2

            def on_add_axis(self, index, name):
                axes.append((index, name))

        v = Hooked(3)
        v.set_value(4)
        v.add_axis(0, "batch")
        v.remove_axis(0, "batch")
        return v.get_raw_value(), v.get_value(), axes

    same(use)


def test_hooks_with_metadata_wrapper(same):
    def use(nnx):
        init = nnx.with_metadata(lambda: 1, role="bias", on_get_value=lambda var, x: x + 5)
        v = nnx.Param(init())
        return v.role, v.get_value()

    same(use)


def test_pytree(same):
    def use(nnx):
        v = nnx.Param(jnp.arange(3.0), a=1)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path({"x": v})]
        return jax.tree.map(lambda x: x + 1, v), jax.tree.leaves(v), paths

    same(use)


def test_static_part_is_shared_and_comparable():
    a, b = nnx.Param(1), nnx.Param(2)
    assert a._metadata is b._metadata
    assert jax.tree.structure(nnx.Param(1, x=[1])) == jax.tree.structure(nnx.Param(5, x=[1]))
    assert jax.tree.structure(nnx.Param(1, x=1)) != jax.tree.structure(nnx.Param(1, x=2))
    hash(jax.tree.structure(nnx.Param(1, x=[1])))


def test_copies():
    v = nnx.Param(jnp.ones(2), a=1)
    for other in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert type(other) is nnx.Param
        assert other is not v
        assert other.a == 1
        other[...] = jnp.zeros(2)
    assert v.sum() == 2


def test_names(same):
    def known(nnx):
        return [nnx.variable_name_from_type(nnx.variable_type_from_name(n)) for n in ("params", "batch_stats", "cache")]

    same(known)

    def own(nnx):
        class Memory(nnx.Variable):
            pass

        nnx.register_variable_name("memory_test", Memory, overwrite=True)
        made = nnx.variable_type_from_name("made_test", allow_register=True)
        derived = nnx.variable_type_from_name("derived_test", base=nnx.Param, allow_register=True)
        return nnx.variable_name_from_type(Memory), made, issubclass(derived, nnx.Param)

    same(own)
    same(lambda nnx: nnx.variable_type_from_name("unheard of"))
    same(lambda nnx: nnx.register_variable_name("params", nnx.Cache))
    same(lambda nnx: nnx.variable_name_from_type(nnx.Variable))


def test_changing_from_another_trace_level():
    v = nnx.Param(jnp.ones(2))

    def assign(x):
        v[...] = x

    with pytest.raises(errors.TraceContextError, match="Param is changed from another trace level"):
        jax.jit(assign)(jnp.zeros(2))
    with pytest.raises(errors.TraceContextError):
        jax.jit(lambda: v.set_metadata(a=1))()
    assert v.sum() == 2
    assert not v.has_metadata("a")

    @jax.jit
    def inside(x):
        w = nnx.Param(x)
        w[...] = w + 1
        return w

    assert inside(jnp.zeros(2)).sum() == 2


def test_entries_that_name_another_backing_are_kept_and_change_nothing(same):
    def use(nnx):
        seen = []
        for option in ({"ref": True}, {"hijax": True}):
            v = nnx.Param(jnp.ones(2), **option)
            v[...] = v[...] * 3
            seen.append((v.ref, v.hijax, v.get_metadata("ref"), v[...], jax.jit(lambda x: x * 2)(v[...])))
        return seen

    same(use)
    v = nnx.Param(jnp.ones(2), ref=True)
    assert isinstance(v.get_raw_value(), jax.Array) and jax.tree.leaves(v)[0] is v.get_raw_value()


def test_defaults_of_new_variables(same):
    def use(nnx):
        seen = [(nnx.var_defaults().ref, nnx.var_defaults()["hijax"])]
        with nnx.var_defaults(ref=True):
            seen.append((nnx.Param(1.0).ref, nnx.Param(1.0, ref=False).ref, nnx.Param(1.0).hijax))
            with nnx.var_defaults(hijax=True, ref=False):
                seen.append(dict(nnx.var_defaults()))
        seen.append(nnx.var_defaults(ref=True)(lambda: dict(nnx.var_defaults()))())
        nnx.var_defaults(ref=True)
        seen.append(nnx.Param(1.0).ref)
        nnx.var_defaults(ref=False)
        seen.append(dict(nnx.var_defaults()))
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        other = nnx.vars_as(model, ref=True, only="nothing")
        return seen, other.kernel.ref, nnx.vars_as(model, ref=True).kernel.ref, model.kernel.ref

    same(use)


def test_sharding(same):
    def use(nnx):
        v = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), eager_sharding=False)
        w = nnx.Param(jnp.ones((4, 2)), sharding_names=("x", None), eager_sharding=False)
        return v.out_sharding, v.sharding_names, w.get_metadata("out_sharding"), v.eager_sharding

    same(use)
    same(lambda nnx: nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None)))
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def placed(nnx):
        with jax.set_mesh(mesh), nnx.logical_axis_rules([("rows", "x")]):
            v = nnx.Param(jnp.ones((4, 2)), out_sharding=("rows", None))
        w = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), mesh=mesh)
        specs = nnx.get_partition_spec(nnx.State({"v": w, "w": nnx.Param(jnp.ones(2))}))
        return str(v[...].sharding.spec), str(w[...].sharding.spec), str(specs["v"].get_raw_value())

    same(placed)
