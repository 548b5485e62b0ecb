"""Models of `transformers` against `sonde.models`: right, and with mistakes that are named at their operation."""

from __future__ import annotations

import re

import pytest
from tests.models.cases import CASES
from tests.port.mistakes import PLANTED, Mistake
from tests.port.originals import as_function, given, original, port

from sonde.tools import compare

pytestmark = pytest.mark.transformers


@pytest.mark.every(6)
@pytest.mark.parametrize("name", CASES)
def test_right_ports_are_called_right(name: str) -> None:
    found = compare(original(name), as_function(port(name)), grads=False)(**given(name))
    assert found.first is None, str(found)


@pytest.mark.every(9)
@pytest.mark.parametrize(("name", "mistake"), PLANTED, ids=lambda x: getattr(x, "name", x))
def test_mistakes_are_named_at_their_operation(name: str, mistake: Mistake) -> None:
    model = port(name)
    mistake.plant(model)
    found = compare(original(name), as_function(model), grads=False)(**given(name))
    assert found.first is not None and found.parting is not None
    first, second = found.parting.first[:1], found.parting.second[:1]
    named = any(re.fullmatch(mistake.sites, operation.site) for operation in second)
    assert named or any(re.fullmatch(mistake.original, str(operation)) for operation in first), str(found)
