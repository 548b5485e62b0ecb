"""Copies of a model in another mode."""

import pytest
from tests.nnx.modes import block, modes

COPIES = {
    "with_attributes": lambda nnx, m: nnx.with_attributes(m, deterministic=True),
    "with_attributes only": lambda nnx, m: nnx.with_attributes(m, only=nnx.PathContains("more"), deterministic=True),
    "with_attributes not found": lambda nnx, m: nnx.with_attributes(m, nothing=1),
    "with_attributes tree": lambda nnx, m: nnx.with_attributes(m, rate=0.1, graph=False),
    "view": lambda nnx, m: nnx.view(m, deterministic=True, use_running_average=True),
    "view only": lambda nnx, m: nnx.view(m, only=type(m.noise), deterministic=True),
    "view not found": lambda nnx, m: nnx.view(m, only=type(m.noise), nothing=1),
    "view not found, allowed": lambda nnx, m: nnx.view(m, only=type(m.noise), nothing=1, raise_if_not_found=False),
    "view tree": lambda nnx, m: nnx.view(m, use_running_average=True, graph=False),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_in_another_mode(same, name):
    def use(nnx):
        m = block(nnx)
        other = COPIES[name](nnx, m)
        return modes(m), modes(other), other.norm.scale is m.norm.scale, other is m

    same(use)


def test_view_info(same):
    text = same(lambda nnx: nnx.view_info(block(nnx)).replace(block.__qualname__ + ".<locals>.", ""))
    assert "if True, there is" in text
    same(lambda nnx: nnx.view_info(block(nnx), only=lambda path, m: "noise" in path))
