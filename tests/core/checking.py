"""Checking a program: however it is captured, a capture returns what the same program returns by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from tests.core.programs import Drawing, Program, Rec, loss_of
from tests.core.reducing import reduced

import sonde

INPUTS = np.array([[0.3, -0.8], [1.1, 0.4], [-0.6, 0.2]], np.float32)
TOLERANCE: dict[str, Any] = {"rtol": 3e-4, "atol": 3e-5}

# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


def by_path(recs: Sequence[Rec]) -> dict[str, list[Rec]]:
    grouped: dict[str, list[Rec]] = {}
    for rec in recs:
        grouped.setdefault(rec.path, []).append(rec)
    return grouped


def arrays_of(value: Any, rec: Rec) -> list[Any]:
    """The arrays of a value as Sonde gives it, in the order of `Rec.value`."""
    if rec.kind == "tree":
        assert value["s"] == "label"
        assert value["none"] is None
    return [leaf for leaf in jax.tree.leaves(value) if not isinstance(leaf, str)]


def check(got: Any, want: Any, what: str) -> None:
    assert not isinstance(got, jax.core.Tracer), f"{what}: a tracer was handed out"
    assert np.shape(got) == np.shape(want), f"{what}: shape {np.shape(got)}, by hand {np.shape(want)}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, by hand {want.dtype}"
    np.testing.assert_allclose(got, want, err_msg=what, **TOLERANCE)


def close(got: Any, want: Any) -> bool:
    return np.shape(got) == np.shape(want) and np.allclose(got, want, **TOLERANCE)


def same_everywhere(array: np.ndarray, axis: int) -> bool:
    return close(array, np.broadcast_to(array.take([0], axis), array.shape))


def with_fewer_axes(
    rec: Rec, array: Any, lacking: int, *, inside: tuple[int, int] = (0, 0)
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """All ways to leave out some of the mesh and mapped axes that an array has by hand, and what is left of it.

    A value that does not vary over such an axis is recorded without it. If the axis was mapped outside of the
    differentiation, so is a gradient that does not vary. If it was mapped inside (`inside` says how many of the last
    mesh axes and of the last mapped axes were), the gradient of one value that all elements share is the sum over them.
    """
    array = np.asarray(array)
    for left_out in itertools.combinations(range(rec.front.loops, rec.n_front), lacking):
        left = array
        for axis in reversed(left_out):
            on_mesh = axis < rec.n_front - rec.mapped
            if axis >= (rec.n_front - rec.mapped - inside[0] if on_mesh else rec.n_front - inside[1]):
                left = left.sum(axis, dtype=left.dtype)
            elif same_everywhere(left, axis):
                left = left.take(0, axis)
            else:
                break
        else:
            yield left_out, left


def check_value(value: Any, rec: Rec, axes: Sequence[Any], what: str) -> None:
    kinds = [axis.kind for axis in axes]
    by_hand = ["scan"] * rec.front.loops + ["mesh"] * rec.front.mesh + ["vmap"] * rec.mapped
    got, lacking = arrays_of(value, rec), len(by_hand) - len(kinds)
    assert len(got) == len(rec.value), what
    if not lacking:
        assert kinds == by_hand, f"{what} axes: {kinds}, by hand {by_hand}"
        for a, b in zip(got, rec.value):
            check(a, b, f"{what} value")
        return
    ways = [dict(with_fewer_axes(rec, want, lacking)) for want in rec.value]
    for left_out in ways[0]:
        if kinds == [kind for i, kind in enumerate(by_hand) if i not in left_out] and all(
            left_out in way and close(a, way[left_out]) and a.dtype == b.dtype
            for a, b, way in zip(got, rec.value, ways)
        ):
            return
    raise AssertionError(f"{what} value: {got} with {kinds}, by hand {rec.value} with {by_hand}")


def spread_over(array: Any, front: tuple[int, ...]) -> Iterator[np.ndarray]:
    """All ways to give an array the axes that it lacks."""
    array = np.asarray(array)
    for positions in itertools.combinations(range(len(front)), array.ndim):
        if tuple(front[p] for p in positions) == array.shape:
            missing = [p for p in range(len(front)) if p not in positions]
            yield np.broadcast_to(np.expand_dims(array, missing), front)


def check_flags(got: Any, want: Any, rec: Rec, what: str) -> None:
    """Flags and counts lack the axes over which they do not vary."""
    assert (got is None) == (want is None), f"{what}: {got}, by hand {want}"
    if want is None:
        return
    front = np.shape(rec.value[0])[: rec.n_front]
    pairs = itertools.product(spread_over(got, front), spread_over(want, front))
    assert any(np.array_equal(a, b) for a, b in pairs), f"{what}: {got}, by hand {want}"


def check_records(records: sonde.Records, recs: Sequence[Rec], *, grads: bool) -> None:
    wanted = by_path(recs)
    assert list(records) == list(wanted), f"paths {list(records)}, by hand {list(wanted)}"
    for path, mine in wanted.items():
        record = records[path]
        assert len(record.values) == len(mine), path
        for i, (value, rec) in enumerate(zip(record.values, mine)):
            what = f"{path} call {i}"
            check_value(value, rec, record.axes[i], what)
            check_flags(record.taken[i], rec.taken, rec, f"{what} taken")
            check_flags(record.counts[i], rec.count, rec, f"{what} count")
        if grads:
            check_gradients(record, mine)


def check_gradients(record: sonde.Record, recs: Sequence[Rec]) -> None:
    """Gradients of all orders. Where the one by hand is zero, there may be no recorded gradient."""
    by_order = [record.gradients(order) for order in range(1, 6)]
    for found in by_order:
        assert len(found) in (0, len(recs)), f"{record.path}: {len(found)} gradients of {len(recs)} values"
    for i, rec in enumerate(recs):
        passes = [found[i] for found in by_order if found and found[i] is not None]
        got = [arrays_of(with_zeros(gradient, record.values[i]), rec) for gradient in passes]
        for arrays in got:
            assert len(arrays) == len(rec.value), f"{record.path} call {i} gradient"
            for array, value in zip(arrays, rec.value):
                assert jnp.issubdtype(value.dtype, jnp.floating) or not np.any(array)
        floats = [[x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)] for arrays in got]
        left = [g for g in floats if not is_zero(g)]
        inside = zip(rec.mesh_inside, rec.mapped_inside)
        right = [(g, of_each) for g, of_each in zip(rec.grads, inside) if not is_zero(g)]
        assert len(left) == len(right), f"{record.path} call {i}: gradients {floats}, by hand {rec.grads}"
        for mine, (want, of_each) in zip(left, right):
            for a, b in zip(mine, want):
                check_gradient(a, b, rec, of_each, f"{record.path} call {i} gradient")


def with_zeros(gradient: Any, value: Any) -> Any:
    """A gradient with zeros for the parts that do not depend on what is differentiated."""
    leaves, tree = jax.tree.flatten(value)
    parts = tree.flatten_up_to(gradient)
    return tree.unflatten([jnp.zeros_like(x) if g is None else g for g, x in zip(parts, leaves)])


def check_gradient(got: Any, want: Any, rec: Rec, inside: tuple[int, int], what: str) -> None:
    lacking = np.ndim(want) - np.ndim(got)
    if lacking <= 0:
        check(got, want, what)
        return
    ways = [left for _, left in with_fewer_axes(rec, want, lacking, inside=inside)]
    assert any(close(got, left) for left in ways), f"{what}: {got}, by hand {want}"
    assert got.dtype == want.dtype, what


def is_zero(arrays: Sequence[Any]) -> bool:
    return all(np.all(np.abs(x) < (1e-12 if x.dtype == np.float64 else 1e-6)) for x in arrays)


# ---------------------------------------------------------------------------------------------------------------------
# Ways to look at a program
# ---------------------------------------------------------------------------------------------------------------------


def eager(f: Callable, **options: Any) -> Callable:
    return sonde.capture(f, **options)


def capture_in_jit(f: Callable, **options: Any) -> Callable:
    return jax.jit(sonde.capture(f, **options))


def jit_in_capture(f: Callable, **options: Any) -> Callable:
    return sonde.capture(jax.jit(f), **options)


def compiled_before(f: Callable, **options: Any) -> Callable:
    jitted = jax.jit(f)
    jitted(INPUTS[1])
    hidden = lambda x: jitted(x)
    return sonde.capture(hidden, **options)


WAYS = [eager, capture_in_jit, jit_in_capture, compiled_before]


def check_values(program: Program, way: Callable, x: Any, *, grads: bool = False) -> None:
    """capture(f), with the gradients that the program computes inside if asked."""
    want, recs = jax.jit(program.by_hand)(x)
    with program.surroundings():
        result, records = way(program.make(), grads=grads)(x)
    np.testing.assert_allclose(result, want, **TOLERANCE)
    check_records(records, recs, grads=grads)


def check_grads(program: Program, way: Callable, x: Any) -> None:
    want, recs = jax.jit(program.grad_by_hand)(x)
    with program.surroundings():
        result, records = way(jax.grad(loss_of(program.make())), grads=True)(x)
    np.testing.assert_allclose(result, want, **TOLERANCE)
    check_records(records, recs, grads=True)


def check_mapped(program: Program, x: Any) -> None:
    """vmap(capture(f)): each example's records are those of a capture of that example."""
    capture, inputs = sonde.capture(program.make()), INPUTS.astype(x.dtype)
    with program.surroundings():
        results, records = jax.jit(jax.vmap(capture))(inputs)
    for i in range(len(inputs)):
        want, recs = jax.jit(program.by_hand)(inputs[i])
        np.testing.assert_allclose(results[i], want, **TOLERANCE)
        check_records(jax.tree.map(lambda a: a[i], records), recs, grads=False)


def check_differentiated(program: Program, x: Any) -> None:
    """grad(capture(f)) is grad(f), and the records come along.

    If a derivative rule replaces a function that has sites, the records are right or there is an error.
    """
    want, _ = jax.jit(program.grad_by_hand)(x)
    capture = sonde.capture(loss_of(program.make()))
    try:
        with program.surroundings():
            gradient, records = jax.jit(jax.grad(capture, has_aux=True))(x)
    except sonde.errors.CaptureError:
        assert "apart=True" in repr(program)
        return
    np.testing.assert_allclose(gradient, want, **TOLERANCE)
    check_records(records, jax.jit(program.by_hand)(x)[1], grads=False)


def check_nested(program: Program, x: Any) -> None:
    """capture(capture(f)): both see the same."""
    f, grads, by_hand = program.make(), program.differentiable, program.by_hand
    if grads:
        f, by_hand = jax.grad(loss_of(f)), program.grad_by_hand
    want, recs = jax.jit(by_hand)(x)
    inner = sonde.capture(f, grads=grads)
    with program.surroundings():
        (result, seen_inside), seen_outside = jax.jit(sonde.capture(inner, grads=grads))(x)
    np.testing.assert_allclose(result, want, **TOLERANCE)
    check_records(seen_inside, recs, grads=grads)
    check_records(seen_outside, recs, grads=grads)


def differentiates(program: Program, look: int) -> bool:
    return program.differentiable and look in (4, 5, 6, 7, 9, 10)


def look_at(program: Program, look: int, x: Any) -> None:
    """Captures a program in one of the `N_LOOKS` ways."""
    if look == 8:
        check_mapped(program, x)
    elif look == 10:
        check_nested(program, x)
    elif look > 10:
        check_values(program, WAYS[look - 11], x, grads=True)
    elif not differentiates(program, look):
        check_values(program, WAYS[look % 4], x)
    elif look < 8:
        check_grads(program, WAYS[look - 4], x)
    else:
        check_differentiated(program, x)


N_LOOKS = 15


def jax_can_run(program: Program, look: int, x: Any, *, rtol: float = 1e-2) -> bool:
    """Whether JAX runs the program without a capture, and its result is the one by hand.

    Some nestings of transforms are more than JAX can do (a `vmap` of a `shard_map` of a `cond`, say), and some results
    it gets wrong (second derivatives of a `custom_jvp` function in a `scan`, say).
    """
    f, by_hand = program.make(), program.by_hand
    if differentiates(program, look):
        f, by_hand = jax.grad(loss_of(f)), program.grad_by_hand
    try:
        with program.surroundings():
            if look == 8:
                jax.jit(jax.vmap(f))(INPUTS.astype(x.dtype))
            results = [f(x), jax.jit(f)(x)]
        want, _ = jax.jit(by_hand)(x)
    except (NotImplementedError, TypeError, ValueError, AssertionError):  # JAX asserts that a map is in no shard_map
        return False
    except Exception as error:
        if type(error).__name__ != "ShardingTypeError":  # which has no public name
            raise
        return False
    return all(np.allclose(result, want, rtol=rtol, atol=rtol / 10) for result in results)


def is_refused(error: Exception, program: Program) -> bool:
    """Whether an error says what cannot be done.

    With one flag JAX runs some functions twice. And it refuses meshes of two and of four devices in one program, where
    it does not leave out the part with one of them; but not if that has a site.
    """
    if "incompatible devices for jitted computation" in str(error) and "Shard(" in repr(program):
        return True
    recomputed = "jax_remat3" in program.upgrades and "with jax_remat3, which runs it twice" in str(error)
    return recomputed and isinstance(error, sonde.errors.CaptureError)


def check_program(program: Program, look: int, x: Any) -> bool:
    """Captures a program and checks its records; returns whether JAX can run it at all.

    What is wrong must be wrong in double precision too: some programs make much of a last digit.
    """
    try:
        look_at(program, look, x)
    except Exception as error:
        if is_refused(error, program) or not jax_can_run(program, look, x):
            return False
        with jax.enable_x64(True):
            x = x.astype(np.float64)
            try:
                look_at(program, look, x)
            except Exception:
                if not jax_can_run(program, look, x, rtol=1e-6):
                    return False
                raise
    return True


def check_or_reduce(program: Program, look: int, x: Any) -> bool:
    """Checks a program; one that fails is made small before it is shown."""
    try:
        return check_program(program, look, x)
    except Exception as error:
        small = reduced(lambda p: check_program(p, look, x), program)
        raise AssertionError(f"check_program({small}, {look}, np.array({x.tolist()}, np.float32)) fails") from error


def drawn(seed: int, max_depth: int) -> tuple[Program, int, Any]:
    """A program, how it is looked at, and its input."""
    random = Random(seed)
    program = Drawing(random).program(max_depth)
    return program, random.randrange(N_LOOKS), INPUTS[random.randrange(len(INPUTS))]


def run_seed(seed: int, max_depth: int) -> bool:
    return check_or_reduce(*drawn(seed, max_depth))
