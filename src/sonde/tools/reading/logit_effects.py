"""`logit_effects`: which tokens does each feature or neuron raise and lower, by what it writes into the stream?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sonde.core import JitByStaticPart
from sonde.display import InNotebook, WholePaths
from sonde.tools.reading.token_labels import TokenNames, shown_by


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LogitEffects(InNotebook):
    """The tokens that each unit raises and lowers most.

    Attributes:
        raised: Units by tokens: those with the largest effects, the largest first.
        raised_by: How large the effects are.
        lowered: Those with the smallest effects, the smallest first.
        lowered_by: How large these are.
    """

    raised: np.ndarray
    raised_by: np.ndarray
    lowered: np.ndarray
    lowered_by: np.ndarray

    def table(self, unit: int, tokenizer: TokenNames | None = None) -> Any:
        """A rich table of the tokens that a unit raises and lowers.

        Args:
            unit: The number of the unit.
            tokenizer: Turns tokens into strings, as in `Lens.table`.
        """
        from rich.table import Table
        from rich.text import Text

        show = shown_by(tokenizer)
        table = Table("raised", "by", "lowered", "by", title=f"unit {unit}")
        for up, size, down, less in zip(
            self.raised[unit], self.raised_by[unit], self.lowered[unit], self.lowered_by[unit]
        ):
            table.add_row(Text(show(int(up))), f"{size:.3g}", Text(show(int(down))), f"{less:.3g}")
        return table

    def __repr__(self) -> str:
        return f"LogitEffects({len(self.raised)} units, {self.raised.shape[1]} tokens each)"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        title = f"{self!r}; .table(unit, tokenizer) shows the tokens"
        table = Table("unit", "raises most", "by", "lowers most", "by", title=Text(title))
        for unit in np.argsort(-self.raised_by[:, 0], kind="stable")[:20]:
            up, down = f"token {self.raised[unit, 0]}", f"token {self.lowered[unit, 0]}"
            table.add_row(str(unit), up, f"{self.raised_by[unit, 0]:.3g}", down, f"{self.lowered_by[unit, 0]:.3g}")
        return WholePaths(table)


def logit_effects(directions: ArrayLike, unembed: Callable[[Any], Any], *, k: int = 10) -> LogitEffects:
    """The tokens whose logits directions raise and lower most.

    Effects are counted from their mean over all tokens: a constant that is added to all logits changes no probability.

    Args:
        directions: Units by width: what each writes into the stream, such as `dictionary.decoder[...]`.
        unembed: A linear function of vectors that returns logits: the output layer after the scale of the last norm,
            such as `lambda h: model.embed.attend(h * model.norm.scale[...])`.
        k: How many tokens to keep.

    Raises:
        ValueError: `unembed` is not linear, or there are fewer than `k` tokens.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde.tools import logit_effects
        >>> effects = logit_effects(jnp.eye(2), lambda h: h @ jnp.array([[1.0, 0, 5], [0, 4, -3]]), k=1)
        >>> print(effects.raised[:, 0], effects.lowered[:, 0])
        [2 1] [1 2]
    """
    rows = jnp.asarray(directions)
    if rows.ndim != 2 or k < 1:
        raise ValueError(f"logit_effects: directions are units by width and k at least 1, got {rows.shape} and {k}")
    found = jax.device_get(JitByStaticPart.shared(functools.partial(_effects, unembed, k), unembed)(None, rows))
    *tokens, twice = found
    if not np.allclose(twice[:, 0], 2 * twice[:, 1], rtol=1e-2, atol=1e-3 * np.abs(twice).max(initial=1e-30)):
        raise ValueError("logit_effects: unembed is not linear: twice a direction does not have twice the effect")
    return LogitEffects(*tokens)


def _effects(unembed: Callable[[Any], Any], k: int, _: None, rows: jax.Array) -> tuple[jax.Array, ...]:
    return jax.lax.map(lambda row: _of_row(row, unembed, k), rows, batch_size=64)


def _of_row(row: jax.Array, unembed: Callable[[Any], Any], k: int) -> tuple[jax.Array, ...]:
    def effect(x: jax.Array) -> jax.Array:
        logits = unembed(x).astype(jnp.float32)
        if logits.ndim != 1 or len(logits) < k:
            raise ValueError(f"logit_effects: unembed returned logits of shape {logits.shape}, which has no {k} tokens")
        return logits - jnp.mean(logits)

    logits = effect(row)
    up, raised = jax.lax.top_k(logits, k)
    down, lowered = jax.lax.top_k(-logits, k)
    # The largest effect of twice the direction, to see whether the function is linear.
    return raised, up, lowered, -down, jnp.stack([effect(2 * row)[raised[0]], up[0]])
