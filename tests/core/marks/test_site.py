"""What is sown: any pytree, of any arrays, with leaves that are none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal
from tests.core.making import site_of

from sonde import capture, sow
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View, naming, take_apart

X = jnp.array([0.5, -1.0, 2.0])


ODD = {
    "bf16": jnp.ones(3, jnp.bfloat16),
    "int8": jnp.arange(3, dtype=jnp.int8),
    "bool": jnp.array([True, False]),
    "complex": jnp.array([1 + 2j]),
    "empty": jnp.zeros((0, 3)),
    "scalar": jnp.float32(2),
    "numpy": np.arange(3.0, dtype=np.float32),
    "numpy scalar": np.float32(3.0),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(0), 3),
    "old key": jax.random.PRNGKey(0),
}


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays(name):
    value = ODD[name]
    for wrap in (lambda f: f, jax.jit):
        same(capture(wrap(lambda v: sow(v, "v")))(value)[1]["v"].value, value)
        same(jax.jit(capture(wrap(lambda v: sow(v, "v"))))(value)[1]["v"].value, value)
    scanned = lambda v: lax.scan(lambda c, _: (c, sow(v, "v") is None), 0, None, length=2)
    rows = capture(scanned)(value)[1]["v"].value
    same(rows[1], value)
    branched = lambda p, v: lax.cond(p, lambda v: (sow(v, "v"), 0)[1], lambda v: 1, v)
    same(capture(branched)(True, value)[1]["v"].value, value)
    record = capture(branched)(False, value)[1]["v"]
    assert record.value.dtype == value.dtype
    assert not record.taken[0]
    looped = lambda v: lax.while_loop(lambda i: i < 2, lambda i: (sow(v, "v"), i + 1)[1], 0)
    same(capture(looped)(value)[1]["v"].value, value)


@pytest.mark.parametrize("name", [n for n, v in ODD.items() if v.ndim and v.shape[0]])
def test_odd_arrays_under_vmap(name):
    value = ODD[name]
    same(capture(jax.vmap(lambda v: sow(v, "v")))(value)[1]["v"].value, jnp.asarray(value))


def test_gradients_beside_odd_arrays():
    def loss(x):
        tree = sow({"x": x * 2, "key": jax.random.key(0), "n": jnp.arange(2), "b": jnp.ones(2, jnp.bfloat16)}, "tree")
        return jnp.sum(tree["x"] ** 2)

    for wrap in (lambda f: f, jax.jit):
        gradient = capture(wrap(jax.grad(loss)), grads=True)(X)[1]["tree"].grad
        equal(gradient["x"], 4 * X)
        equal(gradient["n"], jnp.zeros(2))


def test_leaves_that_are_no_arrays_are_kept():
    class Thing:
        pass

    thing = Thing()

    def f(x):
        tree = {"x": x * 2, "none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        back = sow(tree, "tree")
        assert back["s"] == "text"
        assert back["t"][0] is thing
        assert type(back["i"]) is int
        return back["x"]

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(lambda x: jax.jit(f)(x))):
        value = looked(X)[1]["tree"].value
        equal(value.pop("x"), X * 2)
        assert value == {"none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        assert [type(value[k]) for k in "ifb"] == [int, float, bool]


@pytest.mark.parametrize("value", [None, "text", 3, 2.5, (), {}, [None, "a"]], ids=repr)
def test_sites_without_any_array(value):
    def f(x):
        assert sow(value, "v") == value
        return x

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(jax.grad(lambda x: f(x).sum()))):
        assert looked(X)[1]["v"].values == (value,)
    records = capture(lambda x: lax.scan(lambda c, r: (f(c), r), x, jnp.arange(2)))(X)[1]
    assert records["v"].values == (value,)


# ---------------------------------------------------------------------------------------------------------------------
# By hand
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [3.0, X, {"x": X, "n": 3, "s": "text", "none": None}, (), [np.float32(1), (X, [X])], None],
    ids=["number", "array", "tree", "nothing", "nested", "none"],
)
def test_what_is_taken_apart_is_put_together_again(value):
    arrays, tree, flags, statics = take_apart(value)
    assert all(isinstance(x, (jax.Array, np.generic, np.ndarray)) for x in arrays)
    assert (len(arrays), len(statics)) == (sum(flags), len(flags) - sum(flags))
    assert tree == jax.tree.structure(value)
    doubled = site_of(value).rebuild([x * 2 for x in arrays])
    expected = jax.tree.map(lambda x: x * 2 if isinstance(x, (jax.Array, np.generic)) else x, value)
    assert jax.tree.structure(doubled) == tree
    for a, b in zip(jax.tree.leaves(doubled), jax.tree.leaves(expected)):
        np.testing.assert_array_equal(a, b)


def test_texts_are_no_arrays_though_numpy_has_them():
    assert take_apart([np.str_("a"), np.bytes_(b"b"), np.bool_(True)])[2] == (False, False, True)


def test_a_site_at_its_whole_path_is_another_object():
    site = site_of(X, "h", tag="tag")
    whole = site.at("blocks/0/h")
    assert (whole.path, whole.name, whole.tag, whole.source) == ("blocks/0/h", "h", "tag", site.source)
    assert (site.path, site.name) == ("h", "h")
    assert whole != site  # sites are compared by identity
    assert site.source.endswith("making.py:7")
    assert repr(whole) == f"Site('blocks/0/h', {site.line})"


def test_an_exception_is_told_the_site_and_raised_again():
    with pytest.raises(KeyError) as caught, naming(site_of(X, "a/h"), "a pattern"):
        raise KeyError("mine")
    assert caught.value.__notes__ == [f"raised by a pattern at site 'a/h' ({site_of(X).line})"]


def test_what_is_left_of_a_view_when_the_value_is_recorded():
    axes = (Axis("vmap", 3),)
    view = View(order=1, axes=axes, role="look", anchored=1, whiles=(object(),))
    assert view.recorded == View(order=1, axes=axes)
    assert View(axes=axes).recorded == View(axes=axes)
    assert (View().is_value, View(gradient_of=()).is_value) == (True, False)


def test_extras_have_axes_or_lack_them():
    view = View(axes=(Axis("scan", 2), Axis("vmap", 3)))
    some = view.extra_on("taken", [False, True])
    assert [axis.on_extra("taken") for axis in some.axes] == [False, True]
    assert [axis.on_extra("count") for axis in some.axes] == [True, True]
    assert [axis.on_extra("taken") for axis in some.extra_on("taken", [True, True]).axes] == [True, True]


def test_which_sites_give_a_token():
    plain, with_grads = site_of(X), site_of(X, grads=True)
    assert View().gives_token(with_grads)
    assert not View().gives_token(plain)
    assert not View(role="look").gives_token(with_grads)
    assert not View(gradient_of=(0,)).gives_token(with_grads)
