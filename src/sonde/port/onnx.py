"""ONNX files as programs: every value of the graph, computed by `onnxruntime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde._extras import load

_EXTRA = {"extra": "onnx", "purpose": "running an ONNX file"}
_DTYPES = {"float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_} | {
    f"{sign}int{n}": np.dtype(f"{sign}int{n}") for sign in ("", "u") for n in (8, 16, 32, 64)
}


def run_onnx(
    file: str | Path, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[tuple[str, np.ndarray]], list[tuple[str, np.ndarray]]]:
    """Runs an ONNX file.

    Args:
        file: The file.
        args: Its inputs, in the order of the graph.
        kwargs: Its inputs by name.

    Returns:
        What the nodes of the graph compute, and what the graph returns: names and arrays, in order.

    Raises:
        MissingExtra: `onnx` or `onnxruntime` is not installed.
        TypeError: The inputs are not those of the graph.
    """
    onnx, runtime = load("onnx", **_EXTRA), load("onnxruntime", **_EXTRA)
    model = onnx.load(str(file))
    results = [x.name for x in model.graph.output]
    computed = [name for node in model.graph.node for name in node.output if name and name not in results]
    # The types of inner values need not be known: the runtime finds them.
    model.graph.output.extend([onnx.helper.make_empty_tensor_value_info(name) for name in computed])
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it would fuse what is asked for
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {x.name: x.type for x in session.get_inputs()}
    given = dict(zip(wanted, args)) | dict(kwargs)
    if len(args) > len(wanted) or set(given) != set(wanted):
        raise TypeError(
            f"{str(file)!r} takes the inputs {', '.join(wanted)}; it was called with {len(args)} arrays"
            + (f" and {', '.join(kwargs)}" if kwargs else "")
        )
    feed = {name: _as_input(given[name], kind) for name, kind in wanted.items()}
    arrays = dict(zip([x.name for x in session.get_outputs()], session.run(None, feed)))
    steps = [(name, arrays[name]) for name in computed if isinstance(arrays[name], np.ndarray)]
    return steps, [(name, arrays[name]) for name in results]


def _as_input(value: Any, kind: str) -> np.ndarray:
    """An array of the type that the graph takes, such as `tensor(int64)`; a whole number stays one."""
    array = np.asarray(value)
    dtype = _DTYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
    if dtype is None:
        return array
    if np.issubdtype(array.dtype, np.floating) and not np.issubdtype(dtype, np.floating):
        raise TypeError(f"the graph takes {kind}, it was given an array of {array.dtype}")
    return array.astype(dtype)
