"""Which attributes are data and which are static, by default, by mark and by annotation."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from tests.nnx.graphs import leaves

from sonde import nnx

STATUS = {
    "data": lambda nnx, o: setattr(o, "x", nnx.data(5)),
    "static": lambda nnx, o: setattr(o, "x", nnx.static("s")),
    "static array": lambda nnx, o: setattr(o, "x", nnx.static(jnp.ones(2))),
    "array": lambda nnx, o: setattr(o, "x", jnp.ones(2)),
    "list of arrays": lambda nnx, o: setattr(o, "x", [jnp.ones(2)]),
    "tuple with Param": lambda nnx, o: setattr(o, "x", (1, nnx.Param(1))),
    "dict with Module": lambda nnx, o: setattr(o, "x", {"m": nnx.Dict()}),
    "list of numbers": lambda nnx, o: setattr(o, "x", [1, 2]),
    "array over number": lambda nnx, o: (setattr(o, "x", 1), setattr(o, "x", jnp.ones(2))),
    "number over array": lambda nnx, o: (setattr(o, "x", jnp.ones(2)), setattr(o, "x", 1)),
    "number over data": lambda nnx, o: (setattr(o, "x", nnx.data(1)), setattr(o, "x", "s")),
    "array over static": lambda nnx, o: (setattr(o, "x", nnx.static(1)), setattr(o, "x", jnp.ones(2))),
    "data over number": lambda nnx, o: (setattr(o, "x", 1), setattr(o, "x", nnx.data(2))),
    "deleted": lambda nnx, o: (setattr(o, "x", 1), delattr(o, "x"), setattr(o, "x", jnp.ones(2))),
    "delete missing": lambda nnx, o: delattr(o, "x"),
    "past setattr": lambda nnx, o: vars(o).__setitem__("x", 3),
}


@pytest.mark.parametrize("name", STATUS)
def test_status_of_attributes(same, name):
    def use(nnx):
        class Empty(nnx.Pytree):
            pass

        o = Empty()
        STATUS[name](nnx, o)
        return leaves(o), nnx.split(o)[1]

    same(use)


def test_static_holding_data_says_what_to_do():
    class Model(nnx.Module):
        def __init__(self):
            self.layers = [nnx.Param(1.0)]

    with pytest.raises(ValueError, match=r"holds Param, assigned to the static attribute 'layers' of Model"):
        Model()
    model = nnx.Dict(n=3)
    with pytest.raises(ValueError, match=r"static attribute 'n' of Dict.*self.n = nnx.data"):
        model.n = jnp.ones(2)
    assert model.n == 3


def test_annotations(same):
    def use(nnx):
        class Annotated(nnx.Module):
            a: nnx.Data[list]
            b: nnx.Static[int]
            c: list = nnx.data()
            d: "nnx.Data[int]"

            def __init__(self):
                self.a = [jnp.ones(1)]
                self.b = 3
                self.c = [nnx.Param(1)]
                self.d = 4

        class Sub(Annotated):
            pass

        return leaves(Sub())[1][:2], nnx.state(Annotated())

    same(use)


def test_dataclasses(same):
    def use(nnx):
        @nnx.dataclass
        class D(nnx.Pytree):
            i: int = nnx.data(default=4)
            x: jax.Array = nnx.data(default=None)
            s: str = nnx.static(default="q")
            values: list = nnx.data(default_factory=list)
            k: int = 7

        @dataclasses.dataclass
        class E(nnx.Module):
            i: int
            x: nnx.Data[int] = 3

            def __post_init__(self):
                self.w = nnx.Param(1.0)

        return leaves(D()), leaves(D(i=2, x=jnp.ones(1), values=[1, jnp.ones(1)])), D() == D(), leaves(E(1))

    same(use)
    same(lambda nnx: hash(nnx.dataclass(type("D", (nnx.Pytree,), {"__annotations__": {"a": int}}))(1)))


def test_fields_that_say_static_as_jax_does(same):
    def use(n):
        @dataclasses.dataclass
        class Box(n.Pytree):
            a: int = dataclasses.field(metadata={"static": False})
            b: str = dataclasses.field(metadata={"static": True})

        return jax.tree.leaves(Box(a=10, b="x"))

    same(use)


@pytest.mark.parametrize(
    "value",
    [
        lambda nnx: [nnx.data(1), nnx.static(2)],
        lambda nnx: nnx.data([nnx.data(1)]),
        lambda nnx: nnx.static({"a": (1, nnx.static(2))}),
        lambda nnx: nnx.List([[nnx.data(1)]]),
        lambda nnx: nnx.List([nnx.data(1), nnx.static(2)]),
        lambda nnx: [1, "a", None, jax.nn.relu],
    ],
)
def test_marks_inside_of_plain_containers_are_refused(same, value):
    def use(nnx):
        class Node(nnx.Module):
            def __init__(self):
                self.a = value(nnx)

        return leaves(Node())

    same(use)


def test_the_error_for_a_mark_inside_of_a_container_names_the_attribute():
    class Node(nnx.Module):
        def __init__(self):
            self.layers = [nnx.static(2)]

    with pytest.raises(ValueError, match=r"marked with nnx.static is inside of the list .* attribute 'layers' of Node"):
        Node()
