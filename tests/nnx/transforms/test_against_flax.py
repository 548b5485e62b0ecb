"""Every transform does what it does in Flax: the same values, the same updates, the same classes of errors."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.nnx.transforms.against_flax import MODES, check, models

X = jnp.arange(3.0)


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def run(n, call, start=1.0):
    """The result of a call on a Counter, and the Counter afterwards."""
    counter, _ = models(n)
    m = counter(start)
    before = m.count
    out = call(m)
    return out, m, m.count is before


CASES = {
    # jit
    "jit": lambda n, k: run(n, lambda m: n.jit(lambda m, x: m(x), **k)(m, 2.0)),
    "jit twice": lambda n, k: run(n, lambda m: [n.jit(lambda m: m(1.0), **k)(m) for _ in range(2)]),
    "jit keyword": lambda n, k: run(n, lambda m: n.jit(lambda m, *, x: m(x), **k)(x=2.0, m=m)),
    "jit containers": lambda n, k: run(n, lambda m: n.jit(lambda d: d["m"](d["x"][0]), **k)({"m": m, "x": [2.0]})),
    "jit static": lambda n, k: run(n, lambda m: n.jit(lambda m, s: m(len(s)), static_argnums=1, **k)(m, "abc")),
    "jit static name": lambda n, k: run(
        n, lambda m: n.jit(lambda m, s: m(len(s)), static_argnames="s", **k)(m, s="ab")
    ),
    "jit static unhashable": lambda n, k: run(n, lambda m: n.jit(lambda m, s: m(1.0), static_argnums=1, **k)(m, [2])),
    "jit string": lambda n, k: run(n, lambda m: n.jit(lambda m, s: m(1.0), **k)(m, "a")),
    "jit creates": lambda n, k: n.jit(lambda: models(n)[0](2.0), **k)(),
    "jit creates tied": lambda n, k: (lambda t: (t.a is t.b, t.a))(n.jit(lambda: models(n)[1](2.0), **k)()),
    "jit returns input": lambda n, k: run(n, lambda m: n.jit(lambda m: m, **k)(m)),
    "jit returns input Variable": lambda n, k: run(n, lambda m: n.jit(lambda m: m.count, **k)(m)),
    "jit twice the same": lambda n, k: run(n, lambda m: n.jit(lambda a, b: a(1.0) + b(1.0), **k)(m, m)),
    "jit structure": lambda n, k: run(n, lambda m: (n.jit(lambda m: setattr(m, "flag", 5), **k)(m), m.flag)),
    "jit metadata": lambda n, k: run(n, lambda m: (n.jit(lambda m: m.count.set_metadata(a=1), **k)(m), m.count.a)),
    "jit shape of Variable": lambda n, k: run(n, lambda m: n.jit(lambda m: m.count.set_value(jnp.ones(4)), **k)(m)),
    "jit eval_shape": lambda n, k: run(n, lambda m: n.jit(lambda m: m(1.0), **k).eval_shape(m)),
    "jit lower compile": lambda n, k: run(n, lambda m: n.jit(lambda m: m(1.0), **k).lower(m).compile()(m)),
    "jit partial": lambda n, k: run(n, lambda m: n.jit_partial(lambda m, x: m(x), m, **k)(3.0)),
    "jit donated": lambda n, k: run(n, lambda m: n.jit(lambda m: m(1.0), donate_argnums=0, **k)(m)),
    "jit bound method": lambda n, k: run(n, lambda m: n.jit(m.__call__, **k)(1.0)),
    # derivatives
    "grad": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), **k)(m, 2.0)),
    "grad argnums": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), argnums=(0, 1), **k)(m, 2.0)),
    "grad argnums array": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), argnums=1, **k)(m, 2.0)),
    "grad repeated": lambda n, k: run(n, lambda m: n.value_and_grad(lambda m: m(1.0), **k)(m)),
    "grad keyword": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), **k)(m, x=2.0)),
    "grad aux": lambda n, k: run(n, lambda m: n.grad(lambda m, x: (m(x), (x, 7)), has_aux=True, **k)(m, 2.0)),
    "grad aux is input": lambda n, k: run(n, lambda m: n.grad(lambda m: (m(1.0), m), has_aux=True, **k)(m)),
    "grad of integers": lambda n, k: n.grad(lambda m: m["w"][...], **k)(n.Dict(w=n.Param(1.0), i=n.Variable(1))),
    "grad of Variable": lambda n, k: n.grad(lambda v: v[...] ** 2, **k)(n.Param(3.0)),
    "grad of vector": lambda n, k: n.grad(lambda v: v[...] ** 2, **k)(n.Param(X)),
    "value_and_grad": lambda n, k: run(n, lambda m: n.value_and_grad(lambda m, x: m(x), **k)(m, 2.0)),
    "value_and_grad aux": lambda n, k: run(
        n, lambda m: n.value_and_grad(lambda m, x: (m(x), x), has_aux=True, **k)(m, 2.0)
    ),
    "vjp": lambda n, k: run(n, lambda m: (lambda y, pull: (y, pull(1.0)))(*n.vjp(lambda m, x: m(x), m, 2.0, **k))),
    "vjp decorator": lambda n, k: run(n, lambda m: n.vjp(**k)(lambda m, x: m(x))(m, 2.0)[1](1.0)),
    "vjp aux": lambda n, k: run(n, lambda m: n.vjp(lambda m, x: (m(x), m.w * 3), m, 2.0, has_aux=True, **k)[2]),
    "jvp": lambda n, k: run(
        n, lambda m: n.jvp(lambda m, x: m(x), (m, 2.0), (jax.tree.map(jnp.ones_like, m), 1.0), **k)
    ),
    "jvp aux": lambda n, k: n.jvp(lambda x: (x**2, x), (3.0,), (1.0,), has_aux=True, **k),
    "remat": lambda n, k: run(n, lambda m: n.remat(lambda m, x: m(x), **k)(m, 2.0)),
    "remat static": lambda n, k: run(n, lambda m: n.remat(lambda m, s: m(len(s)), static_argnums=1, **k)(m, "ab")),
    "grad of remat": lambda n, k: run(n, lambda m: n.grad(n.remat(lambda m: jnp.sin(m(2.0)), **k), **k)(m)),
    "remat returns input": lambda n, k: run(n, lambda m: n.remat(lambda m: m, **k)(m)),
    # maps
    "vmap": lambda n, k: run(n, lambda m: n.vmap(lambda m, x: m(x), **k)(m, X), X),
    "vmap broadcast": lambda n, k: run(n, lambda m: n.vmap(lambda m, x: m.w * x, in_axes=(None, 0), **k)(m, X)),
    "vmap broadcast changed": lambda n, k: run(n, lambda m: n.vmap(lambda m, x: m(x), in_axes=(None, 0), **k)(m, X)),
    "vmap broadcast differs": lambda n, k: run(
        n, lambda m: n.vmap(lambda m, x: m.count.set_value(x), in_axes=(None, 0), **k)(m, X)
    ),
    "vmap keyword": lambda n, k: n.vmap(lambda x, y: x * y, **k)(X, y=X),
    "vmap axes": lambda n, k: n.vmap(lambda m, x: m["w"] * x, in_axes=(1, None), out_axes=1, **k)(
        n.Dict(w=n.Param(jnp.ones((2, 3)))), 2.0
    ),
    "vmap creates": lambda n, k: n.vmap(models(n)[0], **k)(X),
    "vmap creates tied": lambda n, k: (lambda t: t.a is t.b)(n.vmap(models(n)[1], **k)(X)),
    "vmap two axes for one": lambda n, k: run(n, lambda m: n.vmap(lambda a, b: a.w, in_axes=(0, None), **k)(m, m), X),
    "vmap too many axes": lambda n, k: run(n, lambda m: n.vmap(lambda m: m.w, in_axes=(0, 0), **k)(m), X),
    "vmap sizes": lambda n, k: run(n, lambda m: n.vmap(lambda m, x: m.w, **k)(m, jnp.ones(5)), X),
    "vmap axis_size": lambda n, k: n.vmap(lambda: 1.0, axis_size=3, **k)(),
    "vmap prefix": lambda n, k: run(
        n,
        lambda m: n.vmap(
            lambda m: m.w * m.count, in_axes=(n.prefix(m, {n.Param: None, ...: 0}, graph=k["graph"]),), **k
        )(m),
        X,
    ),
    "pmap": lambda n, k: run(n, lambda m: n.pmap(lambda m, x: m(x), **k)(m, X[:2]), X[:2]),
    # scan
    "scan": lambda n, k: n.scan(lambda c, x: (c + x, c * x), **k)(0.0, X),
    "scan layers": lambda n, k: run(
        n, lambda m: n.scan(lambda m, x: m(x), in_axes=(0, n.Carry), out_axes=n.Carry, **k)(m, 1.0), X
    ),
    "scan broadcast changed": lambda n, k: run(
        n, lambda m: n.scan(lambda m, x: m(x), in_axes=(None, 0), out_axes=0, **k)(m, X)
    ),
    "scan Module in carry": lambda n, k: run(
        n, lambda m: (lambda c, y: (c.count is m.count, c, y))(*n.scan(lambda m, x: (m, m(x)), **k)(m, X))
    ),
    "scan other Module in carry": lambda n, k: run(n, lambda m: n.scan(lambda m, x: (models(n)[0](x), x), **k)(m, X)),
    "scan static changes": lambda n, k: run(
        n, lambda m: n.scan(lambda m, x: (setattr(m, "flag", m.flag + 1), (m, x))[1], **k)(m, X)
    ),
    "scan no carry": lambda n, k: n.scan(lambda x: x * 2, in_axes=0, out_axes=0, **k)(X),
    "scan only carry": lambda n, k: n.scan(lambda c: c + 1, in_axes=n.Carry, out_axes=n.Carry, length=3, **k)(0.0),
    "scan axis 1": lambda n, k: n.scan(lambda c, x: (c + x, x), in_axes=(n.Carry, 1), out_axes=(n.Carry, 1), **k)(
        jnp.zeros(2), jnp.arange(6.0).reshape(2, 3)
    ),
    "scan reverse": lambda n, k: n.scan(lambda c, x: (c * 2 + x, c), reverse=True, **k)(1.0, X),
    "scan nested axes": lambda n, k: n.scan(
        lambda c, x: (c + x["a"] * x["b"], c), in_axes=(n.Carry, {"a": 0, "b": None}), **k
    )(0.0, {"a": X, "b": 2.0}),
    "scan three outputs": lambda n, k: n.scan(lambda c, x: (c, x, x * 2), out_axes=(n.Carry, 0, 0), **k)(X[0], X),
    "scan creates": lambda n, k: n.scan(lambda c, x: (c, models(n)[0](x)), **k)(X[0], X),
    "scan returns input": lambda n, k: run(
        n, lambda m: n.scan(lambda m, x: (x, m), in_axes=(None, 0), out_axes=(0, 0), **k)(m, X)
    ),
    "scan two carries": lambda n, k: n.scan(lambda c, x: (c, x), in_axes=(n.Carry, n.Carry), **k)(0.0, X),
    "scan carry on one side": lambda n, k: n.scan(lambda c, x: (c, x), out_axes=(0, 0), **k)(0.0, X),
    "scan broadcast output": lambda n, k: n.scan(lambda c, x: (c, x), out_axes=(n.Carry, None), **k)(0.0, X),
    "scan no length": lambda n, k: n.scan(lambda c: c, in_axes=n.Carry, out_axes=n.Carry, **k)(0.0),
    "scan lengths": lambda n, k: n.scan(lambda c, x, y: (c, x), in_axes=(n.Carry, 0, 0), **k)(0.0, X, jnp.ones(4)),
    "scan carry type": lambda n, k: n.scan(lambda c, x: (c.astype(int), x), **k)(jnp.zeros(2), X),
    # loops and branches
    "fori_loop": lambda n, k: run(
        n,
        lambda m: (lambda v: (v[0].count is m.count, v))(
            n.fori_loop(0, 3, lambda i, v: (v[0], v[0](v[1]) + i), (m, 1.0), **k)
        ),
    ),
    "while_loop": lambda n, k: run(
        n, lambda m: n.while_loop(lambda v: v[1] < 9.0, lambda v: (v[0], v[0](v[1])), (m, 1.0), **k)[1]
    ),
    "while_loop test changes": lambda n, k: run(n, lambda m: n.while_loop(lambda m: m(1.0) < 0.0, lambda m: m, m, **k)),
    "while_loop other Module": lambda n, k: run(
        n, lambda m: n.while_loop(lambda v: v[1] < 3, lambda v: (models(n)[0](5.0), v[1] + 1), (m, 0), **k)
    ),
    "while_loop form": lambda n, k: n.while_loop(lambda v: v[0] < 3, lambda v: (v[0] + 1,), (0, 1), **k),
    "fori_loop static changes": lambda n, k: run(
        n, lambda m: n.fori_loop(0, 3, lambda i, m: (setattr(m, "flag", m.flag + 1), m)[1], m, **k)
    ),
    "cond": lambda n, k: run(n, lambda m: n.cond(True, lambda m: m(2.0), lambda m: m.w * 0, m, **k)),
    "cond other branch": lambda n, k: run(n, lambda m: n.cond(False, lambda m: m(2.0), lambda m: m.w * 0, m, **k)),
    "cond both change": lambda n, k: run(
        n, lambda m: n.cond(True, lambda m: m.count.set_value(9.0), lambda m: m.w.set_value(9.0), m, **k)
    ),
    "cond creates": lambda n, k: n.cond(True, lambda: models(n)[0](1.0), lambda: models(n)[0](2.0), **k),
    "cond forms": lambda n, k: run(n, lambda m: n.cond(True, lambda m: 1.0, lambda m: (1.0, 2.0), m, **k)),
    "cond Module or array": lambda n, k: n.cond(True, lambda: models(n)[0](1.0), lambda: 2.0, **k),
    "cond returns input": lambda n, k: run(n, lambda m: n.cond(True, lambda m: m, lambda m: m, m, **k)),
    "switch": lambda n, k: run(
        n, lambda m: [n.switch(i, [lambda m: m.w * 0, lambda m: m(1.0)], m, **k) for i in (0, 7)]
    ),
    # the rest
    "checkify": lambda n, k: run(n, lambda m: n.checkify(lambda m, x: m(x), **k)(m, 2.0)[1]),
    "shard_map": lambda n, k: run(
        n,
        lambda m: n.shard_map(lambda m, x: m(x), mesh=mesh(), in_specs=(P("d"), P("d")), out_specs=P("d"), **k)(
            m, jnp.arange(4.0)
        ),
        jnp.arange(4.0),
    ),
    "eval_shape": lambda n, k: n.eval_shape(models(n)[0], X, **k),
    "eval_shape changes nothing": lambda n, k: run(n, lambda m: n.eval_shape(lambda m, x: m(x), m, 2.0, **k)),
    "make_jaxpr": lambda n, k: run(n, lambda m: str(n.make_jaxpr(lambda m, x: m(x), **k)(m, 2.0))),
    "make_jaxpr static": lambda n, k: str(n.make_jaxpr(lambda x, s: x * len(s), static_argnums=1, **k)(1.0, "ab")),
}


#: What Flax refuses or loses unless graph updates are off, and Sonde does in any case.
MORE = ("jit metadata", "jit partial", "vjp", "jvp", "make_jaxpr")


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_same_as_flax(name):
    check(CASES[name], modes=("without graph updates", "trees") if name.startswith(MORE) else tuple(MODES))


PREFIXES = {
    "scan keyword": lambda n, k: n.scan(lambda c, x: (c + x, c))(0.0, x=X),  # with graph updates only, too
    "vmap": lambda n, k: run(
        n, lambda m: n.vmap(lambda m, x: m(x), in_axes=(n.StateAxes({n.Param: None, ...: 0}), 0))(m, X), X
    ),
    "vmap axis 1": lambda n, k: run(
        n, lambda m: n.vmap(lambda m: m.w * 2, in_axes=(n.StateAxes({n.Param: 1, ...: 0}),), out_axes=1)(m), jnp.eye(3)
    ),
    "vmap nothing for a Variable": lambda n, k: run(
        n, lambda m: n.vmap(lambda m: m.w, in_axes=(n.StateAxes({n.Param: 0}),))(m), X
    ),
    "vmap broadcast differs": lambda n, k: run(
        n,
        lambda m: n.vmap(lambda m, x: m.count.set_value(x), in_axes=(n.StateAxes({n.Param: 0, ...: None}), 0))(m, X),
        X,
    ),
    "vmap nested": lambda n, k: run(
        n,
        lambda m: n.vmap(lambda d: d["m"].w * d["x"], in_axes=({"m": n.StateAxes({...: 0}), "x": None},))(
            {"m": m, "x": 2.0}
        ),
        X,
    ),
    "vmap out": lambda n, k: n.vmap(models(n)[0], out_axes=n.StateAxes({n.Param: 0, ...: 1}))(jnp.ones((3, 2))),
    "vmap State": lambda n, k: run(
        n, lambda m: n.vmap(lambda m: m.w * m.count, in_axes=(n.StateAxes(n.State({"count": 0, "w": None})),))(m), X
    ),
    "pmap": lambda n, k: run(
        n, lambda m: n.pmap(lambda m: m(1.0), in_axes=(n.StateAxes({n.Param: None, ...: 0}),))(m), X[:2]
    ),
    "scan": lambda n, k: run(
        n,
        lambda m: n.scan(
            lambda m, c: m(c), in_axes=(n.StateAxes({n.Param: 0, ...: n.Carry}), n.Carry), out_axes=n.Carry
        )(m, 1.0),
        X,
    ),
    "scan broadcast": lambda n, k: run(
        n,
        lambda m: n.scan(lambda m, c: m(c), in_axes=(n.StateAxes({n.Param: None, ...: 0}), n.Carry), out_axes=n.Carry)(
            m, jnp.ones(3)
        ),
        X,
    ),
    "grad": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), argnums=n.DiffState(0, n.Param))(m, 2.0)),
    "grad everything": lambda n, k: run(n, lambda m: n.grad(lambda m, x: m(x), argnums=n.DiffState(0, ...))(m, 2.0)),
    "grad of two": lambda n, k: run(
        n, lambda m: n.value_and_grad(lambda m, x: m(x), argnums=(n.DiffState(0, n.Param), 1))(m, 2.0)
    ),
    "grad nested": lambda n, k: run(
        n, lambda m: n.grad(lambda d: d["m"](d["x"]), argnums=n.DiffState(0, n.Param))({"m": m, "x": 2.0})
    ),
    "grad twice the same": lambda n, k: run(
        n, lambda m: n.grad(lambda m: m(1.0), argnums=(0, n.DiffState(0, n.Param)))(m)
    ),
    "shard_map": lambda n, k: run(
        n,
        lambda m: n.shard_map(
            lambda m: m(1.0), mesh=mesh(), in_specs=(n.StateSharding({n.Param: P("d"), ...: P()}),), out_specs=P("d")
        )(m),
        jnp.arange(4.0),
    ),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_prefix_filters_same_as_flax(name):
    check(PREFIXES[name])


@pytest.mark.parametrize("what", ["in", "in by filter", "out", "out by filter", "both"])
def test_shardings_same_as_flax(what):
    from jax.sharding import NamedSharding

    def case(n, k):
        sharded, copied = NamedSharding(mesh(), P("d")), NamedSharding(mesh(), P())
        by_filter = n.StateSharding({n.Param: sharded, ...: copied})
        counter, _ = models(n)
        m = counter(jnp.arange(4.0))
        if what.startswith("out"):
            out = n.jit(lambda: counter(jnp.arange(4.0)), out_shardings=by_filter if "filter" in what else sharded)()
            return [v.sharding.spec for v in (out.count[...], out.w[...])], out
        options = {"in_shardings": (by_filter if "filter" in what else sharded, copied)}
        if what == "both":
            options["out_shardings"] = copied
        y = n.jit(lambda m, x: m(x), **options)(m, 2.0)
        return [y.sharding.spec, m.count[...].sharding.spec], y, m

    check(case)
