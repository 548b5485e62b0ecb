"""The keys in paths of pytrees, whichever kind of node they belong to."""

import collections

import jax

from sonde._key_paths import key_of

Pair = collections.namedtuple("Pair", "left right")


def test_keys_indices_and_names():
    tree = {"a": [Pair(1, 2)], 3: 4}
    found = [[key_of(entry) for entry in path] for path, _ in jax.tree_util.tree_leaves_with_path(tree["a"])]
    assert found == [[0, "left"], [0, "right"]]
    assert [key_of(path[0]) for path, _ in jax.tree_util.tree_leaves_with_path({3: 4})] == [3]
    assert key_of(jax.tree_util.FlattenedIndexKey(2)) == 2


def test_anything_else_is_its_text():
    assert key_of(("of", "another library")) == "('of', 'another library')"
