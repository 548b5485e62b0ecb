import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import errors, nnx

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


def test_value_and_its_methods(same):
    def use(nnx):
        v = nnx.Variable(jnp.arange(3.0), a=1)
        v.value = jnp.ones(3)
        v.set_value(5.0, index=0)
        return v, v.value, v.get_value(index=0), v.get_raw_value(), v.copy(b=2), v.replace(3), v.replace(a=7)

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


def test_changing_from_another_trace_level():
    v = nnx.Param(jnp.ones(2))

    def assign(x):
        v[...] = x

    with pytest.raises(errors.TraceContextError, match="Param was changed at a trace level other than"):
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
