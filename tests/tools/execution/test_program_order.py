"""From items to calls: numbering per path, exclusive branches, and program order."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.making import item_of, site_of

from sonde import sow
from sonde.core.interpret.recording import Recording
from sonde.core.marks.site import Gate, View
from sonde.core.records.gradient_pairing import calls_of
from sonde.core.session.run import run_with
from sonde.tools.execution.program_order import Numbered, ProgramOrder, numbered_calls

SITE = site_of(np.ones(2))


def test_calls_are_numbered_by_path_in_program_order():
    items = [item_of(SITE, np.ones(2), path=path) for path in ("a", "b", "a", "a")]
    assert numbered_calls(items) == [
        Numbered("a", 0, (0,)),
        Numbered("b", 0, (1,)),
        Numbered("a", 1, (2,)),
        Numbered("a", 2, (3,)),
    ]
    assert numbered_calls([]) == []


def test_gradients_are_no_calls():
    gradient = item_of(SITE, np.ones(2), view=View(gradient_of=(0,)))
    assert numbered_calls([gradient, item_of(SITE, np.ones(2))]) == [Numbered("h", 0, (1,))]


def test_branches_that_exclude_each_other_are_one_call():
    choice = object()
    views = [View(gates=frozenset({Gate(choice, branch, 2)})) for branch in range(2)]
    items = [item_of(SITE, np.ones(2), view=view, taken=np.True_) for view in views]
    assert numbered_calls(items) == [Numbered("h", 0, (0, 1))]
    other = dataclasses.replace(items[1], path="other")  # at another path there is nothing to join
    assert [call.positions for call in numbered_calls([items[0], other])] == [(0,), (1,)]


def test_calls_of_a_handler_have_their_gradients():
    def loss(x):
        return jnp.sum(sow(x * 2, "h") ** 2) + jnp.sum(sow(x, "g"))

    x = np.array([1.0, -3.0], np.float32)
    handler = Recording((), grads=True)
    run_with(handler, jax.grad(loss), (x,), {}, grads=True)
    calls = calls_of(handler)
    assert [call.item.path for call in calls] == ["h", "g"]
    for call, value, gradient in zip(calls, (x * 2, x), (4 * x, np.ones(2))):
        np.testing.assert_allclose(call.item.leaves[0], value)
        found = call.grads[0]
        assert found is not None
        np.testing.assert_allclose(found.leaves[0], gradient)


def test_in_a_loop_iterations_come_before_places_in_the_body():
    loop = object()
    items = [item_of(SITE, np.ones(2), path=p, loops=(loop,)) for p in ("a", "b")]
    items = [item_of(SITE, np.ones(2), path="before"), *items, item_of(SITE, np.ones(2), path="after")]
    order = ProgramOrder(items)
    met = [(i, n) for i, item in enumerate(items) for n in (range(2) if item.loops else [None])]
    keys = {order.key(i, items[i].loops, () if n is None else (n,)): (items[i].path, n) for i, n in met}
    assert [keys[key] for key in sorted(keys)] == [
        ("before", None),
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
        ("after", None),
    ]


def test_the_order_of_a_program_is_that_of_a_python_loop():
    def f(x, loop):
        return loop(lambda c: sow(sow(c + 1, "a") * 2, "b"), sow(x, "first"))

    def by_scan(body, x):
        return lax.scan(lambda c, _: (body(c), None), x, length=2)[0]

    class Told(Recording):
        tells_loops_apart = True

    handler = Told(())
    run_with(handler, f, (1.0, by_scan), {})
    items = [call.item for call in calls_of(handler)]
    order = ProgramOrder(items)
    rows = [(i, n) for i, item in enumerate(items) for n in range(2 if item.loops else 1)]
    met = sorted(rows, key=lambda row: order.key(row[0], items[row[0]].loops, (row[1],)))
    assert [items[i].path for i, _ in met] == ["first", "a", "b", "a", "b"]
