"""Where paths count from: the modules that a call is about, and their copies in compiled calls."""

import functools
import gc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import tools
from sonde.core.modules.index import ModuleKind, register_modules
from sonde.core.modules.roots import _models, find_roots, model_of, stand_ins
from sonde.core.session.inside_protocol import inside_request


class Model:
    def __init__(self, **parts):
        vars(self).update(parts)

    def __call__(self, x):
        return x

    def method(self, x):
        return x


class Leaf(Model):
    """Nothing counts from it: as a variable, say."""


register_modules(Model, ModuleKind(lambda m: list(vars(m).items()), is_root=lambda m: type(m) is not Leaf))
a, b = Model(), Model()
GLOBAL = Model()


def plain(*args, **kwargs):
    return args, kwargs


def of_global(x):
    return GLOBAL(x)


@pytest.mark.parametrize(
    ("f", "args", "kwargs", "expected"),
    [
        (a, (1,), {}, [("", a)]),
        (a.method, (1,), {}, [("", a)]),
        (functools.partial(a.method, 1), (), {}, [("", a)]),
        (functools.partial(plain, a), (1,), {}, [("", a)]),
        (functools.wraps(a.method)(lambda x: x), (1,), {}, [("", a)]),
        (plain, (a, 1), {}, [("", a)]),
        (plain, (1, a), {"other": b}, [("", a), ("other", b)]),
        (plain, (a, b, a), {}, [("", a), ("1", b)]),
        (a, (b,), {}, [("", a), ("0", b)]),
        (plain, ([a],), {}, [("", a)]),
        (plain, ([a, {"x": b}],), {}, [("0", a), ("1/x", b)]),
        (plain, ([a], (1, b)), {}, [("0/0", a), ("1/1", b)]),
        (plain, (Leaf(),), {}, []),
        (plain, (1, "x"), {}, []),
        (of_global, (1,), {}, [("", GLOBAL)]),
        (lambda x: a(x), (1,), {}, [("", a)]),
    ],
    ids=lambda value: None,
)
def test_roots(f, args, kwargs, expected):
    assert find_roots(f, args, kwargs) == expected


def test_arguments_come_before_what_a_function_refers_to():
    def closed_over(model):
        return model(a)

    assert find_roots(closed_over, (b,), {}) == [("", b)]


def test_a_closure_that_is_not_filled_yet():
    def make():
        def f(x):
            return later(x), GLOBAL

        found = find_roots(f, (1,), {})
        later = a
        return found, find_roots(f, (1,), {})

    before, after = make()
    assert before == [("", GLOBAL)]
    assert after == [("", a), ("GLOBAL", GLOBAL)]


def test_paths_count_from_the_model_that_is_looked_into():
    other = type(a)
    assert find_roots(lambda *_: 0, (b, a), {}, [a]) == [("", a), ("0", b)]
    assert find_roots(lambda *_: 0, (b,), {"m": a}, [a]) == [("", a), ("0", b)]
    assert find_roots(lambda *_: 0, (1,), {}, [a, b]) == [("", a), (type(b).__name__, b)]
    new = other()  # the model after some steps
    assert find_roots(lambda *_: 0, (new, 1), {}, [a])[:2] == [("", a), ("", new)]


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
    zeros = sonde.zero_perturbations(distance, "layers/0/out", inside=model)(*call)
    found = jax.grad(sonde.with_perturbations(distance, inside=model))(zeros, *call)["layers/0/out"]
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
    found = stand_ins(inside_request(STUDENT), {"s": [STUDENT], "t": TEACHER})
    copy = jax.tree.map(lambda x: x, {"s": [STUDENT], "t": TEACHER})
    found.note(copy)
    assert model_of(copy["s"][0]) is STUDENT and model_of(copy["t"]) is None
    n = len(_models.entries)
    del copy
    assert len(_models.entries) == n - 1


def test_a_program_kept_for_a_model_that_is_gone_finds_the_next_one():
    jitted = jax.jit(distance)
    for n in (2, 3):  # another size: the program is traced again
        teacher, student = (eqx.nn.Linear(n, n, key=key) for key in KEYS[:2])
        _, records = sonde.capture(jitted, inside=student)(teacher, student, jnp.ones(n))
        assert list(records) == ["0/in", "0/out", "in", "out"]
        np.testing.assert_allclose(records["out"].value, student(jnp.ones(n)), rtol=1e-6)
        del teacher, student
        gc.collect()
