"""The source of functions with the statistics of their lines."""

import io
import json

import jax
import jax.numpy as jnp
from rich.console import Console

import sonde
from sonde.report import examine


def scaled(x):
    y = x * 2
    z = jnp.log(y - 2)
    return y.sum() + z.sum()


def usual(x):
    a = x + 1
    return a * scaled(a)


def test_lines_have_numbers_and_the_worst_function_is_first():
    report = examine(jax.value_and_grad(lambda x: usual(x).sum()), grads=True, inside=[usual, scaled])(jnp.zeros(4))
    first, second = report.source
    assert (first.name, second.name) == ("scaled", "usual")
    assert first.worst.code.strip() == "z = jnp.log(y - 2)"
    by_code = {line.code.strip(): line.margin for function in report.source for line in function.lines}
    assert by_code["y = x * 2"].startswith("float32[4]  2 to 2  rms 2  gradient ")
    assert by_code["a = x + 1"].startswith("float32[4]  1 to 1  rms 1")
    assert "100% not finite" in by_code["z = jnp.log(y - 2)"]
    console = Console(file=io.StringIO(), width=140)
    console.print(first)
    assert "worst line" in console.file.getvalue() and "z = jnp.log(y - 2)" in console.file.getvalue()
    data = json.loads(json.dumps(report.to_json()["source"]))
    assert data[0]["worst"] == first.worst.number and data[0]["lines"][1][1].strip() == "y = x * 2"


def test_sites_without_source_are_left_out():
    report = examine(eval("lambda x: sonde.sow(x, 'h')", {"sonde": sonde}))(jnp.ones(2))
    assert report.source == ()
