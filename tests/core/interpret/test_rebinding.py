"""Sites that are bound again in another form."""

from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.interpret.rebinding import Rebinding, rebound


def test_a_jaxpr_is_bound_again_once_for_a_key() -> None:
    """`rebound` gives the handler all inputs, changes the outputs, and keeps what has a key."""
    closed = jax.make_jaxpr(lambda x: x * 2)(jnp.float32(1))
    type_of_x = closed.jaxpr.invars[0].aval
    made = []

    def again(key: object) -> Any:
        def handler_of(*inputs: Any) -> Rebinding:
            made.append(len(inputs))
            return Rebinding(inputs[0])

        return rebound(closed, handler_of, front=[type_of_x], then=lambda outs, inputs: [*outs, inputs[0]], key=key)

    kept = again("a")
    assert again("a") is kept and again("b") is not kept and again(None) is not again(None)
    assert made == [2] * 4
    assert [float(x) for x in _jax.eval_jaxpr(kept, jnp.float32(5), jnp.float32(3))] == [6, 5]
