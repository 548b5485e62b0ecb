"""Places of modules, and the segments of a program in which their calls are open."""

import pytest

from sonde.core.marks.scopes import scope
from sonde.core.modules.places import Frame, Place, Segment, UnregisteredInside, UnregisteredModules, depth_of, join
from sonde.core.session.session import CaptureState, with_capture_state


def test_paths_are_joined_and_counted_without_their_empty_parts():
    assert (join("", "a", "", "b/c"), join("", "")) == ("a/b/c", "")
    assert [depth_of(text) for text in ("", "a", "a/b/c")] == [0, 1, 3]


@pytest.mark.parametrize("place", [Place(""), Place("a", absolute=True), Place("a", known=False, is_current_path=True)])
def test_a_place_further_down_is_as_absolute_and_as_known(place):
    assert place.below("") is place
    below = place.below("b")
    assert below.text == join(place.text, "b")
    assert (below.absolute, below.known, below.is_current_path) == (place.absolute, place.known, False)


def test_what_is_recorded_in_a_stretch_stands_below_its_innermost_call():
    from sonde import _jax

    with with_capture_state(CaptureState(grads=False)), scope("module"):
        segment = Segment([], 0, None)
        assert segment.innermost == Place("")
        assert segment.current_path(1) == "module"
        frame = Frame(Place("a/b"), object(), ("__call__", None), _jax.name_stack()[-1], _jax.open_names(), None)
        segment.frames.append(frame)
        assert segment.current_path(1) == "a/b"
        with scope("inner"):
            assert segment.current_path(1) == "a/b/inner"


class Layer:
    pass


def test_every_module_has_a_name_of_its_own_and_keeps_it():
    unregistered, layers = UnregisteredModules(), [Layer(), Layer()]
    assert [unregistered.name(layer) for layer in (*layers, *layers)] == ["Layer", "Layer_1"] * 2


def test_one_that_takes_the_place_of_another_has_its_name():
    unregistered = UnregisteredModules()
    assert {unregistered.name(Layer()) for _ in range(3)} == {"Layer"}
    assert unregistered.name(Layer()) == "Layer_1"  # on another line


def test_modules_that_traced_functions_make_are_numbered_with_the_others():
    unregistered, layer = UnregisteredModules(), Layer()
    first, second = UnregisteredInside("Layer"), UnregisteredInside("Layer")
    names = [
        unregistered.name_of(first),
        unregistered.name(layer),
        unregistered.name_of(second),
        unregistered.name_of(first),
    ]
    assert names == ["Layer", "Layer_1", "Layer_2", "Layer"]
    unregistered.forget(second)
    assert unregistered.name_of(UnregisteredInside("Layer")) == "Layer_2"
