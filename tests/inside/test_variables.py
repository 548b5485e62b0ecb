"""Variables of functions that were not written for Sonde, against the same function with its sites sown by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import linecache
import subprocess
import sys
import threading
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sonde
from sonde.errors import CaptureError, EditError, InsideError

X = jnp.linspace(0.1, 1.0, 4)


def same(records, **expected):
    for path, value in expected.items():
        jax.tree.map(np.testing.assert_allclose, records[path.replace("__", "/")].value, value)


# -- forms of binding a name ------------------------------------------------------------------------------------------


class Opened:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        return None


def every_form(x, /, scale=2.0, *rest, shift, **more):
    """Has every form of assignment."""
    a = x * scale
    b: jax.Array = a + shift
    c, (d, *e) = a + b, (b * 2, x, x + 1)
    d += 1
    f = g = d * 2
    total = x
    for row in [x, x + 1]:
        total = total + row
    with Opened(x * 3) as opened:
        h = opened + (walrus := total - 1)
    match {"y": h}:
        case {"y": matched}:
            k = matched * 1
    return c + d + f + g + k + walrus + e[0] + rest[0] + more["z"]


def by_hand(x, /, scale=2.0, *rest, shift, **more):
    s = sonde.sow
    x, scale, rest = s(x, "x"), s(scale, "scale"), s(rest, "rest")
    shift, more = s(shift, "shift"), s(more, "more")
    a = s(x * scale, "a")
    b = s(a + shift, "b")
    c, (d, *e) = a + b, (b * 2, x, x + 1)
    c, d, e = s(c, "c"), s(d, "d"), s(e, "e")
    d = s(d + 1, "d")
    f = g = d * 2
    f, g = s(f, "f"), s(g, "g")
    total = s(x, "total")
    for row in [x, x + 1]:
        row = s(row, "row")
        total = s(total + row, "total")
    with Opened(x * 3) as opened:
        opened = s(opened, "opened")
        walrus = s(total - 1, "walrus")
        h = s(opened + walrus, "h")
    matched = s(h, "matched")
    k = s(matched * 1, "k")
    return s(c + d + f + g + k + walrus + e[0] + rest[0] + more["z"], "return")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_every_form_of_assignment(wrap):
    args, kwargs = (X, 2.0, X * 5), {"shift": X + 7, "z": X * 11}
    loss = lambda f: lambda x: wrap(functools.partial(f, shift=X + 7, z=X * 11))(x, jnp.float32(2.0), x * 5).sum()
    got, seen = sonde.capture(jax.value_and_grad(loss(every_form)), inside=every_form, grads=True)(X)
    want, sown = sonde.capture(jax.value_and_grad(loss(by_hand)), grads=True)(X)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert {path.removeprefix("every_form/") for path in seen} == set(sown)
    for path, record in sown.items():
        mine = seen[f"every_form/{path}"]
        assert len(mine.values) == len(record.values), path
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), mine.values, record.values)
        if mine.grads:  # not of what other names refer to
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), mine.grads, record.grads)
    assert all(seen[f"every_form/{name}"].grads for name in ("x", "a", "b", "c", "f", "h", "k", "walrus", "return"))
    assert every_form(*args, **kwargs).shape == (4,)


def test_a_name_assigned_twice_is_one_site_with_two_calls_each_with_its_line():
    def f(x):
        y = x + 1
        y = y * 2
        return y

    first = f.__code__.co_firstlineno
    infos = [i for i in sonde.sites(f, inside=f)(X) if i.path.endswith("/y")]
    assert [(i.path.rpartition("/")[2], i.call, i.source) for i in infos] == [
        ("y", 0, f"{__file__}:{first + 1}"),
        ("y", 1, f"{__file__}:{first + 2}"),
    ]


# -- names ------------------------------------------------------------------------------------------------------------


def dot_product(q, k):
    weights = jax.nn.softmax(q * k)
    return weights


class Attention:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        out = dot_product(x, x * self.scale)
        return out

    @property
    def doubled(self):
        scale = jnp.asarray(self.scale) * 2
        return scale

    @staticmethod
    @jax.jit
    def act(x):
        y = jnp.tanh(x)
        return y

    @classmethod
    def make(cls, scale):
        made = jnp.asarray(scale)
        return cls(made)


def scanned(x):
    def body(carry, _):
        h = jnp.sin(carry)
        return h, None

    y, _ = jax.lax.scan(body, x, length=3)
    return jax.lax.cond(True, lambda v: v + 1, lambda v: v - 1, y)


def test_names_nest_by_call_inside_whatever_scopes_are_open():
    def f(x):
        with sonde.scope("model"):
            return Attention(2.0)(x)

    _, records = sonde.capture(f, inside=[Attention, dot_product])(X)
    assert "model/Attention.__call__/dot_product/weights" in records
    assert "model/Attention.__call__/out" in records
    np.testing.assert_allclose(records["model/Attention.__call__/out"].value, jax.nn.softmax(X * X * 2.0), rtol=1e-6)


def test_inner_functions_are_scopes():
    _, records = sonde.capture(jax.jit(scanned), inside=scanned)(X)
    assert records["scanned/body/h"].value.shape == (3, 4)
    np.testing.assert_allclose(records["scanned/body/h"].value[1], jnp.sin(jnp.sin(X)), rtol=1e-6)
    assert "scanned/lambda/return" in records


def test_a_function_made_before_is_seen_and_named_after_where_it_is_written():
    optimizer = optax.adam(0.1)
    state = optimizer.init(X)
    update = jax.jit(optimizer.update)
    update(X, state)  # compiled before
    _, records = sonde.capture(update, "**/scale_by_adam.update_fn/mu_hat", inside=optax)(X, state)
    (record,) = records.values()
    np.testing.assert_allclose(record.value, X, rtol=1e-6)


def test_classes_and_every_kind_of_method():
    def f(x):
        attention = Attention.make(2.0)
        return attention(x) + attention.doubled + Attention.act(x)

    _, records = sonde.capture(f, inside=Attention)(X)
    assert {"Attention.make/made", "Attention.doubled/scale", "Attention.act/y", "Attention.__call__/out"} <= set(
        records
    )


@pytest.mark.parametrize(
    "wrapped",
    [
        dot_product,
        jax.jit(dot_product),
        functools.partial(dot_product, k=X),
        jax.checkpoint(dot_product),
        Attention(2.0).__call__,
        Attention(2.0),
    ],
)
def test_what_names_a_function(wrapped):
    _, records = sonde.capture(lambda x: dot_product(x, x) + Attention(1.0)(x), inside=wrapped)(X)
    assert any(path.endswith(("weights", "out")) for path in records)


def hidden_by(function):
    return lambda x: function(x) + 0  # says nothing of what it wraps


@hidden_by
def hides(x):
    y = x * 2
    return y


def test_names_as_strings():
    f = lambda x: jax.nn.silu(x) + optax.l2_loss(x)
    assert "silu/return" in sonde.capture(f, inside="jax.nn:silu")(X)[1]
    assert "l2_loss/squared_error/return" in sonde.capture(f, inside="optax.losses.*")(X)[1]
    assert "l2_loss/return" in sonde.capture(f, inside="optax.losses._regression:*l2*")(X)[1]
    assert "silu/return" in sonde.capture(f, inside=["jax.nn.silu", optax.l2_loss])(X)[1]
    assert list(sonde.capture(hides, inside=f"{__name__}:hides")(X)[1]) == ["hides/x", "hides/y", "hides/return"]
    update = optax.scale_by_adam().update
    for inner in ("scale_by_adam.update_fn", "scale_by_adam.<locals>.update_fn"):
        found = sonde.capture(update, inside=f"optax._src.transform:{inner}")(X, optax.scale_by_adam().init(X))[1]
        assert "scale_by_adam.update_fn/mu_hat" in found
    with pytest.raises(InsideError, match="has no 'silo'; nearest: 'silu'"):
        sonde.capture(f, inside="jax.nn:silo")
    with pytest.raises(InsideError, match="there is no module 'nowhere'"):
        sonde.capture(f, inside="nowhere")
    with pytest.raises(TypeError, match="got 3 of type int"):
        sonde.capture(f, inside=3)
    for wrong in ("", ":x", "a..b"):
        with pytest.raises(InsideError, match="not the name of a module"):
            sonde.capture(f, inside=wrong)
    with pytest.raises(TypeError, match="at least one"):
        sonde.capture(f, inside=[])


def test_models_as_strings(tmp_path, monkeypatch):
    text = "import equinox as eqx, jax\nnets = [eqx.nn.Linear(2, 2, key=jax.random.key(0))]\nnet = nets[0]\n"
    (tmp_path / "with_a_net.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    net = importlib.import_module("with_a_net").net
    file = str(tmp_path / "with_a_net.py")
    for name in ("with_a_net:net", "with_a_net.net", "with_a_net:nets.0", f"{file}:net"):
        assert list(sonde.capture(lambda x: net(x), inside=name)(jnp.ones(2))[1]) == ["in", "out"], name
    with pytest.raises(InsideError, match="no function of that name"):
        sonde.Inside(f"{file}:nothing")
    with pytest.raises(InsideError, match="has no 'nothing'"):
        sonde.Inside("with_a_net:nothing")
    sys.modules.pop("with_a_net")
    with contextlib.suppress(InsideError):
        sonde.Inside(file, "with_a_net.py")
    assert "with_a_net" not in sys.modules  # the name of a file does not run it


def test_calls_and_operators():
    def f(q, k):
        return jax.nn.softmax(q @ k.T / jnp.sqrt(2.0)) @ k

    q, k = jnp.ones((2, 3)), jnp.arange(6.0).reshape(2, 3)
    _, records = sonde.capture(f, inside=sonde.Inside(f, expressions=True))(q, k)
    names = [path.rpartition("/")[2] for path in records]
    assert names == ["q", "k", "matmul_0", "sqrt", "truediv", "softmax", "matmul_1", "return"]
    below = next(path for path in records if path.endswith("truediv")).removesuffix("truediv")
    np.testing.assert_allclose(records[below + "softmax"].value, jax.nn.softmax(q @ k.T / jnp.sqrt(2.0)), rtol=1e-6)
    assert f"{below}softmax" not in sonde.capture(f, inside=f)(q, k)[1]


# -- the program stays what it is -------------------------------------------------------------------------------------


def test_what_is_no_array_passes_untouched_and_objects_stay_the_same():
    shared: list = []

    @dataclasses.dataclass
    class Config:
        width: int = 3

    def f(x, config, kept):
        name, n, table = "a", config.width, np.arange(3)
        alias = kept
        alias.append(x)
        static = table.tolist()
        assert alias is shared and config.width == n == 3 and name == "a"
        assert jnp.zeros(static).shape == (0, 1, 2)
        return x * n

    run = lambda x: jax.jit(lambda x: f(x, Config(), shared))(x)
    result, records = sonde.capture(run, inside=f)(X)
    np.testing.assert_array_equal(result, X * 3)
    (kept,) = [path for path in records if path.endswith("/table")]
    np.testing.assert_array_equal(records[kept].value, np.arange(3))
    shared.clear()
    sonde.capture(run, inside=f, grads=True)(X)
    shared.clear()


def test_a_list_that_contains_itself_passes_untouched():
    def f(x):
        ring = [x]
        ring.append([ring, x])
        same = ring
        return same[0] * 2

    result, records = sonde.capture(f, inside=f)(X)
    np.testing.assert_array_equal(result, X * 2)
    assert not any(path.endswith("/same") for path in records)


CONSTANT = jnp.array([1.0, 2.0])


def test_constants_stay_known_while_a_function_is_traced():
    def known(x):
        constant = CONSTANT
        return x * constant.tolist()[1]

    result, records = sonde.capture(jax.jit(known), inside=known, grads=True)(X)
    np.testing.assert_array_equal(result, X * 2)
    (path,) = [p for p in records if p.endswith("constant")]
    np.testing.assert_array_equal(records[path].value, CONSTANT)


class Base:
    def scaled(self, x):
        base = x * 2
        return base


class Derived(Base):
    __factor = 3

    def scaled(self, x):
        up = super().scaled(x) * self.__factor
        return up


def recursive(x, n=2):
    here = x + n
    return here if n == 0 else recursive(here, n - 1)


def counted():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        new = x * count
        return new

    return step


def test_super_private_names_recursion_and_nonlocal():
    np.testing.assert_array_equal(sonde.capture(Derived().scaled, inside=[Base, Derived])(X)[0], X * 6)
    _, records = sonde.capture(recursive, inside=recursive)(X)
    assert "recursive/recursive/recursive/here" in records
    step = counted()
    step(X)
    result, records = sonde.capture(step, inside=step)(X)
    np.testing.assert_array_equal(result, X * 2)
    np.testing.assert_array_equal(step(X), X * 3)
    assert records["counted.step/new"].source.startswith(__file__)


def fails(x):
    good = x + 1

    bad = good.reshape(3, 3)
    return bad


def test_tracebacks_keep_their_lines_and_nothing_is_left_behind():
    before = fails.__code__
    with pytest.raises(TypeError) as error:
        sonde.capture(fails, inside=fails)(X)
    frames = [
        (entry.frame.code.raw.co_name, entry.lineno + 1 - before.co_firstlineno)
        for entry in error.traceback
        if str(entry.path) == __file__
    ]
    assert ("fails", 3) in frames
    assert fails.__code__ is before
    assert fails.__globals__ is globals() and not any("sonde:" in name for name in globals())


def test_tracebacks_that_jax_filters_have_no_frames_of_sonde():
    outer = jax.jit(lambda x: jax.checkpoint(fails)(x))
    with pytest.raises(TypeError) as plain:
        outer(X)
    with pytest.raises(TypeError) as seen:
        sonde.capture(lambda: outer(X), inside=fails)()
    inner = [[str(entry.path) for entry in error.traceback][-6:] for error in (plain, seen)]
    assert inner[0] == inner[1] and __file__ in inner[1]


def test_functions_that_outlive_the_capture_get_their_own_code():
    made = []

    def outer(x):
        def inner(y):
            z = y * 2
            return z

        made.append(inner)
        return inner(x)

    plain = next(c for c in outer.__code__.co_consts if isinstance(c, types.CodeType))
    _, records = sonde.capture(outer, inside=outer)(X)
    assert any(path.endswith("outer/inner/z") for path in records)
    assert made[0].__code__ == plain
    np.testing.assert_array_equal(made[0](X), X * 2)


def test_the_ordinary_program_is_not_traced_again():
    traces = []

    @jax.jit
    def g(x):
        traces.append(1)
        y = jnp.sin(x)
        return y

    f = lambda x: g(x) * 2
    before = str(jax.make_jaxpr(f)(X))
    f(X)
    n = len(traces)
    for _ in range(2):
        _, records = sonde.capture(f, inside=g)(X)
    assert any(path.endswith("g/y") for path in records)
    assert len(traces) == n + 1  # once for the captures, whose marks are compiled in
    f(X)
    assert str(jax.make_jaxpr(f)(X)) == before
    assert len(traces) == n + 1


def test_another_thread_meanwhile():
    started, go_on = threading.Event(), threading.Event()
    own = dot_product.__code__

    def slow(x):
        started.set()
        assert go_on.wait(60)
        return dot_product(x, x)

    found = {}

    def look():
        found["records"] = sonde.capture(slow, inside=dot_product)(X)[1]

    thread = threading.Thread(target=look)
    thread.start()
    assert started.wait(60)
    jaxpr = str(jax.make_jaxpr(dot_product)(X, X))
    assert "sonde" not in jaxpr
    _, other = sonde.capture(lambda x: scanned(dot_product(x, x)), inside=scanned)(X)
    assert not any("dot_product" in path for path in other)
    go_on.set()
    thread.join(60)
    assert set(found["records"]) == {"dot_product/q", "dot_product/k", "dot_product/weights", "dot_product/return"}
    assert dot_product.__code__ is own
    assert str(jax.make_jaxpr(dot_product)(X, X)) == jaxpr


def test_nested_captures_do_not_meet():
    def inner(x):
        return dot_product(x, x)

    def outer(x):
        y, records = sonde.capture(lambda x: Attention.act(inner(x)), inside=dot_product)(x)
        assert set(records) == {"dot_product/q", "dot_product/k", "dot_product/weights", "dot_product/return"}
        return y

    _, records = sonde.capture(jax.jit(outer), inside=Attention)(X)
    assert set(records) == {"Attention.act/x", "Attention.act/y", "Attention.act/return"}


# -- edits, gradients, the first NaN ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f)])
def test_edits(wrap):
    x = jnp.stack([X, X + 1])

    def hand(x):
        weights = jnp.zeros_like(x) + 0.5
        return weights

    run = lambda v: Attention(2.0)(v)
    edited = sonde.edit(wrap(run), {"**/weights": lambda w: w * 0 + 0.5}, inside=dot_product)
    np.testing.assert_array_equal(edited(x), hand(x))
    pair = lambda v: sonde.capture(
        sonde.edit(wrap(run), {"**/weights": lambda w: w * 0 + 0.5}, inside=dot_product), inside=Attention
    )(v)
    np.testing.assert_array_equal(pair(x)[1]["Attention.__call__/out"].value, hand(x))


def test_an_edit_of_a_shared_container_is_an_error():
    def f(given):
        return given["a"] * 2

    with pytest.raises(EditError, match="continues with the value itself, because something else may refer to this"):
        sonde.edit(jax.jit(f), {"**/given": lambda g: {"a": g["a"] * 0}}, inside=f)({"a": X})


def test_perturbations():
    loss = lambda x: (dot_product(x, x) ** 2).sum()
    zeros = sonde.zero_perturbations(loss, "**/weights", inside=dot_product)(X)
    grads = jax.grad(sonde.with_perturbations(loss, inside=dot_product))(zeros, X)
    np.testing.assert_allclose(grads["dot_product/weights"], 2 * jax.nn.softmax(X * X), rtol=1e-5)


def test_a_perturbation_of_what_is_only_looked_at_is_an_error():
    def f(given):
        a = given["a"] * 2
        return a

    where = f"{f.__qualname__.replace('.<locals>', '')}/given"
    with pytest.raises(EditError, match="continues with the value itself"):
        sonde.zero_perturbations(f, "**/given", inside=f)({"a": X})
    with pytest.raises(EditError, match="continues with the value itself"):
        sonde.with_perturbations(f, inside=f)({where: {"a": X}}, {"a": X})
    every = sonde.zero_perturbations(f, "**", inside=f)({"a": X})
    assert {path.rpartition("/")[2] for path in every} == {"a", "return"}


@pytest.mark.parametrize("grads", [False, True])
def test_tangents_in_the_rules_of_derivatives(grads):
    """`jax.nn.relu` has a rule with variables of its own; in reverse mode its tangents have no numbers."""
    loop = lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c) * 2, None), x, length=3)[0].sum()
    value, records = sonde.capture(jax.grad(loop), inside="jax.nn:*", grads=grads)(X)
    np.testing.assert_array_equal(value, jax.grad(loop)(X))
    assert records["relu/return"].value.shape == (3, 4)
    (_, tangent), records = sonde.capture(lambda x: jax.jvp(jax.nn.relu, (x,), (x,)), inside="jax.nn:*")(X)
    np.testing.assert_array_equal(records["lambda/g"].value, X)


def table(n):
    entries = jnp.arange(n) * 2.0
    return entries


def looks_up(x):
    with jax.ensure_compile_time_eval():
        known = table(4)
        most = int(known.max())
    y = x * known
    return y + most


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda x: jax.lax.map(f, x[None])[0]])
def test_what_is_computed_while_a_function_is_traced_is_seen(wrap):
    run = wrap(looks_up)
    for _ in range(2):
        result, records = sonde.capture(run, inside=[looks_up, table], grads=True)(X)
        np.testing.assert_array_equal(result, looks_up(X))
        np.testing.assert_array_equal(jnp.ravel(records["looks_up/table/entries"].value), jnp.arange(4) * 2.0)
    with pytest.raises(EditError, match="continues with the value itself, because it is known"):
        sonde.edit(wrap(looks_up), {"**/known": jnp.zeros_like}, inside=looks_up)(X)


def on_host(v):
    w = v + 1
    return w


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_what_runs_on_the_host_is_an_error_if_it_was_asked_for(wrap):
    run = wrap(lambda x: jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    message = r"variable 'v' of on_host \(.* cannot be captured: the function was requested by name"
    with pytest.raises(Exception, match=message):  # JAX wraps it
        jax.block_until_ready(sonde.capture(run, inside=on_host)(X))
    result, records = sonde.capture(run, inside=f"{__file__}:on_h*")(X)
    np.testing.assert_array_equal(result, X + 1)
    assert not records


def test_a_mesh_can_be_set_in_a_captured_function():
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        with jax.set_mesh(mesh):
            y = x * 2
        return y

    plain = jax.set_mesh.__init__
    for _ in range(2):
        result, records = sonde.capture(f, inside=f)(X)
    np.testing.assert_array_equal(result, X * 2)
    assert any(path.endswith("/y") for path in records)
    assert jax.set_mesh.__init__ is plain
    with pytest.raises(ValueError, match="outside of `jax.jit`"):
        sonde.capture(jax.jit(f), inside=f)(X)


def test_what_is_compiled_apart_is_an_error():
    lower = lambda x: jax.jit(dot_product).lower(x, x)
    with pytest.raises(CaptureError, match="runs where the capture cannot see it"):
        sonde.capture(lower, inside=dot_product)(X)
    program, _ = sonde.capture(lower, inside=f"{__file__}:dot*")(X)  # not asked for by name: left out
    np.testing.assert_array_equal(program.compile()(X, X), dot_product(X, X))
    compiled = program.compile()
    result, _ = sonde.capture(lambda x: compiled(x, x), inside=f"{__file__}:dot*")(X)
    np.testing.assert_array_equal(result, dot_product(X, X))
    with pytest.raises(CaptureError, match="compiled ahead of time"):
        sonde.capture(lambda x: compiled(x, x), inside=dot_product)(X)


def grows(x, steps):
    def body(carry, _):
        squared = carry * carry
        return squared, None

    return jax.lax.scan(body, x, length=steps)[0]


def test_first_nonfinite_names_function_variable_line_and_iteration():
    found = sonde.first_nonfinite(lambda x: jax.jit(grows, static_argnums=1)(x, 10), inside=grows)(jnp.float32(10.0))
    assert (found.path, found.iteration) == ("grows/body/squared", (5,))
    assert found.source == f"{__file__}:{grows.__code__.co_firstlineno + 2}"


# -- what cannot be looked into ---------------------------------------------------------------------------------------


def generates(x):
    yield x


async def waits(x):
    return x


def test_what_cannot_be_looked_into_is_an_error_if_it_was_asked_for():
    made: dict = {}
    exec(compile("def sourceless(x):\n    y = x\n    return y", "<nowhere>", "exec"), made)
    for function, reason in [
        (generates, "it is a generator function"),
        (waits, "it is a coroutine function"),
        (made["sourceless"], "there is no source; it was made of text"),
        (jax.lax.scan, "it is part of the machinery of JAX"),
        (sonde.capture, "it is part of Sonde itself"),
    ]:
        with pytest.raises(InsideError, match=reason):
            sonde.capture(lambda x: x, inside=function)
    with pytest.raises(TypeError, match="which has no Python function"):
        sonde.Inside(len)


def test_what_came_with_a_package_is_left_out_and_listed():
    inside = sonde.Inside(optax)
    assert any("generator" in x.reason for x in inside.left_out)
    assert any("scale_by_adam" in name for name in inside.functions)


def test_lambdas_on_one_line_are_told_apart():
    f, g = (lambda x: x + 1), (lambda x: x * 3)
    _, records = sonde.capture(lambda x: f(g(x)), inside=g)(X)
    (path,) = [p for p in records if p.endswith("return")]
    np.testing.assert_array_equal(records[path].value, X * 3)


def test_a_notebook_cell():
    source = "def cell(x):\n    y = x * 2\n    return y\n"
    name = "/tmp/ipykernel_1/7.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict = {}
    exec(compile(source, name, "exec"), namespace)
    _, records = sonde.capture(namespace["cell"], inside=namespace["cell"])(X)
    assert records["cell/y"].source == f"{name}:2"


def test_source_that_has_changed():
    name = "/tmp/ipykernel_1/8.py"
    namespace: dict = {}
    exec(compile("def cell(x):\n    y = x * 2\n    return y\n", name, "exec"), namespace)
    source = "def cell(x):\n    w = x * 3\n    return w\n"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    with pytest.raises(InsideError, match="its source has changed"):
        sonde.capture(namespace["cell"], inside=namespace["cell"])


def test_no_warnings_from_compiling():
    with warnings.catch_warnings():
        for kind in (SyntaxWarning, DeprecationWarning):  # what Python says of code
            warnings.simplefilter("error", kind)
        sonde.capture(dot_product, inside=sonde.Inside(dot_product, expressions=True))(X, X)


FROZEN = """
import gc
import jax.numpy as jnp
import sonde

def make():
    def frozen(x):
        y = x * 2
        return y
    return frozen

def names(f):
    _, records = sonde.capture(lambda x: f[0](x), inside=make())(jnp.ones(2))
    return [path.rpartition("/")[2] for path in records]

first = [make()]
gc.freeze()  # as servers do before they fork
print(*names(first))

counts, count = [], gc.get_freeze_count
gc.get_freeze_count = lambda: counts.append(None) or count()
for _ in range(5):
    names(first)
print(len(counts))

second = [make()]
gc.freeze()
gc.collect()
print(*names(first), *names(second))
"""


def test_functions_that_python_does_not_list_because_the_heap_was_frozen(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FROZEN)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    found, counted, found_later = map(str.split, done.stdout.splitlines() or ["", "", done.stderr])
    assert found == ["x", "y", "return"]
    assert found_later == found * 2
    assert int(counted[0]) <= 1, "counting them takes long if there are many"


def half(x):
    a = x * 0.5
    return a


def whole(x):
    b = half(x) + 1
    return b


def test_nested_captures_do_not_have_scopes_of_one_another():
    def run(x):
        return sonde.capture(whole, inside=half)(x)

    (_, inner), outer = sonde.capture(run, inside=whole)(jnp.ones(2))
    assert list(inner) == ["half/x", "half/a", "half/return"]
    assert list(outer) == ["whole/x", "whole/b", "whole/return"]
    (_, inner), outer = sonde.capture(jax.jit(lambda x: run(x)), inside=half)(jnp.ones(2))
    assert list(inner) == list(outer) == ["half/x", "half/a", "half/return"]


def test_what_a_lambda_gets_stays_the_same_object():
    class Holder:
        def __init__(self, part):
            self.part = part

    where = lambda holder: holder.part

    def loss(x):
        holder = Holder(x * 2)
        assert where(holder) is holder.part
        return (where(holder) ** 2).sum()

    _, records = sonde.capture(jax.grad(loss), inside=where, grads=True)(jnp.ones(2))
    ((path, record),) = records.items()
    assert path.endswith("/return") and len(record.values) == 2


def test_what_is_one_object_stays_one_to_code_that_asks():
    def attend(query, key):
        same = query is key
        others = [x for x in (query, key) if x is not query]
        return (query * (2 if same else 3)).sum() + len(others) * key.sum()

    one, two = (lambda x: attend(x, x)), (lambda x: attend(x, x + 0))
    for loss, expected in ((one, 2), (two, 4)):
        new, records = sonde.capture(jax.grad(loss), inside=attend, grads=True)(jnp.ones(2))
        assert np.array_equal(new, jax.grad(loss)(jnp.ones(2))) and np.array_equal(new, np.full(2, expected))
        query = next(record for path, record in records.items() if path.endswith("/query"))
        assert np.array_equal(query.grad, np.full(2, 2 if loss is one else 3))
    # An edit makes one of the two another value, and code that asks is told so.
    path = next(path for path in records if path.endswith("/key"))
    assert sonde.edit(one, {path: lambda x: x * 10}, inside=attend)(jnp.ones(2)) == 6 + 20


def test_a_name_that_is_bound_in_a_string():
    def shown(x):
        text = f"{(doubled := x * 2).shape}"
        return doubled + len(text)

    _, records = sonde.capture(lambda x: shown(x), inside=shown)(jnp.ones(2))
    assert [path.rpartition("/")[2] for path in records] == ["x", "doubled", "return"]


class Pair:
    """A pytree whose methods are marked, also where JAX calls them between two programs."""

    def __init__(self, a, b):
        self.a = a
        self.b = b

    def parts(self):
        a = self.a
        b = self.b
        return (a, b), None

    @classmethod
    def made(cls, _, parts):
        a, b = parts
        pair = cls(a, b)
        return pair


jax.tree_util.register_pytree_node(Pair, Pair.parts, Pair.made)


def step_of_pair(pair):
    return Pair(pair.a * 2.0, pair.b * pair.a)


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize(
    "run",
    [
        lambda x: jax.jvp(step_of_pair, (x,), (x,)),
        jax.jit(lambda x: jax.jacfwd(step_of_pair)(x)),
        jax.vmap(jax.grad(lambda x: step_of_pair(x).b)),
        lambda x: jax.lax.scan(lambda pair, _: (step_of_pair(pair), pair), x, None, length=2),
    ],
    ids=["jvp", "jacfwd", "grad", "scan"],
)
def test_methods_that_take_a_pytree_apart(run, grads):
    x = Pair(jnp.array([1.0, 3.0]), jnp.array([2.0, 5.0]))
    result, records = sonde.capture(run, inside=[Pair, step_of_pair], grads=grads)(x)
    jax.tree.map(np.testing.assert_array_equal, result, run(x))
    assert any("step_of_pair" in path for path in records)


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


@jax.jit
def sine_and_tangent(x, t):
    both = (jnp.sin(x), jnp.cos(x) * t)
    return both


sine.defjvp(lambda primals, tangents: sine_and_tangent(primals[0], tangents[0]))


@pytest.mark.parametrize(
    "run",
    [
        jax.grad(sine),
        jax.jit(jax.grad(jax.grad(sine))),
        lambda x: jax.linearize(jax.jit(sine), x)[1](2.0),
        jax.grad(lambda x: jax.lax.scan(lambda c, _: (sine(c), None), x, None, length=2)[0]),
        jax.grad(jax.checkpoint(sine)),
        jax.grad(lambda x: jax.lax.scan(jax.checkpoint(lambda c, _: (sine(c), None)), x, None, length=2)[0]),
    ],
    ids=["grad", "twice", "linearize", "scan", "remat", "remat in scan"],
)
def test_values_next_to_tangents_in_a_jitted_rule(run):
    """JAX knows the values and not the tangents when it takes the rule apart."""
    for grads in (False, True):
        result, _ = sonde.capture(run, inside=[sine_and_tangent, sine], grads=grads)(1.0)
        assert result == run(1.0)


def test_numbers_next_to_a_mapped_array_are_not_mapped():
    """A test that was one for all examples stays one: only then a branch that is not taken does not run."""
    ran = []

    def refused(x):
        jax.debug.callback(lambda: ran.append(1))
        return x

    def guarded(state):
        x, count = state
        return jax.lax.cond(count > 2, refused, lambda x: x * 2.0, x), count + 1

    def loss(x):
        pair = (x, jnp.asarray(x.shape[0]))
        return guarded(pair)[0].sum()

    x = jnp.ones((3, 2))
    run = jax.jit(jax.vmap(jax.value_and_grad(loss)))
    result, records = sonde.capture(run, inside=[guarded, loss], grads=True)(x)
    jax.effects_barrier()
    jax.tree.map(np.testing.assert_array_equal, result, run(x))
    assert not ran and any(path.endswith("guarded/x") for path in records)


class Named:
    def __enter__(self):
        self.scope = jax.named_scope("block")
        self.scope.__enter__()

    def __exit__(self, *error):
        self.scope.__exit__(*error)

    def doubled(self, x):
        return x * 2


def in_a_block(x):
    block = Named()
    with block:
        y = block.doubled(x)
    return y


def test_methods_that_begin_and_end_a_block_are_left_out():
    inside = sonde.Inside(in_a_block, Named)
    assert {x.name for x in inside.left_out} == {"Named.__enter__", "Named.__exit__"}
    _, records = sonde.capture(in_a_block, inside=inside)(X)
    names = [path.removeprefix("in_a_block/") for path in records]
    assert names == ["x", "Named.doubled/x", "Named.doubled/return", "y", "return"]
