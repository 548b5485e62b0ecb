"""A jitted function that is called with modules in several places."""

import gc

import jax
from tests.core.frozen import X, check, make

import sonde
from sonde._jax import arguments


def test_one_jitted_function_and_many_modules_is_traced_once_per_place():
    traces = []

    @jax.jit
    def run(layer, x):
        traces.append(1)
        return layer(x)

    for _ in range(2):
        check(sonde.capture(make(run))(X)[1])
    assert len(traces) == 3


def test_a_function_is_traced_again_only_where_something_differs():
    """Layers at the same places of two models share their traces."""
    traces = []

    @jax.jit
    def run(layer, x):
        traces.append(1)
        return layer(x)

    model, other = make(run), make(run)
    for _ in range(3):
        check(sonde.capture(model)(X)[1])
        check(sonde.capture(other)(X)[1])
    seen = len(traces)
    assert seen == 3
    run(model.parts["layers"][0], X)  # no capture runs: the trace of a plain call
    run(other.parts["layers"][1], X)
    assert len(traces) == seen + 1


def test_a_jitted_function_that_closes_over_a_module():
    """What is inside is found through the module around, though no argument says where it is."""
    model = make(lambda layer, x: jax.jit(lambda x: layer(x))(x))
    for _ in range(2):
        check(sonde.capture(model)(X)[1])


def test_scopes_inside_a_jitted_function_count_once():
    """The model gets into a jitted function inside another, in a scope that is open in the outer one."""
    model = {"": make(lambda layer, x: layer(x))}

    def f(x):
        with sonde.scope("a"), sonde.scope("b"):
            return jax.jit(lambda model, x: model(x))(model[""], x)

    for wrap in (lambda f: f, jax.jit, lambda f: jax.jit(lambda x: jax.jit(f)(x))):
        g = wrap(f)
        check({path.removeprefix("a/b/"): r for path, r in sonde.capture(lambda x: g(x))(X)[1].items()})


def descriptions():
    return [made for made in gc.get_objects() if type(made) is arguments._Description]


def test_what_jax_keeps_of_a_call_refers_to_nothing_of_it_once_the_capture_has_ended():
    """JAX's caches keep the descriptions of calls, with which modules are found while a program is traced."""
    run = jax.jit(lambda layer, x: layer(x))
    during = []

    def model(x):
        y = make(lambda layer, x: run(layer, x))(x)
        during.extend(descriptions())
        return y

    sonde.capture(model)(X)
    assert during and not any(vars(made) for made in during)


def test_descriptions_of_functions_that_are_gone_do_not_pile_up_while_a_capture_runs():
    def f(x):
        before = len(descriptions())  # of other tests
        for _ in range(1000):
            jax.make_jaxpr(lambda x: x)(x)
        return len(descriptions()) - before

    grown = sonde.capture(f)(X)[0]
    assert grown < 500, grown
