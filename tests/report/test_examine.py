"""`examine` looks at anything the engine can capture, in one run, and loses nothing when the program fails."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.report import pages
from tests.tools.models import HIDDEN, X, every_face, forward

import sonde
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.report import examine


def text_of(report, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(report)
    return console.file.getvalue()


@every_face
def test_every_face(face):
    report = examine(forward(face), "hidden")(X)
    (site,) = report.sites
    assert (site.path, site.shape, site.dtype) == ("hidden", (2, 3), "float32")
    assert site.values[0].statistics.max == 5
    assert report.summary[0].statistics.norm == pytest.approx(float(jnp.linalg.norm(HIDDEN)))
    np.testing.assert_allclose(report.pictures[0].values[0], HIDDEN, atol=0.02)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_doubles_beyond_single_precision_are_no_trouble(where, scale, monkeypatch):
    if where == "device":
        monkeypatch.setattr("sonde.tools.execution.deferred_reduce.SMALL_IN_LOOPS", 0)
    with jax.enable_x64(True):
        report = examine(lambda x: sonde.sow(x * 2, "h"))(jnp.array([1.0, -2.0, 3.0]) * scale)
    (site,) = report.sites
    (step,) = site.values
    assert (site.dtype, step.statistics.nonfinite) == ("float64", 0)
    np.testing.assert_allclose(step.statistics.max, 6 * scale, rtol=1e-14)
    np.testing.assert_allclose([step.traits["low"], step.traits["high"]], [-4 * scale, 6 * scale], rtol=1e-14)
    counts = {name: int(step.traits[name]) for name in ("nan", "plus_inf", "subnormal", "near_one", "near_zero")}
    is_large = scale > 1
    expected = {"nan": 0, "plus_inf": 0, "subnormal": 0, "near_one": 3 * is_large, "near_zero": 3 * (not is_large)}
    assert counts == expected
    assert not any("float32" in finding.text or finding.severity == "problem" for finding in report.findings)


def test_the_program_runs_once_and_its_result_is_kept():
    runs = []

    def f(x):
        runs.append(1)
        return sonde.sow(x + 1, "h") * 2

    report = examine(f)(jnp.ones(3))
    assert len(runs) == 1
    assert report.result.tolist() == [4, 4, 4]
    assert not report.result_failed


def test_values_and_gradients_agree_with_a_capture():
    def loss(w, x):
        return jnp.sum(sonde.sow(jnp.tanh(x @ w), "h") ** 2)

    w, x = jax.random.normal(jax.random.key(0), (4, 5)), jax.random.normal(jax.random.key(1), (6, 4))
    report = examine(jax.jit(jax.grad(loss)), grads=True)(w, x)
    _, records = sonde.capture(jax.grad(loss), grads=True)(w, x)
    (site,) = report.sites
    assert site.values[0].rms == pytest.approx(float(jnp.sqrt(jnp.mean(records["h"].value ** 2))), rel=1e-5)
    assert site.gradients[0].rms == pytest.approx(float(jnp.sqrt(jnp.mean(records["h"].grad ** 2))), rel=1e-5)


def test_patterns_choose_and_unknown_ones_are_an_error():
    f = lambda x: sonde.sow(x, "a") + sonde.sow(x, "b")
    assert examine(f, "b")(1.0 * jnp.ones(2)).paths == ("b",)
    with pytest.raises(NoSuchSiteError, match="pattern 'c' matches none"):
        examine(f, "c")(jnp.ones(2))


def test_not_callable_and_traced_are_errors():
    with pytest.raises(TypeError, match="examine takes a callable, got 3"):
        examine(3)
    with pytest.raises(CaptureError, match="examine must run on numbers"):
        jax.jit(lambda x: examine(lambda y: sonde.sow(y, "h"))(x).title)(jnp.ones(2))


def test_progress_is_told():
    told = []
    examine(lambda x: sonde.sow(x, "h"), progress=lambda what, done: told.append((what, done)))(jnp.ones(2))
    assert [done for _, done in told] == sorted(done for _, done in told)
    assert told[0] == ("running the program", 0.0) and told[-1] == ("done", 1.0)


# -- failure ----------------------------------------------------------------------------------------------------------


def test_failure_in_plain_code_keeps_what_was_seen():
    def f(x):
        x = sonde.sow(x * 2, "doubled")
        return x @ jnp.ones((7, 7))  # the line that fails

    report = examine(f)(jnp.arange(20.0).reshape(4, 5))
    assert report.result_failed and report.failure.kind == "TypeError"
    assert report.failure.last_site == "doubled"
    first = report.findings[0]
    assert (first.severity, first.kind, first.path) == ("problem", "failure", "doubled")
    assert first.text.startswith("The program failed after doubled on line ")
    assert "the line that fails" in first.text and "TypeError: dot_general" in first.text
    assert report.sites[0].values[0].statistics.max == 38


def test_failure_inside_jit_has_values_up_to_it():
    @jax.jit
    def f(x):
        def body(c, _):
            return sonde.sow(c + 1, "step"), None

        x = jax.lax.scan(body, x, length=3)[0]
        return x @ jnp.ones((7, 7))

    report = examine(f)(jnp.ones(5))
    assert report.failure.last_site == "step"
    assert [step.statistics.max for step in report.sites[0].values] == [2, 3, 4]
    assert json.dumps(report.to_json(), allow_nan=False)


def test_failure_of_a_layer_is_a_failure_of_the_program():
    from sonde import nnx

    layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    report = examine(lambda x: layer(sonde.sow(x, "input")))(jnp.ones((2, 5)))
    assert report.failure is not None and report.failure.last_site == "input"


def test_failure_only_when_compiled():
    @jax.jit
    def f(x):
        h = sonde.sow(x * 2, "h")
        return h if h.sum() > 0 else -h

    report = examine(f)(jnp.ones(3))
    assert report.failure.kind == "TracerBoolConversionError"
    assert report.failure.only_compiled
    assert "runs to its end when nothing is compiled" in report.findings[0].help
    assert report.paths == ("h",)


def test_failure_before_the_first_site():
    def f(x):
        raise RuntimeError("no data\nsecond line")

    report = examine(f)(1)
    assert report.findings[0].text.startswith("The program failed before the first site on line ")
    assert report.findings[0].text.endswith("RuntimeError: no data")
    assert len(report.findings) == 1


# -- hostile programs -------------------------------------------------------------------------------------------------


def test_every_kind_of_leaf():
    def f():
        sonde.sow(
            {
                "int": jnp.arange(6),
                "bool": jnp.array([True, False]),
                "complex": jnp.array([1 + 2j, jnp.nan]),
                "bf16": jnp.ones((3, 3), jnp.bfloat16),
                "fp8": jnp.ones(4, jnp.float8_e4m3fn),
                "key": jax.random.key(0),
                "scalar": jnp.float32(2),
                "empty": jnp.zeros((0, 4)),
                "text": "just text",
                "none": None,
                "number": 3,
            },
            "all",
        )
        sonde.sow("only text", "text")

    report = examine(f)()
    parts = {site.part: site for site in report.sites if site.path == "all"}
    assert set(parts) == {"int", "bool", "complex", "bf16", "fp8", "key", "scalar", "empty"}
    assert parts["complex"].values[0].statistics.nonfinite == 1
    assert parts["key"].values == () and parts["empty"].values[0].statistics.size == 0
    assert "text" in report.paths
    json.dumps(report.to_json(), allow_nan=False)
    assert "all.bf16" in text_of(report)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_nothing_finite_anywhere(bad):
    def loss(x):
        return jnp.sum(sonde.sow(x * bad, "h"))

    report = examine(jax.grad(loss), grads=True)(jnp.ones((4, 4)))
    json.dumps(report.to_json(), allow_nan=False)
    assert report.findings[0].severity == "problem"
    assert np.isnan(report.pictures[0].values).all()
    assert text_of(report)


def test_branches_not_taken_and_loops_that_do_not_run():
    def f(x):
        x = jax.lax.cond(x.sum() > 0, lambda x: sonde.sow(x, "taken"), lambda x: sonde.sow(-x, "other"), x)
        return jax.lax.while_loop(lambda x: x[0] > 9, lambda x: sonde.sow(x - 1, "never"), x)

    report = examine(f)(jnp.ones(3))
    sites = {site.path: site for site in report.sites}
    assert sites["taken"].values and not sites["other"].values and not sites["never"].values
    data = {site["path"]: site for site in report.to_json()["sites"]}
    assert data["other"]["value"] is None


def test_while_loop_finds_the_first_bad_iteration_and_shows_the_last():
    def f(x):
        return jax.lax.while_loop(lambda c: c[0] < 8, lambda c: (c[0] + 1, sonde.sow(c[1] * 1e10, "h")), (0, x))

    report = examine(jax.jit(f))(jnp.ones(2))
    assert "First Inf in h, iteration 3, line" in report.findings[0].text
    assert report.sites[0].values[0].row.iteration == (7,)


def test_vmap_scan_and_cond_together():
    def f(x):
        def body(c, _):
            c = jax.lax.cond(c > 2, lambda c: sonde.sow(c * 2, "big"), lambda c: sonde.sow(c + 1, "small"), c)
            return c, sonde.sow(c, "c")

        return jax.lax.scan(body, x, length=5)[1]

    report = examine(jax.vmap(f))(jnp.arange(4.0))
    sites = {site.path: site for site in report.sites}
    assert len(sites["c"].values) == 5 and sites["c"].values[0].statistics.size == 4
    (first, *_) = sites["big"].values
    assert first.statistics.size == 1  # only one of the four was above 2


def test_vmapped_while_loop():
    f = jax.vmap(lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: sonde.sow(c + 2, "h"), x))
    report = examine(f)(jnp.arange(4.0))
    assert report.sites[0].values[0].statistics.size == 4


def test_gradients_of_values_from_before():
    x = jnp.arange(3.0)

    def loss(x):
        return jnp.sum(sonde.sow(x**2, "h"))

    with_vjp = jax.vjp
    report = examine(lambda: with_vjp(loss, x)[1](1.0), grads=True)()
    assert report.sites[0].gradients[0].statistics.norm == pytest.approx(3**0.5)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.numpy_rank_promotion("raise"),
        lambda: jax.numpy_dtype_promotion("strict"),
        lambda: jax.debug_nans(True),
        lambda: jax.checking_leaks(),
        lambda: jax.enable_x64(True),
    ],
    ids=["rank", "dtype", "nans", "leaks", "x64"],
)
def test_settings_of_the_program_do_not_disturb(setting):
    def loss(x):
        sonde.sow(jax.nn.softmax(x), "attn")
        y = jax.lax.scan(lambda c, _: (sonde.sow(c * jnp.asarray(2, c.dtype), "loop"), None), x, length=3)[0]
        return jax.vmap(lambda v: sonde.sow(v, "mapped"))(y).sum()

    with setting():
        report = examine(jax.jit(jax.value_and_grad(loss)), grads=True)(jax.random.normal(jax.random.key(0), (2, 9, 9)))
    assert report.failure is None and report.paths == ("attn", "loop", "mapped")


def test_nothing_but_gradients():
    found = []

    def outer(x):
        _, back = jax.vjp(lambda x: jnp.sum(sonde.sow(x**2, "h")), x)
        found.append(examine(back, grads=True)(1.0))

    sonde.capture(outer, grads=True)(jnp.arange(3.0))
    (site,) = found[0].sites
    assert site.values == () and site.gradients[0].statistics.norm == pytest.approx(3**0.5)
    assert found[0].to_json()["sites"][0]["value"] is None
    assert "h" in text_of(found[0])


def test_many_devices():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    f = jax.shard_map(lambda x: sonde.sow(x * 2, "h"), mesh=mesh, in_specs=spec, out_specs=spec)
    report = examine(jax.jit(f))(jnp.arange(8.0))
    assert report.sites[0].values[0].statistics.max == 14


def test_what_is_the_same_on_all_devices_counts_once():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def shard(x):
        sonde.sow({"varies": x, "same": jnp.arange(3.0)}, "both")
        return x

    f = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)
    sites = {site.part: site for site in examine(jax.jit(f))(jnp.arange(8.0)).sites}
    assert sites["varies"].values[0].statistics.size == 8
    assert sites["same"].values[0].statistics.size == 3


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_are_small_and_of_the_right_kind():
    def f(x):
        sonde.sow(jax.nn.softmax(x), "attn/weights")
        sonde.sow(jnp.ones((3, 200, 160, 40)) * jnp.arange(40), "conv")
        sonde.sow(jnp.arange(1e5).reshape(100, 1000), "matrix")

    report = examine(f)(jax.random.normal(jax.random.key(0), (5, 12, 100, 100)))
    kinds = {picture.path: picture for picture in report.pictures}
    assert kinds["attn/weights"].kind == "attention" and kinds["attn/weights"].levels.shape == (2, 12, 64, 64)
    assert kinds["conv"].kind == "features" and kinds["conv"].levels.shape == (2, 29, 32, 16)
    assert kinds["matrix"].kind == "matrix" and kinds["matrix"].levels.shape == (1, 32, 64)


def test_what_only_looks_like_attention_is_not():
    def f(x):
        sonde.sow(x, "attn/scores")
        sonde.sow(jnp.ones((2, 16, 16, 16)), "image")

    kinds = {p.path: p.kind for p in examine(f)(jax.random.normal(jax.random.key(0), (2, 3, 40, 40))).pictures}
    assert kinds == {"attn/scores": "matrix", "image": "features"}


def test_pictures_in_loops_are_of_the_first_and_last_iteration(monkeypatch):
    monkeypatch.setattr("sonde.tools.execution.deferred_reduce.SMALL_IN_LOOPS", 2**23)
    f = lambda x: jax.lax.scan(lambda c, _: (sonde.sow(c * 2, "h"), None), x, length=4)[0]
    first, last = examine(f)(jnp.ones((800, 800))).pictures  # too large to be kept whole
    assert (first.iteration, last.iteration) == ((0,), (3,))
    assert first.levels.size <= 8 * 32
    assert last.high == 2.0**4


def test_mapped_examples_are_examples_of_a_picture():
    f = jax.vmap(lambda x: sonde.sow(jax.nn.softmax(x), "attn"))
    (picture,) = examine(f)(jax.random.normal(jax.random.key(0), (9, 2, 6, 6))).pictures
    assert picture.levels.shape == (2, 2, 6, 6)


# -- terminal ---------------------------------------------------------------------------------------------------------


def test_terminal_shows_findings_first_then_sites():
    def f(x):
        return sonde.sow(sonde.sow(x * 1e30, "[bold]scaled") ** 2, "squared")

    text = text_of(examine(f, title="My [red]model")(jnp.ones((4, 4))))
    assert text.startswith("My [red]model  2 sites")
    assert text.index("First Inf in squared") < text.index("[bold]scaled")
    assert "float32[4,4]" in text


def test_terminal_is_not_flooded():
    text = text_of(pages.many_findings())
    assert text.count("is zero everywhere.") == 12
    assert "... and 8 more, on the page" in text


def test_terminal_says_when_all_is_well():
    text = text_of(examine(lambda x: sonde.sow(x, "h"))(jnp.arange(3.0)))
    assert "Nothing wrong was found." in text
    assert "Looked at: 1 site for NaN, scale and units. No gradients were looked at." in text


def test_repr_is_short():
    report = examine(lambda x: sonde.sow(x / 0, "h"), title="t")(jnp.ones(3))
    assert repr(report).splitlines()[0] == "t: 1 site, 1 finding"
    assert repr(report).splitlines()[1].startswith("  problem: First Inf in h")


def test_branches_with_one_place_have_the_line_of_the_one_that_ran():
    def f(x):
        return jax.lax.cond(
            x.sum() > 0,
            lambda x: sonde.sow(x / 0.0, "h"),
            lambda x: sonde.sow(x * 2, "h"),
            x,
        )

    for sign, line in ((1.0, 3), (-1.0, 4)):
        report = examine(jax.jit(f))(sign * jnp.ones(3))
        first = f.__code__.co_firstlineno
        if sign > 0:
            assert f":{first + line}" in report.findings[0].source
        else:
            assert not report.findings
        (row,) = report.summary
        assert row.statistics.size == 3


def test_branches_of_which_one_is_attention_are_one_value() -> None:
    def f(i, x):
        branches = [lambda x: sonde.sow(jax.nn.softmax(x), "w"), lambda x: sonde.sow(x * 2, "w")]
        return jax.lax.switch(i, branches, x).sum()

    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 5))
    (site,) = examine(jax.vmap(f))(jnp.array([0, 1]), jnp.stack([x, x])).sites
    (step,) = site.values
    expected = (jax.nn.softmax(x).mean() + (x * 2).mean()) / 2
    assert step.statistics.mean == pytest.approx(float(expected), rel=1e-4)
