"""What a capture returns: a mapping, a pytree, and something to look at."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope
from jax import lax
from rich.console import Console

import sonde
from sonde import sow
from sonde.errors import CaptureError, NoSuchSiteError, SiteNameError

X = jnp.arange(3.0)


def f(x):
    with sonde.scope("block"):
        h = sow(jnp.sin(x), "h")
    return sow(sow(h * 2, "twice") + 1, "twice").sum()


def records(**options):
    return sonde.capture(jax.value_and_grad(f), grads=True, **options)(X)[1]


def test_an_immutable_mapping_in_program_order():
    r = records()
    assert list(r) == ["block/h", "twice"] and len(r) == 2 and "twice" in r
    with pytest.raises(TypeError):
        r["block/h"] = 1
    with pytest.raises(KeyError, match="'block/g' matches none of the program's 2 sites; nearest: 'block/h'"):
        r["block/g"]


def test_a_record_per_path():
    record = records()["block/h"]
    np.testing.assert_allclose(record.value, jnp.sin(X), rtol=1e-6)
    np.testing.assert_allclose(record.grad, 2 * jnp.ones(3))
    assert record.source.rpartition("/")[2].startswith("test_records.py:")
    assert (record.path, record.tag, record.counts, record.taken, record.axes) == (
        "block/h",
        None,
        (None,),
        (None,),
        ((),),
    )
    with pytest.raises(ValueError, match="record 'twice' has 2 values, not one: use `.values`"):
        records()["twice"].value


def test_axes_are_named():
    def g(x):
        return lax.scan(lambda c, _: (jax.vmap(lambda y: sow(y + 1, "y"))(c), None), x, length=4)[0]

    (axes,) = sonde.capture(g)(X)[1]["y"].axes
    assert [(a.kind, a.size) for a in axes] == [("scan", 4), ("vmap", 3)]


def test_text():
    assert repr(records()) == (
        "Records(\n"
        "  Record('block/h', values=float32[3], grads=float32[3]),\n"
        "  Record('twice', values=float32[3] x2, grads=float32[3] x2),\n"
        ")"
    )
    assert repr(sonde.capture(lambda x: x)(X)[1]) == "Records({})"


def test_table():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(records())
    text = console.export_text()
    assert "2 sites" in text and "block/h" in text and "test_records.py:" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # treescope's own, on some versions of JAX
def test_notebook():
    assert "'block/h'" in treescope.render_to_text(records())


def test_a_pytree_that_two_runs_share():
    doubled = jax.tree.map(lambda a, b: a + b, records(), records())
    np.testing.assert_allclose(doubled["block/h"].value, 2 * jnp.sin(X), rtol=1e-6)
    mean = jax.jit(lambda r: r["block/h"].value.mean())(records())
    np.testing.assert_allclose(mean, jnp.sin(X).mean(), rtol=1e-6)


def test_reduce_is_applied_to_values_and_gradients():
    r = records(reduce=lambda v: {"mean": v.mean()})
    np.testing.assert_allclose(r["block/h"].value["mean"], jnp.sin(X).mean(), rtol=1e-6)
    np.testing.assert_allclose(r["block/h"].grad["mean"], 2.0)


def test_names_that_are_none():
    for name, what in (("", "must not be empty"), ("a//b", "an empty part"), (3, "named by a str, got 3 of type int")):
        with pytest.raises(SiteNameError, match=what):
            sonde.capture(lambda x, name=name: sow(x, name))(X)
    with pytest.raises(SiteNameError):
        sonde.scope("")


def test_patterns():
    assert list(sonde.capture(f, "**/h")(X)[1]) == ["block/h"]
    assert list(sonde.capture(f, lambda site: site.path.startswith("tw"))(X)[1]) == ["twice"]
    assert list(sonde.capture(f, "block/*", "twice")(X)[1]) == ["block/h", "twice"]
    with pytest.raises(NoSuchSiteError, match="'blok/h' matches none of the program's 2 sites; nearest: 'block/h'"):
        sonde.capture(f, "blok/h")(X)
    with pytest.raises(NoSuchSiteError, match="the program has no sites at all"):
        sonde.capture(jnp.sin, "h")(X)
    with pytest.raises(TypeError, match="a glob over paths or a predicate of a site, got 3"):
        sonde.capture(f, 3)


def test_what_cannot_be_captured():
    with pytest.raises(TypeError, match="capture takes a callable, got 3 of type int"):
        sonde.capture(3)

    async def later(x):
        return x

    def lazily(x):
        yield x

    for g, what in ((later, "a coroutine function"), (lazily, "a generator function")):
        with pytest.raises(TypeError, match=f"capture cannot look into {what}"):
            sonde.capture(g)

    def apart(x):
        with jax.ensure_compile_time_eval():
            sow(jnp.ones(2), "apart")
        return x

    # Eagerly the capture's own level is the one that evaluates; inside a jitted function there is nothing to record on.
    assert list(sonde.capture(apart)(X)[1]) == ["apart"]
    with pytest.raises(CaptureError, match=r"site 'apart' \(.*test_records.py:\d+\) runs where the capture cannot see"):
        sonde.capture(lambda x: jax.jit(apart)(x))(X)
