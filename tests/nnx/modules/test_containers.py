"""List, Dict and Sequential do what Flax's do."""

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx


def leaves(node):
    return [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(node)], jax.tree.leaves(node)


LISTS = {
    "get": lambda nnx, l: (l[0], l[-1], l[1:], len(l), list(l)),
    "set": lambda nnx, l: l.__setitem__(2, nnx.Param(9)),
    "set data over static": lambda nnx, l: l.__setitem__(0, nnx.Param(9)),
    "set slice": lambda nnx, l: l.__setitem__(slice(0, 2), [5, 6]),
    "set slice of other length": lambda nnx, l: l.__setitem__(slice(0, 1), [5, 6]),
    "pop": lambda nnx, l: l.pop(),
    "extend": lambda nnx, l: l.extend([nnx.Param(7), 8]),
    "out of range": lambda nnx, l: l[10],
    "data": lambda nnx, l: l.append(nnx.data(3)),
    "list with data": lambda nnx, l: l.append([nnx.Param(1)]),
    "clear": lambda nnx, l: l.clear(),
    "equal": lambda nnx, l: nnx.List([1]) == nnx.List([1]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(same, name):
    def use(nnx):
        l = nnx.List([1, "s", nnx.Param(3)])
        out = LISTS[name](nnx, l)
        return out, list(l), leaves(l), nnx.state(l)

    same(use)


def test_items_of_a_list_keep_their_status_when_they_move():
    l = nnx.List(["s", nnx.Param(1), 2, nnx.Param(3)])
    l.insert(0, nnx.Param(0))
    assert jax.tree.leaves(l) == [0, 1, 3]
    assert l.pop(0).get_value() == 0 and l.pop(0) == "s"
    del l[1]
    assert jax.tree.leaves(l) == [1, 3] and len(l) == 2
    l.reverse()
    assert jax.tree.leaves(l) == [3, 1]
    assert nnx.to_flat_state(nnx.state(l)).paths == ((0,), (1,))


def test_long_lists_keep_the_order_of_numbers(same):
    same(lambda nnx: nnx.to_flat_state(nnx.state(nnx.List([nnx.Dict(w=nnx.Param(i)) for i in range(12)]))).paths)


DICTS = {
    "get": lambda nnx, d: (d["a"], d.a, d["b"], list(d), len(d), "a" in d, d.get("q")),
    "set": lambda nnx, d: d.__setitem__("c", nnx.Param(2)),
    "set attribute": lambda nnx, d: setattr(d, "e", 5),
    "delete": lambda nnx, d: d.__delitem__("b"),
    "missing item": lambda nnx, d: d["zz"],
    "missing attribute": lambda nnx, d: d.zz,
    "integer key": lambda nnx, d: d.__setitem__(1, 2),
    "pop": lambda nnx, d: d.pop("a"),
    "update": lambda nnx, d: d.update(z=nnx.Param(1)),
    "data over static": lambda nnx, d: d.__setitem__("b", jnp.ones(1)),
}


@pytest.mark.parametrize("name", DICTS)
def test_dicts(same, name):
    def use(nnx):
        d = nnx.Dict({"a": nnx.Param(1)}, b=2)
        out = DICTS[name](nnx, d)
        return out, list(d), leaves(d), nnx.state(d)

    same(use)


SEQUENTIALS = [
    ((lambda x: (x, x), lambda a, b: a + b), (3,)),
    ((lambda x: {"a": x}, lambda a: a + 1), (3,)),
    ((), (3,)),
    ((), (3, 4)),
    ((), ()),
    ((3,), (1,)),
    ((lambda x: None, lambda x: 3), (1,)),
    ((lambda: 3,), ()),
]


@pytest.mark.parametrize("case", range(len(SEQUENTIALS)))
def test_sequential(same, case):
    fns, args = SEQUENTIALS[case]
    same(lambda nnx: nnx.Sequential(*fns)(*args))
    same(lambda nnx: nnx.to_flat_state(nnx.state(nnx.Sequential(nnx.Dict(w=nnx.Param(1)), jnp.sin))).paths)


def test_a_list_filled_after_it_was_assigned(same):
    def use(n):
        class Stack(n.Module):
            def __init__(self):
                self.sizes, self.layers = [1, 2], []
                self.layers.append(n.Linear(2, 2, rngs=n.Rngs(0)))

        return Stack()

    assert same(use) == ("raised", "ValueError")
