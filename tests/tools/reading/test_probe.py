"""Probes against scikit-learn's logistic regression, which minimises the same loss."""

from __future__ import annotations

import numpy as np
import pytest

from sonde.errors import NoSuchSiteError
from sonde.tools import probe

RNG = np.random.default_rng(0)
SCALES = np.geomspace(0.3, 3, 8)  # badly scaled, as activations are
X = {f"blocks/{i}/out": (RNG.standard_normal((300, 8)) @ RNG.standard_normal((8, 8)) * SCALES + i) for i in range(3)}


@pytest.mark.parametrize(("n_classes", "C"), [(2, 0.01), (4, 1.0)])
def test_the_fit_is_that_of_scikit_learn(n_classes, C):
    from sklearn.linear_model import LogisticRegression  # takes two seconds, in one process is enough

    rng = np.random.default_rng(n_classes)
    x = X["blocks/1/out"]
    score = (x - x.mean(0)) / x.std(0) @ rng.standard_normal((8, n_classes))
    y = (score + rng.gumbel(size=score.shape)).argmax(1)
    found = probe(X, y, C=C, test_fraction=0.25, tolerance=1e-6, max_steps=500)
    order = np.random.default_rng(0).permutation(300)
    apart, fitted = np.sort(order[:75]), np.sort(order[75:])
    for path, x in X.items():
        other = LogisticRegression(C=C, max_iter=2000, tol=1e-7).fit(x[fitted], y[fitted])
        if n_classes == 2:
            mine, theirs = found.weights[path][:, 1] - found.weights[path][:, 0], other.coef_[0]
        else:
            mine, theirs = found.weights[path].T, other.coef_
        np.testing.assert_allclose(mine, theirs, rtol=0.05, atol=0.02 * np.abs(theirs).max())
        assert found.accuracy[path] == pytest.approx(other.score(x[apart], y[apart]), abs=0.02)
        assert (found.predict(path, x[apart]) == other.predict(x[apart])).mean() > 0.97
    assert found.accuracy["blocks/1/out"] == max(found.accuracy.values())
    assert found.baseline == pytest.approx((y[apart] == np.bincount(y[fitted]).argmax()).mean())


def test_labels_of_any_kind_and_pictures():
    y = np.where(X["blocks/0/out"][:, 0] > 0, "cat", "dog")
    found = probe(X, y, "blocks/0/*")
    assert found.paths == ("blocks/0/out",) and set(found.predict("blocks/0/out", X["blocks/0/out"])) == {"cat", "dog"}
    assert "blocks/0/out" in found._repr_html_() and "blocks/0/out" in repr(found)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="'blocks/0/out' has 300 rows, and there are 299 labels"):
        probe(X, np.arange(299) % 2)
    with pytest.raises(ValueError, match="at least two different labels"):
        probe(X, np.zeros(300))
    with pytest.raises(NoSuchSiteError):
        probe(X, np.arange(300) % 2, "layers/*")
