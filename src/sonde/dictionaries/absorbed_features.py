"""Feature absorption: a feature that should be active is not, because others have taken over what it says.

A probe says along which direction of the activations a property is, such as "begins with L". One or several features
say the same. On some inputs these are silent, or weak, and the property is written by more special features, such as
one for "lion": they have absorbed it. The measure is that of Chanin et al. as SAEBench computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sonde.dictionaries.dictionary import Dictionary

_SILENT = 1e-8
_ALONG_FOR_ONE, _ALONG_FOR_SEVERAL = 0.025, 0.1  # the least cosine of a feature that absorbs with the probe
_MOST_ABSORBING, _LEAST_SHARE = 3, 0.4  # how many features may absorb together, and how much of the property


@dataclasses.dataclass(frozen=True)
class Absorption:
    """What `absorption` found.

    Attributes:
        shares: For each input, how much of the property up to three other features have absorbed: from 0 to 1.
        is_full: For each input, whether all of its main features are silent and one other feature has absorbed it.
    """

    shares: np.ndarray
    is_full: np.ndarray

    @property
    def mean(self) -> float:
        """The mean share."""
        return float(self.shares.mean())

    @property
    def full(self) -> float:
        """The fraction of the inputs whose property one other feature has absorbed."""
        return float(self.is_full.mean())


def absorption(dictionary: Dictionary, vectors: ArrayLike, direction: ArrayLike, features: Sequence[int]) -> Absorption:
    """How much of a property other features have absorbed.

    Args:
        dictionary: An autoencoder.
        vectors: Activations of inputs that have the property, and of which the probe says so: one row each.
        direction: The direction of the probe, such as its weights; its length does not count.
        features: The numbers of the features that stand for the property: its main features.

    Raises:
        ValueError: There are no inputs or features, or shapes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, absorption
        >>> made = Dictionary(2, 2, centered=False, rngs=nnx.Rngs(0))
        >>> made.encoder[...], made.decoder[...] = jnp.array([[1.0, 0.0], [-1.0, 1.0]]), jnp.eye(2).at[1, 0].set(1.0)
        >>> absorption(made, [[1.0, 0.0], [1.0, 1.0]], [1.0, 0.0], [0]).shares
        array([0., 1.], dtype=float32)
    """
    rows, probe = np.atleast_2d(np.asarray(vectors, np.float32)), np.asarray(direction, np.float32)
    main = np.unique(np.asarray(features, np.int64))
    if not len(rows) or not len(main) or main[0] < 0 or main[-1] >= dictionary.n_features:
        raise ValueError(
            f"absorption: there must be inputs, and features below {dictionary.n_features}; got {len(rows)} inputs and "
            f"the features {main.tolist()}"
        )
    if rows.shape[1:] != probe.shape or probe.shape != (dictionary.d_out,) or not np.linalg.norm(probe) > 0:
        raise ValueError(
            f"absorption: inputs of shape {list(rows.shape)}, a direction of shape {list(probe.shape)} and a "
            f"dictionary that writes {dictionary.d_out} numbers do not fit, or the direction is zero"
        )
    active, along = jax.device_get(_along(dictionary, rows, probe / np.linalg.norm(probe)))
    cosines = along / np.maximum(np.asarray(dictionary.row_lengths()), _SILENT)
    written, whole = active * along, rows @ (probe / np.linalg.norm(probe))
    of_main = written[:, main].sum(1)
    others = np.where(cosines >= _ALONG_FOR_SEVERAL, np.maximum(written, 0), 0)
    others[:, main] = 0
    of_others = np.sort(others, 1)[:, -_MOST_ABSORBING:].sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = np.minimum(of_others, whole - of_main)
        shares = np.where(of_main <= 0, 1.0, np.clip(taken / (taken + of_main), 0, 1))
        shares = np.where((of_main >= whole) | ~(of_others / whole >= _LEAST_SHARE), 0.0, shares)
        top = written.argmax(1)
        enough = written[np.arange(len(rows)), top] / whole >= _LEAST_SHARE
    is_silent = (active[:, main] < _SILENT).all(1)
    is_full = is_silent & (cosines[top] >= _ALONG_FOR_ONE) & (whole >= 0) & enough
    return Absorption(shares.astype(np.float32), is_full)


@jax.jit
def _along(dictionary: Dictionary, rows: jax.Array, probe: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is active, and how much of the direction each feature writes when it is 1."""
    return dictionary.encode(rows), jnp.matmul(dictionary.decoder[...], probe, precision="highest")
