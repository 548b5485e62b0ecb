"""Places of modules, and the stretches of a program in which their calls are open."""

import pytest

from sonde.core.context import Looking, look
from sonde.core.module_places import Frame, Place, Stretch, depth_of, join
from sonde.core.scopes import scope


def test_paths_are_joined_and_counted_without_their_empty_parts():
    assert (join("", "a", "", "b/c"), join("", "")) == ("a/b/c", "")
    assert [depth_of(text) for text in ("", "a", "a/b/c")] == [0, 1, 3]


@pytest.mark.parametrize("place", [Place(""), Place("a", absolute=True), Place("a", known=False, here=True)])
def test_a_place_further_down_is_as_absolute_and_as_known(place):
    assert place.below("") is place
    below = place.below("b")
    assert below.text == join(place.text, "b")
    assert (below.absolute, below.known, below.here) == (place.absolute, place.known, False)


def test_what_is_recorded_in_a_stretch_stands_below_its_innermost_call():
    from sonde import _jax

    with look(Looking(grads=False)), scope("module"):
        stretch = Stretch([], 0, None)
        assert stretch.innermost == Place("")
        assert stretch.here(1) == "module"
        frame = Frame(Place("a/b"), object(), ("__call__", None), _jax.name_stack()[-1], _jax.open_names(), None)
        stretch.frames.append(frame)
        assert stretch.here(1) == "a/b"
        with scope("inner"):
            assert stretch.here(1) == "a/b/inner"
