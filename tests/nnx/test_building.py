import pytest

from sonde import nnx
from sonde.nnx.building import build, collect
from sonde.nnx.walking import walk


def model():
    w = nnx.Param(1.0)
    return nnx.Dict(a=w, b=nnx.List([w, 3]), name="m")


def test_from_leaves_and_from_a_state():
    m = model()
    found = walk(m, graph=True, verb="test")
    for made in (build(found.definition, [7.0]), build(found.definition, state=nnx.State({"a": 7.0}))):
        assert made.a is made.b[0] and made.a.get_value() == 7.0 and made.name == "m" and made is not m


def test_bare_values_stay_bare_if_asked():
    found = walk(nnx.Dict(a=nnx.Param(1.0)), graph=True, verb="test")
    assert build(found.definition, [7.0], recreate=False).a == 7.0


def test_known_objects_are_used_and_added():
    inner = nnx.Dict(w=nnx.Param(1.0))
    seen: dict[int, int] = {}
    first, second = (walk(x, graph=True, verb="test", seen=seen) for x in (inner, nnx.Dict(i=inner)))
    known: dict[int, object] = {}
    made = build(first.definition, first.leaves, known=known)
    assert build(second.definition, second.leaves, known=known).i is made


def test_finish_sees_everything_children_first():
    found = walk(nnx.Dict(a=nnx.Param(1.0)), graph=True, verb="test")
    paths = []
    build(found.definition, found.leaves, finish=lambda path, x: (paths.append(path), x)[1])
    assert paths == [("a",), ()]


def test_states_that_do_not_fit():
    definition = walk(nnx.Dict(a=nnx.Param(1.0), b=nnx.Dict(c=nnx.Param(2.0))), graph=True, verb="test").definition
    assert collect(definition, {"a": 1, "b": {"c": 2}}) == [1, 2]
    with pytest.raises(ValueError, match=r"missing: b; not expected: z"):
        collect(definition, {"a": 1, "z": 2})
