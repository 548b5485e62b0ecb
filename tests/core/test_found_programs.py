"""Programs that were wrong once, as the random search printed them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.checking import check_program
from tests.core.editing import check_edit, check_put_back
from tests.core.programs import (
    Call,
    Cond,
    CustomJvp,
    CustomVjp,
    Grad,
    Grid,
    Instead,
    Jvp,
    Loop,
    Model,
    Op,
    Program,
    Pullbacks,
    Remat,
    Scope,
    Shard,
    Sides,
    Sow,
    Vmap,
    While,
)

import sonde

ONE_SITE = (Sow("s"),)
SHARED: tuple = (ONE_SITE,)  # a jitted function, for programs that call it at several places
A, B, C = np.array([[0.3, -0.8], [1.1, 0.4], [-0.6, 0.2]], np.float32)

# What was wrong: the program, how it is looked at, and its input.
FOUND = {
    "branches that call a function unequally often": (
        Program(SHARED, (Vmap((Cond(((), (Call(0),), (Call(0, 2),))),), 1, 1),)),
        6,
        A,
    ),
    "a gate that varies over a mesh": (
        Program((), (Shard((Vmap((Cond(((), (Remat(ONE_SITE),))),), 0, 0),)),)),
        4,
        A,
    ),
    "branches with one path, on a mesh": (
        Program(SHARED, (Shard((Vmap((Cond(((Call(0),), (Call(0),))),), 1, 0),)),)),
        7,
        A,
    ),
    "choices inside choices, outer one mapped first": (
        Program(SHARED, (Vmap((Cond(((), (Cond(((Call(0),), (Call(0),))),))),), 1, 1),)),
        6,
        C,
    ),
    "elements that stop at different times, on a mesh inside a map": (
        Program((), (Vmap((Shard((While(ONE_SITE, None, stop=True),)),), 0, 1),)),
        9,
        A,
    ),
    "elements that stop at different times, in a map on a mesh": (
        Program((), (Shard((Vmap((While((), "test", stop=True),), 0, 0),)),)),
        5,
        B,
    ),
    "how often a test ran in a branch that was not taken": (
        Program((), (Vmap((Cond(((While((), "test", stop=False),), ())),), 0, 1),), differentiable=False),
        5,
        A,
    ),
    "a function inside and outside a map, where some leaves do not vary": (
        Program(((Grad((Sow("s", "tree"),), "vjp_twice"),),), (Call(0), Vmap((Call(0),), 0, 1))),
        6,
        B,
    ),
    "a branch that one device takes, whose function is called elsewhere too": (
        Program(
            ((Sow("s", "tree"),),),
            (Loop((Shard((Cond(((), (Call(0, 2),))), Call(0))),), 1, "scan_without_xs"),),
        ),
        5,
        A,
    ),
    "the gradient of a gradient of a loop that is computed again": (
        Program((), (Grad((Loop((Remat(ONE_SITE),), 2, "scan"),), "vjp"),)),
        7,
        B,
    ),
    "a value that no loop around it changes": (
        Program((), (Loop((Loop((Sow("s", "unused"),), 1, "scan_without_xs"),), 2, "scan"),)),
        7,
        A,
    ),
    "a backward rule whose residual is its operand, beside a constant": (
        Program(
            ((CustomVjp((Sow("s", "tree"),), through=False),),),
            (Grad((Loop((Call(0),), 1, "map"),), "vjp_twice"),),
        ),
        6,
        A,
    ),
    "a function with its own derivatives, in a loop that is computed again": (
        Program((), (Remat((While((CustomVjp(ONE_SITE, through=False),), None),), "dots"),)),
        5,
        C,
    ),
    "how many times a loop ran that is in both branches": (
        Program(((While((), "test"),),), (Vmap((Loop((Cond(((Call(0),), (Call(0),))),), 2, "map"),), 0, 1),)),
        5,
        C,
    ),
    "a branch in a loop that stops at different times, with a mesh inside": (
        Program((), (Vmap((While((Cond(((Shard(ONE_SITE),), ())),), None),), 0, 1),)),
        0,
        A,
    ),
    "whether a branch was taken in a loop that another axis stops": (
        Program((), (Grid((While((Cond((ONE_SITE, ()), True),), None, stop=True, length_outside=True),), False),)),
        0,
        B,
    ),
    "branches in a loop that another axis stops": (
        Program((), (Grid((While((Cond((ONE_SITE, ONE_SITE)),), None, stop=True, length_outside=True),), True),)),
        0,
        B,
    ),
    "how many times a loop ran in a branch, with a branch inside": (
        Program((), (Vmap((Cond(((While((Cond((ONE_SITE, ())),), None, stop=True),), ())),), 0, 1),)),
        0,
        A,
    ),
    "one function, differentiated with and without a map, in a loop": (
        Program(
            SHARED,
            (
                While(
                    (
                        Sides((Call(0),), (Call(0),), (True, True), (True, True)),
                        Sides((Grad((Call(0),), "grad"),), (Call(0),), (False, False), (False, False)),
                    ),
                    None,
                    stop=True,
                ),
            ),
        ),
        13,
        A,
    ),
    "whether a branch was taken in which a loop never ran": (
        Program((), (Grid((Cond(((While(ONE_SITE, None, stop=True),), ()), True),), True),)),
        0,
        C,
    ),
    "branches of a map in a function with its own derivatives": (
        Program((), (CustomVjp((Vmap((Cond((ONE_SITE, ONE_SITE, ())),), 0, 1),), through=False),)),
        9,
        B,
    ),
    "gradients in a loop that is computed again, twice": (
        Program(
            (ONE_SITE, (While((Grad((Call(0),), "vjp"), Grad((Call(0),), "vjp")), None, stop=True),)),
            (Remat((Call(1, 2),)),),
        ),
        5,
        B,
    ),
    "a loop that is computed again twice, in a loop": (
        Program(
            (),
            (
                Loop(
                    (Remat((Sides((), (Remat((While(ONE_SITE, "t", stop=True),)),), (True, True), (True, True)),)),),
                    3,
                    "scan",
                ),
            ),
        ),
        6,
        B,
    ),
    "branches inside of branches, in three of which a site is": (
        Program((), (Vmap((Cond(((Cond((ONE_SITE, (), ())),), (Cond((ONE_SITE, ONE_SITE, ())),), ())),), 0, 1),)),
        0,
        C,
    ),
    "a model in a jitted function in a jitted function in a scope": (
        Program(((Model("jitted"),),), (Scope("a", (Call(0),)), Call(0))),
        0,
        A,
    ),
    "a model that goes into a jitted function in a scope that is open in another": (
        Program((), (Scope("a", (Model("jitted"),)),)),
        14,
        B,
    ),
    "a site in the test of a loop of which a part is known": (
        Program(
            ((While((), "again", stop=True),),),
            (Grad((Loop((Pullbacks((Call(0),)),), 1, "map"),), "value_and_grad"),),
        ),
        8,
        B,
    ),
    "a loop that does not vary, differentiated in a loop that is": (
        Program(
            ((Sow("s1"), Loop((Sow("s2"),), 1, "scan_without_xs")),),
            (Grad((Loop((Pullbacks((Sow("s3"), Call(0))),), 1, "scan_without_xs"),), "vjp_twice"),),
        ),
        8,
        C,
    ),
    "an array that examples share beside one that they do not, on an explicit mesh": (
        Program(
            ((Sow("s1", "mixed"), Sow("s2", "half")),),
            (Vmap((Grad((Call(0),), "grad", "outer"),), 1, 1, (1.0, -0.6), "x", True),),
            differentiable=False,
            explicit=True,
        ),
        14,
        A,
    ),
    "branches that are mapped over different axes": (
        Program((), (Grid((Cond((ONE_SITE, (Instead(ONE_SITE),)), keeps=True),), False),)),
        4,
        C,
    ),
    "branches that are mapped over different axes, with a rule that does not meet the site": (
        Program(
            ((CustomJvp(ONE_SITE, through=False),),),
            (Grid((Cond(((Call(0),), (Call(0, 1, True),)), True, True),), True),),
        ),
        6,
        B,
    ),
    "a value that does not vary in a loop that is linearized, and differentiated again": (
        Program((), (Jvp((Loop((Pullbacks(ONE_SITE, "outer"),), 2, "scan"),), True),)),
        6,
        B,
    ),
    "a function that is called in a map in one branch and without in another": (
        Program(
            SHARED,
            (Cond(((Grid((Cond(((), (Call(0),)), True, True),), True),), (), (Call(0),)), keeps=True),),
        ),
        6,
        C,
    ),
    "two captures of a loop that stops at different times": (
        Program((), (Vmap((While(ONE_SITE, "test"),), 0, 1),)),
        10,
        A,
    ),
    "branches that vary over a mesh where others do not": (
        Program(
            ((Cond(((Instead((Sow("s", "half"),)),), (Sow("s", "half"),)), True, keeps=True),),), (Shard((Call(0),)),)
        ),
        10,
        C,
    ),
    "a branch with a value that is laid out over an explicit mesh": (
        Program(
            (), (Cond(((), (Vmap(ONE_SITE, 1, 1, (1.0, -0.6), over="x", spread=True),)), keeps=True),), explicit=True
        ),
        8,
        A,
    ),
    "two backward passes that lack one another's maps": (
        Program(((Grid(ONE_SITE, False),),), (Grid((Pullbacks((Call(0),)),), False),), differentiable=False),
        13,
        B,
    ),
    "a function called twice by branches of which one is mapped": (
        Program(
            ((Sow("s", "mixed"),),),
            (Vmap((Cond(((Instead((Call(0, 2),)),), (Call(0, 2),)), keeps=True),), 0, 0, over="outer"),),
        ),
        1,
        C,
    ),
    "a differentiated branch without a site, on an explicit mesh": (
        Program(
            (),
            (Vmap((Grad((Cond(((), ONE_SITE), keeps=True),), "grad"),), 0, 0, (1.0, -0.6), over="x", spread=True),),
            differentiable=False,
            explicit=True,
        ),
        11,
        A,
    ),
    "an argument as it is, in a branch that one of two calls maps": (
        Program(
            ((Cond(((Sow("s", "itself"),), (Op(0),))),), (Remat((Call(0, exchanged=True),)),)),
            (Vmap((Grad((Call(1),), "grad"),), 0, 1), Grad((Call(1),), "grad")),
        ),
        12,
        C,
    ),
    "a loop over an explicit mesh that JAX drops, being of no use but for a site": (
        Program(
            ((While((Sow("s", "unused"),)),),),
            (Vmap((Grad((Call(0),), "grad"),), 0, 1, (1.0, -0.6), spread=True),),
            explicit=True,
        ),
        12,
        B,
    ),
    "two loops of one name with a site between them": (
        Program((), (Loop((Sow("a"),), 2, named="rows"), Sow("b"), Loop((Sow("c"),), 3, named="rows"))),
        1,
        C,
    ),
    "branches of which one has more before what they share": (
        Program(SHARED, (Cond(((Call(0), Sow("s1")), (Sow("s2"), Call(0)))),)),
        13,
        C,
    ),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("what", FOUND)
def test_once_wrong(what):
    program, look, x = FOUND[what]
    assert check_program(program, look, x)


def test_grad_around_a_while_loop_whose_only_effect_is_sow():
    def f(x):
        def body(state):
            sonde.sow(jnp.sin(state[1]), "h")
            return state[0] + 1, state[1]

        lax.while_loop(lambda state: state[0] < 3, body, (0, 0.8 * x))
        return jnp.sum(x**2)

    gradient, records = sonde.capture(jax.grad(f), grads=True)(A)
    np.testing.assert_allclose(gradient, 2 * A, rtol=1e-6)
    np.testing.assert_allclose(records["h"].value, np.sin(0.8 * A), rtol=1e-6)
    assert records["h"].counts == (3,)


RECORDS_PUT_BACK = {
    "branches with one path, of which a map runs both": (
        Program((), (Grid((Cond((ONE_SITE, ONE_SITE), chosen_outside=True),), False),)),
        ("value", False, False, A),
    ),
    "a value of which a part does not vary over the mesh": (
        Program((), (Shard((Sow("s", "tree"),), psum=True),)),
        ("value", True, False, A),
    ),
    "a rule that is traced in a loop": (
        Program((), (Loop((CustomVjp(ONE_SITE, False),), 1, "map"),)),
        ("gradient", True, False, B),
    ),
    "a model in a rule that is traced when the edit has ended": (
        Program((), (CustomVjp((Model("twice"),), True),)),
        ("gradient", True, True, C),
    ),
}


@pytest.mark.parametrize("what", RECORDS_PUT_BACK)
def test_records_once_could_not_be_put_back(what):
    program, how = RECORDS_PUT_BACK[what]
    assert check_put_back(program, *how)


def test_a_mask_is_laid_out_over_an_explicit_mesh_as_the_value_is():
    looped = Loop((Remat((Sow("s"),)),), 3)
    program = Program((), (Vmap((looped,), 1, 0, (1.0, -0.6), over="x", spread=True),), explicit=True)
    assert check_edit(program, "patched", None, "gradient", True, C)


def twice_or_once(x):
    return lax.cond(x > 0, lambda x: sonde.sow(sonde.sow(x * 2, "s") * 3, "s"), lambda x: sonde.sow(x * 5, "s"), x)


X = jnp.array([1.0, -2.0, 3.0])


@pytest.mark.parametrize("call", range(4))
def test_an_edit_of_one_call_means_the_same_whether_a_map_runs_both_branches(call):
    jitted = jax.jit(twice_or_once)
    f, edits = lambda x: jitted(x) + jitted(1 - x), {"s": sonde.Edit(lambda s: s - 7, calls=call)}
    np.testing.assert_allclose(sonde.edit(jax.vmap(f), edits)(X), [sonde.edit(f, edits)(x) for x in X])


def test_a_jitted_choice_that_a_map_runs_twice_is_recorded_as_two():
    jitted = jax.jit(twice_or_once)
    record = sonde.capture(jax.vmap(lambda x: jitted(x) + jitted(1 - x)))(X)[1]["s"]
    np.testing.assert_allclose(record.values, [[2, -10, 6], [6, 0, 18], [0, 6, -10], [0, 18, 0]])
    assert record.taken[0] is None
    np.testing.assert_array_equal(record.taken[3], [False, True, False])
