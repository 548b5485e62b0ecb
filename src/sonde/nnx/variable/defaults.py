"""`var_defaults`: the default `ref` and `hijax` entries of new Variables.

Both are Flax's names for Variables that can be written from inside any function of JAX; see `array_references`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sonde.flax.flags import flag
from sonde.nnx.settings import Setting, SettingChange


class _Values(NamedTuple):
    hijax: bool | None = None  # None: the flag of `flax.config` counts
    ref: bool = False

    def changed(self, hijax: bool | None, ref: bool | None) -> _Values:
        return _Values(self.hijax if hijax is None else hijax, self.ref if ref is None else ref)


class VarDefaults(Mapping[str, bool]):
    """The defaults in force: a mapping, with its entries as attributes too."""

    def __init__(self, *, hijax: bool, ref: bool):
        self.hijax = hijax
        self.ref = ref

    def __getitem__(self, name: str) -> bool:
        return vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __repr__(self) -> str:
        return f"VarDefaults(hijax={self.hijax}, ref={self.ref})"


_NONE_SET = _Values()
_defaults = Setting(lambda: _NONE_SET)


def current() -> tuple[bool, bool]:
    """The defaults of `hijax` and `ref` in force; every new Variable asks for them."""
    hijax, ref = _defaults.current
    return flag("flax_hijax_variable") if hijax is None else hijax, ref


class VarDefaultsContext(SettingChange[_Values]):
    """Defaults that were set; as a context manager or decorator, for a block or a function only.

    If they are set inside the block of another `var_defaults`, they hold until that block ends; otherwise for good.
    """

    def __init__(self, hijax: bool | None, ref: bool | None):
        super().__init__(_defaults, _defaults.current.changed(hijax, ref), in_block=True)

    def __enter__(self) -> None:
        super().__enter__()


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> VarDefaultsContext | VarDefaults:
    """Sets the default `hijax` and `ref` of new Variables; without arguments, returns the current defaults.

    Args:
        hijax: The default `hijax`; None leaves it unchanged.
        ref: The default `ref`; None leaves it unchanged.

    Returns:
        A context manager and decorator, which may be ignored; without arguments, the defaults.

    Example:
        >>> from sonde import nnx
        >>> with nnx.var_defaults(ref=True):
        ...     nnx.Param(1.0).ref
        True
        >>> nnx.var_defaults()
        VarDefaults(hijax=False, ref=False)
    """
    if hijax is None and ref is None:
        hijax_now, ref_now = current()
        return VarDefaults(hijax=hijax_now, ref=ref_now)
    return VarDefaultsContext(hijax, ref)
