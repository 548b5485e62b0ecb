"""A bundle: one call of a program on disk, to be repeated elsewhere without the program's code.

A folder with three files: `inputs.npz` (the arrays of the call), `program.bin` (the program as JAX exports it:
StableHLO for the platforms it was exported for) and `bundle.json` (names and types of inputs and results, versions,
which results were not finite, and what a search said). Nothing in it is run as Python when it is read.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from sonde._atomic_files import beside, replace_folder
from sonde._npz import read_npz
from sonde._version import __version__
from sonde.errors import StoreError

_FORMAT = 1
_INPUTS, _PROGRAM, _TEXT = "inputs.npz", "program.bin", "bundle.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """What a replayed call returned.

    Attributes:
        results: The arrays, by name.
        not_finite: The names of those that are NaN or infinite somewhere.
        was_not_finite: The names that were, when the bundle was written.
    """

    results: Mapping[str, np.ndarray]
    not_finite: tuple[str, ...]
    was_not_finite: tuple[str, ...]

    @property
    def is_repeated(self) -> bool:
        """Whether the same results are not finite as when the bundle was written."""
        return self.not_finite == self.was_not_finite

    def __str__(self) -> str:
        lines = [f"{name}: {'not finite' if name in self.not_finite else 'finite'}" for name in self.results]
        if not self.is_repeated:
            before = ", ".join(self.was_not_finite) or "none"
            lines.append(f"This differs from the run that wrote the bundle. Not finite there: {before}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """A call that was read from a folder.

    Attributes:
        name: The name of the function.
        inputs: The arrays of the call, by name.
        versions: The versions of JAX, Sonde and Python that wrote it.
        answer: What the search said; empty if there was none.
        why_not_exported: Why the folder holds no program; empty if it holds one.
    """

    name: str
    inputs: Mapping[str, np.ndarray]
    versions: Mapping[str, str]
    answer: str
    why_not_exported: str
    _result_names: tuple[str, ...]
    _not_finite: tuple[str, ...]
    _program: bytes
    _export: Mapping[str, Any]

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The results of the program, by name, for inputs of the same shapes; it can be traced.

        Raises:
            StoreError: The bundle holds no program, or one for another platform.
        """
        if self.why_not_exported:
            raise StoreError(f"the bundle of {self.name} holds no program: {self.why_not_exported}")
        platforms = self._export["platforms"]
        if jax.default_backend() not in platforms:
            raise StoreError(
                f"the program of {self.name} was exported for {', '.join(platforms)}, not for {jax.default_backend()}"
            )
        with jax.enable_x64(bool(self._export["doubles"])):
            arrays = [jnp.asarray(inputs[name]) for name in self.inputs]
            types = [(tuple(shape), np.dtype(dtype)) for shape, dtype in self._export["types"]]
            # A program of the same inputs and results, in which the stored one takes the place of what it computes:
            # JAX's own serialization needs a further package.
            frame = jax.export.export(jax.jit(lambda *_: [jnp.zeros(*of) for of in types]))(*arrays)
            exported = dataclasses.replace(
                frame,
                mlir_module_serialized=self._program,
                module_kept_var_idx=tuple(self._export["kept"]),
                calling_convention_version=self._export["convention"],
                uses_global_constants=self._export["global"],
            )
            return dict(zip(self._result_names, exported.call(*arrays)))

    def replay(self) -> Replayed:
        """Runs the program on the inputs.

        Raises:
            StoreError: The bundle holds no program, or one for another platform.
        """
        results = {name: np.asarray(x) for name, x in self.call(self.inputs).items()}
        return Replayed(results, _names_of_bad(results), self._not_finite)


def write_bundle(
    folder: str | Path, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, answer: str = ""
) -> Path:
    """Writes one call of a function into a folder, which is replaced as a whole.

    The function is exported as a function of its arrays; other arguments are part of the program. A function that
    JAX cannot export, because it calls back into Python for example, is written without its program: the file says so.

    Args:
        folder: The folder.
        f: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        answer: What a search found.

    Returns:
        The folder.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp
        >>> from sonde.tools.training.bundle import read_bundle, write_bundle
        >>> folder = write_bundle(tempfile.mkdtemp() + "/bundle", jax.jit(lambda x: jnp.log(x)), (jnp.zeros(2),), {})
        >>> read_bundle(folder).replay().not_finite
        ('result',)
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    positions = [i for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
    names = [_input_name(leaves[i][0]) for i in positions]
    keys = {i: jax.random.key_impl(leaves[i][1]) for i in positions if _is_key(leaves[i][1])}
    arrays = [jax.random.key_data(x) if i in keys else x for i in positions for x in (leaves[i][1],)]
    result_names: list[str] = []

    def of_arrays(*values: Any) -> list[Any]:
        whole = [leaf for _, leaf in leaves]
        for i, value in zip(positions, values):
            whole[i] = jax.random.wrap_key_data(value, impl=keys[i]) if i in keys else value
        new_args, new_kwargs = jax.tree.unflatten(structure, whole)
        found = jax.tree_util.tree_flatten_with_path(f(*new_args, **new_kwargs))[0]
        shown = [(f"result{jax.tree_util.keystr(path)}", leaf) for path, leaf in found if hasattr(leaf, "dtype")]
        shown = [(name, jax.random.key_data(x) if _is_key(x) else x) for name, x in shown]
        result_names[:] = [name for name, _ in shown]
        return [x for _, x in shown]

    compiled = jax.jit(of_arrays)
    program, export, reason, bad = b"", {}, "", ()
    with jax.debug_nans(False), jax.debug_infs(False):
        try:
            exported = jax.export.export(compiled)(*arrays)
            program, export = exported.mlir_module_serialized, _described(exported)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        try:
            bad = _names_of_bad(dict(zip(result_names, map(np.asarray, compiled(*arrays)))))
        except Exception as error:  # a program that raises: the inputs and the answer are what remains
            reason = reason or f"{type(error).__name__} when it ran"
    stored = [_plain(np.asarray(x)) for x in arrays]
    text = {
        "format": _FORMAT,
        "name": getattr(f, "__name__", type(f).__name__),
        "versions": {"sonde": __version__, "jax": jax.__version__, "python": platform.python_version()},
        "inputs": [{"name": name, "dtype": str(np.asarray(x).dtype)} for name, x in zip(names, arrays)],
        "results": result_names,
        "not_finite": list(bad),
        "answer": answer,
        "export": export,
        "why_not_exported": reason,
    }
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(beside(str(target)))
    new.mkdir(exist_ok=True)
    named: dict[str, Any] = {f"a{i}": x for i, x in enumerate(stored)}
    np.savez(new / _INPUTS, **named)
    (new / _PROGRAM).write_bytes(program)
    (new / _TEXT).write_text(json.dumps(text, indent=2), encoding="utf-8")
    replace_folder(str(target))
    return target


def read_bundle(folder: str | Path) -> Bundle:
    """Reads what `write_bundle` wrote.

    Raises:
        StoreError: The folder holds no bundle, or a damaged one.
    """
    source = Path(folder)
    try:
        text = json.loads((source / _TEXT).read_text(encoding="utf-8"))
        if text["format"] != _FORMAT:
            raise StoreError(f"the bundle {str(source)!r} has format {text['format']}; this version reads {_FORMAT}")
        stored = read_npz(source / _INPUTS)
        inputs = {entry["name"]: _as_dtype(stored[f"a{i}"], entry["dtype"]) for i, entry in enumerate(text["inputs"])}
        return Bundle(
            text["name"],
            inputs,
            text["versions"],
            text["answer"],
            text["why_not_exported"],
            tuple(text["results"]),
            tuple(text["not_finite"]),
            (source / _PROGRAM).read_bytes(),
            text["export"],
        )
    except FileNotFoundError as error:
        raise StoreError(f"{str(source)!r} holds no bundle: {Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"the bundle {str(source)!r} is damaged: {type(error).__name__}: {error}") from error


def _described(exported: jax.export.Exported) -> dict[str, Any]:
    """What is needed besides the module itself to call an exported program."""
    if exported.ordered_effects or exported.nr_devices != 1:
        raise NotImplementedError("programs with ordered effects, or on several devices, are not written")
    return {
        "platforms": list(exported.platforms),
        "kept": list(exported.module_kept_var_idx),
        "convention": exported.calling_convention_version,
        "global": exported.uses_global_constants,
        "types": [[list(aval.shape), str(aval.dtype)] for aval in exported.out_avals],
        "doubles": jax.config.read("jax_enable_x64"),
    }


def _is_key(x: jax.Array) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _input_name(path: tuple[Any, ...]) -> str:
    """What an array of the call is called: `args[0]['w']` or `kwargs['x']`."""
    first, *others = path
    return f"{'kwargs' if first.idx else 'args'}{jax.tree_util.keystr(tuple(others))}"


def _plain(array: np.ndarray) -> np.ndarray:
    """An array of a dtype that NumPy's files have; of others, such as bfloat16, the bytes."""
    if array.dtype.kind != "V":
        return array
    return array.view({1: np.uint8, 2: np.uint16}[array.dtype.itemsize])


def _as_dtype(array: np.ndarray, name: str) -> np.ndarray:
    if str(array.dtype) == name:
        return array
    return array.view(np.dtype(name))


def _names_of_bad(results: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    return tuple(
        name
        for name, x in results.items()
        if jnp.issubdtype(x.dtype, jnp.inexact) and not bool(np.isfinite(np.asarray(x, np.complex128)).all())
    )
