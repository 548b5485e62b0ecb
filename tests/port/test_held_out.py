"""Mistakes in ports that the search was not written for are found at their operation, or at the call around it."""

from __future__ import annotations

import pytest
from tests.port.held_out import MISTAKES, PORTS, lines_of

from sonde.tools import compare

PLANTED = [(port, mistake) for port, mistakes in MISTAKES.items() for mistake in mistakes]


@pytest.mark.every(2)
@pytest.mark.parametrize("port", PORTS)
def test_right_ports_are_called_right(port: str) -> None:
    original, ported, given = PORTS[port]
    found = compare(original, ported)(given)
    assert found.first is None and not found.unchecked, str(found)


@pytest.mark.thorough  # of the last mistake, `head`, only the differing result is named
@pytest.mark.parametrize(("port", "mistake"), PLANTED)
def test_planted_mistakes_are_found_at_their_operation(port: str, mistake: str) -> None:
    original, ported, given = PORTS[port]
    found = compare(original, lambda x: ported(x, mistake), grads=False)(given)
    assert found.first is not None and found.parting is not None
    operations = (*found.parting.first[:1], *found.parting.second[:1])
    sources = {line for operation in operations for line in (operation.source, *operation.callers[:1])}
    assert sources & lines_of(mistake), str(found.parting)
    assert found.parting.cause is None or found.parting.cause.agreement < 1e-5
