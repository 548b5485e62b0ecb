"""Reading files that may be damaged or hostile: one error type, limits before memory is taken, paths that stay inside.

Every file of a checkpoint is read through here: JSON by `read_json`, names of other files by `inside`, and whatever
fails in ways of its own within `reading`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, NoReturn

from sonde.errors import ModelFileError

LARGEST_JSON = 1 << 27  # bytes
_MOST_ENTRIES = 1 << 20  # of JSON; an index has one for each tensor
_LARGEST_ARRAY = 1 << 50  # elements


@contextlib.contextmanager
def reading(where: str | Path, what: str = "it") -> Iterator[None]:
    """Turns whatever goes wrong in a block into a ModelFileError that names the file and what was read.

    Args:
        where: The file.
        what: The part that is read.
    """
    try:
        yield
    except ModelFileError as error:
        message = str(error.args[0])
        if str(where) in message:
            raise
        raise ModelFileError(f"{where}: {message}") from error.__cause__
    except (ModuleNotFoundError, FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as error:
        _refuse(where, what, error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of packages written in Rust
            raise
        _refuse(where, what, error)


def _refuse(where: str | Path, what: str, error: BaseException) -> NoReturn:
    said = str(error).strip().splitlines() or [""]
    raise ModelFileError(f"{where}: {what} cannot be read ({type(error).__name__}: {said[0][:200]}).") from error


def opened(path: Path) -> BinaryIO:
    """A file, opened for reading.

    Raises:
        ModelFileError: It is something else than a file, such as a pipe, which may never answer.
    """
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} is not a file.")
    return path.open("rb")


def is_size(shape: Sequence[int]) -> bool:
    """Whether an array may have this shape, also if it has no elements."""
    return math.prod(max(size, 1) for size in shape) <= _LARGEST_ARRAY


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelFileError: It is too large, not JSON, or not an object.
    """
    with opened(path) as file:
        data = file.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise ModelFileError(f"{path} has {path.stat().st_size} bytes; at most {LARGEST_JSON} are read.")
    return parse_object(data, path)


def parse_object(data: bytes, where: str | Path) -> dict[str, Any]:
    """The object that JSON describes; an entry that is there twice is an error.

    Raises:
        ModelFileError: It is not JSON, not an object, or has too many entries.
    """
    if data.count(b",") > _MOST_ENTRIES:  # an entry takes far more memory than its text
        raise ModelFileError(f"{where} has more than {_MOST_ENTRIES} entries.")
    try:
        value = json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{where} must hold an object, but holds {_kind(value)}.")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the entry {twice!r} is there twice")
    return entries


def inside(folder: Path, name: Any, where: str | Path) -> Path:
    """A file of a folder by the name that another file gives it.

    Links are followed: the cache of Hugging Face consists of them.

    Raises:
        ModelFileError: The name is not that of a file in the folder.
    """
    if isinstance(name, str) and name and "\0" not in name:
        both = PurePosixPath(name), PureWindowsPath(name)
        if not any(path.is_absolute() or path.drive or path.root or ".." in path.parts for path in both):
            return folder / name
    raise ModelFileError(f"{where} names {name!r}, which is not a file in {folder}.")


# ---------------------------------------------------------------------------------------------------------------------
# The entries of a config
# ---------------------------------------------------------------------------------------------------------------------

_LAYERS, _SIZE, _LENGTH = 10_000, 1 << 24, 1 << 40
_COUNTS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), (1, _LAYERS)),
    **dict.fromkeys(
        (
            "hidden_size", "n_embd", "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
            "intermediate_size", "n_inner", "image_size", "patch_size", "num_channels", "projection_dim",
            "sliding_window_pattern", "_sliding_window_pattern",
        ),
        (1, _SIZE),
    ),
    **dict.fromkeys(("vocab_size", "type_vocab_size"), (0, _SIZE)),
    "sliding_window": (1, _LENGTH),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "original_max_position_embeddings"), (0, _LENGTH)),
    "pad_token_id": (-_SIZE, _SIZE),
}  # fmt: skip
_NUMBERS = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rotary_emb_base", "rotary_pct",
    "partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
    "rope_local_base_freq", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "attention_factor", "mscale", "mscale_all_dim",
)  # fmt: skip
_TEXTS = (
    "hidden_act", "hidden_activation", "activation_function", "model_type", "position_embedding_type", "rope_type",
    "type", "pooling",
)  # fmt: skip
_FLAGS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "use_parallel_residual", "qk_layernorm", "is_decoder",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "use_bidirectional_attention", "add_pooling_layer",
    "truncate", "qkv_bias", "use_sliding_window",
)  # fmt: skip
_OBJECTS = ("rope_scaling", "rope_parameters", "id2label", "text_config", "vision_config")
_LISTS = {"architectures": str, "layer_types": str, "short_factor": float, "long_factor": float}
# `null` means something else than no entry.
_NULL_SAYS = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "pad_token_id", "pooling")


def checked_config(raw: Any) -> dict[str, Any]:
    """A config whose entries have the types and ranges that they must have; the rest of it unchanged.

    `null` is left out where it says no more than a missing entry.

    Raises:
        ModelFileError: An entry cannot be what it is; the message names it.
    """
    if not isinstance(raw, Mapping):
        raise ModelFileError(f"a config must be an object, got {_kind(raw)}.")
    return {name: _checked(name, name, value) for name, value in raw.items() if value is not None or name in _NULL_SAYS}


def _checked(name: str, at: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _COUNTS:
        least, most = _COUNTS[name]
        if type(value) is not int or not least <= value <= most:
            _odd(at, f"a whole number from {least} to {most}", value)
    elif name in _NUMBERS:
        if type(value) not in (int, float) or not math.isfinite(value):
            _odd(at, "a finite number", value)
    elif name in _TEXTS and not isinstance(value, str):
        _odd(at, "a text", value)
    elif name in _FLAGS and not isinstance(value, bool):
        _odd(at, "true or false", value)
    elif name in _LISTS:
        kind = (int, float) if _LISTS[name] is float else (_LISTS[name],)
        if not isinstance(value, list) or not all(type(one) in kind for one in value):
            _odd(at, f"a list of {'numbers' if float in kind else 'texts'}", value)
    elif name in _OBJECTS:
        if not isinstance(value, Mapping):
            _odd(at, "an object", value)
        if name != "id2label":
            return {key: _checked(key, f"{at}.{key}", one) for key, one in value.items() if one is not None}
    elif at.startswith("rope_parameters.") and isinstance(value, Mapping):  # one object for each kind of layer
        return {key: _checked(key, f"{at}.{key}", one) for key, one in value.items() if one is not None}
    return value


def _odd(at: str, expected: str, value: Any) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise ModelFileError(f"the entry {at!r} of the config must be {expected}, but is {shown}.")


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), f"a {type(value).__name__}")
