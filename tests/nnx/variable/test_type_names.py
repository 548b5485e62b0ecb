"""Names for Variable types."""

import pytest

from sonde import nnx


def test_names(same):
    def known(nnx):
        return [nnx.variable_name_from_type(nnx.variable_type_from_name(n)) for n in ("params", "batch_stats", "cache")]

    same(known)

    def own(nnx):
        class Memory(nnx.Variable):
            pass

        nnx.register_variable_name("memory_test", Memory, overwrite=True)
        made = nnx.variable_type_from_name("made_test", allow_register=True)
        derived = nnx.variable_type_from_name("derived_test", base=nnx.Param, allow_register=True)
        return nnx.variable_name_from_type(Memory), made, issubclass(derived, nnx.Param)

    same(own)
    same(lambda nnx: nnx.variable_type_from_name("unheard of"))
    same(lambda nnx: nnx.register_variable_name("params", nnx.Cache))
    same(lambda nnx: nnx.variable_name_from_type(nnx.Variable))


def test_a_type_keeps_its_first_name():
    class Memory(nnx.Variable):
        pass

    nnx.register_variable_name("first_name", Memory)
    nnx.register_variable_name("second_name", Memory)
    assert nnx.variable_type_from_name("second_name") is Memory
    assert nnx.variable_name_from_type(Memory) == "first_name"
    with pytest.raises(ValueError, match="'first_name' already belongs to .*Memory.*overwrite=True"):
        nnx.register_variable_name("first_name", nnx.Param)


def test_a_type_that_is_made_for_a_name_is_found_again():
    made = nnx.variable_type_from_name("a_new_collection", base=nnx.Param, allow_register=True)
    assert made is nnx.variable_type_from_name("a_new_collection")
    assert made.__name__ == "a_new_collection"
    with pytest.raises(ValueError, match="No Variable type is registered under the name 'another one'; known are"):
        nnx.variable_type_from_name("another one")
