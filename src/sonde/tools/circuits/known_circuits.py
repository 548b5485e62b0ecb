"""Models that say where their components write into the stream and read it, such as the decoders of `sonde.models`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sonde.core import Pattern, check_patterns


@runtime_checkable
class KnowsItsCircuit(Protocol):
    """A model that says where its components write and read."""

    def circuit_sites(self) -> tuple[Sequence[str], Sequence[str], Mapping[str, int]]:
        """The senders, the receivers, and the axes for heads."""
        ...


class Circuit(NamedTuple):
    """Where components write and read, and the axes for heads."""

    senders: tuple[Pattern, ...]
    receivers: tuple[Pattern, ...]
    split: dict[Pattern, int]


def circuit_of(
    f: object,
    senders: Pattern | Sequence[Pattern] | None,
    receivers: Pattern | Sequence[Pattern] | None,
    split: Mapping[Pattern, int] | None,
    verb: str,
) -> Circuit:
    """What was asked for; what is None comes from the model.

    Raises:
        ValueError: It is needed, and the program does not say it.
    """
    if isinstance(f, KnowsItsCircuit) and (senders is None or receivers is None or split is None):
        its_senders, its_receivers, axes = f.circuit_sites()
        senders = its_senders if senders is None else senders
        receivers = its_receivers if receivers is None else receivers
        split = {**axes} if split is None else split
    if senders is None or receivers is None:
        raise ValueError(
            f"{verb}: {type(f).__name__!r} does not say where its components write and read, as the decoders of "
            "sonde.models do; name senders and receivers"
        )
    return Circuit(check_patterns(senders, verb), check_patterns(receivers, verb), dict(split or {}))
