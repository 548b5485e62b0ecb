import abc
import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.graphs import leaves

from sonde import errors, nnx


def everything(nnx):
    class Foo(nnx.Module):
        def __init__(self):
            self.b = nnx.Param(jnp.ones(2))
            self.a = nnx.BatchStat(jnp.zeros(2))
            self.arr = jnp.ones(3)
            self.np = np.ones(2)
            self.text = "hello"
            self.n = 3
            self.lst = nnx.List([nnx.Param(jnp.ones(1)), "s", 4, jnp.ones(2)])
            self.d = nnx.Dict(x=nnx.Param(jnp.ones(1)), y=3)
            self.tup = nnx.data((nnx.Param(1.0), nnx.Param(2.0)))
            self.fn = jnp.sin
            self.none = None
            self.dd = nnx.data({"q": jnp.ones(1), "p": {"r": nnx.Param(2.0)}, "z": 5})

    return Foo()


def test_flattening(same):
    same(lambda nnx: leaves(everything(nnx)))
    same(lambda nnx: jax.tree.map(lambda x: x * 2, everything(nnx)))


def test_check_pytree(same):
    def use(nnx):
        o = nnx.Dict(a=1)
        nnx.check_pytree(o)
        vars(o)["sneaky"] = [jnp.ones(1)]
        nnx.check_pytree(o)

    same(use)
    same(lambda nnx: nnx.check_pytree([1]))


def test_pytree_false(same):
    def use(nnx):
        class Opaque(nnx.Module, pytree=False):
            def __init__(self):
                self.layers = [nnx.Param(1), 3]
                self.x = jnp.ones(2)

        o = Opaque()
        return len(jax.tree.leaves(o)), nnx.state(o), nnx.merge(*nnx.split(o)).layers[1]

    same(use)


def test_properties_keep_working():
    class Model(nnx.Module):
        @property
        def scale(self):
            return self._scale

        @scale.setter
        def scale(self, value):
            self._scale = jnp.asarray(value)

    m = Model()
    m.scale = 3.0
    assert list(vars(m)) == ["_scale"]
    assert jax.tree.leaves(m) == [3.0]


def test_abstract_methods_are_enforced():
    class Base(nnx.Module):
        @abc.abstractmethod
        def f(self): ...

    with pytest.raises(TypeError, match="abstract"):
        Base()


def test_copies():
    m = everything(nnx)
    shallow = copy.copy(m)
    assert shallow is not m and shallow.b is m.b
    deep = copy.deepcopy(m)
    assert deep.b is not m.b
    deep.b[...] = jnp.zeros(2)
    deep.lst.append(nnx.Param(1))
    assert m.b.sum() == 2 and len(m.lst) == 4
    cyclic = nnx.Dict()
    cyclic.me = cyclic
    again = copy.deepcopy(cyclic)
    assert again.me is again and again is not cyclic


def test_pickle():
    d = nnx.Dict(w=nnx.Param(jnp.ones(2)), n=3, layers=nnx.List([nnx.Param(1), "s"]))
    again = pickle.loads(pickle.dumps(d))
    assert nnx.graphdef(again) == nnx.graphdef(d)
    assert again.layers[1] == "s"
    again.layers.append(nnx.Param(2))
    graphdef = pickle.loads(pickle.dumps(nnx.graphdef(d)))
    assert graphdef == nnx.graphdef(d) and hash(graphdef) == hash(nnx.graphdef(d))


def test_changing_from_another_trace_level():
    m = nnx.Dict(w=nnx.Param(1.0), layers=nnx.List([1]))
    for change in (
        lambda x: setattr(m, "x", x),
        lambda x: m.layers.append(x),
        lambda x: delattr(m, "w"),
        lambda x: m.layers.__setitem__(0, 2),
    ):
        with pytest.raises(errors.TraceContextError, match="at a trace level other than"):
            jax.jit(change)(1.0)
    assert list(m) == ["w", "layers"] and list(m.layers) == [1]


def test_what_methods_refer_to_can_be_pickled():
    """Classes that cannot be imported are pickled by value, with the globals that their methods refer to."""
    from sonde.core.session.session import SESSIONS

    assert pickle.loads(pickle.dumps(SESSIONS)) is SESSIONS


def test_which_classes_are_pytrees(same):
    def run(nnx):
        class Opaque(nnx.Pytree, pytree=False):
            def __init__(self):
                self.items = [nnx.Param(1.0)]

        class Derived(Opaque):
            def __init__(self):
                self.w = nnx.Param(1.0)

        class Old(nnx.Object):
            def __init__(self):
                self.items = [nnx.Param(1.0)]

        class Both(nnx.Module, Old):
            pass

        leaves = [jax.tree_util.all_leaves([cls()]) for cls in (Opaque, Derived, Old, Both)]
        return leaves, [len(nnx.to_flat_state(nnx.state(cls()))) for cls in (Opaque, Derived, Old, Both)]

    assert same(run) == ([True, False, True, True], [1, 1, 1, 1])
    with pytest.raises(ValueError, match="Wrong derives from nnx.Object"):
        type("Wrong", (nnx.Object,), {}, pytree=True)
