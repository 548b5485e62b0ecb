"""ONNX files as sides of `compare`: every value of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.tools import compare

pytestmark = pytest.mark.transformers

W = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A matrix product, an activation and a gather by whole numbers."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Tanh", ["product"], ["squashed"]),
        helper.make_node("Gather", ["squashed", "rows"], ["out"], axis=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
        helper.make_tensor_value_info("rows", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 5])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [numpy_helper.from_array(W, "w")])
    path = tmp_path / "net.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def port(x: Any, rows: Any, activation: Any = jnp.tanh) -> Any:
    return activation(x @ W)[rows]


def test_a_right_port_and_a_wrong_one(file: Path) -> None:
    rows = np.array([2, 0])
    right = compare(file, port)(X, rows)
    assert right.first is None and len(right.results) == 1
    assert right.unchecked == ("gradients: the first program is an ONNX file, which has none",)
    wrong = compare(str(file), lambda x, rows: port(x, rows, jax.nn.sigmoid))(X, rows)
    assert wrong.first is not None and wrong.first.result


def test_inner_values_are_sites(file: Path) -> None:
    from sonde import sow

    def marked(x: Any, rows: Any) -> Any:
        return jnp.tanh(sow(x @ W, "h") * 1.001)[rows]

    found = compare(file, marked)(X, np.array([2, 0]))
    assert found.names == {"product": "h"} and found.only_first == (("squashed", 0),)
    assert found.first is not None and found.first.result


def test_wrong_inputs_are_an_error(file: Path) -> None:
    with pytest.raises(TypeError, match=r"net.onnx' takes the inputs x, rows; it was called with 1 arrays"):
        compare(file, lambda x: x)(X)
