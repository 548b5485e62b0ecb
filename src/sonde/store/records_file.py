"""Records as one file: `save` and `load`. Other programs can read the arrays; the rest is JSON, never pickle.

A file that ends in `.npz` is NumPy's, any other is safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _extras, _jax
from sonde._atomic_files import replaced_file
from sonde._npz import read_npz
from sonde.core import Records, layout_from_json, layout_to_json
from sonde.errors import StoreError
from sonde.store.format.folder import PathLike

FORMAT = "sonde.records.1"


def save(records: Records, file: PathLike) -> None:
    """Writes the records of a capture to one file.

    Args:
        records: What `sonde.capture` returned.
        file: The file to write, `.safetensors` or `.npz`; replaced as a whole.

    Raises:
        TypeError: A value has parts outside dicts, lists and tuples, or is still being traced.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> _, records = sonde.capture(lambda x: sonde.sow(x * 2, "h"))(jnp.ones(3))
        >>> file = tempfile.mkdtemp() + "/records.safetensors"
        >>> store.save(records, file)
        >>> store.load(file)["h"].value
        Array([2., 2., 2.], dtype=float32)
    """
    if not isinstance(records, Records):
        raise TypeError(f"save takes the records of a capture, got {type(records).__name__}")
    arrays, layout = records.tree_flatten()
    said = json.dumps({"format": FORMAT, "layout": layout_to_json(layout), "kinds": [_kind(x) for x in arrays]})
    named = {f"{i:05d}": _numbers(x) for i, x in enumerate(arrays)}
    write = _write_npz if Path(file).suffix == ".npz" else _write_safetensors
    with replaced_file(file) as partial:
        write(partial, named, said)


def load(file: PathLike) -> Records:
    """Reads what `save` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: The file holds something else, or is damaged.
    """
    source = Path(file)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {str(source)!r}")
    try:
        named, said = _read_npz(source) if source.suffix == ".npz" else _read_safetensors(source)
        data = json.loads(said)
        if data["format"] != FORMAT:
            raise KeyError(data["format"])
        arrays = [_array(named[f"{i:05d}"], kind) for i, kind in enumerate(data["kinds"])]
        return Records.of_layout(layout_from_json(data["layout"]), arrays)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise StoreError(
            f"{str(source)!r} does not hold records that Sonde saved ({type(error).__name__}: {error})"
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# Arrays
# ---------------------------------------------------------------------------------------------------------------------


def _kind(array: Any) -> dict[str, Any]:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return {"key": str(jax.random.key_impl(array))}
    return {"dtype": array.dtype.name}


def _numbers(array: Any) -> np.ndarray:
    if isinstance(array, _jax.Tracer):
        raise TypeError("save needs numbers, but the records are being traced: call it outside jit, vmap and grad")
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.ascontiguousarray(array)


def _array(numbers: np.ndarray, kind: dict[str, Any]) -> Any:
    if "key" in kind:
        return jax.random.wrap_key_data(jnp.asarray(numbers), impl=kind["key"])
    return jnp.asarray(numbers.view(jnp.dtype(kind["dtype"])))


def _write_npz(file: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    own = {n: x if _is_own(x) else _as_integers(x) for n, x in arrays.items()}
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, sonde=np.frombuffer(said.encode(), np.uint8), **own)


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], str]:
    arrays = read_npz(file)
    return arrays, arrays.pop("sonde").tobytes().decode()


def _safetensors(module: str) -> Any:
    return _extras.load(module, extra="safetensors", purpose="A .safetensors file")


def _write_safetensors(file: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    known = {
        n: x if x.dtype.isbuiltin == 1 or x.dtype.name == "bfloat16" else _as_integers(x) for n, x in arrays.items()
    }
    _safetensors("safetensors.numpy").save_file(known, str(file), {"sonde": said})


def _read_safetensors(file: Path) -> tuple[dict[str, np.ndarray], str]:
    with _safetensors("safetensors").safe_open(str(file), "numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()["sonde"]  # noqa: SIM118


def _is_own(array: np.ndarray) -> bool:
    """Whether the dtype is one of NumPy's own."""
    return array.dtype.isbuiltin == 1


def _as_integers(array: np.ndarray) -> np.ndarray:
    """The bits of an array whose dtype is not one of NumPy's own."""
    return array.view(f"uint{8 * array.dtype.itemsize}")
