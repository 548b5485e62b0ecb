"""Defects, each a function of a value and of whether the defect is active.

Where it does not, a defect does no harm: values and gradients are finite. Those in `FORWARD` make the value bad; those
in `BACKWARD` make the gradient of their argument bad and nothing else. Both tables say what is then found there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def overflow(x: Any, now: Any) -> Any:
    return x * jnp.where(now, 3e38, 1.0) * jnp.where(now, 1e3, 1.0)


def exponential(x: Any, now: Any) -> Any:
    return x * jnp.exp(jnp.where(now, 100.0, 0.0))


def zero_by_zero(x: Any, now: Any) -> Any:
    return jnp.where(now, 0.0, x) / jnp.where(now, 0.0, 1.0)


def log_of_negative(x: Any, now: Any) -> Any:
    return jnp.log(jnp.where(now, -1.0, 2.0 + jnp.sin(x) ** 2))


def infinity_less_infinity(x: Any, now: Any) -> Any:
    large = jnp.where(now, jnp.inf, 1.0)
    return x + large - large


def one_element(x: Any, now: Any) -> Any:
    return x.at[1].set(jnp.where(now, jnp.inf, x[1]))


def nothing_to_attend_to(x: Any, now: Any) -> Any:
    return x + jax.nn.softmax(jnp.where(now, -jnp.inf, jnp.sin(x)))


FORWARD: dict[Callable, str] = {
    overflow: "infs",
    exponential: "infs",
    one_element: "infs",
    zero_by_zero: "nans",
    log_of_negative: "nans",
    infinity_less_infinity: "nans",
    nothing_to_attend_to: "nans",
}


def root_of_zero(x: Any, now: Any) -> Any:
    return x + 0.1 * jnp.sqrt(jnp.where(now, 0.0 * x, 1.0 + jnp.sin(x) ** 2))


def norm_of_zero(x: Any, now: Any) -> Any:
    return x + 0.1 * jnp.linalg.norm(jnp.where(now, 0.0 * x, 2.0 + jnp.sin(x) ** 2))


def log_not_chosen(x: Any, now: Any) -> Any:
    z = jnp.where(now, 0.0 * x, 1.0 + jnp.sin(x) ** 2)
    return x + 0.1 * jnp.where(z > 0, jnp.log(z), 0.0)


def power_of_zero(x: Any, now: Any) -> Any:
    return x + 0.1 * jnp.where(now, 0.0 * x, 1.0 + jnp.sin(x) ** 2) ** jnp.array([0.5, 0.25, 0.75])


def angle_of_nothing(x: Any, now: Any) -> Any:
    z = jnp.where(now, 0.0 * x, 1.0 + jnp.sin(x) ** 2)
    return x + 0.1 * jnp.arctan2(z, z)


@jax.custom_vjp
def bad_rule(x: Any, now: Any) -> Any:
    del now
    return 1.0 * x


bad_rule.defvjp(lambda x, now: (1.0 * x, now), lambda now, ct: (ct * jnp.where(now, jnp.nan, 1.0), None))


@jax.custom_vjp
def exploding_rule(x: Any, now: Any) -> Any:
    del now
    return 1.0 * x


exploding_rule.defvjp(lambda x, now: (1.0 * x, now), lambda now, ct: (ct * jnp.where(now, jnp.inf, 1.0), None))

WITH_RULES = (bad_rule, exploding_rule)
BACKWARD: dict[Callable, str] = {
    root_of_zero: "nans",
    norm_of_zero: "nans",
    log_not_chosen: "nans",
    power_of_zero: "nans",
    angle_of_nothing: "nans",
    bad_rule: "nans",
    exploding_rule: "infs",
}
