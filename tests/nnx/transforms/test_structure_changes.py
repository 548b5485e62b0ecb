"""Changes of structure inside a transformed function: they reach the caller's objects, as in Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.transforms.against_flax import check, models
from tests.nnx.transforms.test_lifting import PURE, TRANSFORMS, Count, value

from sonde import nnx
from sonde.errors import TraceContextError

CHANGING = [n for n in TRANSFORMS if not n.endswith("_loop") and n not in ("vjp", "jvp", "cond", "switch")]


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("name", [n for n in CHANGING if n not in ("transform_metadata", "shard_map")])
def test_new_attributes(name, updates):
    kind, call = TRANSFORMS[name]
    model = Count(value(kind))

    def f(m):
        m.flag = 4
        m.extra = nnx.Param(jnp.zeros(()))
        return jnp.sum(m.n[...])

    call(f, model, graph_updates=updates)
    if not updates or name in PURE:
        assert set(vars(model)) == {"n"}
    else:
        assert set(vars(model)) == {"n", "flag", "extra"} and model.flag == 4
        assert model.extra.shape == np.shape(value(kind)) and not isinstance(model.extra[...], jax.core.Tracer)


def changed(n, f, *, transform="jit"):
    """A model after a function ran on it twice under a transform, with another model as a further argument."""
    counter, _ = models(n)
    m = n.Dict(a=counter(1.0), b=counter(2.0), items=n.List([counter(3.0)]))
    parts = [m.a, m.b, m.items, m.a.w, m.b.w]
    out = []
    for _ in range(2):
        run = getattr(n, transform)(f)
        result = run(m)
        first, seen = n.state(m), [k for k in ("a", "b", "items") if hasattr(m, k)]
        same = [any(p is q for q in (getattr(m, k) for k in seen)) for p in parts[:3]]
        out.append((result if not isinstance(result, n.Module) else result is m, first, seen, same))
    flags = [getattr(getattr(m, k, None), "flag", None) for k in ("a", "b")]
    return out, flags


def add(m):
    m.a.new = type(m.a.w)(m.a.w * 2)
    return m.a.w * 1


def delete(m):
    if hasattr(m.a, "count"):
        del m.a.count
    return m.a.w * 1


def swap(m):
    m.a, m.b = m.b, m.a


def swap_variables(m):
    m.a.w, m.b.w = m.b.w, m.a.w
    m.a.w[...] += 1


def share(m):
    m.b.w = m.a.w
    m.a.w[...] += 10


def replace(m):
    m.a = type(m.b)(m.b.w[...] * 5)


def append(m):
    m.items.append(type(m.a)(7.0))


def remove(m):
    if m.items:
        m.items.pop()


def static(m):
    m.a.flag = m.a.flag + 1
    m.b.flag = "text"


def nested_list(m):
    m.a.flag = (m.a.flag, [1, {"x": 2}])


def returns_it(m):
    m.a.flag = 9
    return m


def modes(m):
    m.set_attributes(flag=77)


EDITS = [add, delete, swap, swap_variables, share, replace, append, remove, static, nested_list, returns_it, modes]


@pytest.mark.parametrize("transform", ["jit", "remat"])
@pytest.mark.parametrize("edit", EDITS, ids=lambda f: f.__name__)
def test_same_as_flax(edit, transform):
    check(lambda n, k: changed(n, edit, transform=transform), modes=("nothing set",))


def test_an_edit_happens_to_the_objects_themselves():
    m = nnx.Dict(a=Count(1.0), b=Count(2.0))
    a, b = m.a, m.b

    @nnx.jit
    def f(m):
        m.a, m.b = m.b, nnx.Dict(inner=m.a)
        m.me = m

    f(m)
    assert m.a is b and m.b.inner is a and m.me is m
    assert float(m.b.inner.n) == 1.0


def test_arrays_among_the_attributes():
    """Flax leaks a tracer where the attribute is new."""
    m = nnx.Dict(array=jnp.zeros(2), other=jnp.ones(2))

    @nnx.jit
    def f(m):
        m.array = m.array + 1
        m.new = m.array * 2

    f(m)
    f(m)
    np.testing.assert_array_equal(m.array, [2, 2])
    np.testing.assert_array_equal(m.new, [4, 4])


def test_the_output_may_hold_the_arguments():
    m, x = Count(3.0), nnx.Dict(w=nnx.Param(jnp.ones(2)))

    @nnx.jit
    def f(m, x):
        m.new = nnx.Param(m.n + 1)
        return {"m": m, "list": [x.w, m.new], "fresh": nnx.Dict(m=m)}

    out = f(m, x)
    assert out["m"] is m and out["list"][0] is x.w and out["list"][1] is m.new and out["fresh"].m is m
    assert float(m.new) == 4.0
    again = f(m, x)
    assert again["list"][1] is m.new


def test_pop_inside_jit():
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)), seen=nnx.Intermediate(jnp.zeros(2)))
    before = m.seen

    @nnx.jit
    def f(m):
        m.seen[...] += 5
        return nnx.pop(m, nnx.Intermediate)

    state = f(m)
    assert list(m) == ["w"] and state["seen"] is before
    np.testing.assert_array_equal(before[...], [5, 5])


def test_lazy_initialization_traces_twice_and_no_more():
    traces = []

    class Lazy(nnx.Module):
        def __init__(self):
            self.w = nnx.data(None)

        def __call__(self, x):
            traces.append(1)
            if self.w is None:
                self.w = nnx.Param(jnp.ones((x.shape[-1], 2)))
            return x @ self.w

    f, lazy = nnx.jit(lambda m, x: m(x)), Lazy()
    for _ in range(4):
        np.testing.assert_array_equal(f(lazy, jnp.ones((1, 3))), [[3, 3]])
    assert len(traces) == 2


def test_nothing_is_paid_where_nothing_changes():
    """Without edits the compiled program contains nothing extra."""
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    with_updates = nnx.jit(lambda m, x: m.w * x).lower(m, 2.0).as_text()
    without = nnx.jit(lambda m, x: m.w * x, graph_updates=False).lower(m, 2.0).as_text()
    assert with_updates == without


def test_branches_must_change_the_same():
    def grow(m):
        m.extra = nnx.Param(m.n + 1)

    m = Count(1.0)
    nnx.cond(True, grow, grow, m)
    assert float(m.extra) == 2.0
    with pytest.raises(TypeError, match="true_fun and false_fun change the structure of the operands"):
        nnx.cond(True, grow, lambda m: None, Count())


def test_grad_of_a_function_that_changes_structure():
    m = nnx.Dict(w=nnx.Param(jnp.array(3.0)))

    def loss(m):
        m.seen = nnx.Intermediate(m.w * 2)
        return m.w**2

    grads = nnx.jit(lambda m: nnx.grad(loss)(m))(m)
    assert float(grads["w"]) == 6.0 and float(m.seen) == 6.0


def test_objects_of_another_level_are_left_alone():
    m = Count()

    @jax.jit
    def outer(x):
        nnx.jit(lambda m: setattr(m, "flag", 3))(m)
        return x

    with pytest.raises(TraceContextError):
        outer(1.0)
    assert set(vars(m)) == {"n"}


def test_trees_forget_structure():
    m = Count()
    nnx.jit(lambda m: setattr(m, "flag", 3), graph=False)(m)
    assert not hasattr(m, "flag")
