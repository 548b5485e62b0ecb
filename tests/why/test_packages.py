"""Faults in programs of other packages are named, planted ones and those that people make."""

import pytest
from tests.why.package_misuses import MISUSES
from tests.why.package_programs import FAULTS, PROGRAMS, is_installed, planted_line

import sonde

INSTALLED = [name for name in PROGRAMS if is_installed(name)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.every(24)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", INSTALLED)
def test_planted_fault_is_named(name, kind):
    f, args = PROGRAMS[name](FAULTS[kind])
    # Some solvers have results of numbers all the same, by version: then the value is one that is dropped.
    found = sonde.first_nonfinite(f, discarded=True)(*args)
    assert found is not None and (found.source, found.operation) == (planted_line(kind), kind), str(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.every(6)
@pytest.mark.parametrize("name", [name for name in MISUSES if is_installed(name)])
def test_misuse_is_named(name):
    misuse = MISUSES[name]
    f, args = misuse.make()
    found = sonde.first_nonfinite(f)(*args)
    assert found is not None and misuse.is_named(found.operation, found.source), str(found)
