"""The default mode of functions that are not given one."""

import os
import subprocess
import sys
import threading

import pytest
from tests.nnx.graphs import shared

from sonde import nnx
from sonde.nnx.structure.mode import resolve, resolve_updates


def test_graph_mode():
    m = shared(nnx)
    with nnx.set_graph_mode(False):
        with pytest.raises(ValueError, match="Duplicate Param"):
            nnx.split(m)
        with nnx.set_graph_mode(True):
            nnx.split(m)
        nnx.split(m, graph=True)
    nnx.split(m)
    assert nnx.set_graph_mode.current_value() is True
    nnx.set_graph_mode(False)
    try:
        assert nnx.set_graph_mode.current_value() is False
    finally:
        nnx.set_graph_mode(True)


@pytest.mark.parametrize("name", ["set_graph_mode", "set_graph_updates"])
def test_settings_hold_for_a_block_a_function_or_for_good(same, name):
    def use(n):
        setting = getattr(n, name)

        @setting(False)
        def nested(depth):
            return (setting.current_value(), *(nested(depth - 1) if depth else ()))

        with setting(True):  # the state that the test runs in does not count
            inside = nested(2)
            after = setting.current_value()
            with setting(False):
                block = setting.current_value()
        before = setting.current_value()
        setting(not before)
        changed = setting.current_value()
        setting(before)
        return inside, after, block, changed is not before

    same(use)
    with pytest.raises(TypeError, match="takes True or False, got 3"):
        getattr(nnx, name)(3)


def test_graph_mode_from_the_environment():
    """The other value is that of every other test."""
    program = "from sonde import nnx; print(nnx.set_graph_mode.current_value())"
    env = {**os.environ, "NNX_GRAPH_MODE": "false", "JAX_PLATFORMS": "cpu"}
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True).strip() == "False"


def test_a_block_is_for_its_thread_alone_and_ends_with_an_error():
    seen = []
    with pytest.raises(KeyError), nnx.set_graph_mode(False):
        thread = threading.Thread(target=lambda: seen.append(nnx.set_graph_mode.current_value()))
        thread.start()
        thread.join()
        seen.append(nnx.set_graph_mode.current_value())
        raise KeyError
    assert [*seen, nnx.set_graph_mode.current_value()] == [True, False, True]


def test_what_an_argument_means():
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        assert [resolve(x) for x in (None, True, False)] == [False, True, False]
        assert [resolve_updates(x) for x in (None, True, False)] == [False, True, False]
    assert (resolve(None), resolve_updates(None)) == (True, True)
