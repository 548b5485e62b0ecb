"""Runs a program with only some of the edges between components; the others are cut.

At every receiver, what a sender writes along a cut edge is replaced by what it wrote in the other run:

    input := input - (sender now - sender in the other run), for every cut edge

"Now" means in the same run, in which earlier receivers already have changed inputs. Senders may be in another iteration
of a scan, or in another jitted function, so the program is run until the values stop changing: every run is right for
one more component than the run before, and there are at most as many runs as senders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.capture import capture
from sonde.core.path import Pattern
from sonde.core.pure import JitByRest, Rest, rest_and_arrays
from sonde.tools.attribution import number_of
from sonde.tools.placing import Occurrence, placed, values_to_place
from sonde.tools.points import Target
from sonde.tools.reading import each_seen

Pair = tuple[str, str]  # sender, receiver


class Pruned:
    """A program whose edges can be cut.

    Args:
        pairs: All edges.
        sending: The senders.
        receiving: The receivers.
        metric: A function of the program's result; None if the result is the number.
        inside: As in `sonde.capture`.
        given: The program, its arguments and keyword arguments, and the arguments of the other run.
    """

    def __init__(
        self,
        pairs: Collection[Pair],
        sending: tuple[Pattern, ...],
        receiving: tuple[Pattern, ...],
        metric: Callable[[Any], Any] | None,
        inside: Any,
        given: tuple[Any, ...],
    ) -> None:
        self._pairs = frozenset(pairs)
        self._senders = tuple(dict.fromkeys(sender for sender, _ in pairs))
        self._receivers = tuple(dict.fromkeys(receiver for _, receiver in pairs))
        self._sending, self._receiving, self._metric, self._inside = sending, receiving, metric, inside
        self._given = given
        self._compiled = JitByRest(self._run)

    def metric_with(self, kept: Collection[Pair]) -> float:
        """The metric of the program with these edges alone; all others are cut."""
        cut = np.zeros((len(self._senders), len(self._receivers)), np.float32)
        for sender, receiver in self._pairs.difference(kept):
            cut[self._senders.index(sender), self._receivers.index(receiver)] = 1
        rest, arrays = rest_and_arrays((*self._given, cut), self._inside)
        return float(self._compiled(rest, arrays))

    def _run(self, rest: Rest, arrays: Any) -> Any:
        f, _, kwargs, other, cut = rest.whole(arrays)
        _, records = capture(f, *self._sending, inside=self._inside)(*other, **kwargs)
        before = {name: records[name].value for name in self._senders}
        f, args, kwargs, _, _ = rest.whole(arrays)
        _, records = values_to_place(f, *self._receiving, inside=self._inside)(*args, **kwargs)
        targets = [Target.of(seen, ()) for seen in each_seen(records, stacked=True)]

        def with_cut(now: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
            """The metric and the senders' values, if cut edges remove the given values."""
            less = {name: now[name] - before[name] for name in self._senders}
            taken = {(t.seen.path, t.seen.call): (t, self._taken_off(t, less, cut)) for t in targets}

            def rule(values: list[Any], place: Occurrence) -> list[Any]:
                target, off = taken.get((place.path, place.call), (None, None))
                if target is None:
                    return values
                here, at = place.within(target.seen)
                return [x - jnp.where(here, at.slice_of(off, i), 0).astype(x.dtype) for i, x in enumerate(values)]

            f, args, kwargs, _, _ = rest.whole(arrays)
            result, records = capture(placed(f, rule, self._inside), *self._sending, inside=self._inside)(
                *args, **kwargs
            )
            return number_of(self._metric, result), {name: records[name].value for name in self._senders}

        def step(state: Any) -> Any:
            now, _, n, _ = state
            number, new = with_cut(now)
            same = [jnp.all(new[name] == now[name]) for name in self._senders]
            return new, number, n + 1, jnp.all(jnp.stack(same))

        number, now = with_cut(before)
        state = (now, number, 0, False)
        return jax.lax.while_loop(lambda s: ~s[3] & (s[2] <= len(self._senders)), step, state)[1]

    def _taken_off(self, target: Target, less: Mapping[str, Any], cut: Any) -> Any:
        """What the cut edges subtract from the input of a receiver, in all rows of a loop."""
        whole = next(x for x in jax.tree.leaves(target.seen.value) if hasattr(x, "dtype"))
        own = whole.shape[len(target.loops) :]
        alike = [i for i, name in enumerate(self._senders) if less[name].shape == own]
        rows = [jnp.zeros(own, jnp.float32)] * target.points
        if alike:
            changes = jnp.stack([less[self._senders[i]] for i in alike])
            for name, (_, number) in target.scores(np.arange(target.points)).items():
                if name in self._receivers:
                    chosen = cut[np.asarray(alike), self._receivers.index(name)]
                    rows[int(number)] = jnp.tensordot(chosen, changes, 1)
        return jnp.stack(rows).reshape(whole.shape)


def fewest(most: int, enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough. Assumes that more is never worse and that `most` is enough."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
