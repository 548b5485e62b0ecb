"""Ports of PyTorch's models to Flax, Equinox and Haiku: right ones, and mistakes that are named at their operation."""

from __future__ import annotations

import pytest
from tests.port import library_ports, more_library_ports

from sonde.tools import compare

pytestmark = pytest.mark.transformers

PORTS = library_ports.PORTS | more_library_ports.PORTS
PLANTED = [
    (name, mistake, module.LACKING)
    for module in (library_ports, more_library_ports)
    for name, port in module.PORTS.items()
    for mistake in port.mistakes.split()
]


@pytest.mark.parametrize("name", PORTS)
def test_right_ports_are_called_right(name: str) -> None:
    port = PORTS[name]
    found = compare(port.original(), port.port(port.weights(), ""))(*port.given)
    assert found.first is None, str(found)
    assert sum(not d.gradient for d in found.results) == 1


@pytest.mark.every(6)
@pytest.mark.parametrize(("name", "mistake", "lacking"), PLANTED, ids=lambda x: x if isinstance(x, str) else "")
def test_mistakes_are_named_at_their_operation(name: str, mistake: str, lacking: dict[str, str]) -> None:
    port = PORTS[name]
    found = compare(port.original(), port.port(port.weights(), mistake), grads=False)(*port.given)
    assert found.first is not None
    assert library_ports.is_found(port, mistake, lacking, found.parting), str(found)
