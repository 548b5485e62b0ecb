"""Nested mappings as flat ones and back."""


def test_traversals(same):
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}, "c": {}}))
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}}, sep="/"))
    same(lambda nnx: nnx.traversals.unflatten_mapping({("a", "b"): 1}))
    same(lambda nnx: nnx.traversals.unflatten_mapping({"a/b": 1}, sep="/"))
    same(lambda nnx: nnx.traversals.flatten_to_sequence({"b": {"x": 1}, "a": 2}))
    same(lambda nnx: list(nnx.traversals.flatten_mapping({"a": {}}, keep_empty_nodes=True)))
