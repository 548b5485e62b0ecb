"""Path patching: the effect of a sender on a receiver, with everything between them held constant.

Two runs for every pair. In the first, on the corrupt input, the sender has its clean value and all other components
have the values of the corrupt run, so that the change reaches the receiver directly or not at all. The second is the
corrupt run with the receiver's input from the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde._renames import accepts_inputs_first
from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    Records,
    StaticPart,
    Supplied,
    Where,
    capture,
    check_callable,
    check_patterns,
    explains_arguments,
    inside_request,
    put_by_rule,
    static_and_arrays,
)
from sonde.errors import CaptureError
from sonde.tools.circuits.edge_nodes import in_unnamed_loop
from sonde.tools.execution.record_values import Seen, chooses, each_seen
from sonde.tools.intervention.patch_values import SELECTED, recorded_here, values_to_place
from sonde.tools.intervention.sweep import restored_title
from sonde.tools.intervention.sweep_points import Axes, PointRule, Target, checked_axes
from sonde.tools.reading.heatmap import Drawn, Heat, by_last_axis

R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Paths(Drawn):
    """What `patch_paths` found.

    Attributes:
        scores: By sender and receiver, the metric with this path clean: a number, or an array with one axis for each of
            `axis`.
        clean: The metric of the run on the clean input.
        corrupt: The metric of the run on the corrupt input.
    """

    scores: dict[tuple[str, str], jax.Array]
    clean: jax.Array
    corrupt: jax.Array

    @property
    def restored(self) -> dict[tuple[str, str], np.ndarray]:
        """The scores on a scale from 0, the corrupt run, to 1, the clean run."""
        lost = (float(self.clean) - float(self.corrupt)) or float("nan")
        return {pair: (np.asarray(s, np.float64) - float(self.corrupt)) / lost for pair, s in self.scores.items()}

    def _heat(self) -> Heat:
        found = {f"{a} -> {b}": x for (a, b), x in self.restored.items()}
        return by_last_axis(found, restored_title(self.clean, self.corrupt), "index of the sender")

    def best(self, n: int = 5) -> list[tuple[str, str, tuple[int, ...], float]]:
        """The `n` paths that restore most: sender, receiver, index and restored part."""
        points = [(*pair, index, float(x)) for pair, r in self.restored.items() for index, x in np.ndenumerate(r)]
        return sorted(points, key=lambda point: -point[3])[:n]

    def __repr__(self) -> str:
        ends = f"{float(self.corrupt):.6g} (corrupt) to {float(self.clean):.6g} (clean)"
        return f"Paths({len(self.scores)} pairs, {ends})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("from", "to", "at", "restored", title=restored_title(self.clean, self.corrupt))
        best = self.best(sum(np.size(x) for x in self.scores.values()))
        for sender, receiver, index, x in best[:_SHOWN]:
            table.add_row(Text(sender), Text(receiver), ",".join(map(str, index)), f"{x:.3f}")
        if len(best) > _SHOWN:
            table.add_row(f"... and {len(best) - _SHOWN} more", "", "", "")
        return WholePaths(table)


_SHOWN = 30


@accepts_inputs_first("sonde.tools.patch_paths", ("senders", "receivers", "metric"))
@explains_arguments
def patch_paths(
    f: Callable[..., R],
    senders: Pattern | Sequence[Pattern],
    receivers: Pattern | Sequence[Pattern],
    *,
    metric: Callable[[R], Any],
    frozen: Pattern | Sequence[Pattern] | None = None,
    axis: int | Sequence[int] | None = None,
    split: Mapping[Pattern, int] | None = None,
    inside: object = None,
) -> Callable[[Any, Any], Paths]:
    """A function that runs `f` for every sender and receiver with only the path between them clean.

    Args:
        f: Any callable. Models are not changed by the runs.
        senders: Sites where components write.
        receivers: Sites where components read.
        metric: A function of the result of `f` that returns a number.
        frozen: The outputs of all components. Between sender and receiver they are held at their corrupt values, except
            the sender's. The senders, if None; with `()` nothing is held. Name the sites of the senders, not sites
            between them and the stream: a sender's change does not get past a site that is held.
        axis: Axes of a sender along which every index is a separate sender, such as heads; whole values, if None.
        split: For receivers whose values have an axis for heads: the axis. Each index along it is a receiver of its
            own, as in `blocks/3/q_in/5`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function `paths(clean, corrupt)`, each the arguments of a run of `f`: a tuple, or the only argument, with the
        same shapes. It returns `Paths`, with the pairs in which the sender comes before the receiver.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import patch_paths
        >>> def f(x):
        ...     a = sonde.sow(x * 2, "a")
        ...     b = sonde.sow(sonde.sow(x + a, "b/in") * 3, "b")
        ...     return jnp.sum(sonde.sow(a + b, "end/in"))
        >>> found = patch_paths(f, ("a", "b"), "*/in", metric=lambda y: y)(jnp.ones(1), jnp.zeros(1))
        >>> {pair: float(score) for pair, score in found.scores.items()}
        {('a', 'b/in'): 6.0, ('a', 'end/in'): 2.0, ('b', 'end/in'): 9.0}
    """
    check_callable(f, "patch_paths")
    check_callable(metric, "patch_paths: metric")
    of_roles = (senders, receivers, senders if frozen is None else frozen)
    sending, receiving, held = (check_patterns(patterns, "patch_paths") for patterns in of_roles)
    if not sending or not receiving:
        raise ValueError("patch_paths needs senders and receivers: a pattern or several of each")
    request = inside_request(inside)
    for pattern, heads in (split or {}).items():
        if not isinstance(heads, int) or isinstance(heads, bool):
            raise TypeError(f"patch_paths: split= has a number for the axis of {pattern!r}, got {heads!r}")
    along = tuple((split or {}).items())
    settings = _Run(sending, receiving, held, metric, checked_axes(axis), along, request)
    run = JitByStaticPart.shared(settings, f, metric)

    def paths(clean: Any, corrupt: Any) -> Paths:
        inputs = [x if isinstance(x, tuple) else (x,) for x in (clean, corrupt)]
        scores, of_clean, of_corrupt = run(*static_and_arrays((f, *inputs), request))
        return Paths({pair: score for (_, pair), score in sorted(scores.items())}, of_clean, of_corrupt)

    return paths


@dataclasses.dataclass(frozen=True)
class _Run:
    senders: tuple[Pattern, ...]
    receivers: tuple[Pattern, ...]
    frozen: tuple[Pattern, ...]
    metric: Callable
    axes: Axes
    split: tuple[tuple[Pattern, int], ...]
    inside: InsideRequest | None

    def __call__(self, rest: StaticPart, arrays: list[Any]) -> Any:
        f, clean, _ = rest.whole(arrays)
        result, records = values_to_place(f, *self.senders, inside=self.inside)(*clean)
        senders = [_target(seen, self.axes) for seen in each_seen(records, stacked=True)]
        f, _, corrupt = rest.whole(arrays)
        before, records = values_to_place(f, *self.senders, *self.receivers, inside=self.inside)(*corrupt)
        order = {path: i for i, path in enumerate(records)}
        f, _, corrupt = rest.whole(arrays)
        held = []
        if self.frozen:
            _, records = values_to_place(f, *self.frozen, inside=self.inside)(*corrupt)
            held = [Target.of(seen, ()) for seen in each_seen(records, stacked=True)]
        f, _, corrupt = rest.whole(arrays)
        _, records = values_to_place(f, *self.receivers, inside=self.inside)(*corrupt)
        receivers = [_target(seen, self._heads(seen, records)) for seen in each_seen(records, stacked=True)]

        def scores(point: jax.Array) -> Any:
            changed = self._read(point, senders, held, rest, arrays)
            targets = [dataclasses.replace(t, seen=seen) for t, seen in zip(receivers, changed)]
            n = sum(target.points for target in targets)
            return jax.vmap(lambda q: self._measured(q, targets, rest, arrays))(jnp.arange(n))

        table = jax.lax.map(scores, jnp.arange(sum(target.points for target in senders)))
        found: dict[Any, Any] = {}
        for sender, rows in _parts(senders, table):
            for receiver, columns in _parts(receivers, rows.T):
                for name, numbers in _known(receiver).items():
                    for head, q in np.ndenumerate(numbers):
                        whole_name = "/".join([name, *map(str, head)])
                        for path, (_, score) in sender.scores(columns[int(q)]).items():
                            if order[path] < order[name]:
                                found[(order[path], order[name], head), (path, whole_name)] = score
        return found, self._number(result), self._number(before)

    def _heads(self, seen: Seen, records: Records) -> Axes:
        """The axis along which every index of a receiver is a receiver of its own."""
        return next(((axis,) for pattern, axis in self.split if chooses(pattern, records.stacked[seen.path])), ())

    def _read(
        self, point: jax.Array, senders: list[Target], held: list[Target], rest: StaticPart, arrays: Sequence[jax.Array]
    ) -> list[Seen]:
        """The inputs of the receivers when one sender is clean and everything else is held constant."""
        still = {(target.seen.path, target.seen.call): target.seen for target in held}
        clean_at = PointRule(senders, point)

        def rule(values: Sequence[Any], where: Where) -> Supplied | None:
            at_sender, seen = clean_at(values, where), still.get((where.path, where.call))
            if seen is None:
                return at_sender
            constant, is_held = recorded_here(seen, where)
            masks = [jnp.broadcast_to(True if is_held is None else is_held, jnp.shape(x)) for x in values]
            if at_sender is None:
                return Supplied([constant[0], masks])
            clean, is_clean = at_sender.arrays
            new = [jnp.where(mask, a, b) for a, b, mask in zip(clean, constant[0], is_clean)]
            return Supplied([new, [a | b for a, b in zip(masks, is_clean)]])

        f, _, corrupt = rest.whole(arrays)
        paths = [*[path for path, _ in still], *[target.seen.path for target in senders]]
        changed = put_by_rule(f, rule, SELECTED, paths=paths, inside=self.inside)
        _, records = capture(changed, *self.receivers, inside=self.inside)(*corrupt)
        return list(each_seen(records, stacked=True))

    def _measured(
        self, point: jax.Array, receivers: list[Target], rest: StaticPart, arrays: Sequence[jax.Array]
    ) -> Any:
        f, _, corrupt = rest.whole(arrays)
        return self._number(PointRule(receivers, point).applied_to(f, self.inside)(*corrupt))

    def _number(self, result: Any) -> Any:
        score = self.metric(result)
        if jnp.shape(score) != ():
            raise ValueError(f"patch_paths: the metric must be a number, got an array of shape {jnp.shape(score)}")
        return score


def _target(seen: Seen, axes: Axes) -> Target:
    if seen.count is not None or any(axis.is_loop and axis.rows is None for axis in seen.axes):
        raise CaptureError(in_unnamed_loop("patch_paths", seen))
    return Target.of(seen, axes)


def _parts(targets: Sequence[Target], table: jax.Array) -> list[tuple[Target, Any]]:
    """The targets, each with its part of an array whose first axis is the points of all."""
    ends = np.cumsum([target.points for target in targets])
    return [(t, table[end - t.points : end]) for t, end in zip(targets, ends)]


def _known(target: Target) -> dict[str, Any]:
    """The numbers of the points of each row of a target: one, or one for every head."""
    return {name: number for name, (_, number) in target.scores(np.arange(target.points)).items()}
