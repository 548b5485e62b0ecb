"""The layout of records as JSON, and functions that return records as `jax.export` writes them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import sonde
from sonde.core import layout_from_json, layout_to_json

X = jnp.arange(3.0) - 1


def program(x: Any) -> Any:
    h = sonde.sow(jnp.sin(x), "h")
    with sonde.scope("layers/*"):
        y, _ = lax.scan(lambda c, _: (sonde.sow(c * 2, "c"), None), h, length=2)
    branch = lambda a: lax.cond(a > 0, lambda: sonde.sow({"a": a, "s": "label"}, "p")["a"] * 2, lambda: a)
    return jax.vmap(branch)(y).sum()


def test_a_function_that_returns_records_leaves_the_process() -> None:
    captured = sonde.capture(jax.value_and_grad(program), grads=True)
    expected = captured(X)
    written = export.export(jax.jit(captured))(X).serialize()
    out = export.deserialize(bytearray(written)).call(X)
    assert jax.tree.structure(out) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    records = out[1]
    np.testing.assert_array_equal(records["layers/1/c"].grad, expected[1]["layers/1/c"].grad)
    assert records["p"].value["s"] == "label"
    assert records["h"].source == expected[1]["h"].source
    jax.tree.map(np.testing.assert_allclose, sonde.edit(program, records)(X), program(X))


def test_a_captured_jitted_function_leaves_the_process() -> None:
    captured = sonde.capture(jax.jit(program))
    out, records = export.deserialize(bytearray(export.export(jax.jit(captured))(X).serialize())).call(X)
    np.testing.assert_array_equal(out, program(X))
    assert list(records) == list(captured(X)[1])
    np.testing.assert_array_equal(records["h"].value, jnp.sin(X))


def test_one_record_leaves_the_process() -> None:
    f = lambda x: sonde.capture(program)(x)[1]["h"]
    record = export.deserialize(bytearray(export.export(jax.jit(f))(X).serialize())).call(X)
    assert record.path == "h"
    np.testing.assert_array_equal(record.value, f(X).value)


class Pair(NamedTuple):
    a: Any
    b: Any


def test_a_structure_that_json_cannot_name_is_an_error() -> None:
    f = jax.jit(sonde.capture(lambda x: sonde.sow(Pair(x, x), "h").a))
    with pytest.raises(TypeError, match="a value has a Pair in it, but records can be saved and exported only with"):
        export.export(f)(X).serialize()


# As the first version wrote it. What reads it may know more fields, but these.
WRITTEN = """
{"tuple": [{"tuple": ["h", {"tuple": [{"CallSpec": {"site": {"Site": {"_file": "model.py", "_line": 7, "arrays":
{"tuple": [true]}, "depths": null, "grads": false, "has_gradient": true, "in_place": false, "path": "h", "statics":
{"tuple": []}, "tree": {"tree": "leaf"}}}, "value": {"ArraysSpec": {"view": {"View": {"order": 0, "gradient_of": null,
"axes": {"tuple": [{"Axis": {"kind": "scan", "size": 2, "name": null, "leaves": null, "rows": null, "loop": {"object":
0}, "reverse": false, "lacking": {"frozenset": []}, "mapped_by": null, "stopping": {"frozenset": []}, "summed":
{"frozenset": []}}}]}, "role": "site", "anchored": 0, "gates": {"frozenset": []}, "whiles": {"tuple": []}, "rows": null,
"reached": null}}, "ranks": {"tuple": [2]}, "reduced": null}}, "extras": {"tuple": []}, "grads": {"tuple": []}, "types":
{"tuple": [{"type": [[2, 3], "float32"]}]}}}]}]}]}
"""


def test_what_an_earlier_version_wrote_is_read() -> None:
    layout = layout_from_json(json.loads(WRITTEN))
    assert layout_to_json(layout) == json.loads(WRITTEN)
    f = lambda x: lax.scan(lambda c, _: (sonde.sow(c * 2, "h"), None), x, length=2)[0]
    _, records = sonde.capture(f)(X)
    assert records.tree_flatten()[1] == layout
    read = sonde.Records.of_layout(layout, records.tree_flatten()[0])
    np.testing.assert_array_equal(read["h"].value, [X * 2, X * 4])
    assert read["h"].source == "model.py:7"
