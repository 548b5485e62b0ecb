"""Ports of PyTorch's models to Flax, Equinox and Haiku: right ones, and mistakes that are named at their operation."""

from __future__ import annotations

import pytest
from tests.port.library_ports import PLANTED, PORTS, is_found

from sonde.tools import compare

pytestmark = pytest.mark.transformers


@pytest.mark.parametrize("name", PORTS)
def test_right_ports_are_called_right(name: str) -> None:
    port = PORTS[name]
    found = compare(port.original(), port.port(port.weights(), ""))(*port.given)
    assert found.first is None, str(found)
    assert sum(not d.gradient for d in found.results) == 1


@pytest.mark.every(6)
@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_mistakes_are_named_at_their_operation(name: str, mistake: str) -> None:
    port = PORTS[name]
    found = compare(port.original(), port.port(port.weights(), mistake), grads=False)(*port.given)
    assert found.first is not None
    assert is_found(name, mistake, found.parting), str(found)
