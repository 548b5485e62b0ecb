"""What the commands print and write, and their exit codes."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sonde._version import __version__


def test_help_and_version(sonde) -> None:
    text = sonde.ok("--help")
    for word in ("report", "sites", "nonfinite", "compare", "demo", "TARGET", "example_inputs", "Exit codes:"):
        assert word in text
    for command in ("report", "sites", "nonfinite", "compare", "demo"):
        assert "Exit codes:" in sonde.ok(command, "--help")
    assert sonde.ok("--version") == f"sonde {__version__}\n"


# ---------------------------------------------------------------------------------------------------------------------
# report
# ---------------------------------------------------------------------------------------------------------------------

DEAD = """
import jax, jax.numpy as jnp, sonde
def f(x):
    return sonde.sow(jax.nn.relu(x - 100), "hidden").sum()
def make():
    return f, (jax.random.normal(jax.random.key(0), (128, 32)),)
"""


def test_report_prints_and_writes_a_page(write, sonde, folder) -> None:
    write()
    text = sonde.ok("report", "model:make", "--grads")
    assert "Nothing wrong was found." in text and "layer0/out" in text and "gradient rms" in text
    assert text.splitlines()[-1] == f"page: {folder / 'report.html'}"
    assert "layer1/out" in (folder / "report.html").read_text()


def test_report_as_json(write, sonde, folder) -> None:
    write()
    data = sonde.json("report", "model:make", "--grads")
    assert data["title"] == "model:make" and data["findings"] == [] and data["page"] is None
    assert [site["path"] for site in data["sites"]] == ["layer0/out", "layer1/out", "loss"]
    assert not (folder / "report.html").exists()
    data = sonde.json("report", "model:make", "--out", "page.html", "--title", "Mine", "--sites", "layer*/out")
    assert data["title"] == "Mine" and data["page"] == str(folder / "page.html") and len(data["sites"]) == 2
    assert (folder / "page.html").exists()


def test_report_with_tokens(write, sonde, folder) -> None:
    write()
    for name, text in (("tokens.txt", "The\n cat\n sat\n<b>\n"), ("tokens.json", '["The", " cat", " sat", "<b>"]')):
        write(text, name)
        data = sonde.json("report", "model:make", "--tokens", name, "--out", "page.html")
        assert data["tokens"] == ["The", " cat", " sat", "<b>"]
        assert "<b>" not in (folder / "page.html").read_text().split("<script")[-2]
    write('{"a": 1}', "tokens.json")
    for name, message in (("tokens.json", "must hold a JSON list of strings"), ("none.txt", "There is no file")):
        result = sonde("report", "model:make", "--tokens", name)
        assert result.exit_code == 2 and message in result.stderr


def test_gradients_of_a_program_that_differentiates_nothing(write, sonde) -> None:
    write(DEAD)
    result = sonde("report", "model:make", "--grads", "--json")
    assert result.stderr == (
        "There are no gradients: model:make differentiates nothing. Name a training step, or jax.grad of a loss.\n"
    )
    assert json.loads(result.stdout)["sites"]


SOWN = """
import jax.numpy as jnp
from sonde import nnx
class Model(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    def __call__(self, x):
        x = self.layer(x)
        self.sow(nnx.Intermediate, "h", x)
        return x
def make():
    return nnx.value_and_grad(lambda model, x: jnp.sum(model(x) ** 2)), (Model(), jnp.ones((2, 3)))
"""


def test_gradients_of_what_a_module_sows(write, sonde) -> None:
    write(SOWN)
    (site,) = sonde.json("report", "model:make", "--grads")["sites"]
    assert site["path"] == "h" and site["gradient"]["size"] == 6


CHATTY = """
import ctypes, subprocess
import jax.numpy as jnp, sonde
def f(x):
    print("printed")
    subprocess.run(["echo", "by a child"], check=True)
    ctypes.CDLL(None).puts(b"by a library")
    return sonde.sow(x * 2, "h")
f.example_inputs = (jnp.ones(2),)
"""


def test_what_is_printed_by_other_means_is_not_in_the_json(write, sonde, capfd) -> None:
    write(CHATTY)
    for command in ("report", "nonfinite"):
        result = sonde(command, "model:f", "--json")
        assert json.loads(result.stdout) and "printed" in result.stderr
        out, err = capfd.readouterr()
        assert out == "" and {"by a child", "by a library"} <= set(err.splitlines())
    print("after", flush=True)
    assert capfd.readouterr().out == "after\n"


ENDLESS = """
import jax.numpy as jnp, sonde
def f(x):
    return f(sonde.sow(x + 1, "x"))
f.example_inputs = (jnp.ones(2),)
"""


def test_report_of_a_program_that_calls_itself_without_end(write, sonde) -> None:
    write(ENDLESS)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 170)  # each site takes a while below a thousand calls
    try:
        text = sonde.ok("report", "model:f", code=3)
    finally:
        sys.setrecursionlimit(limit)
    assert "The program failed after x on line 4" in text and "RecursionError" in text


def test_findings_make_the_exit_code(write, sonde) -> None:
    write(DEAD)
    assert "hidden" in sonde.ok("report", "model:make", code=1)
    severities = {f["severity"] for f in sonde.json("report", "model:make", code=1)["findings"]}
    assert severities == {"warning"}
    sonde.ok("report", "model:make", "--fail-on", "problem")
    sonde.ok("report", "model:make", "--fail-on", "never")
    sonde.ok("report", "model:make", "--fail-on", "note", code=1)


FAILING = """
import jax, jax.numpy as jnp, sonde
def f(x):
    h = sonde.sow(x * 2, "first")
    h = sonde.sow(h + 1, "second")
    return h @ jnp.ones(7)
f.example_inputs = (jnp.ones((2, 3)),)
jitted = jax.jit(f)
def make():
    return jitted, f.example_inputs
"""


@pytest.mark.parametrize("target", ["model:f", "model:make"])
def test_report_of_a_program_that_fails(write, sonde, folder, target: str) -> None:
    write(FAILING)
    text = sonde.ok("report", target, code=3)
    assert "The program failed after second" in text and "h @ jnp.ones(7)" in text
    assert "first" in text and "Traceback" not in text  # the values up to the failure
    data = sonde.json("report", target, code=3)
    assert data["failure"]["last_site"] == "second" and data["failure"]["source"].endswith("model.py:6")
    assert data["sites"][1]["value"]["max"] == 3
    assert "second" in (folder / "report.html").read_text()


def test_report_shows_the_traceback_on_request(write, sonde) -> None:
    write(FAILING)
    result = sonde("report", "model:f", "--traceback")
    assert result.exit_code == 3 and "Traceback" in result.stderr and "h @ jnp.ones(7)" in result.stderr


def test_what_the_program_prints_does_not_spoil_the_json(write, sonde) -> None:
    write(
        "print('importing')\nimport sonde\n"
        "def f(x):\n    print('running')\n    return sonde.sow(x, 'h')\nf.example_inputs = (1.0,)\n"
    )
    result = sonde("report", "model:f", "--json")
    assert json.loads(result.stdout)["sites"][0]["path"] == "h"
    assert "importing" in result.stderr and "running" in result.stderr


def test_report_without_sites(write, sonde) -> None:
    write("def f(x): return x\nf.example_inputs = (1.0,)\n")
    assert sonde.ok("nonfinite", "model:f") == "Every result of the program is finite.\n"  # it needs no sites
    for command in ("report", "sites"):
        error = sonde.error(command, "model:f")
        assert "model:f has no sites: there is nothing to look at. Look into code as it is with --inside" in error


@pytest.mark.parametrize("command", ["report", "sites"])
def test_a_pattern_that_matches_nothing(write, sonde, command: str) -> None:
    write()
    error = sonde.error(command, "model:make", "--sites", "layer9/out")
    assert "model:make: pattern 'layer9/out' matches none of the program's 3 sites; nearest: " in error
    assert error.endswith("More: `sonde explain NoSuchSiteError`.")


def test_places_that_cannot_be_written_to(write, sonde, folder) -> None:
    write("raise SystemExit('imported')\n")  # which is looked at later
    assert "There is no folder" in sonde.error("report", "model:make", "--out", "no/such/report.html")
    assert "is a folder; --out names the file" in sonde.error("report", "model:make", "--out", str(folder))
    assert "There is no folder" in sonde.error("demo", "--out", "no/such/demo.html")


def test_unknown_options_are_usage_errors(sonde) -> None:
    assert "No such option" in sonde.error("report", "model:make", "--inputs", "x")
    assert "No such command" in sonde.error("reprot", "model:make")
    assert "Missing argument 'TARGET'" in sonde.error("report")


# ---------------------------------------------------------------------------------------------------------------------
# sites
# ---------------------------------------------------------------------------------------------------------------------


def test_sites_lists_without_running(write, sonde, folder) -> None:
    write(
        "import jax, sonde, numpy as np\n"
        "def f(x):\n"
        "    jax.debug.callback(lambda: open('ran', 'w'))\n"
        "    return jax.lax.scan(lambda c, _: (sonde.sow(c, 'h[0]'), None), x, length=5)[0]\n"
        "f.example_inputs = (np.ones(3, np.float32),)\n"
    )
    data = sonde.json("sites", "model:f")
    assert data["bytes"] == 60
    [site] = data["sites"]
    assert (site["path"], site["call"], site["gradient"], site["bytes"]) == ("h[0]", 0, False, 60)
    assert site["arrays"] == [{"shape": [5, 3], "dtype": "float32"}] and site["axes"][0]["size"] == 5
    assert site["source"].endswith("model.py:4")
    assert "h[0]" in sonde.ok("sites", "model:f")
    assert not (folder / "ran").exists()


def test_sites_with_gradients(write, sonde) -> None:
    write()
    assert [s["gradient"] for s in sonde.json("sites", "model:make", "--grads", "--sites", "loss")["sites"]] == [
        False,
        True,
    ]


def test_sites_of_a_program_that_fails(write, sonde) -> None:
    write(FAILING)
    error = sonde.error("sites", "model:f", code=3)
    assert "model:f failed: TypeError: dot_general requires" in error and "model.py:6: return h @ jnp.ones(7)" in error
    assert "`sonde report model:f` shows the values up to the failure; --traceback shows where." in error


# ---------------------------------------------------------------------------------------------------------------------
# nonfinite
# ---------------------------------------------------------------------------------------------------------------------

OVERFLOW = """
import jax, jax.numpy as jnp, sonde
def f(x):
    x = sonde.sow(x * 1e30, "scaled")
    return sonde.sow(x * x, "squared").sum()
def make():
    return jax.jit(f), (jnp.array([1.0, 1e-30]),)
def fine():
    return f, (jnp.zeros(2),)
def choosing(x):
    return sonde.sow(x, "h") if x > 0 else x
choosing.example_inputs = (1.0,)
def choosing_array():
    return choosing, (jnp.array(1.0),)
"""


def test_nonfinite(write, sonde) -> None:
    write(OVERFLOW)
    text = sonde.ok("nonfinite", "model:make", code=1)
    assert "the first Inf is made by mul" in text and "0 NaN and 1 Inf of 2 elements, at 'squared'" in " ".join(
        text.split()
    )
    assert "model.py:5" in text and "scaled[0]: 1 to 1e+30" in text
    data = sonde.json("nonfinite", "model:make", code=1)
    assert data["finite"] is False and data["first"]["path"] == "squared" and data["first"]["infs"] == 1
    assert sonde.json("nonfinite", "model:make", "--context", "0", code=1)["first"]["before"] == []
    assert sonde.ok("nonfinite", "model:fine") == "Every result of the program is finite.\n"
    assert sonde.json("nonfinite", "model:fine") == {"finite": True, "first": None}


def test_nonfinite_of_what_cannot_be_traced(write, sonde) -> None:
    write(OVERFLOW)
    assert sonde.ok("nonfinite", "model:choosing_array") == "Every result of the program is finite.\n"


def test_nonfinite_of_a_program_that_fails(write, sonde) -> None:
    write(FAILING)
    assert "model:f failed: TypeError" in sonde.error("nonfinite", "model:f", code=3)


# ---------------------------------------------------------------------------------------------------------------------
# compare
# ---------------------------------------------------------------------------------------------------------------------

TWO = """
import jax.numpy as jnp, sonde
def f(x, dtype=jnp.float32):
    x = sonde.sow(x.astype(dtype) * 2, "double")
    return sonde.sow(x + 1 / 3, "shifted")
def half(x):
    return f(x, jnp.bfloat16)
def extra(x):
    return sonde.sow(f(x), "extra")
def other(x):
    return sonde.sow(x, "other")
def unmarked(x):
    return x
def wide():
    return f, (jnp.ones(4),)
def narrow():
    return f, (jnp.ones(4, jnp.bfloat16), jnp.bfloat16)
"""


def test_compare(write, sonde) -> None:
    write(TWO)
    text = sonde.ok("compare", "model:wide", "model:half", "--rtol", "1e-4", code=1)
    assert "first difference at shifted, call 0: 4 of 4 elements differ" in " ".join(text.split())
    data = sonde.json("compare", "model:wide", "model:half", "--rtol", "1e-4", code=1)
    assert data["same"] is False and data["first"]["path"] == "shifted"
    assert [(d["path"], d["differs"]) for d in data["drifts"]] == [("double", False), ("shifted", True)]
    assert "no difference" in sonde.ok("compare", "model:wide", "model:half", "--rtol", "0.02")


def test_the_tolerance_comes_from_the_arithmetic(write, sonde) -> None:
    write(TWO)
    data = sonde.json("compare", "model:wide", "model:half")
    assert data["same"] and data["drifts"][1]["limit"] < 0.1


def test_matches_are_written_and_read(write, sonde) -> None:
    write(TWO)
    sonde.ok("compare", "model:wide", "model:extra", "--save-matches", "matches.json")
    assert json.loads(Path("matches.json").read_text()) == {"double": "double", "shifted": "shifted"}
    Path("matches.json").write_text('{"double": "shifted"}')
    data = sonde.json("compare", "model:wide", "model:extra", "--match", "matches.json", code=1)
    assert data["first"]["path"] == "double" and data["first"]["second"] == "shifted"


def test_each_program_has_its_own_arguments(write, sonde) -> None:
    write(TWO)
    assert sonde.json("compare", "model:wide", "model:narrow", "--rtol", "1e-4", code=1)["first"]["path"] == "shifted"


def test_compare_with_an_input_file(write, sonde) -> None:
    write(TWO)
    np.savez("in.npz", x=np.ones(6, np.float32))
    assert (
        sonde.json("compare", "model:f", "model:half", "--input", "in.npz", "--rtol", "1e-4", code=1)["first"]["size"]
        == 6
    )


def test_sites_of_one_program_only_are_listed(write, sonde) -> None:
    write(TWO)
    data = sonde.json("compare", "model:wide", "model:extra")
    assert data["same"] and data["only_first"] == [] and data["only_second"] == [{"path": "extra", "call": 0}]


def test_programs_that_cannot_be_compared(write, sonde) -> None:
    write(TWO)
    data = sonde.json("compare", "model:wide", "model:other", code=1)
    assert data["first"]["path"] == "the result" and data["drifts"] == []
    write("example_inputs = 1.0\ndef nothing(x):\n    pass\n", "empty.py")
    error = sonde.error("compare", "empty:nothing", "empty:nothing")
    assert "nothing to compare: the first returns no arrays and has no sites with arrays; the second returns" in error
    error = sonde.error("compare", "model:wide", "model:extra", "--sites", "extra")
    assert "pattern 'extra' matches none of the program's 2 sites" in error
    assert "Invalid value for '--rtol'" in sonde.error("compare", "model:wide", "model:half", "--rtol", "-1")


def test_inside_on_the_command_line(write, sonde) -> None:
    write(
        "import equinox as eqx, jax, jax.numpy as jnp\nnet = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))\n"
        "def norm(h):\n    v = h.std()\n    return h / v\n"
        "def make():\n    return (lambda x: norm(net(x)).sum()), (jnp.zeros(2),)\n",
        "plain.py",
    )
    paths = lambda *given: [x["path"] for x in sonde.json("sites", "plain.py:make", *given)["sites"]]
    assert paths("--inside", "plain.py:norm") == paths("--inside", "plain:norm") == ["norm/h", "norm/v", "norm/return"]
    assert paths("--inside", "plain.py:net", "--sites", "layers/*/out") == ["layers/0/out", "layers/1/out"]
    for name in ("plain.py:nothing", "no.such"):
        assert f"inside='{name}'" in sonde.error("sites", "plain.py:make", "--inside", name)


# ---------------------------------------------------------------------------------------------------------------------
# summarize, trace-back, and what is printed
# ---------------------------------------------------------------------------------------------------------------------


def test_summarize(write, sonde) -> None:
    write()
    text = sonde.ok("summarize", "model:make", "--grads", "--sites", "layer*/out")
    assert "2 sites" in text and "layer1/out" in text and "loss" not in text
    rows = sonde.json("summarize", "model:make")["rows"]
    assert [row["path"] for row in rows] == ["layer0/out", "layer1/out", "loss"] and rows[2]["mean"] > 0
    write(DEAD.replace("sonde.sow", "(lambda x, name: x)"), "unmarked.py")
    assert "--inside unmarked.py or" in sonde.error("summarize", "unmarked.py:make")


@pytest.mark.parametrize(
    ("condition", "operation"), [("> 2", "mul"), ("abs>=2.2e0", "mul"), ("negative", None), ("== 2.25", "mul")]
)
def test_trace_back(write, sonde, condition, operation) -> None:
    write("import jax.numpy as jnp\ndef f(x):\n    y = x * 1.5\n    return y * 1.5\nexample_inputs = (jnp.ones(2),)\n")
    code = 1 if operation else 0
    found = sonde.json("trace-back", "model.py:f", "--where", condition, code=code)
    assert found["found"] == bool(operation) and (found["origin"] or {}).get("operation") == operation
    text = sonde.ok("trace-back", "model.py:f", "--where", condition, code=code)
    assert ("mul of" in text) == bool(operation)


def test_a_condition_that_is_none(write, sonde) -> None:
    write()
    assert "--where 'big' is not a condition" in sonde.error("trace-back", "model:make", "--where", "big")


def test_quiet_keeps_stdout_for_results(write, sonde) -> None:
    write("print('noise')\nimport sonde\ndef f(): return (lambda x: sonde.sow(x, 'h')), (1.0,)\n")
    assert "noise" in sonde.ok("sites", "model.py:f")
    write("print('noise')\nimport sonde\ndef f(): return (lambda x: sonde.sow(x, 'h')), (1.0,)\n", "other.py")
    result = sonde("--quiet", "sites", "other.py:f")
    assert "noise" not in result.stdout and "noise" in result.stderr


def test_a_report_without_a_page(write, sonde, folder) -> None:
    write()
    assert "page:" not in sonde.ok("report", "model:make", "--no-page")
    assert not (folder / "report.html").exists()


def test_compare_with_a_file_of_arrays(write, sonde) -> None:
    write(TWO)
    np.savez("values.npz", shifted=np.zeros(4, np.float32))
    assert "compared" in sonde.ok("compare", "values.npz", "model:wide", code=1)
    text = sonde.error("compare", "values.npz", "values.npz")
    assert "are files or folders: at least one must be a target" in " ".join(text.split())


def test_a_comparison_of_unmarked_programs_says_how_to_look_into_them(write, sonde) -> None:
    write("import jax.numpy as jnp\ndef f(x):\n    y = x * 2\n    return y + 1\nexample_inputs = (jnp.ones(2),)\n")
    result = sonde("compare", "model.py:f", "model.py:f")
    assert result.exit_code == 0 and "--inside model.py." in " ".join(result.stderr.split())
    result = sonde("compare", "model.py:f", "model.py:f", "--inside", "model.py:f")
    assert result.exit_code == 0 and "--inside" not in result.stderr and "f/y" in result.stdout
