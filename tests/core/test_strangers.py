"""The names of modules that are nowhere in the model."""

from sonde.core.strangers import InnerStranger, Strangers


class Layer:
    pass


def test_every_module_has_a_name_of_its_own_and_keeps_it():
    strangers, layers = Strangers(), [Layer(), Layer()]
    assert [strangers.name(layer) for layer in (*layers, *layers)] == ["Layer", "Layer_1"] * 2


def test_one_that_takes_the_place_of_another_has_its_name():
    strangers = Strangers()
    assert {strangers.name(Layer()) for _ in range(3)} == {"Layer"}
    assert strangers.name(Layer()) == "Layer_1"  # on another line


def test_modules_that_traced_functions_make_are_numbered_with_the_others():
    strangers, layer = Strangers(), Layer()
    first, second = InnerStranger("Layer"), InnerStranger("Layer")
    names = [strangers.name_of(first), strangers.name(layer), strangers.name_of(second), strangers.name_of(first)]
    assert names == ["Layer", "Layer_1", "Layer_2", "Layer"]
    strangers.forget(second)
    assert strangers.name_of(InnerStranger("Layer")) == "Layer_2"
