"""How objects are shown: `repr`, `nnx.display`, and the protocol of treescope for notebooks.

Objects show their attributes line by line, with the number and the size of their Variables after the opening
parenthesis. An object shown a second time is shortened to `Name(...)`. Inside Modules, arrays show shape and type; a
Variable or State shown by itself shows the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from sonde._array_text import human_size, size_and_bytes
from sonde.nnx.modules.containers import List
from sonde.nnx.modules.pytree import Pytree, attributes
from sonde.nnx.states.state import FlatState, State
from sonde.nnx.structure.graph_def import GraphDef
from sonde.nnx.variable.metadata import REQUIRED
from sonde.nnx.variable.variable import Variable


def text(value: Any) -> str:
    """The text of an object of this package."""
    return _Writer(numbers=not isinstance(value, Pytree)).write(value, 0)


def _totals(node: Pytree) -> str:
    """Sizes of the Variables in a node by type: `BatchStat: 2 (8 B), Param: 6 (24 B), Total: 8 (32 B)`."""
    totals: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    for leaf in jax.tree.leaves(list(_children(node)), is_leaf=lambda x: isinstance(x, Variable)):
        if not isinstance(leaf, Variable) or id(leaf) in seen:
            continue
        seen.add(id(leaf))
        size, n_bytes = size_and_bytes(leaf.get_raw_value())
        if size:
            before = totals.get(type(leaf).__name__, (0, 0))
            totals[type(leaf).__name__] = (before[0] + size, before[1] + n_bytes)
    if len(totals) > 1:
        sizes, n_bytes = zip(*totals.values())
        totals = dict(sorted(totals.items())) | {"Total": (sum(sizes), sum(n_bytes))}
    return ", ".join(f"{name}: {size:,} ({human_size(b)})" for name, (size, b) in totals.items())


def _children(node: Pytree, entered: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The data of a node and of all nodes below it, even if a node contains itself."""
    if id(node) in entered:
        return
    entered |= {id(node)}
    for child in node._structure()[1]:
        for leaf in jax.tree.leaves(child, is_leaf=lambda x: isinstance(x, (Pytree, Variable))):
            if isinstance(leaf, Pytree):
                yield from _children(leaf, entered)
            else:
                yield leaf


class _Writer:
    def __init__(self, *, numbers: bool):
        self._numbers = numbers
        self._shown: set[int] = set()

    def write(self, value: Any, depth: int) -> str:
        if isinstance(value, Pytree):
            return self._node(value, depth)
        if isinstance(value, Variable):
            return self._variable(value, depth)
        if isinstance(value, State):
            return f"State({self._state(value.raw_mapping, depth)})"
        if isinstance(value, FlatState):
            entries = [f"({path!r}, {self.write(leaf, depth + 1)})" for path, leaf in value]
            return f"FlatState({self._lines('[', entries, ']', depth)})"
        if isinstance(value, GraphDef):
            return f"GraphDef({getattr(value.type, '__name__', None)}, num_leaves={value.num_leaves})"
        if type(value) is dict and value and _holds_objects(value.values()):
            return self._mapping(value, depth)
        if type(value) in (list, tuple) and value and _holds_objects(value):
            opening, closing = ("[", "]") if type(value) is list else ("(", ",)" if len(value) == 1 else ")")
            return self._lines(opening, [self.write(v, depth + 1) for v in value], closing, depth)
        if not self._numbers and isinstance(value, (jax.Array, np.ndarray)) and value.size > 1:
            return f"{type(value).__name__.removesuffix('Impl')}(shape={value.shape}, dtype={value.dtype})"
        return repr(value).replace("\n", "\n" + "  " * depth)

    def _node(self, node: Pytree, depth: int) -> str:
        name = type(node).__name__
        if id(node) in self._shown:
            return f"{name}(...)"
        self._shown.add(id(node))
        totals = _totals(node)
        note = f" # {totals}" if totals else ""
        if isinstance(node, Mapping):
            return f"{name}({self._mapping(attributes(node), depth, note)})"
        if isinstance(node, List):
            entries = [self.write(v, depth + 1) for v in node]
            return f"{name}({self._lines('[', entries, ']', depth, note)})"
        hidden = [k for k in attributes(node) if k.startswith("__")]
        entries = [f"{k}={self.write(v, depth + 1)}" for k, v in attributes(node).items() if k not in hidden]
        return self._lines(f"{name}(", entries, ")", depth, note)

    def _variable(self, variable: Variable[Any], depth: int) -> str:
        size, n_bytes = size_and_bytes(variable.get_raw_value())
        note = f" # {size:,} ({human_size(n_bytes)})" if size else ""
        entries = [f"value={self.write(variable.get_raw_value(), depth + 1)}"]
        entries += [f"{k}={v!r}" for k, v in variable._metadata.items() if k not in REQUIRED]
        return self._lines(f"{type(variable).__name__}(", entries, ")", depth, note)

    def _mapping(self, mapping: Mapping[Any, Any], depth: int, note: str = "") -> str:
        entries = [f"{k!r}: {self.write(v, depth + 1)}" for k, v in mapping.items()]
        return self._lines("{", entries, "}", depth, note)

    def _state(self, mapping: Mapping[Any, Any], depth: int) -> str:
        entries = [
            f"{k!r}: {self._state(v, depth + 1) if type(v) is dict else self.write(v, depth + 1)}"
            for k, v in mapping.items()
        ]
        return self._lines("{", entries, "}", depth)

    @staticmethod
    def _lines(opening: str, entries: list[str], closing: str, depth: int, note: str = "") -> str:
        if not entries:
            return f"{opening}{closing}"
        indent = "  " * (depth + 1)
        return f"{opening}{note}\n{indent}" + f",\n{indent}".join(entries) + f"\n{'  ' * depth}{closing}"


def _holds_objects(values: Any) -> bool:
    return any(isinstance(v, (Pytree, Variable, State, dict, list, tuple)) for v in values)


def treescope_of(value: Any, path: Any, subtree_renderer: Any) -> Any:
    """The form in which treescope shows an object; called by treescope, so treescope is installed."""
    import treescope  # type: ignore[import-not-found]  # only ever reached from inside treescope

    if isinstance(value, Variable):
        shown = {"value": value.get_raw_value(), **value.get_metadata(exclude_required=True)}
    elif isinstance(value, State):
        shown = dict(value.raw_mapping)
    elif isinstance(value, GraphDef):
        shown = {"type": value.type, "num_leaves": value.num_leaves}
    else:
        shown = {**attributes(value), **({"items": list(value)} if isinstance(value, List) else {})}
    return treescope.repr_lib.render_object_constructor(
        object_type=type(value),
        attributes={str(k): v for k, v in shown.items()},
        path=path,
        subtree_renderer=subtree_renderer,
    )


def display(*args: Any) -> None:
    """Shows objects: with treescope in a notebook if it is installed, else as text."""
    in_notebook = False
    try:
        from IPython import get_ipython  # type: ignore[import-not-found]

        in_notebook = get_ipython() is not None
    except ImportError:
        pass
    for arg in args:
        if in_notebook:
            try:
                import treescope  # type: ignore[import-not-found]
            except ImportError:
                print(arg)
                continue
            treescope.display(arg, ignore_exceptions=True, autovisualize=True)
        else:
            print(arg)
