"""The flags of `flax.config`, which both faces respect; and those of Flax that is installed are all known."""

import importlib
import subprocess
import sys

import flax.nnx
import jax.numpy as jnp
import pytest

import flax
import sonde
from sonde import nnx
from sonde.flax import flags as _flax_flags
from sonde.flax.flags import Config, flag
from sonde.nnx.settings import NOT_SET


@pytest.fixture(autouse=True)
def nothing_set_for_good(monkeypatch):
    """A mode that another test set for good would count before the flags."""
    for mode in (nnx.set_graph_mode, nnx.set_graph_updates):
        monkeypatch.setattr(mode._of_class, "set_for_good", NOT_SET)
    stacks = [mode.get_stack() for mode in (flax.nnx.set_graph_mode, flax.nnx.set_graph_updates)]
    before = [list(stack) for stack in stacks]
    for stack in stacks:
        stack.clear()
    yield
    for stack, values in zip(stacks, before):
        stack[:] = values


@pytest.fixture
def setting():
    before = {}

    def set_flag(name, value):
        before.setdefault(name, getattr(flax.config, name))
        flax.config.update(name, value)

    yield set_flag
    for name, value in before.items():
        flax.config.update(name, value)


def test_every_flag_of_flax_is_known_with_its_default():
    theirs = flax.config._values
    assert set(theirs) <= set(_flax_flags.DEFAULTS), set(theirs) - set(_flax_flags.DEFAULTS)
    assert {name: _flax_flags.DEFAULTS[name] for name in theirs} == dict(theirs)


@pytest.mark.parametrize("library", [nnx, flax.nnx], ids=["sonde", "flax"])
def test_flags_are_the_defaults_of_settings(library, setting):
    class Shared(library.Module):
        def __init__(self):
            self.a = library.Param(jnp.ones(2))
            self.b = self.a

    def now():
        defaults = library.var_defaults()
        return (
            library.set_graph_mode.current_value(),
            library.set_graph_updates.current_value(),
            library.using_eager_sharding(),
            defaults.hijax,
            defaults.ref,
        )

    assert now() == (True, True, True, False, False)
    assert library.split(Shared())
    setting("nnx_graph_mode", False)
    with pytest.raises(ValueError):
        library.split(Shared())
    setting("nnx_graph_updates", False)
    setting("flax_always_shard_variable", False)
    assert now() == (False, False, False, False, False)
    with library.set_graph_mode(True), library.use_eager_sharding(True), library.var_defaults(ref=True):
        assert now() == (True, False, True, False, True)
        setting("flax_hijax_variable", True)
        assert now() == (True, False, True, True, True)
        with library.var_defaults(hijax=False):
            assert now() == (True, False, True, False, True)
    assert now() == (False, False, False, True, False)


@pytest.mark.parametrize("library", [nnx, flax.nnx], ids=["sonde", "flax"])
def test_variables_are_placed_as_the_flag_says(library, setting):
    """Without a mesh, placing is an error."""
    make = lambda: library.Param(jnp.ones((2, 2)), out_sharding=("data", None))
    with pytest.raises(ValueError):
        make()
    setting("flax_always_shard_variable", False)
    assert make().get_metadata("out_sharding") == ("data", None)


def test_flags_set_under_the_alias_count(setting):
    with sonde.alias():
        config = importlib.import_module("flax").config
        assert config is flax.config
        config.update("nnx_graph_mode", False)
        try:
            assert not nnx.set_graph_mode.current_value()
        finally:
            config.update("nnx_graph_mode", True)


def test_without_flax_the_environment_counts(monkeypatch):
    for text, value in (("1", True), (" On ", True), ("no", False), ("FALSE", False)):
        monkeypatch.setenv("FLAX_RETURN_FROZENDICT", text)
        assert Config().flax_return_frozendict is value
    monkeypatch.setenv("FLAX_MAX_REPR_DEPTH", "3")
    assert Config().flax_max_repr_depth == 3
    monkeypatch.setenv("FLAX_MAX_REPR_DEPTH", "deep")
    with pytest.raises(ValueError, match="FLAX_MAX_REPR_DEPTH is 'deep'; it must be a number"):
        Config()
    monkeypatch.delenv("FLAX_MAX_REPR_DEPTH")
    monkeypatch.setenv("NNX_GRAPH_MODE", "perhaps")
    with pytest.raises(ValueError, match="NNX_GRAPH_MODE is 'perhaps'; it must be 'true' or 'false'"):
        Config()


def test_the_config_that_stands_in_for_a_missing_flax(monkeypatch):
    config = Config()
    monkeypatch.setattr(_flax_flags, "OWN", config)
    monkeypatch.setattr(_flax_flags, "_of_flax", None)
    monkeypatch.delitem(sys.modules, "flax.configurations")
    with config.temp_flip_flag("return_frozendict", True):
        assert flag("flax_return_frozendict") and "flax_return_frozendict=True" in repr(config)
    assert not flag("flax_return_frozendict")
    with pytest.raises(LookupError, match="Flax has no flag 'nnx_grph_mode'; it has flax_filter_frames"):
        config.update("nnx_grph_mode", True)
    with pytest.raises(AttributeError, match="Flax has no flag 'nnx_grph_mode'"):
        _ = config.nnx_grph_mode


def test_modules_that_are_no_pytrees():
    """The flag counts when the package is imported, so it takes a process."""
    program = """
from sonde import nnx
import jax
class M(nnx.Module): pass
print(len(jax.tree.leaves(M())))
"""
    env = {**__import__("os").environ, "FLAX_PYTREE_MODULE": "false"}
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True).strip() == "1"
