import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.errors import TraceContextError
from sonde.nnx.transforms.lifting import take
from sonde.nnx.transforms.options import Mode
from sonde.nnx.transforms.outcome import Outcome, settle, write

UPDATES = Mode(True, True)


def left_by(f, *args):
    taken = take("test", UPDATES, args)
    entered = taken.enter(taken.values)
    return taken, entered.leave(f(*entered.args))


def test_an_outcome_is_a_static_value():
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)), n=nnx.Variable(0))
    _, (lists, outcome) = left_by(lambda m: (m.n.set_value(1), m.w * 2)[1], m)
    _, (_, again) = left_by(lambda m: (m.n.set_value(2), m.w * 3)[1], m)
    assert outcome == again and hash(outcome) == hash(again)
    assert jax.tree.leaves(outcome) == [] and outcome.changed == (0,) and not outcome.edits
    assert outcome.join(*outcome.split(lists), len(lists)) == lists


def test_what_there_is_to_do():
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    taken = take("test", UPDATES, (m,))
    entered = taken.enter(taken.values)
    assert entered.leave(None, separately=True)[1].nothing
    entered.args[0].w[...] = 3.0
    _, outcome = entered.leave(None, separately=True)
    assert outcome.values_only and not outcome.nothing and not outcome.refers
    entered.args[0].flag = 3
    _, outcome = entered.leave(None, separately=True)
    assert not outcome.values_only and outcome.refers and outcome.n_edited == 0


def test_settling():
    m = nnx.Dict(w=nnx.Param(jnp.zeros(2)))

    def f(m):
        m.w[...] += 1
        m.new = nnx.Param(m.w * 2)
        return [m.w, m.new, 7]

    taken, left = left_by(f, m)
    assert not hasattr(m, "new") and float(m.w.sum()) == 0.0
    shown = settle(left, taken.leaves, taken.objects, output_only=True)
    assert shown[0] is m.w and not hasattr(m, "new")
    out = taken.settle(left)
    assert out[0] is m.w and out[1] is m.new and float(m.w.sum()) == 2.0 and float(m.new.sum()) == 4.0


def test_nothing_is_written_if_something_may_not_be():
    inner = []
    jax.make_jaxpr(lambda x: inner.append(nnx.Param(x)) or x)(1.0)
    here = nnx.Param(0.0)
    with pytest.raises(TraceContextError):
        write([here, *inner], [1.0, 2.0])
    assert here.get_value() == 0.0


def test_other_changes():
    outcome = Outcome(None, (), (), (1,), (0,), (None,))
    assert outcome.with_changes([0, 1], {}).changed == (0, 1)
