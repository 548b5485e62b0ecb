"""`sonde.alias`: a package written on Flax runs on Sonde, with Flax's numbers."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sonde
from sonde.flax import alias_log as _alias_log

PACKAGE = """
import flax
import flax.linen as nn
from flax import nnx, struct
from flax.core import FrozenDict, freeze, unfreeze
from flax.linen.linear import Dense
from flax.nnx.nn.linear import Linear
from flax.training import common_utils
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict


class Block(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        h = nn.relu(Dense(self.features)(x))
        self.sow("intermediates", "h", h)
        return nn.LayerNorm()(h)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.tanh(layer(x))
        return x


@struct.dataclass
class Output:
    y: object
    params: object


def late():
    return flax.linen.Dense
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Imports the package anew, under the alias or not."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "written_on_flax.py").write_text(PACKAGE)

    def load(*, aliased):
        monkeypatch.delitem(sys.modules, "written_on_flax", raising=False)
        if not aliased:
            return importlib.import_module("written_on_flax")
        with sonde.alias():
            return importlib.import_module("written_on_flax")

    yield load
    sys.modules.pop("written_on_flax", None)


def results(module):
    import optax

    x = jnp.linspace(-1, 1, 8).reshape(2, 4)
    block = module.Block(3)
    params = block.init(jax.random.key(0), x)["params"]
    state = module.TrainState.create(apply_fn=block.apply, params=params, tx=optax.sgd(0.1))
    loss = lambda params: (state.apply_fn({"params": params}, x) ** 2).sum()
    state = state.apply_gradients(grads=jax.grad(loss)(state.params))
    net = module.Net(module.nnx.Rngs(0))
    flat = module.flatten_dict(module.unfreeze(module.freeze(state.params)), sep="/")
    grads = module.nnx.grad(lambda m: m(x).sum(), argnums=module.nnx.DiffState(0, module.nnx.Param))(net)
    return flat, net(x), jax.tree.leaves(grads), module.Output(net(x), flat).replace(params=None).y


def test_a_package_runs_unchanged_with_the_numbers_of_flax(package):
    ours, theirs = package(aliased=True), package(aliased=False)
    assert ours.nnx is sonde.nnx and ours.nn is sonde.linen and theirs.nn is not sonde.linen
    jax.tree.map(np.testing.assert_array_equal, results(ours), results(theirs))


def test_its_values_can_be_captured(package):
    module = package(aliased=True)
    block = module.Block(3)
    x = jnp.ones((1, 4))
    variables = block.init(jax.random.key(0), x)
    _, records = sonde.capture(lambda x: block.apply(variables, x), "h")(x)
    assert records["h"].value.shape == (1, 3)


def test_what_it_asks_for_later_is_sonde_too(package):
    assert package(aliased=True).late() is sonde.linen.Dense


def test_only_inside_the_block():
    import flax

    with sonde.alias(), sonde.alias():
        assert importlib.import_module("flax.nnx") is sonde.nnx
        assert importlib.import_module("flax").linen is sonde.linen
        assert importlib.util.find_spec("flax.nonsense") is None
        for name in ("flax.nonsense", "flax.nnx.nonsense", "flax.linen.nonsense"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)
        with pytest.raises(AttributeError, match="'flax', as `sonde.alias` provides it, has no 'nonsense'"):
            _ = importlib.import_module("flax").nonsense
    assert importlib.import_module("flax") is flax
    assert importlib.import_module("flax.nnx") is not sonde.nnx
    assert sonde.nnx.__name__ == sonde.nnx.__spec__.name == "sonde.nnx"


def test_names_that_sonde_has_not_are_those_of_flax():
    from flax import jax_utils, version

    with sonde.alias():
        assert importlib.import_module("flax.jax_utils").replicate is jax_utils.replicate
        assert importlib.import_module("flax").__version__ == version.__version__


@pytest.mark.filterwarnings("ignore:Flax Checkpointing:DeprecationWarning")
def test_functions_of_flax_itself_write_what_is_made_under_it(tmp_path):
    """Flax's checkpoints are not Sonde's; they use Flax's own serialization on a `TrainState` of Sonde."""
    with sonde.alias():
        checkpoints = importlib.import_module("flax.training.checkpoints")
        flax = importlib.import_module("flax")
        train_state = importlib.import_module("flax.training.train_state")

        class WithStatistics(train_state.TrainState):
            statistics: object = None

        state = WithStatistics.create(apply_fn=None, params={"w": jnp.arange(3.0)}, tx=optax.sgd(0.1), statistics=1)
        before = flax.config.flax_use_orbax_checkpointing
        flax.config.update("flax_use_orbax_checkpointing", False)
        try:
            checkpoints.save_checkpoint(str(tmp_path), {"state": state}, step=0)
            back = checkpoints.restore_checkpoint(str(tmp_path), {"state": state.replace(statistics=2)})
        finally:
            flax.config.update("flax_use_orbax_checkpointing", before)
    assert isinstance(back["state"], WithStatistics) and back["state"].statistics == 1
    np.testing.assert_array_equal(back["state"].params["w"], state.params["w"])


def test_for_good_and_without_flax():
    """In a process of its own: nothing of Flax is installed there, and the alias stays on."""
    code = """
import sys
import importlib.machinery, importlib.metadata
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(lambda cls, name, *a: None if name == "flax" else find(name, *a))
import sonde
sonde.alias()
import flax
import flax.linen as nn
from flax import nnx
from flax.core import freeze
from flax.training.train_state import TrainState
import jax, jax.numpy as jnp
variables = nn.Dense(3).init(jax.random.key(0), jnp.ones((1, 2)))
print(variables["params"]["kernel"].shape, flax.__version__, TrainState.__module__)
try:
    import flax.jax_utils
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shape, line = done.stdout.splitlines()
    assert (
        shape.startswith("(2, 3) 0.") and shape.endswith("sonde.flax.training.train_state") and line == "flax.jax_utils"
    )


@pytest.fixture
def asked():
    """What was asked since the test began, by answer."""
    _alias_log.clear()
    yield lambda answer: {ask.name for ask in sonde.alias_report() if ask.answer == answer}
    _alias_log.clear()


def test_what_sonde_lacks_is_named_and_reported(asked):
    with sonde.alias():
        nn = importlib.import_module("flax.linen")
        exec("from flax.linen import partitioning; from flax import config")
        assert getattr(nn.module, "_freeze_attr", None) is None
        with pytest.raises(AttributeError, match="flax.nnx.graphlib.NoUpdate does not exist: module 'sonde.nnx.graphl"):
            _ = importlib.import_module("flax.nnx").graphlib.NoUpdate
        # Flax has neither.
        assert not hasattr(nn, "nonsense")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("flax.nonsense")
        missing = asked("missing")
    assert missing == asked("missing") == {"flax.linen.module._freeze_attr", "flax.nnx.graphlib.NoUpdate"}
    assert asked("from Sonde") >= {"flax", "flax.linen", "flax.nnx"} and not asked("from Flax")
    first = sonde.alias_report()[0]
    assert first.name == "flax" and "test_alias.py:" in first.where
    text = str(sonde.alias_report())
    assert "not there: these names raised an error" in text and "  flax.linen.module._freeze_attr  (" in text
    _alias_log.clear()
    assert not hasattr(nn.module, "_freeze_attr") and not asked("missing")  # the alias is off


def test_names_from_flax_itself_are_reported_and_those_of_its_core_warn(asked):
    with sonde.alias():
        importlib.import_module("flax.jax_utils").replicate
        with pytest.warns(_alias_log.AliasWarning, match="^flax.core.Scope: Sonde has no such name") as caught:
            importlib.import_module("flax.core").Scope
    assert caught[0].filename == __file__
    assert asked("from Flax") == {"flax.jax_utils", "flax.jax_utils.replicate", "flax.core.Scope"}


@pytest.mark.parametrize("name", ["flax.linen", "flax.linen.linear", "flax.nnx.nn.linear", "flax.core"])
def test_setting_a_name_warns(asked, name):
    with sonde.alias():
        module = importlib.import_module(name)
        with pytest.warns(_alias_log.AliasWarning, match=f"{name}._patched: was set under sonde.alias") as caught:
            module._patched = 1
        assert caught[0].filename == __file__ and module._patched == 1
        del module._patched
    assert asked("set") == {f"{name}._patched"}
    if name != "flax.core":
        module._patched = 1  # no warning: the alias is off
        del module._patched


def test_the_modules_can_be_pickled_with_functions_that_use_them():
    with sonde.alias():
        for name in ("flax.linen", "flax.nnx.nn.linear", "flax.core"):
            module = importlib.import_module(name)
            assert pickle.loads(pickle.dumps(module)) is module


def test_an_empty_report(asked):
    assert str(sonde.alias_report()) == "sonde.alias: nothing was asked of Flax"


def test_errors_of_sonde_are_errors_of_flax():
    with sonde.alias():
        errors = importlib.import_module("flax.errors")
        with pytest.raises(errors.FlaxError):
            sonde.linen.Dense(2).apply({}, jnp.ones((1, 2)))
        outside = sonde.nnx.Param(jnp.ones(2))
        with pytest.raises(errors.ImmutableVariableError):
            jax.jit(lambda x: outside.set_value(x))(jnp.zeros(2))


def test_axes_of_flax_core():
    with sonde.alias():
        core = importlib.import_module("flax.core")
        assert core.broadcast is sonde.linen.broadcast and importlib.import_module("flax.core.scope").VariableDict
