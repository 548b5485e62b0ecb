"""On a mesh, whatever can be captured can be put back: records, perturbations, constants, functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import sonde
from sonde import Edit, edit, sow
from sonde.tools import ablate

N = 2  # devices


def mesh(**options):
    return jax.make_mesh((N,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), **options)


X = jnp.arange(4.0 * N).reshape(2 * N, 2) * 0.1


def straight(x, mark=sow):
    return mark(jnp.sin(x), "h") * 2


def scanned(x, mark=sow):
    return lax.scan(lambda c, w: (mark(c * w, "h") + 0.1, None), x, jnp.array([1.0, 0.5, 2.0]))[0]


def branched(x, mark=sow):
    return lax.cond(x.sum() > 1, lambda x: mark(x * 2, "h"), lambda x: mark(x - 1, "h"), x)


def replicated(x, mark=sow):
    total = mark(lax.psum(x.sum(), "d"), "h")
    return x * total


BODIES = {f.__name__: f for f in (straight, scanned, branched, replicated)}


def on_mesh(body, check_vma=True):
    run = jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    return jax.jit(run)


FORMS = {
    "jitted": lambda f: f,
    "in python": lambda f: lambda x: f(x) * 1.0,
    "gradient": lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
    "in a scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
}
NEW = {
    "zeros": jnp.zeros_like,
    "scale": lambda h: h * 3,
    "constant": lambda h: jnp.full_like(h, 0.5),
    "square": jnp.square,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("check_vma", [True, False])
def test_functions(body, form, check_vma):
    f = on_mesh(BODIES[body], check_vma)
    for new in NEW.values():
        hand = on_mesh(lambda x: BODIES[body](x, lambda h, name: new(h)), check_vma)
        want = FORMS[form](hand)(X)
        np.testing.assert_allclose(edit(FORMS[form](f), {"h": new})(X), want, rtol=1e-5, atol=1e-6)
    if form == "jitted":
        np.testing.assert_allclose(
            ablate(f, "h")(X), on_mesh(lambda x: BODIES[body](x, lambda h, _: h * 0))(X), atol=1e-6
        )


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("form", ["jitted", "in python", "in a scan"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_records_of_one_run_are_the_edits_of_another(body, form, check_vma):
    f = FORMS[form](on_mesh(BODIES[body], check_vma))
    expected, records = sonde.capture(f)(X)
    np.testing.assert_allclose(edit(f, records)(X), expected, rtol=1e-6)
    other = X[::-1] * 1.7 + 0.3
    assert not np.allclose(f(other), expected)
    if body == "straight" and form != "in a scan":
        np.testing.assert_allclose(edit(f, records)(other), expected, rtol=1e-6)


def test_a_record_gives_each_shard_its_own():
    f = on_mesh(straight)
    _, records = sonde.capture(f)(X)
    assert records["h"].value.shape == (N, 2, 2)
    doubled = jax.tree.map(lambda a: a * 2, records)
    np.testing.assert_allclose(edit(f, doubled)(X), jnp.sin(X) * 4, rtol=1e-6)
    np.testing.assert_allclose(edit(f, {"h": records["h"].value * 3})(X), jnp.sin(X) * 6, rtol=1e-6)
    one = jnp.full((2, 2), 7.0)  # for every shard
    np.testing.assert_allclose(edit(f, {"h": one})(X), jnp.full((2 * N, 2), 14.0))


@pytest.mark.parametrize("body", ["straight", "scanned", "branched"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_perturbations(body, check_vma):
    mark = sonde.perturb
    f = on_mesh(lambda x: BODIES[body](x, mark), check_vma)
    zeros = sonde.zero_perturbations(f)(X)
    np.testing.assert_allclose(sonde.with_perturbations(f)(zeros, X), f(X), rtol=1e-6)
    loss = lambda deltas: (sonde.with_perturbations(f)(deltas, X) ** 2).sum()
    at_zero = jax.grad(loss)(zeros)["h"]
    assert at_zero.shape == zeros["h"].shape
    _, records = sonde.capture(jax.grad(lambda x: (f(x) ** 2).sum()), grads=True)(X)
    if body != "branched":
        np.testing.assert_allclose(at_zero, records["h"].grad, rtol=1e-5, atol=1e-6)


def test_gradients_are_edited():
    f = on_mesh(scanned)
    step = jax.grad(lambda x: (f(x) ** 2).sum())
    hand = jax.grad(lambda x: (on_mesh(lambda x: scanned(x, lambda h, _: lax.stop_gradient(h)))(x) ** 2).sum())
    np.testing.assert_allclose(edit(step, {"h": Edit(grad=jnp.zeros_like)})(X), hand(X), atol=1e-6)
