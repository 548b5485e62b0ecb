"""Where paths count from: the modules that a call is about."""

import functools

import pytest

from sonde.core.module_index import ModuleKind, register_modules
from sonde.core.module_roots import find_roots


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
