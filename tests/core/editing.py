"""Checking an edit of a random program: the result is that of the program with the edit written in by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.checking import INPUTS, TOLERANCE, is_refused
from tests.core.programs import Drawing, Program, loss_of
from tests.core.programs.nodes import edit_written_in
from tests.core.reducing import reduced

import sonde
from sonde import _jax
from sonde.core import ADDED, Supplied, Where, put_by_rule
from sonde.tools.intervention.patch_values import SELECTED


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
    "added": lambda x: x + np.asarray(0.3, x.dtype),
    "patched": lambda x: jnp.where(_first(x.shape), jnp.asarray(0.3, x.dtype), x),
}


def _first(shape: tuple[int, ...]) -> Any:
    """Where the first element along the last axis is; everywhere in a number."""
    return np.arange(shape[-1]) == 0 if shape else np.True_


def _supplied(value: str, arrays: Sequence[Any], where: Where) -> Supplied | None:
    """What a rule puts at a place, for the same result as the function of that name."""
    if where.site.in_place:
        return None
    floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in arrays]
    constants = [jnp.full_like(x, 0.3) if on else _jax.zeros_of_type(_jax.typeof(x)) for x, on in zip(arrays, floats)]
    if value == "added":
        return Supplied([constants])
    masks = [_first(jnp.shape(x)[where.mapped(i) :]) & on for i, (x, on) in enumerate(zip(arrays, floats))]
    return Supplied([constants, [jnp.broadcast_to(mask, jnp.shape(x)) for mask, x in zip(masks, arrays)]])


# Tools put values of other runs in place by rules, which may depend on the call and the iteration.
RULES = {"added": ADDED, "patched": SELECTED}
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "scale": lambda g: g * 0.5,
    "zero": jnp.zeros_like,
    "reverse": lambda g: -g,
    "clip": lambda g: jnp.clip(g, -0.3, 0.4),
    "square": lambda g: g * jnp.abs(g),
}


def _tied(value: Any) -> Any:
    """A value of which all arrays of floats are mapped if one of its arrays is.

    The gradient of what the examples share is a sum over them; but of a value whose arrays are shared in part, a
    function of the gradient sees one example.
    """
    leaves, tree = jax.tree.flatten(value)
    numbers = [x for x in leaves if hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.extended)]
    if len(numbers) < 2:
        return value
    nothing = sum(lax.stop_gradient((x == x).sum() * 0) for x in numbers)
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.unflatten(tree, [x + nothing.astype(x.dtype) if is_float(x) else x for x in leaves])


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


def has_sites(f: Callable[[Any], Any], x: Any) -> bool:
    """Whether a capture finds sites that can be replaced."""
    try:
        sonde.capture(f, can_be_replaced)(x)
    except sonde.errors.NoSuchSiteError:
        return False
    return True


def check_edit(program: Program, value: str, gradient: str | None, form: str, inside: bool, x: Any) -> bool:
    """Edits all sites of a program, inside or outside of a differentiation. Returns whether JAX can run it at all."""
    if not program.differentiable:
        form = "value"
    wrap = FORMS[form]
    written = _floats(VALUES[value])
    if gradient is not None:
        behind = _floats(_with_gradient(GRADIENTS[gradient]))
        written = lambda v, change=written: behind(_tied(change(v)))
    with edit_written_in(written), program.surroundings():
        try:
            want = wrap(program.make())(x)
        except Exception:  # more than JAX can do
            return False
    if not np.all(np.isfinite(want)):
        return False
    back = None if gradient is None else _floats(GRADIENTS[gradient])
    edits = {can_be_replaced: sonde.Edit(_floats(VALUES[value]), grad=back)}
    places: list[str] = []

    def rule(arrays: Sequence[Any], where: Where) -> Supplied | None:
        places.append(where.path)
        return _supplied(value, arrays, where)

    def changed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return put_by_rule(f, rule, RULES[value]) if value in RULES else sonde.edit(f, edits)

    edited = wrap(changed(program.make())) if inside else changed(wrap(program.make()))
    with program.surroundings():
        try:
            got = edited(x)
        except sonde.errors.EditError as error:
            if "in a while_loop that jax.checkpoint computes again" not in str(error):
                raise
            return False
        except sonde.errors.CaptureError as error:
            if not is_refused(error, program):
                raise
            return False
        except ValueError as error:
            if "Reverse-mode differentiation does not work" not in str(error):
                raise
            return False  # a loop of which JAX sees that it changes nothing, as long as it has no site
        except TypeError as error:
            # By hand, JAX sees that nothing depends on the input. In a jitted function it cannot know whether the edit
            # is meant for the site.
            vanishes = value in ("stop", "zeros", "constant")
            if not vanishes or "forward-mode autodiff (jvp) to a custom_vjp" not in str(error):
                raise
            return False
        except sonde.errors.NoSuchSiteError:
            if has_sites(wrap(program.make()), x):
                raise
            return False  # nothing was compared
    np.testing.assert_allclose(got, want, **TOLERANCE)
    return value not in RULES or bool(places)  # where a rule was asked nowhere, nothing was compared


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
    value = random.choice(list(VALUES))
    gradient = None if value in RULES else random.choice([None, None, *GRADIENTS])
    form = random.choice(list(FORMS)[1:] if gradient else list(FORMS))
    return program, value, gradient, form, random.random() < 0.3, random.choice(INPUTS)


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
