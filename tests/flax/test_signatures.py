"""Names and arguments of the installed Flax: what it has, Sonde has, with the same positions and plain defaults.

A new release of Flax that adds a name or an argument fails here, in words. What stays different is listed, and why.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

import sonde

_SETTINGS = ("set_graph_mode", "set_graph_updates", "use_eager_sharding")
#: Members of Flax's classes that Sonde has not, or that take other arguments.
DIFFERENT = {
    "nnx": {
        # Inside of Flax's graphs: made by functions (`nnx.split`, `nnx.split_context`, ...), not by hand.
        *("GraphDef", "GraphDef.apply", "GraphDef.attributes", "GraphDef.with_matching_outer_index"),
        *("GraphDef.with_no_outer_index", "GraphDef.with_same_outer_index", "GraphState", "NodeStates"),
        *("NodeStates.replace", "MergeContext", "MergeContext.unflatten", "SplitContext", "SplitContext.flatten"),
        *("UpdateContext", "UpdateContext.flatten_end", "UpdateContext.unflatten_end"),
        "DiffState.map_prefix",  # Flax's transforms call it
        *("StateAxes", "StateSharding"),  # an argument that is given by position only
        # A method of each setting, for its subclasses in Flax.
        *(f"{name}.{member}" for name in _SETTINGS for member in ("get_default", "get_stack")),
        # Attributes with defaults in the class body, or properties; here `__init__` sets them.
        *("StateAxes.filters", "StateSharding.filters"),
        *(f"Bidirectional.{name}" for name in ("merge_fn", "return_carry", "time_major")),
        # Optional here, so that the error says what is missing.
        *("Optimizer", "Optimizer.update", "State"),
    },
    "linen": {
        *("FrozenDict.tree_flatten_with_keys", "FrozenDict.tree_unflatten"),  # `jax.tree` uses functions here
        *("Conv.shared_weights", "ConvLocal.shared_weights"),  # a property that differs between the two classes
        "Variable",  # `unbox` has a default
    },
}
_PLAIN = (bool, int, float, str, type(None))
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Fields of every Linen module. Flax takes them by position too, after all others.
_OF_ALL_MODULES = ("parent", "name")


def _parameters(function: object) -> list[inspect.Parameter] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p for p in parameters if p.name not in ("self", *_OF_ALL_MODULES)]


def _differences(theirs: object, ours: object) -> list[str]:
    wanted, had = _parameters(theirs), _parameters(ours)
    if wanted is None or had is None:
        return []
    by_name = {p.name: p for p in had}
    takes_any = [any(p.kind is kind for p in had) for kind in _ANY]
    found = []
    for p in wanted:
        mine = by_name.get(p.name)
        if p.kind in _ANY:
            continue
        if mine is None:
            if not (takes_any[1] and (p.kind is inspect.Parameter.KEYWORD_ONLY or takes_any[0])):
                found.append(f"has no argument {p.name!r}")
        elif (p.default is p.empty) != (mine.default is mine.empty):
            found.append(f"{p.name!r} is required in one of them")
        elif isinstance(p.default, _PLAIN) and isinstance(mine.default, _PLAIN) and p.default != mine.default:
            found.append(f"{p.name!r} is {mine.default!r} by default, not {p.default!r}")
    positions = [p.name for p in wanted if p.kind in _BY_POSITION]
    mine = [p.name for p in had if p.kind in _BY_POSITION]
    if positions != mine[: len(positions)] and not takes_any[0]:
        found.append(f"takes {mine} by position, not {positions}")
    return found


def _compared(theirs: object, ours: object) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in dir(theirs):
        a = getattr(theirs, name)
        if name.startswith("_") or inspect.ismodule(a):
            continue
        if not hasattr(ours, name):
            found[name] = ["missing"]
            continue
        b = getattr(ours, name)
        if not inspect.isclass(a):
            found[name] = _differences(a, b) if callable(a) else []
            continue
        found[name] = _differences(a.__init__, b.__init__)
        for member in dir(a):
            if member.startswith("_") and member != "__call__":
                continue
            if not hasattr(b, member):
                found[f"{name}.{member}"] = ["missing"]
            elif inspect.isfunction(getattr(a, member)):
                found[f"{name}.{member}"] = _differences(getattr(a, member), getattr(b, member))
    return {name: words for name, words in found.items() if words}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("face", ["nnx", "linen"])
def test_names_and_arguments(face):
    found = _compared(importlib.import_module(f"flax.{face}"), getattr(sonde, face))
    new = {name: words for name, words in found.items() if name not in DIFFERENT[face]}
    assert not new, f"flax.{face} differs: {new}"
    gone = DIFFERENT[face] - set(found)
    assert not gone, f"these agree now, take them from the list: {gone}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", ["struct", "serialization", "traverse_util", "training.train_state"])
def test_small_modules(module):
    theirs = importlib.import_module(f"flax.{module}")
    ours = importlib.import_module(f"sonde.{module}")
    for name, value in vars(theirs).items():
        if inspect.isfunction(value) and value.__module__ == theirs.__name__ and hasattr(ours, name):
            assert not _differences(value, getattr(ours, name)), name


def test_a_difference_is_said_in_words():
    def theirs(a, b=1, *, c=None):
        return a, b, c

    def ours(a, c=2):
        return a, c

    assert _differences(theirs, ours) == [
        "has no argument 'b'",
        "'c' is 2 by default, not None",
        "takes ['a', 'c'] by position, not ['a', 'b']",
    ]
