"""Copies of a model in another mode."""

import pytest
from tests.nnx.modes import block, modes

from sonde import nnx

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


class Documented(nnx.Module):
    def __init__(self):
        self.n = 1

    def set_view(self, n: int = 3, *, other=None):
        """Sets it.

        Args:
            n (int): how many
                there are.
            other: something: else.
        """
        self.n = n


class Takes(nnx.Module):
    def __init__(self):
        self.seen = None

    def set_view(self, **kwargs):
        self.seen = kwargs


def test_a_method_with_keywords_of_any_name_is_given_all():
    model = nnx.Dict(a=Documented(), b=Takes())
    other = nnx.view(model, n=5, anything="x")
    assert (other.a.n, other.b.seen) == (5, {"n": 5, "anything": "x"})
    assert (model.a.n, model.b.seen) == (1, None)


def test_variables_are_shared_with_the_copy():
    model = nnx.Dict(a=Documented(), w=nnx.Param(1.0))
    assert nnx.view(model, n=2).w is model.w


def test_what_a_model_can_be_told():
    assert nnx.view_info(nnx.Dict(a=Documented(), b=Documented(), c=Takes())).splitlines() == [
        "Documented:",
        "  n: int = 3",
        "    how many",
        "    there are.",
        "  other: inspect._empty = None",  # as in Flax
        "    something: else.",
        "Takes:",
        "  set_view(self, **kwargs)",
    ]
    assert nnx.view_info(nnx.Dict(w=nnx.Param(1))) == ""


def test_attributes_that_no_chosen_module_has():
    model = nnx.Dict(a=Documented())
    with pytest.raises(ValueError, match="nothing"):
        nnx.with_attributes(model, nothing=1)
    assert nnx.with_attributes(model, nothing=1, raise_if_not_found=False).a.n == 1
    assert nnx.with_attributes(model, n=7, only=Documented).a.n == 7
    with pytest.raises(ValueError):
        nnx.with_attributes(model, n=7, only=Takes)
