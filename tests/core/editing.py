"""Checking an edit of a random program: the result is that of the program with the edit written in by hand."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.checking import INPUTS, TOLERANCE, is_refused
from tests.core.programs import Drawing, Program, Rec, loss_of
from tests.core.programs.nodes import Env, by_hand, edit_written_in
from tests.core.programs.records import putting_back
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


def has_sites(f: Callable[[Any], Any], chosen: Callable[[Any], bool], x: Any) -> bool:
    """Whether a capture finds sites that are chosen."""
    try:
        sonde.capture(f, chosen)(x)
    except sonde.errors.NoSuchSiteError:
        return False
    return True


def _at_first(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of the first elements along the last axis."""
    return lambda x: jnp.where(_first(x.shape), change(x), x)


def _undecided(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of which JAX cannot tell, where a function is traced before it runs, whether it is made."""

    def changed(x: Any) -> Any:
        is_made = lax.optimization_barrier(jnp.array(True))
        return jnp.where(is_made, change(x), x) if isinstance(is_made, _jax.Tracer) else change(x)

    return changed


# After these nothing depends on the input. In a jitted function JAX sees that if they are written in by hand, but not
# if they are edits, which may be meant for another call. Both are right, and differ where a function has derivatives
# of its own that are not those of what it computes: JAX asks for these or for the others.
VANISHING = ("stop", "zeros", "constant")


def check_edit(
    program: Program,
    value: str,
    gradient: str | None,
    form: str,
    inside: bool,
    x: Any,
    name: str | None = None,
    first: bool = False,
) -> bool:
    """Edits the sites of a program, inside or outside of a differentiation. Returns whether JAX can run it at all.

    Args:
        program: The program.
        value: How values are changed.
        gradient: How gradients are changed, if they are.
        form: What is done with the program.
        inside: Whether the program is edited, and not what is done with it.
        x: The input.
        name: Which sites, by the last part of their paths; all, if None.
        first: Whether only the first elements of values and gradients are changed.
    """
    if not program.differentiable:
        form = "value"
    wrap = FORMS[form]
    in_part = _at_first if first else lambda change: change

    def by_hand_with(change: Callable[[Any], Any]) -> Any:
        written = _floats(in_part(change))
        if gradient is not None:
            behind = _floats(_with_gradient(in_part(GRADIENTS[gradient])))
            written = lambda v, change=written: behind(_tied(change(v)))
        with edit_written_in(lambda v, site: written(v) if name in (None, site) else v), program.surroundings():
            return wrap(program.make())(x)

    try:
        want = by_hand_with(VALUES[value])
    except Exception:  # more than JAX can do
        return False
    if not np.all(np.isfinite(want)):
        return False
    back = None if gradient is None else _floats(GRADIENTS[gradient])

    def can_be_replaced(site: Any) -> bool:
        return not site.in_place and name in (None, site.path.rpartition("/")[2])

    positions: Any = {"positions": 0, "position_axis": -1} if first else {}
    edits = {can_be_replaced: sonde.Edit(_floats(VALUES[value]), grad=back, **positions)}
    places: list[str] = []

    def rule(arrays: Sequence[Any], where: Where) -> Supplied | None:
        if name not in (None, where.path.rpartition("/")[2]):
            return None
        places.append(where.path)
        return _supplied(value, arrays, where)

    def changed(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return put_by_rule(f, rule, RULES[value]) if value in RULES else sonde.edit(f, edits)

    edited = wrap(changed(program.make())) if inside else changed(wrap(program.make()))
    with program.surroundings():
        try:
            got = edited(x)
        except sonde.errors.EditError as error:
            if not re.search(r"in a while_loop that (jax.checkpoint computes|is computed) again", str(error)):
                raise
            return False
        except sonde.errors.CaptureError as error:
            if not is_refused(error, program):
                raise
            return False
        except ValueError as error:
            if not re.search("Reverse-mode differentiation does not work|Linearization failed", str(error)):
                raise
            return False  # a loop of which JAX sees that it changes nothing, as long as it has no site
        except TypeError as error:
            if value not in VANISHING or "forward-mode autodiff (jvp) to a custom_vjp" not in str(error):
                raise
            return False
        except sonde.errors.NoSuchSiteError:
            if has_sites(wrap(program.make()), can_be_replaced, x):
                raise
            return False  # nothing was compared
    if value in VANISHING and not np.allclose(got, want, **TOLERANCE):
        try:
            want = by_hand_with(_undecided(VALUES[value]))
        except Exception:  # as above
            return False
    np.testing.assert_allclose(got, want, **TOLERANCE)
    return value not in RULES or bool(places)  # where a rule was asked nowhere, nothing was compared


# What is differentiated in them is the program itself, once: its sites are met as often as in the program.
GRADIENT_FORMS = ("value", "gradient", "jitted gradient", "gradient in python", "tangent of a gradient")


def put_back_by_hand(program: Program, recs: Sequence[Rec]) -> Callable[[Any], Any]:
    """The program in which recorded values are written in at its sites."""
    env = Env(program.functions)

    def written(rec: Rec) -> list[Any]:
        if rec.taken is None:
            return rec.floats
        aligned = lambda a: jnp.reshape(rec.taken, jnp.shape(rec.taken) + (1,) * (a.ndim - jnp.ndim(rec.taken)))
        return [jnp.where(aligned(a), a, jnp.nan) for a in rec.floats]

    values = [written(rec) for rec in recs]
    return lambda y: by_hand(program.body, y, values, env)[0]


def check_put_back(program: Program, form: str, inside: bool, jitted: bool, x: Any) -> bool:
    """Puts the values that a program has for another input in place. Returns whether JAX can run it at all."""
    wrap = FORMS[form] if program.differentiable else FORMS["value"]
    inside = inside or form not in GRADIENT_FORMS
    other = jnp.flip(x) * 0.7 + 0.1
    if "While(" in repr(program) or ("apart=True" in repr(program) and form != "value"):
        return False  # the last iteration alone is recorded; sites that do not run when they are differentiated
    try:
        _, recs = jax.jit(program.by_hand)(other)
        with putting_back():
            want = jax.jit(wrap(put_back_by_hand(program, recs)))(x)
        with program.surroundings():
            unedited = wrap(program.make())(x)
    except Exception:  # more than JAX can do
        return False
    f = jax.jit(program.make()) if jitted else program.make()
    with program.surroundings():
        try:
            records = sonde.capture(f, can_be_replaced)(other)[1]
            got = wrap(sonde.edit(f, records))(x) if inside else sonde.edit(wrap(f), records)(x)
        except sonde.errors.NoSuchSiteError:
            return False
        except sonde.errors.EditError as error:
            if not re.search("examples took different branches|in a while_loop that is computed again", str(error)):
                raise
            return False
        except sonde.errors.CaptureError as error:
            if not is_refused(error, program):
                raise
            return False
    if not np.allclose(got, want, **TOLERANCE):
        # Second derivatives of some functions with rules in a scan differ from those by hand, unedited too.
        unedited_by_hand = jax.jit(wrap(lambda y: program.by_hand(y)[0]))(x)
        if not np.allclose(unedited, unedited_by_hand, rtol=1e-5, atol=1e-6):
            return False
    np.testing.assert_allclose(got, want, **TOLERANCE)
    return True


def can_be_replaced(site: Any) -> bool:
    return not site.in_place


def in_double_precision_too(check: Callable[..., bool], program: Program, how: Sequence[Any]) -> bool:
    """What is wrong must be wrong in double precision too: some programs make much of a last digit."""
    try:
        return check(program, *how)
    except AssertionError:
        with jax.enable_x64(True):
            return check(program, *[h.astype(np.float64) if isinstance(h, np.ndarray) else h for h in how])


def drawn(seed: int, max_depth: int) -> tuple[Callable[..., bool], Program, tuple[Any, ...]]:
    """How an edit of a program is checked, the program, and the other arguments."""
    random = Random(seed)
    program = Drawing(random).program(max_depth)
    x, inside = random.choice(INPUTS), random.random() < 0.3
    if random.random() < 0.3:
        form = random.choice(["value", *FORMS])
        return check_put_back, program, (form, inside, random.random() < 0.3, x)
    value = random.choice(list(VALUES))
    gradient = None if value in RULES else random.choice([None, None, *GRADIENTS])
    form = random.choice(list(FORMS)[1:] if gradient else list(FORMS))
    names = [*dict.fromkeys(re.findall(r"Sow\(name='(\w+)'", repr(program)))]
    name = random.choice(names) if names and random.random() < 0.3 else None
    first = value not in RULES and not re.search("kind='(scalar|mixed)'", repr(program)) and random.random() < 0.2
    return check_edit, program, (value, gradient, form, inside, x, name, first)


def check_seed(seed: int, max_depth: int) -> bool:
    return in_double_precision_too(*drawn(seed, max_depth))


def run_edit_seed(seed: int, max_depth: int) -> bool:
    """Checks the edit of a random program; one that fails is made small before it is shown."""
    check, program, how = drawn(seed, max_depth)
    try:
        return in_double_precision_too(check, program, how)
    except Exception as error:
        small = reduced(lambda p: in_double_precision_too(check, p, how), program)
        words = ", ".join(f"np.array({h.tolist()}, np.float32)" if isinstance(h, np.ndarray) else repr(h) for h in how)
        raise AssertionError(f"{check.__name__}({small}, {words}) fails") from error
