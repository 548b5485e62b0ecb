"""Objects that say what their `repr` shows, compared with Flax."""

import re

import flax.nnx.reprlib as flax_reprlib
import pytest

from sonde import nnx
from sonde.nnx import reprlib


def shown(module):
    class Point(module.Representable):
        def __nnx_repr__(self):
            yield module.Object(type=type(self))
            yield module.Attr("x", 1)
            yield module.Attr("label", "text")
            yield module.Attr("raw", "text", use_raw_value=True)

    class Line(module.Representable):
        def __nnx_repr__(self):
            yield module.Object("Line", start="<", end=">", kv_sep=": ")
            yield module.Attr("start", Point())

    class Empty(module.Representable):
        def __nnx_repr__(self):
            yield module.Object("Empty")

    values = (Point(), Line(), Empty(), module.PrettyMapping({"a": 1}), module.PrettySequence([1, 2]))
    return [re.sub("\x1b\\[[0-9;]*m", "", repr(value)) for value in values]


def test_texts_are_those_of_flax():
    assert shown(reprlib) == shown(flax_reprlib)


def test_objects_of_nnx_are_representable():
    for value in (nnx.Dict(), nnx.Param(1.0), nnx.State({})):
        assert isinstance(value, reprlib.Representable)
    assert not isinstance(3, reprlib.Representable)


def test_mappings_and_sequences():
    class Table(reprlib.MappingReprMixin, dict):
        pass

    class Row(reprlib.SequenceReprMixin, list):
        pass

    assert repr(Table(a=1)) == "Table({\n  'a': 1\n})"
    assert repr(Row([1])) == "Row([\n  1\n])"


def test_the_object_comes_first():
    class Wrong(reprlib.Representable):
        def __nnx_repr__(self):
            yield reprlib.Attr("x", 1)

    with pytest.raises(TypeError, match="must yield an Object first"):
        repr(Wrong())
