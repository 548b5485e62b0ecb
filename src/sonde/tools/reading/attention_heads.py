"""What attention heads look at: the previous token, earlier copies of the token, or the tokens after those copies.

Each head gets a score for each of the three (the last is induction): the share of its attention that goes there. The
shares are computed on the device, where the attention weights are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde._array_text import indexed
from sonde._renames import accepts_old_keywords
from sonde.core import Pattern, Records, check_callable, check_patterns, inside_request, two_steps, wrapped_like
from sonde.display import WholePaths, as_text
from sonde.tools.execution.compiled_reading import CompiledReading
from sonde.tools.execution.unbatched import records_whole, seen_whole
from sonde.tools.reading.heatmap import Drawn, Heat

P = ParamSpec("P")

KINDS = ("previous", "duplicate", "induction")
"""The names of the scores."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class HeadScores(Drawn):
    """What `attention_heads` found.

    Attributes:
        names: The sites, one for each row.
        previous: The share of attention that goes to the previous token, by site and head.
        duplicate: The share that goes to earlier copies of the same token.
        induction: The share that goes to the tokens after earlier copies.
    """

    names: tuple[str, ...]
    previous: np.ndarray
    duplicate: np.ndarray
    induction: np.ndarray

    def best(self, kind: str = "induction", n: int = 5) -> list[tuple[str, int, float]]:
        """The heads with the largest share: site, head, share."""
        scores = self[kind]
        order = np.argsort(-np.nan_to_num(scores, nan=-1.0), axis=None)[:n]
        return [(self.names[i // scores.shape[1]], int(i % scores.shape[1]), float(scores.flat[i])) for i in order]

    def _heat(self) -> Heat:
        heads = self.induction.shape[1] if self.names else 0
        values = np.concatenate([self[kind] for kind in KINDS], axis=1)
        columns = [f"{kind} {head}" for kind in KINDS for head in range(heads)]
        title = "share of attention by head"
        for kind in KINDS if self.names else ():
            ((name, head, share),) = self.best(kind, 1)
            title += f"\n{kind}: most in {name}, head {head} ({share:.2f})"
        groups = [(kind, heads) for kind in KINDS]
        return Heat(values, self.names, columns, title, "head, for each kind of token it attends to", groups=groups)

    def __getitem__(self, kind: str) -> np.ndarray:
        if kind not in KINDS:
            raise KeyError(f"there is no score {kind!r}; there are {', '.join(KINDS)}")
        return getattr(self, kind)

    def __repr__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("site", *[f"{kind} (head)" for kind in KINDS], title="share of attention, the best head of each")
        for i, name in enumerate(self.names):
            best = [int(np.argmax(np.nan_to_num(self[kind][i], nan=-1.0))) for kind in KINDS]
            table.add_row(Text(name), *[f"{self[kind][i, h]:.2f} ({h})" for kind, h in zip(KINDS, best)])
        return WholePaths(table)


@accepts_old_keywords("sonde.tools.attention_heads")
@two_steps
def attention_heads(
    f: Callable[P, Any], *patterns: Pattern, token_ids: Callable[..., Any] | None = None, inside: object = None
) -> Callable[P, HeadScores]:
    """A function that runs `f` and scores its attention heads.

    Args:
        f: Any callable.
        *patterns: Sites of attention weights, `(..., heads, queries, keys)`, such as `blocks/*/attn/weights`; all with
            the same number of heads. The axes of `vmap` count.
        token_ids: A function of the arguments of `f` that returns the tokens, `(batch, length)`. The first argument, if
            None.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns `HeadScores`. For each score, only queries that have a key of
        that kind count.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: a value is not attention over the tokens.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import attention_heads
        >>> def f(tokens):
        ...     back = jnp.eye(4, k=-1)[None, None]
        ...     return sonde.sow(back, "weights")
        >>> attention_heads(f, "weights")(jnp.array([[5, 6, 5, 6]])).best("previous", 1)
        [('weights', 0, 1.0)]
    """
    check_callable(f, "attention_heads")
    chosen = check_patterns(patterns, "attention_heads")
    if not chosen:
        raise ValueError("attention_heads needs the sites of attention weights, such as 'blocks/*/attn/weights'")
    asked = inside_request(inside)

    def shares_in(args: Any, kwargs: Any) -> Callable[[jax.Array], Any]:
        text = jnp.asarray(args[0] if token_ids is None else token_ids(*args, **kwargs))
        return functools.partial(_shares, text[None] if text.ndim == 1 else text)

    def read(f: Callable[..., Any], args: Any, kwargs: Any) -> Records:
        return records_whole(f, chosen, args, kwargs, reduce=shares_in(args, kwargs), inside=asked)

    run = CompiledReading(read, f, inside=asked)

    def scored(*args: P.args, **kwargs: P.kwargs) -> HeadScores:
        shares, names, rows = shares_in(args, kwargs), [], []
        for seen, is_reduced in seen_whole(run(f, args, kwargs)):
            for index in np.ndindex(np.shape(seen.value)[: seen.loops]):
                name = f"{seen.path}[{seen.call}]" if seen.call else seen.path
                names.append(indexed(name, index) if index else name)
                rows.append(np.asarray(seen.value[index] if is_reduced else shares(seen.value[index])))
        return HeadScores(tuple(names), *np.stack(rows, 1))

    return wrapped_like(scored, f)


def _shares(text: jax.Array, weights: jax.Array) -> Any:
    """The shares of attention of each head that go to the three kinds of tokens."""
    n = text.shape[1]
    if weights.ndim < 3 or weights.shape[-2:] != (n, n):
        raise ValueError(
            f"attention_heads: a value of shape {list(weights.shape)} is not attention over {n} tokens: expected "
            f"[..., heads, {n}, {n}]"
        )
    weights = weights.reshape(-1, *weights.shape[-3:]).astype(jnp.float32)
    return jnp.stack([_share(weights, jnp.broadcast_to(m, (len(weights), n, n))) for m in _where(text)])


def _where(tokens: Any) -> list[Any]:
    """For each kind of head, which keys each query should look at: `(batch, queries, keys)`."""
    n = tokens.shape[1]
    before = jnp.tri(n, k=-1, dtype=bool)
    same = (tokens[:, :, None] == tokens[:, None, :]) & before
    after = jnp.pad(same, ((0, 0), (0, 0), (1, 0)))[:, :, :n] & jnp.tri(n, dtype=bool)
    return [jnp.eye(n, k=-1, dtype=bool)[None], same, after]


def _share(weights: jax.Array, where: Any) -> Any:
    """For each head, the mean share of attention to some keys, over the queries that have such a key."""
    has = jnp.any(where, -1)
    shares = jnp.sum(jnp.where(where[:, None], weights, 0), -1)
    count = jnp.sum(has)
    mean = jnp.sum(jnp.where(has[:, None], shares, 0), (0, 2)) / jnp.maximum(count, 1)
    return jnp.where(count > 0, mean, jnp.nan)
