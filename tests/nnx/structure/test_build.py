import jax
import pytest

from sonde import nnx
from sonde.nnx.structure.build import build, collect
from sonde.nnx.structure.walk import walk


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


def test_attributes_of_copies_are_in_the_order_of_flax(same):
    def orders(nnx):
        seen = []

        def note(model):
            seen.append([name for name in vars(model) if not name.startswith("_")])
            return 0.0

        def make():
            return nnx.Dict({"z": nnx.Param(1.0), "a": abs, "m": nnx.Param(2.0), "b": "text"})

        for run in (note, nnx.jit(note), nnx.remat(note), nnx.grad(note), jax.jit(note)):
            run(make())
        for copy in (nnx.clone(make()), nnx.merge(*nnx.split(make())), nnx.eval_shape(make), nnx.jit(make)()):
            note(copy)
        note(jax.tree.map(lambda x: x, make()))
        return seen

    same(orders)
