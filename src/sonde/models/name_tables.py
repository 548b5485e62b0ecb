"""Tables of names that match parameters to tensors of a checkpoint, with the layouts of the arrays.

A row gives the tensor's name, the parameters that it fills and how: a matrix is stored transposed, a fused tensor holds
several parameters. `{i}` is replaced by the number of a layer, on both sides. Splitting works on views of the file, so
nothing is copied before a device needs its part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

Array = np.ndarray
Split = Callable[[Array], tuple[Array, ...]]
Join = Callable[..., Array]


def _one(x: Array) -> tuple[Array, ...]:
    return (x,)


def _same(x: Array) -> Array:
    return x


@dataclasses.dataclass(frozen=True)
class TensorRow:
    """One tensor of a checkpoint.

    Attributes:
        theirs: Its name.
        ours: The paths of the parameters that it fills.
        split: Makes their values from it, as views.
        join: Makes it from their values.
        optional: Whether a checkpoint may lack it: tensors that some checkpoints have but the model does not need
            (`ours` is empty), or that can be derived from others.
    """

    theirs: str
    ours: tuple[str, ...]
    split: Split = _one
    join: Join = _same
    optional: bool = False

    def of_layer(self, layer: int) -> TensorRow:
        """The row for one layer."""
        number = str(layer)
        ours = tuple(name.replace("{i}", number) for name in self.ours)
        return dataclasses.replace(self, theirs=self.theirs.replace("{i}", number), ours=ours)


def plain(theirs: str, ours: str) -> TensorRow:
    """A tensor that is stored in the model's layout."""
    return TensorRow(theirs, (ours,))


def matrix(theirs: str, ours: str) -> TensorRow:
    """The kernel of a linear map, stored as `(out, in)`."""
    return TensorRow(theirs, (ours,), lambda x: (x.T,), lambda x: x.T)


def ignored(theirs: str) -> TensorRow:
    """A tensor that a checkpoint may have and that is not a parameter."""
    return TensorRow(theirs, (), lambda x: (), optional=True)


def linear(theirs: str, ours: str, *, bias: bool) -> list[TensorRow]:
    """Kernel and bias of a linear map."""
    rows = [matrix(f"{theirs}.weight", f"{ours}/kernel")]
    return [*rows, plain(f"{theirs}.bias", f"{ours}/bias")] if bias else rows


def linear_or_ignored(theirs: str, ours: str, *, wanted: bool) -> list[TensorRow]:
    """Kernel and bias of a linear map that checkpoints have whether or not their class uses it."""
    return linear(theirs, ours, bias=True) if wanted else [ignored(f"{theirs}.weight"), ignored(f"{theirs}.bias")]


def norm(theirs: str, ours: str, *, bias: bool = False) -> list[TensorRow]:
    """Scale and bias of a norm."""
    rows = [plain(f"{theirs}.weight", f"{ours}/scale")]
    return [*rows, plain(f"{theirs}.bias", f"{ours}/bias")] if bias else rows


def fused(
    theirs: str, ours: Iterable[str], widths: Iterable[int], *, bias: bool, transposed: bool = True
) -> list[TensorRow]:
    """Linear maps whose outputs are concatenated in one tensor.

    Args:
        theirs: The name of the map.
        ours: The paths of the maps.
        widths: The number of outputs of each.
        bias: Whether they have biases.
        transposed: Whether the kernel is stored as `(out, in)`.
    """
    ends = np.cumsum(list(widths))[:-1]
    paths = tuple(ours)

    def split(x: Array) -> tuple[Array, ...]:
        return tuple(np.split(x.T if transposed else x, ends, axis=-1))

    def join(*parts: Array) -> Array:
        whole = np.concatenate(parts, axis=-1)
        return whole.T if transposed else whole

    rows = [TensorRow(f"{theirs}.weight", tuple(f"{path}/kernel" for path in paths), split, join)]
    if bias:
        biases = tuple(f"{path}/bias" for path in paths)
        rows.append(
            TensorRow(
                f"{theirs}.bias",
                biases,
                lambda x: tuple(np.split(x, ends)),
                lambda *parts: np.concatenate(parts),
            )
        )
    return rows


def expand(rows: Iterable[TensorRow], layers: int) -> Iterator[TensorRow]:
    """The rows of all layers."""
    for row in rows:
        if "{i}" in row.theirs:
            yield from (row.of_layer(layer) for layer in range(layers))
        else:
            yield row
