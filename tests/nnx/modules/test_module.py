import pytest
from tests.nnx.modes import block, modes

from sonde import nnx

SETTINGS = {
    "train": lambda nnx, m: (m.eval(), m.train(), modes(m)),
    "eval": lambda nnx, m: (m.eval(), modes(m)),
    "eval with more": lambda nnx, m: (m.eval(rate=0.1), modes(m)),
    "set all": lambda nnx, m: (m.set_attributes(deterministic=True, rate=0.2), modes(m)),
    "set by type": lambda nnx, m: (m.set_attributes(type(m.norm), use_running_average=True), modes(m)),
    "set by path": lambda nnx, m: (m.set_attributes(nnx.PathContains("more"), deterministic=True), modes(m)),
    "not found": lambda nnx, m: m.set_attributes(nothing=1),
    "not found, allowed": lambda nnx, m: (m.set_attributes(nothing=1, raise_if_not_found=False), modes(m)),
    "tree": lambda nnx, m: (m.set_attributes(deterministic=True, graph=False), modes(m)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_attributes(same, name):
    same(lambda nnx: SETTINGS[name](nnx, block(nnx)))


def test_setting_that_fails_changes_nothing():
    m = block(nnx)
    with pytest.raises(ValueError, match=r"Could not find \['nothing'\].*Noise"):
        m.set_attributes(deterministic=True, nothing=1)
    assert modes(m) == (False, False, False, False, 0.5)
    with pytest.raises(ValueError, match=r"no chosen Module has a set_view that takes \['nothing'\].*nnx.view_info"):
        nnx.view(m, only=type(m.noise), nothing=1)


def test_methods_of_iteration_are_deprecated():
    with pytest.warns(DeprecationWarning, match=r"nnx.iter_modules\(m\)"):
        nnx.Dict().iter_modules()
    with pytest.warns(DeprecationWarning, match=r"nnx.iter_children\(m\)"):
        nnx.Dict().iter_children()
