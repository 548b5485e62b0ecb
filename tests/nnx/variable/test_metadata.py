"""The metadata of Variables, and their hooks."""

import pickle

import pytest

from sonde import nnx
from sonde.nnx.variable.metadata import Metadata, shared, structural_hash


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


def test_entries_are_compared_and_hashed_by_content():
    one, same_one = Metadata({"a": 1, "b": [1, 2]}), Metadata({"b": [1, 2], "a": 1})
    assert one == same_one
    assert hash(one) == hash(same_one)  # a list counts for comparison only
    assert one != Metadata({"a": 1, "b": [1, 3]})
    assert one != {"a": 1, "b": [1, 2]}
    assert structural_hash([1]) == structural_hash([2])
    assert structural_hash((1, 2)) == hash((1, 2))


def test_variables_without_entries_of_their_own_share_one():
    assert nnx.Param(1)._metadata is nnx.BatchStat(2)._metadata
    assert shared({}) is shared({"ref": False})
    assert shared({"ref": True}) is not shared({})
    assert nnx.Param(1, a=2)._metadata == nnx.Param(3, a=2)._metadata


def test_changes_make_a_copy():
    one = shared({"a": 1})
    assert (dict(one.replaced(b=2))["b"], "b" in one) == (2, False)
    assert "a" not in one.without("a")
    with pytest.raises(KeyError):
        one.without("c")
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == "{'a': 1}"  # not the entries that every Variable has


def test_hooks_run_one_after_the_other():
    add, double = (lambda v, x: x + 1), (lambda v, x: x * 2)
    assert Metadata({"on_get_value": (add, double)}).run_hooks("on_get_value", None, 3) == 8
    assert Metadata({"on_get_value": add}).run_hooks("on_get_value", None, 3) == 4
    assert Metadata({}).run_hooks("on_get_value", None, 3) == 3
    assert [Metadata({n: add}).hooked for n in ("on_get_value", "on_add_axis", "other")] == [True, True, False]
