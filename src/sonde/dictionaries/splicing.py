"""Splices a dictionary into a program in place of a value: its features become sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import sonde
from sonde.core.path import Pattern
from sonde.dictionaries.dictionary import Dictionary


def splice(
    f: Callable, dictionaries: Mapping[Pattern, Dictionary], *, keep_error: bool = False, inside: Any = None
) -> Callable:
    """`f` with values replaced by their reconstructions from dictionaries.

    A capture of the result sees the features below the path of each site, as in `blocks/3/out/features`; `ablate`,
    `attribute` and `edit` reach them there.

    Args:
        f: Any callable.
        dictionaries: For each pattern, an autoencoder for the values at its sites.
        keep_error: Whether to add the reconstruction error back, so that the result stays the same until features are
            changed. No gradient flows through the error.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments and results of `f`.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, splice
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h").sum()
        >>> autoencoder = Dictionary(4, 8, rngs=nnx.Rngs(0))
        >>> _, records = sonde.capture(splice(f, {"h": autoencoder}), "**/features")(jnp.ones((3, 4)))
        >>> records["h/features"].value.shape
        (3, 8)
    """
    for pattern, dictionary in dictionaries.items():
        if dictionary.d_in != dictionary.d_out:
            raise ValueError(
                f"splice: the dictionary for {pattern!r} is a transcoder, from {dictionary.d_in} to "
                f"{dictionary.d_out}: only an autoencoder can replace a value"
            )

    def rule(dictionary: Dictionary) -> Callable[[Any], Any]:
        def replaced(x: Any) -> Any:
            # Not `dictionary(x)`: in a model, a module that is not part of it has a scope of its own.
            features = dictionary.activate(dictionary.pre_activations(x.astype(jnp.float32)))
            found = dictionary.decode(sonde.sow(features, "features"))
            if keep_error:
                found = found + jax.lax.stop_gradient(x - dictionary.decode(features))
            return found.astype(x.dtype)

        return replaced

    return sonde.edit(f, {pattern: rule(dictionary) for pattern, dictionary in dictionaries.items()}, inside=inside)
