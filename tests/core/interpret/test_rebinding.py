"""Sites that are bound again in another form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import _jax
from sonde.core.interpret.rebinding import Rebinding, rebound
from sonde.core.session.session import CaptureState, with_capture_state


def test_a_jaxpr_is_bound_again_once_for_a_key() -> None:
    """`rebound` gives the handler all inputs, changes the outputs, and keeps what has a key."""
    closed = jax.make_jaxpr(lambda x: x * 2)(jnp.float32(1))
    type_of_x = closed.jaxpr.invars[0].aval
    made = []

    def again(key: object) -> Any:
        def handler_of(*inputs: Any) -> Rebinding:
            made.append(len(inputs))
            return Rebinding(lambda *_: [], inputs[0])

        return rebound(closed, handler_of, front=[type_of_x], then=lambda outs, inputs: [*outs, inputs[0]], key=key)

    kept = again("a")
    assert again("a") is kept and again("b") is not kept and again(None) is not again(None)
    assert made == [2] * 4
    assert [float(x) for x in _jax.eval_jaxpr(kept, jnp.float32(5), jnp.float32(3))] == [6, 5]


def test_sites_in_loops_get_the_values_of_the_iteration() -> None:
    def f(x):
        def step(c, _):
            return sonde.sow(c, "h"), None

        return jax.lax.scan(step, sonde.sow(x, "g"), length=3)[0]

    _jax.make_changes()
    with with_capture_state(CaptureState(grads=False)):
        closed = jax.make_jaxpr(f)(jnp.float32(1))
    added = lambda values, args, site, view: [args[0] + values]
    for in_iteration, total in ((None, 1 + 4 * 10), (lambda value, i: value + i, 1 + 4 * 10 + 0 + 1 + 2)):
        handler_of = lambda *_, in_iteration=in_iteration: Rebinding(added, 10, in_iteration=in_iteration)
        program = rebound(closed, handler_of)
        np.testing.assert_array_equal(_jax.eval_jaxpr(program, jnp.float32(1)), [total])
    beside = Rebinding(added, 10, of_custom_call=lambda values, outs: [x * values for x in outs])
    assert (Rebinding(added).of_custom_call([2]), beside.of_custom_call([2])) == ([2], [20])
