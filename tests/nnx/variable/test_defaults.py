"""The default `ref` and `hijax` of new Variables."""

import threading

import jax
import jax.numpy as jnp

from sonde import nnx


def test_variables_with_either_entry_are_used_as_any_other(same):
    def use(nnx):
        seen = []
        for option in ({"ref": True}, {"hijax": True}):
            v = nnx.Param(jnp.ones(2), **option)
            v[...] = v[...] * 3
            seen.append((v.ref, v.hijax, v.get_metadata("ref"), v[...], jax.jit(lambda x: x * 2)(v[...])))
        return seen

    same(use)


def test_defaults_of_new_variables(same):
    def use(nnx):
        seen = [(nnx.var_defaults().ref, nnx.var_defaults()["hijax"])]
        with nnx.var_defaults(ref=True):
            seen.append((nnx.Param(1.0).ref, nnx.Param(1.0, ref=False).ref, nnx.Param(1.0).hijax))
            with nnx.var_defaults(hijax=True, ref=False):
                seen.append(dict(nnx.var_defaults()))
        seen.append(nnx.var_defaults(ref=True)(lambda: dict(nnx.var_defaults()))())
        nnx.var_defaults(ref=True)
        seen.append(nnx.Param(1.0).ref)
        nnx.var_defaults(ref=False)
        seen.append(dict(nnx.var_defaults()))
        with nnx.var_defaults(hijax=False):
            nnx.var_defaults(hijax=True)  # holds until the block ends
            seen.append(dict(nnx.var_defaults()))
        seen.append(dict(nnx.var_defaults()))
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        other = nnx.vars_as(model, ref=True, only="nothing")
        return seen, other.kernel.ref, nnx.vars_as(model, ref=True).kernel.ref, model.kernel.ref

    same(use)


def test_a_block_is_for_its_thread_alone():
    seen = []
    with nnx.var_defaults(ref=True):
        thread = threading.Thread(target=lambda: seen.append(nnx.Param(1.0).ref))
        thread.start()
        thread.join()
        seen.append(nnx.Param(1.0).ref)
    assert seen == [False, True]


def test_the_defaults_are_a_mapping_that_shows_itself():
    defaults = nnx.var_defaults()
    assert dict(defaults) == {"hijax": False, "ref": False}
    assert len(defaults) == 2
    assert repr(defaults) == "VarDefaults(hijax=False, ref=False)"


def test_an_error_in_the_block_ends_it_too():
    try:
        with nnx.var_defaults(hijax=True):
            raise KeyError
    except KeyError:
        pass
    assert not nnx.Param(1.0).hijax
