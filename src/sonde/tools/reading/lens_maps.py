"""Maps from values of a layer to those of the last one: what `jacobian_lens` and `tuned_lens` return."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sonde import _extras
from sonde._atomic_files import replaced_file
from sonde._torch_files import read_torch
from sonde.core import no_such_site
from sonde.display import InNotebook, WholePaths
from sonde.errors import StoreError


class LensMap(NamedTuple):
    """A map for one site: `matrix @ value + bias`."""

    matrix: np.ndarray
    bias: np.ndarray

    def __call__(self, value: jax.Array) -> jax.Array:
        """The value as it would be in the last layer."""
        wide = value.astype(jnp.float32)
        return (wide @ jnp.asarray(self.matrix).T + jnp.asarray(self.bias)).astype(value.dtype)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LensMaps(Mapping[str, LensMap], InNotebook):
    """Maps by path.

    Attributes:
        maps: The maps.
        texts: How many texts they were made from.
        losses: For trained maps, by path: the loss at each step.
    """

    maps: dict[str, LensMap]
    texts: int
    losses: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __getitem__(self, path: str) -> LensMap:
        if path not in self.maps:
            raise no_such_site(path, self.maps)
        return self.maps[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)

    def __repr__(self) -> str:
        return f"LensMaps({list(self.maps)}, from {self.texts} texts)"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("site", "matrix", "first loss", "last loss", title=f"maps from {self.texts} texts")
        for path, fitted in self.maps.items():
            losses = self.losses.get(path, np.zeros(0))
            ends = [f"{x:.4g}" for x in (losses[0], losses[-1])] if len(losses) else ["", ""]
            table.add_row(*map(Text, (path, "x".join(map(str, fitted.matrix.shape)), *ends)))
        return WholePaths(table)

    def direction(self, path: str, vector: ArrayLike) -> jax.Array:
        """The direction at a site that a vector of the last layer reads, of length one.

        With the row of the output layer for a token, times the scale of the last norm, it is what the lens reads that
        token from: add it with `steer`.

        Args:
            path: The site.
            vector: A vector of the last layer, such as `model.embed.embedding[token] * model.norm.scale`.
        """
        along = jnp.asarray(vector, jnp.float32) @ jnp.asarray(self[path].matrix)
        return along / jnp.linalg.norm(along)

    def swap(
        self, path: str, source: ArrayLike, target: ArrayLike, *, strength: float = 1.0
    ) -> Callable[[jax.Array], jax.Array]:
        """An edit that moves what a site says along one direction to another: `sonde.edit(f, {path: maps.swap(...)})`.

        Args:
            path: The site.
            source: A vector of the last layer, as for `direction`: what is taken away.
            target: Another one: what takes its place.
            strength: How much of it.
        """
        from_, to = self.direction(path, source), self.direction(path, target)

        def swapped(value: jax.Array) -> jax.Array:
            wide = value.astype(jnp.float32)
            part = (wide @ from_)[..., None]
            return (wide + strength * part * (to - from_)).astype(value.dtype)

        return swapped

    def save(self, file: str | os.PathLike[str], path: str = "blocks/*/out") -> None:
        """Writes a Jacobian lens as the package `jlens` does: a file of PyTorch, with the matrices by layer.

        Args:
            file: The file.
            path: The path of all sites, with a `*` for the number of the layer.

        Raises:
            ValueError: A map has a bias, or a path is not of this form.
        """
        torch = _extras.load("torch", extra="torch", purpose="A Jacobian lens on disk")
        before, _, after = path.partition("*")
        numbers = {}
        for name, each in self.items():
            number = name.removeprefix(before).removesuffix(after)
            if not number.isdecimal() or name != f"{before}{number}{after}":
                raise ValueError(f"LensMaps.save: {name!r} is not {path!r} with a number")
            if np.any(each.bias):
                raise ValueError(f"LensMaps.save: the map of {name!r} has a bias, for which the file has no place")
            numbers[int(number)] = torch.from_numpy(np.array(each.matrix, np.float32))
        width = len(next(iter(self.maps.values())).bias)
        stored = {"J": numbers, "n_prompts": self.texts, "d_model": width, "source_layers": sorted(numbers)}
        with replaced_file(Path(file)) as place:
            torch.save(stored, str(place))

    @classmethod
    def load(cls, file: str | os.PathLike[str], path: str = "blocks/*/out") -> LensMaps:
        """Reads a Jacobian lens that `save` or the package `jlens` has written, without PyTorch or code in the file.

        Args:
            file: The file.
            path: The path of all sites, with a `*` for the number of the layer.

        Raises:
            FileNotFoundError: There is no such file.
            StoreError: It is damaged, or holds something else.
        """
        try:
            stored = read_torch(Path(file))
            matrices = {int(layer): np.asarray(matrix, np.float32) for layer, matrix in stored["J"].items()}
            texts, width = int(stored["n_prompts"]), int(stored["d_model"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{str(file)!r} does not hold a Jacobian lens ({type(error).__name__}: {error})"
            ) from error
        for layer, matrix in matrices.items():
            if matrix.shape != (width, width):
                raise StoreError(
                    f"{str(file)!r}: the matrix of layer {layer} has the shape {matrix.shape}, not {width}"
                )
        zeros = np.zeros(width, np.float32)
        return cls({path.replace("*", str(i)): LensMap(matrices[i], zeros) for i in sorted(matrices)}, texts)
