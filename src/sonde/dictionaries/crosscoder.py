"""Crosscoders: features that several sites share.

A crosscoder reads the values of several sites at once, such as the stream after several layers or one layer of two
models, and writes all of them. It is a dictionary of the values in a row, one after the other; the length of a
feature's decoder row is the sum of its lengths at the sites. A feature that is short at one site belongs to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.dictionaries.dictionary import Activation, Dictionary


class Crosscoder(Dictionary):
    """A sparse autoencoder of several sites with one set of features.

    Args:
        width: The width of the value at each site.
        n_features: How many features there are.
        sites: How many sites.
        activation: As for a `Dictionary`.
        k: As for a `Dictionary`.
        threshold: As for a `Dictionary`.
        nested: As for a `Dictionary`.
        rngs: Random streams; `params` is used.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Crosscoder
        >>> made = Crosscoder(8, 32, sites=2, rngs=nnx.Rngs(0))
        >>> before, after = made([jnp.ones((5, 8)), jnp.zeros((5, 8))])
        >>> before.shape, made.shares().shape
        ((5, 8), (32, 2))
    """

    def __init__(
        self,
        width: int,
        n_features: int,
        *,
        sites: int,
        activation: Activation = "relu",
        k: int | None = None,
        threshold: float = 0.01,
        nested: Sequence[int] = (),
        rngs: nnx.Rngs,
    ) -> None:
        if sites < 1:
            raise ValueError(f"a crosscoder has at least one site, got sites={sites}")
        self.sites = sites
        super().__init__(
            width * sites, n_features, activation=activation, k=k, threshold=threshold, centered=False, nested=nested,
            rngs=rngs,
        )  # fmt: skip

    @property
    def width(self) -> int:
        """The width of the value at each site."""
        return self.d_in // self.sites

    def joined(self, values: jax.Array | Sequence[jax.Array]) -> jax.Array:
        """The values of all sites in a row.

        Args:
            values: An array for each site, or one array with the sites along the last axis but one.

        Raises:
            ValueError: There are more sites or fewer, or a value is not as wide.
        """
        parts = list(values) if isinstance(values, (list, tuple)) else list(jnp.moveaxis(jnp.asarray(values), -2, 0))
        shapes = [jnp.shape(part) for part in parts]
        if len(parts) != self.sites or any(shape != shapes[0] or shape[-1:] != (self.width,) for shape in shapes):
            raise ValueError(
                f"a crosscoder of {self.sites} sites takes as many values of width {self.width}, got the shapes "
                f"{shapes}"
            )
        return jnp.concatenate([jnp.asarray(part, jnp.float32) for part in parts], -1)

    def encode(self, x: Any) -> jax.Array:
        """The features of the values of all sites."""
        return super().encode(self.joined(x))

    def outputs(self, features: jax.Array) -> list[jax.Array]:
        """The value of each site that features represent."""
        return jnp.split(self.decode(features), self.sites, -1)

    def __call__(self, x: Any) -> Any:
        """The reconstruction of the value of each site."""
        return self.outputs(self.encode(x))

    def lengths(self) -> jax.Array:
        """How long each feature's decoder row is at each site: features by sites."""
        return jnp.linalg.norm(self.decoder[...].reshape(self.n_features, self.sites, -1), axis=-1)

    def row_lengths(self) -> jax.Array:
        """The sum of a feature's lengths at all sites."""
        return jnp.sum(self.lengths(), -1)

    def shares(self) -> jax.Array:
        """How much of each feature belongs to each site, from 0 to 1: features by sites."""
        return self.lengths() / jnp.maximum(self.row_lengths(), 1e-12)[:, None]
