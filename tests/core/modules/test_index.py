"""Modules of any library, found by identity among the attributes of others."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.modules.index import (
    ModuleKind,
    Origin,
    module_kind,
    outermost_in,
    outermost_modules,
    path_between,
    register_modules,
    text_between,
)
from sonde.inside.match_copies import CopiesByArrays


def test_path_between_follows_changes():
    class Loose:
        pass

    register_modules(Loose, ModuleKind(lambda m: list(vars(m).items())))
    root, a, b = Loose(), Loose(), Loose()
    root.items = {"x": [a]}
    assert path_between(root, a) == ("items", "x", 0)
    assert path_between(root, b) is None
    root.items["x"].insert(0, b)
    assert path_between(root, b) == ("items", "x", 0)
    assert path_between(root, a) == ("items", "x", 1)
    root.items = None
    assert path_between(root, a) is None
    root.self = root
    assert path_between(root, root) == ()


def test_a_path_is_looked_for_again_only_after_a_change():
    class Stamped:
        pass

    stamp, asked = [0], []

    def child(module: Any, name: str) -> Any:
        asked.append(name)
        return vars(module)[name]

    register_modules(Stamped, ModuleKind(lambda m: list(vars(m).items()), child, stamp=lambda: stamp[0]))
    root, a, b = Stamped(), Stamped(), Stamped()
    root.a, a.b = a, b
    assert (text_between(root, b), text_between(root, a), text_between(root, root)) == ("a/b", "a", "")
    assert not asked
    stamp[0] += 1
    assert text_between(root, b) == "a/b"
    assert asked == ["a", "b"]
    root.c = vars(root).pop("a")
    stamp[0] += 1
    assert (text_between(root, b), text_between(root, Stamped())) == ("c/b", None)


class Plain:
    """A module whose attributes are its parts."""

    def __init__(self, **parts):
        vars(self).update(parts)


register_modules(
    Plain, ModuleKind(lambda m: list(vars(m).items()), copies=CopiesByArrays(lambda m: [m.w] if "w" in vars(m) else []))
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Tree:
    """Not a module, but a pytree that contains modules."""

    left: Any
    right: Any


def test_modules_are_found_through_containers_but_not_inside_modules():
    a, b, c = Plain(), Plain(inside=Plain()), Plain()
    found = list(outermost_in({"x": [a, 1], "y": Tree(b, (None, c)), "n": np.ones(2)}, ()))
    assert found == [(("x", 0), a), (("y", "left"), b), (("y", "right", 1), c)]
    assert list(outermost_modules([1, "text", np.ones(2), jnp.ones(2), None])) == []
    assert list(outermost_modules([a, (b, a)])) == [a, b, a]


def test_containers_with_a_class_of_their_own_are_searched():
    class Layers(list):
        pass

    class Named(NamedTuple):
        left: Any

    a, b = Plain(), Plain()
    root = Plain(parts={"x": Layers([Layers([a])])}, pair=Layers([Named(b)]))
    assert path_between(root, a) == ("parts", "x", 0, 0)
    assert path_between(root, b) == ("pair", 0, "left")
    assert list(outermost_in(Layers([1, (a,)]), ())) == [((1, 0), a)]


def test_a_shared_module_has_its_first_path():
    shared = Plain()
    root = Plain(a=Plain(x=shared), b=[shared], c=shared)
    assert path_between(root, shared) == ("a", "x")
    root.a = None
    assert path_between(root, shared) == ("b", 0)


def test_a_kind_is_that_of_the_nearest_class():
    class Special(Plain):
        pass

    class More(Special):
        pass

    assert module_kind(More()) is module_kind(Plain())
    register_modules(Special, ModuleKind(lambda m: []))
    assert module_kind(More()) is module_kind(Special())
    assert module_kind(More()) is not module_kind(Plain())
    assert module_kind(3) is None


def test_origins_make_no_difference_to_a_structure():
    one, other = Origin(Plain(), None), Origin(Plain(), None)
    assert one == other == None  # noqa: E711
    assert hash(one) == hash(other) == hash(None)
    assert repr(one) == "None"
