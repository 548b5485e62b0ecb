"""Checking an edit of a random program: the result is that of the program with the edit written in by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.checking import INPUTS, TOLERANCE
from tests.core.programs import Drawing, Program, loss_of
from tests.core.programs.nodes import edit_written_in
from tests.core.reducing import reduced

import sonde


def _floats(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of every array of floats in a value."""
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    return lambda value: jax.tree.map(lambda x: change(x) if is_float(x) else x, value)


SCALE = np.float32(1.7)
VALUES: dict[str, Callable[[Any], Any]] = {
    "scale": lambda x: x * SCALE.astype(x.dtype),
    "clip": lambda x: jnp.clip(x, -0.4, 0.5),
    "stop": lax.stop_gradient,
    "zeros": jnp.zeros_like,
    "constant": lambda x: jnp.full_like(x, 0.3),
    "square": lambda x: 0.5 * x**2 + 0.1,
    "nothing": lambda x: x,
}
# Linear ones alone. Of a value that `vmap` does not map, `custom_vjp` and an edit may sum over the examples at
# different moments, before or after the change; which is right is open.
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "scale": lambda g: g * 0.5,
    "zero": jnp.zeros_like,
    "reverse": lambda g: -g,
}


def _with_gradient(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The identity whose cotangent is changed, by JAX's own means. Forward mode cannot go through it."""

    @jax.custom_vjp
    def same(x: Any) -> Any:
        return x

    # A later differentiation has a gradient there, too.
    same.defvjp(lambda x: (same(x), None), lambda _, ct: (change(ct),))
    return same


FORMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "value": lambda f: f,
    "gradient": lambda f: jax.grad(loss_of(f)),
    "jitted gradient": lambda f: jax.jit(jax.grad(loss_of(f))),
    "gradient in python": lambda f: functools.partial(lambda g, x: g(x) * 1.0, jax.jit(jax.grad(loss_of(f)))),
    "tangent of a gradient": lambda f: lambda x: jax.jvp(jax.grad(loss_of(f)), (x,), (jnp.ones_like(x),))[1],
    "mapped gradient": lambda f: lambda x: jax.vmap(jax.grad(loss_of(f)))(jnp.stack([x, x * 0.5])),
    "training": lambda f: lambda x: lax.scan(lambda c, _: (c - 0.1 * jax.grad(loss_of(f))(c), None), x, length=2)[0],
}


def can_be_replaced(site: Any) -> bool:
    return not site.in_place


def check_edit(program: Program, value: str, gradient: str | None, form: str, inside: bool, x: Any) -> bool:
    """Edits all sites of a program, inside or outside of a differentiation. Returns whether JAX can run it at all."""
    if not program.differentiable:
        form = "value"
    wrap = FORMS[form]
    written = _floats(VALUES[value])
    if gradient is not None:
        behind = _floats(_with_gradient(GRADIENTS[gradient]))
        written = lambda v, change=written: behind(change(v))
    with edit_written_in(written), program.surroundings():
        try:
            want = wrap(program.make())(x)
        except Exception:  # more than JAX can do
            return False
    if not np.all(np.isfinite(want)):
        return False
    back = None if gradient is None else _floats(GRADIENTS[gradient])
    edits = {can_be_replaced: sonde.Edit(_floats(VALUES[value]), grad=back)}
    edited = wrap(sonde.edit(program.make(), edits)) if inside else sonde.edit(wrap(program.make()), edits)
    with program.surroundings():
        try:
            got = edited(x)
        except sonde.errors.EditError as error:
            if "in a while_loop that jax.checkpoint computes again" not in str(error):
                raise
            return False
        except ValueError as error:
            if "Reverse-mode differentiation does not work" not in str(error):
                raise
            return False  # a loop of which JAX sees that it changes nothing, as long as it has no site
        except sonde.errors.NoSuchSiteError:  # true only if a capture finds none either: then nothing was compared
            with pytest.raises(sonde.errors.NoSuchSiteError):
                sonde.capture(wrap(program.make()), can_be_replaced)(x)
            return False
    np.testing.assert_allclose(got, want, **TOLERANCE)
    return True


def check_in_double_precision(*drawn: Any) -> bool:
    """What is wrong must be wrong in double precision too: some programs make much of a last digit."""
    *chosen, x = drawn
    try:
        return check_edit(*chosen, x)
    except AssertionError:
        with jax.enable_x64(True):
            return check_edit(*chosen, x.astype(np.float64))


def drawn(seed: int, max_depth: int) -> tuple[Any, ...]:
    random = Random(seed)
    program = Drawing(random).program(max_depth)
    gradient = random.choice([None, None, *GRADIENTS])
    form = random.choice(list(FORMS)[1:] if gradient else list(FORMS))
    return program, random.choice(list(VALUES)), gradient, form, random.random() < 0.3, random.choice(INPUTS)


def run_edit_seed(seed: int, max_depth: int) -> bool:
    """Checks the edit of a random program; one that fails is made small before it is shown."""
    program, *how = drawn(seed, max_depth)
    try:
        return check_in_double_precision(program, *how)
    except Exception as error:
        small = reduced(lambda p: check_in_double_precision(p, *how), program)
        *words, x = how
        words = ", ".join(map(repr, words))
        raise AssertionError(f"check_edit({small}, {words}, np.array({x.tolist()}, np.float32)) fails") from error
