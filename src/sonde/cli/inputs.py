"""Reads the arguments of a function from a file of arrays.

In an `.npz` file the name of an array is the name of a parameter, or `arg0`, `arg1`, ... for the first, the second, ...
argument. (`numpy.savez(path, x, y)` writes `arr_0` and `arr_1`, which are read the same way.) An `.npy` file holds the
first argument.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sonde._npz import read_npy, read_npz
from sonde.cli.exit_codes import Unusable

Arrays = Mapping[str, Any]
_BY_NUMBER = re.compile(r"(?:arg|arr_)(\d+)")


def read_arrays(path: str | Path) -> dict[str, Any]:
    """The arrays of a file, by name."""
    path = Path(path)
    if not path.is_file():
        raise Unusable(f"There is no file {str(path)!r} to read inputs from.")
    try:
        if not zipfile.is_zipfile(path):
            return {"arg0": _for_jax("the array", read_npy(path), path)}
        return {name: _for_jax(f"array {name!r}", array, path) for name, array in read_npz(path).items()}
    except (OSError, ValueError) as error:
        raise Unusable(
            f"{str(path)!r} cannot be read as an .npz or .npy file: {error}. numpy.savez(path, x=...) writes one."
        ) from error


def read_tokens(path: str | Path) -> list[str]:
    """The strings of a file: a JSON list, or the lines of a text."""
    path = Path(path)
    if not path.is_file():
        raise Unusable(f"There is no file {str(path)!r} to read tokens from.")
    try:
        text = path.read_text(encoding="utf-8")
        tokens = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise Unusable(f"{str(path)!r} cannot be read as a list of tokens: {error}") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise Unusable(f"{str(path)!r} must hold a JSON list of strings, one for each position.")
    return tokens


def _for_jax(label: str, array: np.ndarray, path: Path) -> Any:
    import jax.numpy as jnp  # not sooner: `sonde.cli.target` says why

    try:
        return jnp.asarray(array)
    except (TypeError, ValueError) as error:
        raise Unusable(
            f"{label[0].upper()}{label[1:]} of {str(path)!r} has dtype {array.dtype}, which JAX does not support."
        ) from error


def with_arrays(
    f: Callable, args: tuple[Any, ...], kwargs: Mapping[str, Any], arrays: Arrays, target: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments, in which arrays replace those of the same name.

    Example:
        >>> with_arrays(lambda x, y, scale=1: ..., (1, 2), {}, {"arg1": 5, "scale": 7}, "m:f")
        ((1, 5, 7), {})
    """
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        signature = None
    parameters = list(signature.parameters.values()) if signature else []
    by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name for p in parameters if p.kind == p.KEYWORD_ONLY}
    open_ended = {p.kind for p in parameters} | ({inspect.Parameter.VAR_POSITIONAL} if signature is None else set())

    places = dict(enumerate(args))
    named = dict(kwargs)
    for name, array in arrays.items():
        number = _BY_NUMBER.fullmatch(name)
        if name in by_place:
            places[by_place.index(name)] = array
            named.pop(name, None)
        elif name in by_name or (not number and inspect.Parameter.VAR_KEYWORD in open_ended):
            named[name] = array
        elif number and (int(number[1]) < len(by_place) or inspect.Parameter.VAR_POSITIONAL in open_ended):
            places[int(number[1])] = array
        else:
            parameter_names = [*by_place, *sorted(by_name)]
            near = "".join(f"; nearest: {n}" for n in difflib.get_close_matches(name, parameter_names, n=1))
            has = (
                f"Its parameters are {', '.join(parameter_names)}{near}" if parameter_names else "It has no parameters"
            )
            raise Unusable(f"{target} has no parameter for the array {name!r} of the input file. {has}.")

    # After a gap, only names can tell which parameter is meant.
    filled: list[Any] = []
    while len(filled) in places:
        filled.append(places.pop(len(filled)))
    for place, array in sorted(places.items()):
        if place >= len(by_place):
            raise Unusable(
                f"The input file for {target} has an array for argument {place}, but none for {len(filled)}."
            )
        named[by_place[place]] = array
    if signature is not None:
        try:
            signature.bind(*filled, **named)
        except TypeError as error:
            raise Unusable(
                f"{target} cannot be called with the arrays {', '.join(arrays) or '(none)'} of the input file: {error}"
            ) from error
    return tuple(filled), named
