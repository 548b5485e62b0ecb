"""Types for annotations, under the names that Flax uses.

Code written for Flax imports `Array`, `Shape` or `PrecisionLike` from `flax.linen.linear` and other files. Every path
that `sonde._import_paths` makes offers these names too; the names of the modules it stands for come first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

Array = jax.Array | Any
PRNGKey = jax.Array
Dtype = jax.typing.DTypeLike | Any
DType = np.dtype | type[Any]
DTypeLike = jax.typing.DTypeLike
DtypeLikeInexact = Any
Shape = Sequence[int]
Axis = int | None
Axes = int | Sequence[int]
Size = int
AxisName = str | tuple[str, ...] | None
AxisIndex = int
Initializer = jax.nn.initializers.Initializer | Callable[..., Any]
PrecisionLike = None | str | jax.lax.Precision | tuple[str, str] | tuple[jax.lax.Precision, jax.lax.Precision]
DotGeneralT = Callable[..., Array]
EinsumT = Callable[..., Array]
ConvGeneralDilatedT = Callable[..., Array]
PaddingLike = str | int | Sequence[int | tuple[int, int]]
LaxPadding = str | Sequence[tuple[int, int]]

Key = Hashable
Path = str
PathParts = tuple[Hashable, ...]
Leaf = Any
Index = int
Names = Sequence[int]
Sharding = tuple[AxisName, ...]
LogicalNames = tuple[str | None, ...]
LogicalRules = Sequence[tuple[str, AxisName]]
LogicalPartitionSpec = Any
LogicalPartitionSpecPytree = Any
PartitionSpecPytree = Any
ArrayPytree = Any

Collection = Mapping[str, Any]
MutableCollection = dict[str, Any]
VariableDict = Mapping[str, Mapping[str, Any]]
FrozenVariableDict = Mapping[str, Mapping[str, Any]]
MutableVariableDict = dict[str, dict[str, Any]]
CollectionFilter = bool | str | Any
PRNGSequenceFilter = bool | str | Any
PRNGFoldable = int | str
RNGSequences = dict[str, jax.Array]
InOutAxis = int | None | Any
InOutScanAxis = int | Any
ScanAxis = int
Interceptor = Callable[..., Any]
NextGetter = Callable[..., Any]


class PromoteDtypeFn(Protocol):
    """A function that brings arrays to one dtype, as `linen.dtypes.promote_dtype` does."""

    def __call__(self, *args: Any, dtype: Any = None, inexact: bool = True, **kwargs: Any) -> Any:
        """The arrays, in their common dtype or in the requested one."""
        ...


class Missing:
    """The class of `MISSING`."""


MISSING = Missing()
