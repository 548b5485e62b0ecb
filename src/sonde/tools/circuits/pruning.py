"""Which edges does a program need? Runs it with some of them, and searches for few that are enough.

More edges are not always better: edges that work against each other may be kept or cut together. No search here assumes
that the metric grows with the number of edges.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import JitByStaticPart, StaticPart
from sonde.tools.circuits.edge_runs import Asked, Program
from sonde.tools.reading.heatmap import Drawn, Heat

Pair = tuple[str, str]  # sender, receiver
Search = Literal["threshold", "greedy", "exact"]
_AT_A_TIME = 16
_MOST_FOR_EXACT = 16


@dataclasses.dataclass(frozen=True)
class Curve(Drawn):
    """How faithful the strongest edges are.

    Attributes:
        shares: How many edges were kept, as fractions of all.
        sizes: How many edges that is.
        faithfulness: For each: 1 is the run that is explained, 0 the baseline.
    """

    shares: tuple[float, ...]
    sizes: tuple[int, ...]
    faithfulness: tuple[float, ...]

    @property
    def area(self) -> float:
        """The area under the curve over the share of edges: high if few edges do most (CPR in MIB)."""
        return float(np.trapezoid(self.faithfulness, self.shares))

    @property
    def distance(self) -> float:
        """The area between the curve and 1: low if few edges do what the whole program does (CMD in MIB)."""
        return float(np.trapezoid(np.abs(1 - np.asarray(self.faithfulness)), self.shares))

    def _heat(self) -> Heat:
        columns = [f"{size} edges" for size in self.sizes]
        return Heat(
            np.array([self.faithfulness]), ["faithfulness"], columns, f"area {self.area:.3g}", "strongest edges"
        )


class Pruned:
    """A program whose edges can be cut, on one batch or several.

    Args:
        senders: The names of the senders.
        receivers: The names of the receivers.
        exists: Which edges there are.
        asked: What `attribute_edges` was asked for.
        calls: The calls: the program, its arguments and keyword arguments, and the arguments of the other run, as
            arrays and the rest.
        output: The mean metric of the runs that are explained.
        baseline: The mean metric of the other runs.
    """

    def __init__(
        self,
        senders: Sequence[str],
        receivers: Sequence[str],
        exists: np.ndarray,
        asked: Asked,
        calls: Sequence[tuple[StaticPart, list[Any]]],
        output: float,
        baseline: float,
    ) -> None:
        self._senders = {name: i for i, name in enumerate(senders)}
        self._receivers = {name: i for i, name in enumerate(receivers)}
        numbers = np.argwhere(exists).tolist()
        self.pairs: frozenset[Pair] = frozenset((senders[s], receivers[r]) for s, r in numbers)
        self._exists, self._calls = exists, calls
        self._output, self._baseline = output, baseline
        self._with_sets = JitByStaticPart.shared(functools.partial(_metrics, asked))

    def faithfulness(self, kept: Collection[Pair]) -> float:
        """How faithful the program is with these edges alone."""
        return float(self._faithful([self._cut(kept)])[0])

    def curve(self, order: Sequence[Pair], shares: Sequence[float]) -> Curve:
        """How faithful the first edges are, for several shares of all."""
        sizes = [int(share * len(order)) for share in shares]
        found = self._faithful([self._cut(order[:n]) for n in sizes])
        return Curve(tuple(map(float, shares)), tuple(sizes), tuple(map(float, found)))

    def search(self, how: Search, order: Sequence[Pair], away: float) -> list[int]:
        """Few edges that are enough.

        Args:
            how: `"threshold"`, `"greedy"` or `"exact"`.
            order: The edges, the strongest first.
            away: How far from 1 the faithfulness may be.

        Returns:
            Which of them, as numbers.

        Raises:
            ValueError: There are too many for an exact search, or not even all are enough.
        """
        searches: dict[str, Callable[[Sequence[Pair], float], list[int] | None]] = {
            "threshold": self._by_threshold,
            "greedy": self._greedily,
            "exact": self._exactly,
        }
        if how not in searches:
            raise ValueError(f"prune: search= is one of {', '.join(searches)}, got {how!r}")
        kept = searches[how](order, away)
        if kept is None:
            raise ValueError(
                f"prune: with all {len(order)} edges the faithfulness is {self.faithfulness(order):.4g}, and no set "
                f"that was tried is within {away:.4g} of 1"
            )
        return kept

    def _by_threshold(self, order: Sequence[Pair], away: float) -> list[int] | None:
        for start in range(0, len(order) + 1, _AT_A_TIME):
            sizes = range(start, min(start + _AT_A_TIME, len(order) + 1))
            enough = self._enough([self._cut(order[:n]) for n in sizes], away)
            if enough.any():
                return list(range(sizes[int(np.argmax(enough))]))
        return None

    def _greedily(self, order: Sequence[Pair], away: float) -> list[int] | None:
        kept = list(range(len(order)))
        if not self._enough([self._cut(order)], away)[0]:
            return None
        waiting = kept[::-1]
        while waiting:
            # The next few are tried together: if only some can be cut, the first that cannot is known to be needed.
            trying = waiting[:_AT_A_TIME]
            sets = [[order[i] for i in kept if i not in trying[: n + 1]] for n in range(len(trying))]
            enough = self._enough([self._cut(s) for s in sets], away)
            cut = len(trying) if enough.all() else int(np.argmin(enough))
            kept = [i for i in kept if i not in trying[:cut]]
            waiting = waiting[min(cut + 1, len(trying)) :]
        return kept

    def _exactly(self, order: Sequence[Pair], away: float) -> list[int] | None:
        if len(order) > _MOST_FOR_EXACT:
            raise ValueError(
                f"prune: an exact search tries all sets of edges, so there may be {_MOST_FOR_EXACT} edges at most, got "
                f"{len(order)}; prune them by threshold or greedily first"
            )
        for n in range(len(order) + 1):
            combinations = itertools.combinations(range(len(order)), n)
            while sets := list(itertools.islice(combinations, _AT_A_TIME)):
                enough = self._enough([self._cut([order[i] for i in chosen]) for chosen in sets], away)
                if enough.any():
                    return list(sets[int(np.argmax(enough))])
        return None

    def _enough(self, cuts: Sequence[np.ndarray], away: float) -> np.ndarray:
        return np.abs(1 - self._faithful(cuts)) <= away

    def _cut(self, kept: Collection[Pair]) -> np.ndarray:
        cut = self._exists.astype(np.float32)
        for sender, receiver in kept:
            cut[self._senders[sender], self._receivers[receiver]] = 0
        return cut

    def _faithful(self, cuts: Sequence[np.ndarray]) -> np.ndarray:
        """The faithfulness of the program with some edges cut, for several sets of edges."""
        found = np.zeros(0)
        for start in range(0, len(cuts), _AT_A_TIME):
            some = list(cuts[start : start + _AT_A_TIME])
            padding = 0 if len(cuts) == 1 else _AT_A_TIME - len(some)  # one program for any number of sets
            stacked = np.stack(some + some[-1:] * padding)
            numbers = np.zeros(len(stacked))
            for rest, arrays in self._calls:
                numbers += np.asarray(self._with_sets(rest, arrays, stacked), np.float64) / len(self._calls)
            found = np.concatenate([found, numbers[: len(some)]])
        lost = (self._output - self._baseline) or float("nan")
        return (found - self._baseline) / lost


def _metrics(asked: Asked, rest: StaticPart, arrays: list[Any], cuts: Any) -> Any:
    program = Program(asked, rest, arrays)
    return jax.lax.map(program.metric_with, jnp.asarray(cuts))
