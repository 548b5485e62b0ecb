"""The first difference of two programs, in programs where it is known."""

import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import V, W, X, every_face, forward, plain

from sonde import sow
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.tools import compare

Y = jnp.arange(1.0, 4.0)


@every_face
def test_every_face(face):
    same = compare(forward(face), plain)(X)
    assert same.first is None
    assert (len(same.drifts), same.only_first, same.only_second) == (1, (), ())
    other = compare(forward(face), lambda x: plain(x, W.at[0, 0].set(2.0), V))(X)
    assert (other.first.path, other.first.beyond, other.first.size) == ("hidden", 2, 6)
    assert (other.first.max_abs, other.first.max_rel) == (3.0, 0.5)  # 3 against 6, of at most 6


def loop(x, wrong=None, at=2):
    def body(c, i):
        a = sow(c + 1, "a")
        b = sow(jnp.where((wrong == "b") & (i == at), a + 1, a), "b")
        return b, None

    x = sow(x, "start")
    x = lax.scan(body, x, jnp.arange(4))[0]
    return sow(x.sum(), "end")


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_in_a_loop_by_iteration_first(around):
    found = compare(around(lambda x: loop(x, "b")), around(loop))(Y)
    assert (found.first.path, found.first.iteration) == ("b", (2,))
    assert [d.place for d in found.drifts if d.differs] == [
        "b, call 0, iteration 2",
        "a, call 0, iteration 3",
        "b, call 0, iteration 3",
        "end, call 0",
    ]
    assert (
        str(found.first)
        == "b, call 0, iteration 2: 3 of 3 elements differ, by up to 1 (0.167 of the largest; 0.197 of the norm)"
    )
    assert "test_compare.py:" in found.first.source


def test_calls_in_program_order():
    def f(x, by=0.0):
        for i in range(2):
            x = sow(x * 2, "a")
            x = sow(x + by * (i == 0), "b")
        return x

    found = compare(lambda x: f(x, 1.0), f)(Y)
    assert [(d.path, d.call, d.differs) for d in found.drifts] == [
        ("a", 0, False),
        ("b", 0, True),
        ("a", 1, True),
        ("b", 1, True),
    ]


def test_precision():
    f = lambda x, t: sow(sow(x.astype(t), "cast") / 3, "third")
    found = lambda rtol: compare(lambda x: f(x, jnp.bfloat16), lambda x: f(x, jnp.float32), rtol=rtol)(Y)
    assert found(1e-4).first.path == "third"
    assert found(0.01).first is None
    np.testing.assert_allclose(found(0.01).drifts[1].max_abs, abs(float(jnp.bfloat16(2) / 3) - 2 / 3), rtol=1e-3)


def test_gradients_come_after_values_and_backwards():
    def loss(x, slope=1.0):
        h = sow(sow(x, "x") * 2, "h")
        return sow(jnp.sum(h * slope + lax.stop_gradient(h - h * slope)), "sum")

    found = compare(jax.grad(lambda x: loss(x, 2.0)), jax.grad(loss), grads=True)(Y)
    assert [(d.path, d.gradient) for d in found.drifts if d.differs] == [("h", True), ("x", True)]
    assert "h (gradient), call 0" in str(found)


def test_sites_of_one_and_other_shapes():
    f = lambda x: sow(sow(x, "a"), "shape").sum() + sow(x, "mine")[0]
    g = lambda x: sow(sow(sow(x, "a"), "a")[:2], "shape")
    found = compare(f, g)(Y)
    assert (found.only_first, found.only_second) == ((("mine", 0),), (("a", 1),))
    assert (found.first.path, found.first.note) == ("shape", "shape [3] against [2]")
    assert str(found).splitlines()[-2:] == ["only in the first: mine[0]", "only in the second: a[1]"]
    assert {op.name for op in found.parting.second} <= {"slice", "dynamic_slice"}  # as the version of JAX has it


def test_nan_equals_nan_and_nothing_else():
    f = lambda x: sow(x, "h")
    g = lambda x: sow(x.at[0].set(1.0), "h")
    x = jnp.array([jnp.nan, jnp.inf, 2.0])
    assert compare(f, f)(x).first is None
    assert compare(f, g)(x).first.beyond == 1


def test_while_loops_of_other_lengths():
    f = lambda n: lambda x: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, sow(c[1] * 1, "w")), (0, x))
    found = compare(f(3), f(5))(Y)
    assert (found.first.iteration, found.first.note) == ((2,), "3 iterations of the loop against 5 iterations")
    assert compare(f(3), jax.jit(f(3)))(Y).first is None


def test_table_and_errors():
    from rich.console import Console

    shown = io.StringIO()
    Console(file=shown, width=150).print(compare(lambda x: loop(x, "b"), loop)(Y))
    assert "first difference at b, call 0, iteration 2" in shown.getvalue()
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        compare(loop, loop, "no")(Y)
    with pytest.raises(CaptureError, match="compare must run on numbers"):
        jax.jit(lambda x: len(compare(loop, loop)(x).drifts))(Y)


def test_calls_of_a_jitted_loop_are_told_apart():
    @jax.jit
    def loop(x, bad):
        def body(c, i):
            c = sow(c + 1, "a")
            return sow(jnp.where(bad & (i == 2), c + 1e-2, c), "b"), None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    f = lambda x: loop(loop(x, False), False)
    g = lambda x: loop(loop(x, True), False)
    for _ in range(2):  # what is compiled by then must not be mistaken either
        found = compare(f, g)(jnp.float32(0.0))
        assert (found.first.path, found.first.call, found.first.iteration) == ("b", 0, (2,))
        places = [(d.path, d.call, d.iteration) for d in found.drifts]
        assert places == [(p, call, (i,)) for call in (0, 1) for i in range(4) for p in ("a", "b")]


# ---------------------------------------------------------------------------------------------------------------------
# Results and gradients are always compared
# ---------------------------------------------------------------------------------------------------------------------


def test_results_without_any_site():
    found = compare(lambda x: x, lambda x: x * 2)(Y)
    assert found.first is not None and found.first.result and found.first.beyond == 3
    assert "first difference at the result: 3 of 3 elements differ" in str(found)
    same = compare(lambda x: {"a": x + x, "n": 3}, lambda x: {"a": x * 2, "n": 3})(Y)
    assert same.first is None and [d.place for d in same.results[:2]] == ["the result['a']", "the result['n']"]
    assert str(same) == "no difference; 0 values, 2 results and 1 gradient compared"


@pytest.mark.parametrize(
    ("f", "g", "note"),
    [
        (lambda x: x, lambda x: (x, x), "1 arrays against 2"),
        (lambda x: x, lambda x: None, "1 arrays against 0"),
        (lambda x: x, lambda x: x[:, None], "shape [3] against [3, 1]; the same numbers, reshaped to [3]"),
        (lambda x: x, lambda x: x[1:], "shape [3] against [2]"),
    ],
)
def test_results_of_other_structure(f, g, note):
    assert compare(f, g)(Y).first.note == note


def test_the_same_values_with_other_gradients():
    f = lambda x: sow(x * 2, "h").sum()
    found = compare(f, lambda x: sow(lax.stop_gradient(x) * 2, "h").sum())(Y)
    assert found.first.gradient and found.first.result and found.first.path == "the gradient of argument [0][0]"

    @jax.custom_vjp
    def wrong(x):
        return x * 2

    wrong.defvjp(lambda x: (wrong(x), None), lambda _, g: (g * 3,))
    found = compare(lambda x: sow(wrong(sow(x, "x")), "h"), lambda x: sow(sow(x, "x") * 2, "h"))(Y)
    assert (found.first.path, found.first.gradient, found.first.result) == ("x", True, False)
    assert compare(lambda x: wrong(x), lambda x: x * 2, grads=False)(Y).first is None


def test_gradients_of_weights_that_a_program_refers_to():
    w, b = jnp.arange(6.0).reshape(2, 3) / 7, jnp.array([0.1, 0.3, -0.4])
    f = lambda tokens: jnp.tanh(w[tokens] + b)
    transposed, stacked = w.T.copy(), jnp.stack([b, 2 * b])
    g = lambda tokens, stop=lambda x: x: jnp.tanh(transposed[:, tokens].T + stop(stacked[0]))
    tokens = jnp.array([0, 1, 1, 0])
    same = compare(f, g)(tokens)
    assert same.first is None and sum(d.gradient for d in same.results) == 2
    assert compare(f, lambda t: g(t, lax.stop_gradient))(tokens).first.gradient


def test_what_cannot_be_differentiated_or_traced_is_said():
    loop = lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]
    assert "not compared: gradients: the first program cannot be differentiated (ValueError" in str(
        compare(loop, loop)(Y)
    )
    branching = lambda x: x * 2 if x[0] > 0 else x
    found = compare(branching, branching)(Y)
    assert found.first is None and "cannot be traced (TracerBoolConversionError" in str(found)
    whole = compare(lambda x: x.astype(int), lambda x: x.astype(int))(Y)
    assert whole.first is None and "the results are not floating-point numbers" in str(whole)


def test_nothing_compared_is_an_error():
    with pytest.raises(
        ValueError, match=r"nothing to compare: the first returns no arrays and has no sites with arrays"
    ):
        compare(lambda x: None, lambda x: "text")(Y)
    with pytest.raises(
        ValueError, match=r"the first returns no arrays and has a, b; the second returns no arrays and has c"
    ):
        compare(lambda x: (sow(x, "a"), sow(x, "b"), None)[2], lambda x: (sow(x[0], "c"), None)[1])(Y)


# ---------------------------------------------------------------------------------------------------------------------
# Tolerances from the arithmetic
# ---------------------------------------------------------------------------------------------------------------------


def test_noise_is_measured_where_digits_cancel():
    x = jnp.linspace(0.0, 1.0, 50)
    f = lambda x: (x + 1000.0) - 1000.0
    g = lambda x: x
    found = compare(f, g)(x)
    assert found.first is None and found.results[0].rel_norm > 1e-5 < found.results[0].limit < 1e-2
    assert compare(f, lambda x: x + 0.05)(x).first is not None


def test_a_small_error_is_found_in_float32_and_in_bfloat16():
    x = jax.random.normal(jax.random.key(0), (4, 64))

    def norm(x, eps):
        centered = x - x.mean(-1, keepdims=True)
        return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + eps)

    assert compare(lambda x: norm(x, 1e-5), lambda x: norm(x, 1e-6))(x).first is not None
    half = x.astype(jnp.bfloat16)
    found = compare(lambda x: norm(x, 1e-5), lambda x: norm(x, 1e-6))(half)
    assert "with eps=1e-05 in place of 1e-06: the programs then agree to" in str(found)
    assert found.precision == "seen with both programs computed in float32"
    assert compare(lambda x: norm(x, 1e-5), lambda x: norm(x, 1e-5))(half).first is None
    assert compare(lambda x: norm(x, 1e-5), lambda x: norm(x, 0.3))(half).first is not None


def test_numbers_that_are_compared_are_not_moved():
    weights = jnp.array([1.0, 2.0, 3.0])

    def net(x, eps):
        body = lambda h, w: (jnp.tanh(w * h / jnp.sqrt((h * h).mean() + jnp.where(w == 3.0, eps, 1e-5))), None)
        return lax.scan(body, x, weights)[0]

    assert compare(lambda x: net(x, 1e-5), lambda x: net(x, 1e-3))(jnp.linspace(-1, 1, 4)).first is not None


def test_a_large_sentinel_hides_nothing():
    x = jax.random.normal(jax.random.key(0), (8, 8))
    masked = lambda x: jnp.where(jnp.tri(8, dtype=bool), x, -1e9)
    found = compare(lambda x: sow(masked(x), "scores")[:1] * 0, lambda x: sow(masked(x * 1.5), "scores")[:1] * 0)(x)
    assert found.first.path == "scores"


def test_rounding_that_flips_whole_numbers_is_no_difference():
    x = jnp.full((4,), 0.1)
    f = lambda x: jnp.round((x * 3 + 0.2) * 1e7).astype(jnp.int32)
    assert compare(f, lambda x: jnp.round((0.2 + x + x + x) * 1e7).astype(jnp.int32))(x).first is None
    assert compare(f, lambda x: f(x) + 100)(x).first is not None


# ---------------------------------------------------------------------------------------------------------------------
# Matching
# ---------------------------------------------------------------------------------------------------------------------

LAYERS = [jax.random.normal(jax.random.key(i), (3, 3)) for i in range(4)]


def looped(x, name="h", factor=1.0):
    for i, w in enumerate(LAYERS):
        x = sow(jnp.tanh(x @ w) * (factor if i == 2 else 1.0), name.format(i=i))
    return x


def scanned(x, name="h"):
    return lax.scan(lambda c, w: (sow(jnp.tanh(c @ w), name), None), x, jnp.stack(LAYERS))[0]


@pytest.mark.parametrize("name", ["h", "layers/{i}/h", "h{i}", "h_{i}", "blocks/{i}/attn/h"])
def test_a_loop_against_a_scan(name):
    same = compare(lambda x: looped(x, name), scanned)(Y)
    assert same.first is None and not same.only_first and not same.only_second and len(same.drifts) == 4
    found = compare(lambda x: looped(x, name, 1.5), scanned)(Y)
    assert found.first.place.startswith(name.format(i=2)) and len(found.drifts) == 4
    back = compare(scanned, lambda x: looped(x, name, 1.5))(Y)
    assert back.first.iteration == (2,)


def test_a_loop_against_one_stacked_value():
    def stacked(x):
        x, rows = lax.scan(lambda c, w: (jnp.tanh(c @ w),) * 2, x, jnp.stack(LAYERS))
        sow(rows, "h")
        return x

    assert compare(scanned, stacked)(Y).first is None
    assert len(compare(stacked, looped)(Y).drifts) == 4


def test_values_are_matched_whatever_their_names_and_layouts():
    w = LAYERS[0]
    f = lambda x: sow(sow(sow(x @ w, "query").reshape(4, 1, 3), "heads") * 2, "doubled").sum()
    g = lambda x: sow(sow((x @ w).T, "projected").T[None] * 2, "twice").sum()
    x = jax.random.normal(jax.random.key(1), (4, 3))
    found = compare(f, g)(x)
    assert found.first is None
    assert dict(found.names) == {"query": "projected", "doubled": "twice"} and found.only_first == (("heads", 0),)
    assert {m.by for m in found.matches} == {"value"}


def test_matched_by_order_counts_only_if_the_results_differ():
    f = lambda x: sow(sow(x * 2, "a") * 3 + 1, "b")
    g = lambda x, by=2: sow(sow(x * 6, "p") + 1, "q") * (by / 2)
    same = compare(f, g)(Y)
    assert same.first is None and same.only_first == (("a", 0),) and same.names == {"b": "q"}
    other = compare(f, lambda x: g(x + 1, 3))(Y)
    assert other.first.path == "a" and other.first.second == "p" and other.first.by == "order"


def test_matches_are_saved_and_given_again(tmp_path):
    f = lambda x: looped(x, "layers/{i}/attn")
    g = lambda x: looped(x, "blocks.{i}.self")
    found = compare(f, g, match_paths={"layers/{i}/attn": "blocks.{i}.self"})(Y)
    assert found.first is None and {m.by for m in found.matches} == {"given"} and len(found.drifts) == 4
    found.save_matches(tmp_path / "matches.json")
    again = compare(f, g, match_paths=tmp_path / "matches.json")(Y)
    assert again.matches == found.matches
    rows = compare(f, scanned)(Y)
    rows.save_matches(tmp_path / "rows.json")
    assert len(compare(f, scanned, match_paths=tmp_path / "rows.json")(Y).drifts) == 4
    swapped = compare(f, scanned, match_paths={"layers/0/attn": "h[1]", "layers/1/attn": "h[0]"})(Y)
    assert [d.differs for d in swapped.drifts] == [True, True, False, False]
    with pytest.raises(ValueError, match=r"the second program has no site 'other/0', which 'layers/\{i\}/attn'"):
        compare(f, g, match_paths={"layers/{i}/attn": "other/{i}"})(Y)
    with pytest.raises(ValueError, match=r"the first program has no site 'encoder'; it has layers/0/attn"):
        compare(f, g, match_paths={"encoder": "blocks"})(Y)


def test_noise_counts_in_another_layout_too():
    """Heads merged in one program and apart in the other, and a difference of large numbers before."""
    x = jax.random.normal(jax.random.key(0), (4, 8))
    noisy = lambda x: (x + 1e4) - 1e4
    merged = lambda x: sow(noisy(x), "merged").sum()
    apart = lambda x: sow((x.reshape(4, 2, 4) + 1e4) - jnp.float32(1e4) + 1e-4, "heads").sum()
    found = compare(merged, apart, match_paths={"merged": "heads"}, grads=False)(x)
    assert [d.differs for d in found.drifts] == [False] and found.drifts[0].layout == "reshaped to [4, 8]"
    wrong = compare(merged, lambda x: apart(x * 1.5), match_paths={"merged": "heads"}, grads=False)(x)
    assert wrong.first is not None and wrong.first.path == "merged"


def test_results_in_a_dict_correspond_by_name():
    x = jnp.arange(3.0)
    found = compare(lambda x: {"a": x, "b": x + 1}, lambda x: {"b": x + 1, "a": x})(x)
    assert found.first is None and not found.unchecked
    renamed = compare(lambda x: {"a": x, "b": x + 1}, lambda x: {"b": x + 1, "c": x})(x)
    assert [str(d) for d in renamed.results] == [
        "the result['b']: 0 of 3 elements differ, by up to 0 (0 of the largest; 0 of the norm)",
        "the result['a']: only the first program returns it",
        "the result['c']: only the second program returns it",
    ]
    assert "also: the result['c']: only the second program returns it" in str(renamed)
    fewer = compare(lambda x: {"logits": x, "loss": x.sum()}, lambda x: {"loss": x.sum()})(x)
    assert str(fewer.first) == "the result['logits']: only the first program returns it"
    other = compare(lambda x: {"logits": x}, lambda x: {"loss": x})(x)
    assert [d.differs for d in other.results] == [True, True]
    assert compare(lambda x: {"a": x + 1, "b": x}, lambda x: (x + 1, x))(x).first is None  # a tuple has no keys
    assert compare(lambda x: {"a/b": x, "a.b": x + 1}, lambda x: {"a.b": x + 1, "a/b": x})(x).first is None


def test_one_wrong_element_among_many_is_found():
    ones = jnp.ones(100_000)
    found = compare(lambda x: x, lambda x: x.at[5].set(1.0001))(ones)
    assert found.first is not None and found.first.beyond == 1


@pytest.mark.parametrize(
    ("f", "g", "spot"),
    [
        (lambda x: jnp.round(x), lambda x: jnp.round(x).astype(int), "the dtype of the result: float32 against int32"),
        (lambda x: x / 0, lambda x: 2 * x / 0, "4 of 4 elements of the result: they are NaN or infinite in both"),
        (lambda x: (x, x[:0]), lambda x: (x, x[:0] * 2), "the result[1]: it has no elements"),
        (lambda x: (x, "a"), lambda x: (x, "b"), "the result[1], which is no array: 'a' against 'b'"),
        (
            lambda x: x * 1.5,
            lambda x: (x.astype(jnp.bfloat16) * 1.5).astype(jnp.float32),
            "test_compare.py:",
        ),
        (
            lambda x: lax.fori_loop(0, 200, lambda _, y: 3.9 * y * (1 - y), 1 / (1 + x)),
            lambda x: lax.fori_loop(0, 200, lambda _, y: 3.9 * (y - y * y), 1 / (1 + x)),
            "differences of the result below",
        ),
    ],
)
def test_what_could_not_be_seen_is_said(f, g, spot):
    found = compare(f, g, grads=False)(jnp.arange(1.0, 5.0))
    assert found.first is None and any(spot in text for text in found.unchecked), found.unchecked


def test_results_without_elements_are_nothing_to_compare():
    with pytest.raises(ValueError, match=r"the first returns no arrays with elements"):
        compare(lambda x: x[:0], lambda x: x[:0] * 2)(jnp.ones(3))


def test_donated_arguments_are_still_there_for_the_other_side():
    x = jnp.arange(3.0)
    donating = jax.jit(lambda x: x * 2, donate_argnums=0)
    assert compare(donating, lambda x: x * 2)(x).first is None
    assert compare(donating, lambda x: x * 3)(x).first is not None
    assert not x.is_deleted()


def test_gradients_at_sites_are_allowed_their_noise():
    def net(x, order):
        h = jnp.tanh(sow(x * 1.3, "h"))
        return sum((h**k).sum() for k in order) + (h.astype(jnp.float32) * 1e3 - h * 1e3).sum()

    w = jnp.linspace(-2, 2, 64)
    factor = jnp.float32(1.5)
    found = compare(lambda x: net(x, (1, 2, 3)) * factor, lambda x: net(x, (3, 1, 2)) * jax.lax.stop_gradient(factor))(
        w
    )
    assert found.first is not None and "weight" in found.first.path, found


def test_no_path_of_the_machine_is_printed():
    found = compare(lambda x: sow(jnp.sin(x), "a") * 2, lambda x: sow(jnp.cos(x), "a") * 3)(jnp.ones(3))
    assert "test_compare.py:" in str(found) and str(Path(__file__).parents[2]) not in str(found)


def test_the_page_has_both_programs_and_the_error_over_the_depth(tmp_path):
    first = lambda x: sow(jnp.tanh(sow(x * 2, "a<b>")), "out")
    second = lambda x: sow(jnp.tanh(sow(x * 2, "left") * 1.5), "right")
    found = compare(first, second)(jnp.linspace(-1, 1, 6))
    found.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "a&lt;b&gt;" in page and "<b>" not in page and ">left<" in page
    assert page.count("<circle") == len(found.drifts) + 1  # the values, and one result
    assert "class='differs'" in page and "with mul by" not in page.split("<h2>")[1]
    same = compare(first, first)(jnp.linspace(-1, 1, 6))
    same.write(tmp_path / "same.html")
    assert "no difference" in (tmp_path / "same.html").read_text()


def test_gradients_of_arrays_that_jitted_functions_refer_to_and_equal_rows():
    """Equal rows cancel in the gradient, if the results are added up with factors of one size."""
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)
    right = jax.jit(lambda x: jnp.tanh(x @ weight))
    stopped = lambda x: jnp.tanh(x @ jax.lax.stop_gradient(weight))
    found = compare(right, stopped)(jnp.ones((2, 3)))
    assert found.first is not None and found.first.gradient
    looped = lambda x: jax.lax.scan(lambda c, _: (right(c), None), x, None, length=2)[0]
    unseen = compare(looped, looped)(jnp.ones((2, 3)))
    assert "gradients of 1 array that jitted functions in loops" in str(unseen)
