import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.nnx.transforms.jit.arguments import Arguments
from sonde.nnx.transforms.jit.program import Options, Program
from sonde.nnx.transforms.lifting import Structure, walk_call
from sonde.nnx.transforms.options import Mode


def program(f, *args, donated=()):
    arguments = Arguments(args, (), frozenset())
    names = tuple(arguments.names)
    found = walk_call(names, arguments.roots, verb="jit", graph=True)
    options = Options(f, Mode(True, True), None, None, frozenset(), frozenset(donated), {})
    return Program(options, Structure(found, names, len(names), ()), arguments, found.leaves), found.leaves


def test_leaves_in_lists():
    m = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=jnp.zeros(2), c=nnx.Param(jnp.ones(1)))
    made, leaves = program(lambda m, x: x, m, 2.0)
    assert made.arrays == [1] and made.kept == [0, 2] and made.donated == []
    assert made.lists("abc") == [["b"], ["a", "c"]] and made.positions == {1: (0, 0), 0: (1, 0), 2: (1, 1)}
    assert program(lambda m: 0, m, donated=(0,))[0].lists("abc") == [["b"], ["a", "c"]]
    assert program(lambda x: x, 2.0)[0].lists("") == [[]]


def test_what_comes_out():
    m = nnx.Dict(a=nnx.Param(jnp.ones(2)))

    def change(m):
        m.a[...] += 1
        return m.a * 2

    values = [m.a[...]]
    assert isinstance(program(lambda m: m.a * 2, m)[0].run(values), jax.Array)  # the output alone
    out, (lists, outcome) = program(change, m)[0].run(values)
    assert float(out[0]) == 4.0 and float(lists[0][0][0]) == 2.0 and outcome.values_only
    out, (_, outcome) = program(lambda m: (m.a * 2, 3), m)[0].run(values)  # a tuple must be told from a result
    assert isinstance(out, tuple) and outcome.nothing
    out, (lists, outcome) = program(lambda m: nnx.Param(m.a * 2), m)[0].run(values)
    assert out is None and outcome.definition is not None


def test_equal_structures_are_traced_once():
    traces = []

    @nnx.jit
    def f(m):
        traces.append(1)
        return m.a * 2

    for _ in range(3):
        f(nnx.Dict(a=nnx.Param(jnp.ones(2))))
    assert len(traces) == 1
