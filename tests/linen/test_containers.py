"""FrozenDict, filters, boxes and logical axes."""

import copy
import pickle

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

import flax
from sonde import errors
from sonde import linen as nn
from sonde.linen.sharding import meta
from sonde.linen.variables import filters, frozen_dict

NESTED = {"b": {"c": 1, "a": {"d": 2}}, "a": 3}


def test_frozen_dict_is_that_of_flax():
    ours, theirs = nn.FrozenDict(NESTED), flax.core.FrozenDict(NESTED)
    assert repr(ours) == repr(theirs)
    assert ours.unfreeze() == theirs.unfreeze() == NESTED
    assert ours == NESTED and ours == nn.freeze(NESTED) and ours != {"a": 3}
    assert hash(ours) == hash(nn.freeze(NESTED))
    assert ours.copy({"z": 1}).unfreeze() == theirs.copy({"z": 1}).unfreeze()
    rest, popped = ours.pop("b")
    assert (rest.unfreeze(), popped) == ({"a": 3}, NESTED["b"])
    assert jax.tree.leaves(ours) == jax.tree.leaves(theirs)
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(ours)] == [
        jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(theirs)
    ]
    assert isinstance(ours["b"], nn.FrozenDict)
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours
    with pytest.raises(ValueError, match=r"a FrozenDict cannot be changed: use d.copy\({'a': value}\)"):
        ours["a"] = 4


def test_frozen_dict_does_not_share_what_it_was_made_of():
    source = {"a": {"b": 1}}
    frozen = nn.freeze(source)
    source["a"]["b"] = 2
    assert frozen["a"]["b"] == 1
    thawed = nn.unfreeze(frozen)
    thawed["a"]["b"] = 3
    assert frozen["a"]["b"] == 1


def test_copy_and_pop_keep_the_kind_of_dict():
    for kind in (dict, nn.FrozenDict):
        new = frozen_dict.copy(kind(NESTED), {"z": 1})
        assert type(new) is kind and new["z"] == 1
        rest, value = frozen_dict.pop(kind(NESTED), "a")
        assert type(rest) is kind and value == 3 and "a" not in rest
    with pytest.raises(TypeError, match="copy needs a FrozenDict or a dict, got 3"):
        frozen_dict.copy(3)


def test_filters():
    names = ["a", "b", "c"]
    cases = {True: names, False: [], "a": ["a"], ("a", "b"): ["a", "b"], nn.DenyList("a"): ["b", "c"]}
    for filter, expected in cases.items():
        assert [n for n in names if filters.matches(filter, n)] == expected
        assert filters.matches(filters.Both(filter, "b"), "b") == ("b" in expected)
        for other, others in cases.items():
            overlap = bool(set(expected) & set(others))
            assert filters.may_overlap(filter, other) >= overlap
    assert not filters.may_overlap(["a"], "b") and not filters.may_overlap(False, True)
    assert not filters.may_overlap(filters.Both(True, ["a"]), nn.DenyList(["a", "b"]))
    assert filters.hashable(nn.DenyList(["a"])) == nn.DenyList(frozenset("a"))


def test_boxes():
    box = nn.Partitioned(jnp.ones((2, 3)), names=("x", None))
    assert jax.tree.map(jnp.shape, jax.tree.leaves(box)) == [(2, 3)]
    assert box.add_axis(1, {nn.PARTITION_NAME: "n"}).names == ("x", "n", None)
    assert box.add_axis(3, {nn.PARTITION_NAME: "n"}).names == ("x", None, None, "n")
    assert box.remove_axis(0, {nn.PARTITION_NAME: "x"}).names == (None,)
    with pytest.raises(
        errors.PartitioningUnspecifiedError, match=r"partitioned as .* over a new axis, whose name is unknown"
    ):
        box.add_axis(0, {})
    with pytest.raises(ValueError, match="which metadata_params call 'y'"):
        box.remove_axis(0, {nn.PARTITION_NAME: "y"})
    tree = {"a": box, "b": jnp.ones(2), "c": "text"}
    assert nn.get_partition_spec(tree) == {"a": PartitionSpec("x", None), "b": PartitionSpec(), "c": None}
    assert nn.unbox(tree)["a"].shape == (2, 3)
    assert meta.replace_boxed({"a": box}, {"a": jnp.zeros(1)})["a"].names == ("x", None)


def test_boxed_variables_are_opened_when_read_and_closed_when_set():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            count = self.variable("stats", "n", nn.with_partitioning(jnp.zeros, ("x",)), (2,))
            raw = self.param("w", nn.with_partitioning(nn.initializers.ones, ("y",)), (2,), unbox=False)
            count.value = count.value + 1
            return raw

    w, variables = Model().init_with_output(jax.random.key(0), None)
    assert isinstance(w, nn.Partitioned) and isinstance(variables["stats"]["n"], nn.Partitioned)
    assert variables["stats"]["n"].value.tolist() == [1, 1]


RULES = (("batch", "data"), ("hidden", "model"), ("heads", "model"), ("embed", None), ("batch", "model"))


@pytest.mark.parametrize(
    "names", [("batch", "hidden"), ("hidden", "heads"), ("embed", None, "unknown"), (), None, ("batch", "heads")]
)
def test_logical_axes(names):
    with nn.logical_axis_rules(RULES), flax_nn.logical_axis_rules(RULES):
        assert nn.logical_to_mesh_axes(names) == flax_nn.logical_to_mesh_axes(names)
    assert nn.get_logical_axis_rules() == ()


def test_logical_constraints():
    mesh = Mesh(jax.devices()[:1], ("data",))
    spec = {"a": PartitionSpec("batch", None)}
    assert nn.logical_to_mesh(spec, RULES) == {"a": PartitionSpec("data", None)}
    assert nn.logical_to_mesh_sharding(spec, mesh, RULES)["a"].spec == PartitionSpec("data", None)
    x = jnp.ones((2, 2))
    constrained = jax.jit(lambda x: nn.with_logical_constraint(x, ("batch", None), rules=RULES, mesh=mesh))(x)
    assert constrained.sharding.mesh.axis_names == ("data",)
    assert nn.with_logical_constraint(x, ("batch", None)) is x
    with pytest.raises(ValueError, match="no rule places "):
        nn.with_logical_constraint(x, ("nobody", None), rules=RULES, fallback=nn.RulesFallback.RAISE_ERROR)
    with pytest.raises(ValueError, match=r"axis names \['batch'\] occur more than once"):
        nn.logical_to_mesh_axes(("batch", "batch"), RULES)
