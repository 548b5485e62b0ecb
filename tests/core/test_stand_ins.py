"""Tools compile a call themselves; the copy of the model inside is recognised."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import sonde
from sonde import tools
from sonde.core.asking import asked_for
from sonde.core.stand_ins import _models, model_of, stand_ins

KEYS = jax.random.split(jax.random.key(0), 3)
TEACHER, STUDENT = (eqx.nn.MLP(2, 2, 4, 1, key=key) for key in KEYS[:2])
X = jax.random.normal(KEYS[2], (2,))


def distance(teacher, student, x):
    return ((teacher(x) - student(x)) ** 2).sum()


@pytest.mark.parametrize("model", [TEACHER, STUDENT], ids=["first", "second"])
def test_tools_know_which_of_two_arguments_is_the_model(model):
    call = TEACHER, STUDENT, X
    _, expected = sonde.capture(distance, inside=model)(*call)
    other = "0" if model is STUDENT else "1"
    assert {path.partition("/")[0] for path in expected} == {"in", "out", "layers", other}
    assert [site.path for site in sonde.sites(distance, inside=model)(*call)] == list(expected)
    names = {path: path.replace("/", "_") for path in ("layers/0/out", f"{other}/out")}
    extract = tools.extract(distance, names, inside=model)
    for path, name in names.items():
        assert np.allclose(extract(*call)[name], expected[path].value)
    zeros = sonde.perturbations(distance, "layers/0/out", inside=model)(*call)
    found = jax.grad(sonde.perturbed(distance, inside=model))(zeros, *call)["layers/0/out"]
    hidden = model.layers[0](X)

    def by_hand(hidden):
        mine = model.layers[1](model.activation(hidden))
        return ((mine - (TEACHER if model is STUDENT else STUDENT)(X)) ** 2).sum()

    assert np.allclose(found, jax.grad(by_hand)(hidden), atol=1e-6)


def test_a_program_is_not_used_where_the_model_is_another_argument():
    extract = tools.extract(distance, {"layers/0/out": "h"}, inside=STUDENT)
    expected = STUDENT.layers[0](X)
    assert np.allclose(extract(TEACHER, STUDENT, X)["h"], expected)
    assert np.allclose(extract(STUDENT, TEACHER, X)["h"], expected)


def test_which_of_several_copies_is_the_model_must_be_said():
    moved = jax.tree.map(lambda x: x + 1 if eqx.is_array(x) else x, STUDENT)
    with pytest.raises(sonde.errors.ScopeError, match=r"2 modules of the class MLP.*inside=\[model, \*others\]"):
        sonde.capture(distance, inside=STUDENT)(TEACHER, moved, X)
    for call in (sonde.capture(distance, inside=[STUDENT, TEACHER]), functools.partial(_captured_in_jit)):
        _, records = call(TEACHER, moved, X)
        assert np.allclose(records["layers/0/out"].value, moved.layers[0](X), atol=1e-6)


@eqx.filter_jit
def _captured_in_jit(teacher, student, x):
    return sonde.capture(distance, inside=student)(teacher, student, x)


def test_copies_are_forgotten():
    found = stand_ins(asked_for(STUDENT), {"s": [STUDENT], "t": TEACHER})
    copy = jax.tree.map(lambda x: x, {"s": [STUDENT], "t": TEACHER})
    found.note(copy)
    assert model_of(copy["s"][0]) is STUDENT and model_of(copy["t"]) is None
    n = len(_models)
    del copy
    assert len(_models) == n - 1
