"""Mistakes that people make in their first minutes: each is answered with what to write instead."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import tools
from sonde.errors import NoSuchSiteError, SiteNameError
from sonde.report import examine

X = jnp.arange(3.0)


def f(x):
    return sonde.sow(x * 2, "h")


def unmarked(x):
    y = x * 2
    return y + 1


@pytest.mark.parametrize("make", [lambda: f, lambda: jax.jit(f)], ids=["plain", "jitted"])
@pytest.mark.parametrize("verb", [sonde.capture, sonde.sites], ids=["capture", "sites"])
def test_a_capture_that_was_not_called(make, verb):
    captured = verb(make())
    for use in (lambda: captured["h"], lambda: list(captured), lambda: captured.values):
        with pytest.raises((TypeError, AttributeError), match=rf"call it first: {verb.__name__}\(f\)\(x\)"):
            use()
    assert captured.__name__ == "f" and str(inspect.signature(captured)) == "(x)"
    assert "h" in repr(captured(X))


TOOLS = {
    "summarize(f)": lambda *x: tools.summarize(f, *x),
    "first_nonfinite(f)": lambda *x: sonde.first_nonfinite(f, *x),
    "compare(f, g)": lambda *x: tools.compare(f, f, *x),
    "trace_back(f, predicate)": lambda *x: tools.trace_back(f, jnp.isnan, *x),
    "saved_residuals(f)": lambda *x: tools.saved_residuals(f, *x),
    "example_grad_norms(loss)": lambda *x: tools.example_grad_norms(f, *x),
    "attention_heads(f)": lambda *x: tools.attention_heads(f, *(x or ("h",))),
    "logit_lens(f)": lambda *x: tools.logit_lens(f, *x, readout=f),
    "attribute(f)": lambda *x: tools.attribute(f, *x),
    "examine(f)": lambda *x: examine(f, *x),
}


@pytest.mark.parametrize("written", TOOLS)
def test_tools_are_called_in_two_steps(written):
    name, _, _ = written.partition("(")
    with pytest.raises(TypeError, match=rf"call what it returns: {name}\([\w, ]*\)\(x\)"):
        TOOLS[written](X)
    for use in (lambda: TOOLS[written]()["h"], lambda: TOOLS[written]().path):
        with pytest.raises((TypeError, AttributeError), match=rf"{re.escape(written)} is a function.*call it first"):
            use()


def test_misspelled_names_have_the_nearest():
    with pytest.raises(AttributeError, match="no attribute 'patch_swep'; nearest: patch_sweep"):
        tools.patch_swep
    with pytest.raises(AttributeError, match="no attribute 'captrue'; nearest: capture"):
        sonde.captrue


def test_captures_are_functions_for_all_that_takes_functions():
    captured = sonde.capture(f)
    for transformed in (jax.jit(captured), lambda x: jax.jit(jax.vmap(captured))(x)):
        np.testing.assert_array_equal(transformed(X)[1]["h"].value, X * 2)

    class Model:
        step = sonde.capture(lambda self, x: sonde.sow(x * 3, "h"))

    np.testing.assert_array_equal(Model().step(X)[1]["h"].value, X * 3)


@pytest.mark.parametrize("verb", [sonde.capture, sonde.sites, examine], ids=["capture", "sites", "examine"])
@pytest.mark.parametrize("argument", [X, np.ones(3), 1.0, {"x": X}], ids=["array", "numpy", "number", "dict"])
def test_arguments_in_the_place_of_patterns(verb, argument):
    with pytest.raises(TypeError, match=rf"call what it returns: {verb.__name__}\(f\)\(x\)") as error:
        verb(f, argument)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("verb", [sonde.sow, sonde.perturb], ids=["sow", "perturb"])
def test_the_name_before_the_value(verb):
    def swapped(x):
        return verb("h", x)

    for run in (swapped, sonde.capture(swapped), jax.jit(swapped)):
        with pytest.raises(SiteNameError, match=rf"the value comes first: {verb.__name__}\(value, 'h'\)"):
            run(X)
    with pytest.raises(SiteNameError, match="must be a str, got 3 of type int"):
        verb(X, 3)


def test_what_is_not_callable_is_named_and_not_printed():
    class Params(dict):
        def __repr__(self):
            return "w" * 100_000

    for thing in (Params(), X):
        with pytest.raises(TypeError, match=r"capture takes a callable.*itself.*capture\(lambda x: \.\.\.\)") as error:
            sonde.capture(thing)
        assert len(str(error.value)) < 300


@pytest.mark.parametrize("make", [lambda: unmarked, lambda: jax.jit(unmarked)], ids=["plain", "jitted"])
def test_a_program_without_marks_says_so(make):
    program = make()
    _, records = sonde.capture(program)(X)
    for text in (repr(records), records._repr_html_(), repr(sonde.sites(program)(X))):
        assert "nothing is marked" in text and "inside=unmarked" in text
    with pytest.raises(KeyError, match=r"nothing is marked.*inside=unmarked"):
        records["y"]
    with pytest.raises(NoSuchSiteError, match=r"nothing is marked.*inside="):
        sonde.capture(program, "y")(X)
    assert "unmarked/y" in sonde.capture(program, inside=unmarked)(X)[1]


def test_a_model_without_marks_says_what_to_write():
    from flax import nnx

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    _, records = sonde.capture(model)(X)
    assert "inside=model" in repr(records)
    assert "out" in sonde.capture(model, inside=model)(X)[1]


def test_numbers_of_python_are_not_recorded_and_that_is_said():
    for numbers in (1.0, 2):
        _, records = sonde.capture(unmarked, inside=unmarked)(numbers)
        assert not records
        assert "inside= met no arrays" in repr(records) and "jnp.asarray" in repr(records)


def test_code_that_was_not_reached_is_said():
    def other(x):
        return x

    _, records = sonde.capture(f, inside=other)(X)
    assert list(records) == ["h"]
    _, records = sonde.capture(unmarked, inside=other)(X)
    assert "inside= met no arrays" in repr(records)


def test_nearest_names_are_near():
    def program(x):
        for name in ("blocks/0/attn/scores", "blocks/0/attn/weights", "blocks/0/mlp/hidden", "embedding", "logits"):
            x = sonde.sow(x + 1, name)
        return x

    with pytest.raises(NoSuchSiteError) as error:
        sonde.capture(program, "blocks/0/atn/weights")(X)
    assert "nearest: 'blocks/0/attn/weights'" in str(error.value) and "embedding" not in str(error.value)
    with pytest.raises(NoSuchSiteError) as error:
        sonde.capture(program, "weights")(X)
    assert "nearest: 'blocks/0/attn/weights'" in str(error.value) and "mlp" not in str(error.value)
    with pytest.raises(NoSuchSiteError, match=r"they are 'blocks/0/attn/scores', .*'logits'"):
        sonde.capture(program, "zzz")(X)
    records = sonde.capture(program)(X)[1]
    with pytest.raises(KeyError, match=r"nearest: 'embedding'"):
        records["embeding"]


def test_records_are_not_arrays_and_say_how_to_get_at_them():
    record = sonde.capture(f)(X)[1]["h"]
    with pytest.raises(AttributeError, match=r"a Record has no 'shape'; ask for its array: record.value.shape"):
        record.shape
    with pytest.raises(AttributeError, match=r"Records have no 'h'; ask for a path: records\['h'\]"):
        sonde.capture(f)(X)[1].h
    assert not hasattr(record, "__jax_array__") and not hasattr(record, "_private")


def test_a_capture_is_no_context_manager():
    with pytest.raises(TypeError, match=r"call it first: capture\(f\)\(x\)"):
        with sonde.capture(f):
            pass


def test_a_method_of_a_model_without_marks_names_the_model():
    from flax import linen

    model = linen.Dense(2)
    _, records = sonde.capture(model.apply)(model.init(jax.random.key(0), X), X)
    assert "capture(model.apply, inside=model)" in repr(records)


def test_wrong_arguments_are_answered_with_the_call_as_it_is_written():
    cases = {
        r"unexpected keyword argument 'grad', nearest: grads=; write capture\(f, \*patterns\)": lambda: sonde.capture(
            f, grad=True
        ),
        r"write edit\(f, edits\)": lambda: sonde.edit(f, "h", 0),
        r"'metric'; write patch_sweep\(f, \*patterns, metric=\.\.\.\)": lambda: tools.patch_sweep(f, "h"),
        r"example_grad_norms\(loss\)\(\) missing 1 .*'batch'": lambda: tools.example_grad_norms(f)(X),
        r"patterns are given one by one, capture\(f, 'h', 'g'\), got a list": lambda: sonde.capture(f, ["h", "g"]),
        r"edit of 'h': a new value is .* got 'zero'": lambda: sonde.edit(f, {"h": "zero"}),
    }
    for message, call in cases.items():
        with pytest.raises(TypeError, match=message):
            call()


def test_an_error_of_the_function_itself_is_left_as_it_is():
    with pytest.raises(TypeError) as error:
        sonde.capture(f)(X, X)
    assert "write" not in str(error.value)
