"""`top_examples`: on which texts and positions is each unit of a site most active, and how often is it active at all?

Units are along the last axis: features of a dictionary that was spliced in, or neurons. Only the best few values of
each unit are kept, on the device; a corpus of any length takes the same memory, except for its tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    ByPath,
    InsideRequest,
    JitByStaticPart,
    Pattern,
    StaticPart,
    arrays_in,
    capture,
    check_callable,
    check_pattern,
    inside_request,
    static_and_arrays,
)
from sonde.display import InNotebook, WholePaths
from sonde.tools.execution.record_values import each_seen
from sonde.tools.reading.token_labels import TokenNames, shown_by

POWERS: np.ndarray = np.concatenate([[0.0], 2.0 ** np.arange(-10, 11), [np.inf]])
"""The ends of the bins of `UnitExamples.histogram`."""


class Example(NamedTuple):
    """A place where a unit is active.

    Attributes:
        value: How active.
        text: The number of the text.
        position: The position in it.
        before: The tokens before it.
        token: The token there.
        after: The tokens after it.
    """

    value: float
    text: int
    position: int
    before: tuple[int, ...]
    token: int
    after: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class UnitExamples(InNotebook):
    """The examples of the units of one site.

    Attributes:
        values: Units by examples: how active, the most active first; not more than 0 where there are no more.
        texts: The number of the text of each.
        positions: The position of each.
        density: For each unit, the share of all positions at which it is active.
        mean: For each unit, the mean value where it is active; 0 if it never is.
        histogram: Units by bins: at how many positions the value lies between one of `POWERS` and the next; the first
            bin begins at 0, the last has no end.
        tokens: The tokens of all texts.
    """

    values: np.ndarray
    texts: np.ndarray
    positions: np.ndarray
    density: np.ndarray
    mean: np.ndarray
    histogram: np.ndarray
    tokens: Sequence[np.ndarray]

    def of(self, unit: int, *, context: int = 8) -> list[Example]:
        """The examples of a unit, with some tokens before and after."""
        found = []
        for value, text, position in zip(self.values[unit], self.texts[unit], self.positions[unit]):
            if value > 0:
                tokens = [int(token) for token in self.tokens[text]]
                around = (
                    tuple(tokens[max(0, position - context) : position]),
                    tuple(tokens[position + 1 : position + 1 + context]),
                )
                found.append(Example(float(value), int(text), int(position), around[0], tokens[position], around[1]))
        return found

    def table(self, unit: int, tokenizer: TokenNames | None = None, *, context: int = 8) -> Any:
        """A rich table of the examples of a unit, with the token in bold.

        Args:
            unit: The number of the unit.
            tokenizer: Turns tokens into strings, as in `Lens.table`.
            context: How many tokens to show before and after.
        """
        from rich.table import Table
        from rich.text import Text

        show = shown_by(tokenizer)
        title = f"unit {unit}: active at {self.density[unit]:.3%} of the positions, {self.mean[unit]:.3g} on average"
        table = Table("value", "text", "context", title=title)
        for example in self.of(unit, context=context):
            line = Text("".join(map(show, example.before)))
            line.append(show(example.token), style="bold reverse")
            line.append("".join(map(show, example.after)))
            table.add_row(f"{example.value:.3g}", f"{example.text}:{example.position}", line)
        return table

    def rows(self) -> Iterator[tuple[int, float, float, str]]:
        """The units, those that reach the largest values first: number, largest value, density, and where it is."""
        for unit in np.argsort(-self.values[:, 0], kind="stable"):
            at = f"{self.texts[unit, 0]}:{self.positions[unit, 0]}" if self.values[unit, 0] > 0 else "never active"
            yield int(unit), float(self.values[unit, 0]), float(self.density[unit]), at

    def __repr__(self) -> str:
        dead = int((self.density == 0).sum())
        return f"UnitExamples({len(self.density)} units, {dead} never active, on {len(self.tokens)} texts)"

    def __rich__(self) -> Any:
        return _shown({"": self}, f"{self!r}; .table(unit, tokenizer) shows the text around each", 20)


class TopExamples(ByPath[UnitExamples], InNotebook):
    """The examples by path."""

    def __repr__(self) -> str:
        return f"TopExamples({dict(self)})"

    def __rich__(self) -> Any:
        return _shown(self, "the most active units; [path].table(unit, tokenizer) shows the text around each", 5)


def _shown(examples: Mapping[str, UnitExamples], title: str, most: int) -> WholePaths:
    """A rich table of the most active units of each site."""
    from rich.table import Table
    from rich.text import Text

    table = Table("site", "unit", "most", "active at", "text:position", title=Text(title))
    for path, units in examples.items():
        for unit, value, density, at in itertools.islice(units.rows(), most):
            table.add_row(*map(Text, (path, str(unit), f"{value:.3g}", f"{density:.3%}", at)))
    return WholePaths(table)


def top_examples(
    f: Callable[..., Any],
    *patterns: Pattern,
    k: int = 10,
    tokens: Callable[..., Any] | None = None,
    inside: object = None,
) -> Callable[[Iterable[Any]], TopExamples]:
    """A function that runs `f` on batches and returns where the units of its sites are most active.

    Args:
        f: Any callable.
        *patterns: Which sites: values `(texts, length, units)` or `(length, units)`, such as `**/features` of a program
            with a dictionary spliced in, or `blocks/*/mlp/hidden`.
        k: How many examples to keep of each unit.
        tokens: A function of the arguments of `f` that returns the tokens, `(texts, length)` or `(length,)`. By default
            the first argument.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function of batches, each the arguments of `f` as a tuple, or the only one. It returns `TopExamples`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: there are no batches, or a value does not have a position for each token.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import top_examples
        >>> def f(tokens):
        ...     return sonde.sow(jnp.eye(5)[tokens] * tokens[..., None], "h")
        >>> found = top_examples(f, "h", k=2)([jnp.array([[1, 3, 4], [3, 2, 1]])])
        >>> found["h"].of(3, context=1)[1]
        Example(value=3.0, text=1, position=0, before=(), token=3, after=(2,))
        >>> print(found["h"].density.round(2))
        [0.   0.33 0.17 0.33 0.17]
    """
    check_callable(f, "top_examples")
    if not patterns:
        raise ValueError("top_examples: name the sites, such as **/features or blocks/*/mlp/hidden")
    if k < 1:
        raise ValueError(f"top_examples: k is at least 1, got {k}")
    of_arguments = tokens or (lambda *args: args[0])
    asked = inside_request(inside)
    update = JitByStaticPart.shared(functools.partial(_update, tuple(map(check_pattern, patterns)), k, asked), f)

    def examples(batches: Iterable[Any]) -> TopExamples:
        best: dict[str, _Best] = {}
        texts: list[np.ndarray] = []
        positions = 0
        for batch in batches:
            args = batch if isinstance(batch, tuple) else (batch,)
            of_batch = np.atleast_2d(np.asarray(of_arguments(*args)))
            static, arrays = static_and_arrays((f, args, {}), asked)
            best = update(static, arrays, best, np.int32(len(texts)), of_batch.shape)
            texts += list(of_batch)
            positions += of_batch.size
        if not texts:
            raise ValueError("top_examples: there are no batches")
        found = {}
        for path, units in jax.device_get(best).items():
            mean = units.total / np.maximum(units.count, 1)
            kept = units.values, units.texts, units.positions
            counts = np.diff(units.above, axis=1, append=0)
            found[path] = UnitExamples(*kept, units.count / positions, mean, -counts, texts)
        return TopExamples(found)

    return examples


class _Best(NamedTuple):
    """The best examples so far: units by examples; and over all positions, by unit, how many, how large, how spread."""

    values: Any
    texts: Any
    positions: Any
    count: Any
    total: Any
    above: Any


def _update(
    patterns: tuple[Pattern, ...],
    k: int,
    asked: InsideRequest | None,
    static: StaticPart,
    arrays: list[Any],
    best: dict[str, _Best],
    first: Any,
    shape: Any,
) -> dict[str, _Best]:
    f, args, kwargs = static.whole(arrays)
    _, records = capture(f, *patterns, inside=asked)(*args, **kwargs)
    new = {}
    for seen in each_seen(records):
        name = f"{seen.path}[{seen.call}]" if seen.call else seen.path
        (value,) = arrays_in(seen.value)
        if value.ndim < 2 or value.size % value.shape[-1] or seen.loops:
            raise ValueError(f"top_examples: {name!r} has the shape {list(value.shape)}, not (texts, length, units)")
        new[name] = _merged(best.get(name), value, k, first)
    return new


def _merged(best: _Best | None, value: jax.Array, k: int, first: Any) -> _Best:
    length, units = value.shape[-2:]
    rows = value.reshape(-1, units).astype(jnp.float32).T
    active = rows > 0
    top, which = jax.lax.top_k(rows, min(k, rows.shape[1]))
    ends = jnp.asarray(POWERS[:-1], jnp.float32)
    above = jax.lax.map(
        lambda end: (rows > end).sum(1), ends
    ).T  # one after the other, to hold one comparison at a time
    total = jnp.where(active, rows, 0).sum(1)
    now = _Best(top, first + which // length, which % length, active.sum(1), total, above)
    if best is None:
        return now
    joined = [jnp.concatenate(pair, 1) for pair in zip(best[:3], now[:3])]
    values, order = jax.lax.top_k(joined[0], min(k, joined[0].shape[1]))
    texts, positions = (jnp.take_along_axis(x, order, 1) for x in joined[1:])
    sums = (best.count + now.count, best.total + now.total, best.above + now.above)
    return _Best(values, texts, positions, *sums)
