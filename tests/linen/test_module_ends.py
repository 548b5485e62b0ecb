"""Arguments and results of modules as the sites `in` and `out`, wanted by a capture or an edit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import linen as nn
from sonde.core.edits.editing import Editing
from sonde.core.edits.plan import EditPlan
from sonde.core.interpret.recording import Recording
from sonde.core.modules.call_stack import ModuleRequest
from sonde.core.records.build import make_records
from sonde.core.session.run import run_with
from sonde.core.verbs.edit import Edit, _steps_of, _wishes, check_pattern

KEY = jax.random.key(0)
X = jnp.arange(6.0).reshape(2, 3) / 5


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x, scale=1.0):
        return jnp.tanh(nn.Dense(3)(x)) * scale

    def shifted(self, x):
        return self(x) + 1


class Derived(Inner):
    def __call__(self, x, scale=1.0):
        return super().__call__(x, scale) + 1.0


class Model(nn.Module):
    wrap: Any = None

    @nn.compact
    def __call__(self, x):
        inner = Inner if self.wrap is None else self.wrap(Inner)
        return Derived(name="last")(inner(name="first")(x))


def by_hand(variables, x):
    """The inputs and outputs of all modules, by path."""
    params, seen = variables["params"], {"in": x}
    for name, more in (("first", 0.0), ("last", 1.0)):
        dense = params[name]["Dense_0"]
        seen[f"{name}/in"] = seen[f"{name}/Dense_0/in"] = x
        seen[f"{name}/Dense_0/out"] = x @ dense["kernel"] + dense["bias"]
        seen[f"{name}/out"] = x = jnp.tanh(seen[f"{name}/Dense_0/out"]) + more
    return {**seen, "out": x}


def ends(f, *args, methods=("__call__",), grads=False):
    request = ModuleRequest(methods=frozenset(methods))
    handler = Recording((), grads=grads)
    result = run_with(handler, f, args, {}, request=request, grads=grads)
    return result, make_records(handler.items, handler.met)


WRAPS = {"plain": None, "remat": nn.remat, "jit": nn.jit, "map_variables": lambda c: nn.map_variables(c, "params")}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("jitted", [False, True])
def test_every_module_has_its_ends(wrap, jitted):
    variables = Model().init(KEY, X)
    apply = Model(WRAPS[wrap]).apply
    _, records = ends(jax.jit(apply) if jitted else apply, variables, X)
    expected = by_hand(variables, X)
    assert set(records) == set(expected)
    for path, value in expected.items():
        np.testing.assert_allclose(records[path].value, value, rtol=1e-6, err_msg=path)


def test_gradients_and_methods_by_name():
    variables = Model().init(KEY, X)
    loss = lambda x: (Model().apply(variables, x) ** 2).sum()
    _, records = ends(jax.grad(loss), X, grads=True)
    np.testing.assert_allclose(records["out"].grad, 2 * by_hand(variables, X)["out"], rtol=1e-6)
    np.testing.assert_allclose(records["in"].grad, jax.grad(loss)(X), rtol=1e-6)

    inner = {"params": variables["params"]["first"]}
    _, records = ends(lambda x: Inner().apply(inner, x, method="shifted"), X, methods=("shifted",))
    assert sorted(records) == ["shifted/in", "shifted/out"]
    np.testing.assert_allclose(records["shifted/out"].value, by_hand(variables, X)["first/out"] + 1, rtol=1e-6)


def test_a_method_called_by_another_has_ends_of_its_own():
    variables = Inner().init(KEY, X)
    apply = lambda x: Inner().apply(variables, x, method="shifted")
    result, records = ends(apply, X, methods=("__call__", "shifted"))
    ours = [name for name in records if "Dense" not in name]
    assert sorted(ours) == ["in", "out", "shifted/in", "shifted/out"]
    np.testing.assert_array_equal(records["out"].value + 1, result)


def test_iterations_and_several_arguments():
    class Step(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            carry = nn.Dense(3)(carry) + x
            return carry, carry.sum()

    tower = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True})()
    xs = jnp.ones((4, 3))
    variables = tower.init(KEY, X[0], xs)
    _, records = ends(tower.apply, variables, X[0], xs)
    carry, x = records["in"].value
    assert carry.shape == x.shape == (4, 3)
    np.testing.assert_array_equal(carry[0], X[0])
    np.testing.assert_array_equal(records["out"].value[0][:-1], carry[1:])
    assert records["Dense_0/out"].value.shape == (4, 3)


def test_an_edit_reaches_any_output():
    variables = Model().init(KEY, X)
    steps, values = _steps_of(_wishes({check_pattern("first/out"): Edit(lambda y: jnp.zeros_like(y))}))
    plan = EditPlan.of(steps)
    request = ModuleRequest(methods=frozenset({"__call__"}))
    y = run_with(Editing(plan, values), Model().apply, (variables, X), {}, edits=True, plan=plan, request=request)
    dense = variables["params"]["last"]["Dense_0"]
    np.testing.assert_allclose(y, np.broadcast_to(np.tanh(dense["bias"]) + 1, y.shape), rtol=1e-6)


def test_no_ends_unless_wanted():
    variables = Model().init(KEY, X)
    jaxpr = str(jax.make_jaxpr(Model().apply)(variables, X))
    _, records = ends(Model().apply, variables, X, methods=())
    assert not list(records)
    assert "site" not in jaxpr
