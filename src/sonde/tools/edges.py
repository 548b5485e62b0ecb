"""`attribute_edges`: which component feeds which? Scores every edge between components in one backward pass.

In a residual network, all later components read what one component writes. The score of the edge from a sender to a
receiver is the change of the sender's output between two runs, times the gradient at the receiver's input: to first
order, what the metric would lose if only this receiver got the sender's output from the other run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.asking import asked_for
from sonde.core.capture import capture, check_callable, like
from sonde.core.path import Pattern, check_pattern
from sonde.core.pure import JitByRest, Rest, rest_and_arrays
from sonde.core.record import Records
from sonde.tools.attribution import number_of, touched
from sonde.tools.drawn import Drawn, Heat
from sonde.tools.placing import Occurrence, placed
from sonde.tools.pruning import Pruned, fewest
from sonde.tools.reading import chooses


class Edge(NamedTuple):
    """An edge from a sender to a receiver.

    Attributes:
        sender: The path of the sender's output.
        receiver: The path of the receiver's input.
        score: How much of the metric depends on it.
    """

    sender: str
    receiver: str
    score: float

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(f"{self.sender} -> {self.receiver}: {self.score:.4g}")

    def _repr_html_(self) -> str:
        from sonde.core.display import in_notebook

        return in_notebook(self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Edges(Sequence[Edge], Drawn):
    """The edges of a program, the strongest first.

    Attributes:
        edges: All of them.
        output: The metric of the run that is explained.
        baseline: The metric of the other run.
        program: Runs the program with some of the edges; None for edges that were made by hand.
    """

    edges: tuple[Edge, ...]
    output: float
    baseline: float
    program: Pruned | None = dataclasses.field(default=None, compare=False)

    @overload
    def __getitem__(self, index: int) -> Edge: ...
    @overload
    def __getitem__(self, index: slice) -> Edges: ...
    def __getitem__(self, index: int | slice) -> Edge | Edges:
        if isinstance(index, slice):
            return dataclasses.replace(self, edges=self.edges[index])
        return self.edges[index]

    def __len__(self) -> int:
        return len(self.edges)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    @property
    def matrix(self) -> tuple[list[str], list[str], np.ndarray]:
        """Senders, receivers, and the scores as an array with an axis for each; NaN where there is no edge."""
        senders = list(dict.fromkeys(e.sender for e in sorted(self.edges, key=lambda e: e.sender)))
        receivers = list(dict.fromkeys(e.receiver for e in sorted(self.edges, key=lambda e: e.receiver)))
        scores = np.full((len(senders), len(receivers)), np.nan)
        for edge in self.edges:
            scores[senders.index(edge.sender), receivers.index(edge.receiver)] = edge.score
        return senders, receivers, scores

    def _heat(self) -> Heat:
        senders, receivers, scores = self.matrix
        return Heat(scores, senders, receivers, f"{len(self)} edges", "receiver")

    def prune(self, share: float = 0.9, *, faithfulness: float | None = None) -> Edges:
        """The strongest edges: a given share of all scores, or as many as the metric needs.

        Args:
            share: From 0 to 1: how much of the sum of all scores, by magnitude. The scores are first-order estimates:
                the program with these edges alone may do worse than the share says.
            faithfulness: How close the metric must stay to that of the whole program when all other edges are cut: with
                0.9, `measured` returns a number between 0.9 and 1.1. The program is run to measure it. A binary search
                finds the number of edges, assuming that more edges are never worse.

        Returns:
            The edges. `measured()` says how faithful they are.

        Raises:
            ValueError: A number is not from 0 to 1, or these edges do not come from `attribute_edges`.
        """
        for name, x in (("a share", share), ("faithfulness=", faithfulness)):
            if x is not None and not 0 <= x <= 1:
                raise ValueError(f"prune: {name} is a number from 0 to 1, got {x}")
        if faithfulness is not None:
            away = 1 - faithfulness + 1e-5  # rounding: the uncut program does not give the same last digit
            kept = fewest(len(self), lambda n: abs(1 - self[:n].measured()) <= away)
        else:
            sizes = np.abs([e.score for e in self.edges])
            total = sizes.sum()
            kept = int(np.searchsorted(np.cumsum(sizes), share * total * (1 - 1e-12))) + 1 if share and total else 0
        return self[:kept]

    def measured(self) -> float:
        """How faithful the program is with these edges alone: 1 is the run that is explained, 0 the baseline.

        Along every other edge between the senders and receivers, the receiver gets what the sender writes in the
        baseline run.

        Raises:
            ValueError: The edges do not come from `attribute_edges`.
        """
        if self.program is None:
            raise ValueError("Edges that were made by hand have no program to run: use what attribute_edges returns")
        number = self.program.metric_with([edge[:2] for edge in self.edges])
        lost = (self.output - self.baseline) or float("nan")
        return (number - self.baseline) / lost

    def dot(self) -> str:
        """The graph in the language of Graphviz; wide lines are strong edges, red ones are negative."""
        most = max((abs(e.score) for e in self.edges), default=1.0) or 1.0
        lines = ["digraph {", "  rankdir=BT; node [shape=box, fontname=monospace];"]
        for e in self.edges:
            color = "firebrick" if e.score < 0 else "steelblue"
            width = 0.5 + 4.5 * abs(e.score) / most
            lines.append(
                f"  {_quoted(e.sender)} -> {_quoted(e.receiver)} "
                f'[penwidth={width:.2f}, color={color}, tooltip="{e.score:.4g}"];'
            )
        return "\n".join([*lines, "}"])

    def __repr__(self) -> str:
        strongest = ", ".join(f"{e.sender} -> {e.receiver} ({e.score:.3g})" for e in self.edges[:3])
        return f"Edges({len(self)} edges, {self.baseline:.4g} to {self.output:.4g}; strongest: {strongest})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("from", "to", "score", title=f"{len(self)} edges, {self.baseline:.4g} to {self.output:.4g}")
        for e in self.edges[:40]:
            table.add_row(Text(e.sender), Text(e.receiver), f"{e.score:.4g}")
        if len(self) > 40:
            table.add_row(f"... and {len(self) - 40} more", "", "")
        return table


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def attribute_edges(
    f: Callable,
    senders: Pattern | Sequence[Pattern],
    receivers: Pattern | Sequence[Pattern],
    *,
    baseline: Any,
    metric: Callable[[Any], Any] | None = None,
    inside: Any = None,
) -> Callable[..., Edges]:
    """A function that runs `f` and scores the edges from senders to receivers.

    Args:
        f: Any callable. Models are not changed by the runs.
        senders: Where components write: sites whose values are added to the stream.
        receivers: Where components read: sites whose value is the stream as a component gets it, of the same shape.
            With `inside=model` the input of a module is one: `blocks/*/norm1/in`.
        baseline: The arguments of the other run: a tuple, or the only one.
        metric: A function of the result of `f` that returns a number. None if the result is one.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns `Edges`: from every sender to every receiver of the same shape
        that comes after it.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: no sender has the shape of a later receiver.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import attribute_edges
        >>> def f(x):
        ...     a = sonde.sow(2 * x, "a/out")
        ...     b = sonde.sow(3 * sonde.sow(x + a, "b/in"), "b/out")
        ...     return jnp.sum(sonde.sow(x + a + b, "end/in"))
        >>> attribute_edges(f, "*/out", "*/in", baseline=jnp.zeros(1))(jnp.ones(1)).edges[0]
        Edge(sender='b/out', receiver='end/in', score=9.0)
    """
    check_callable(f, "attribute_edges")
    sending, receiving = (
        tuple(map(check_pattern, (p,) if isinstance(p, str) or callable(p) else tuple(p))) for p in (senders, receivers)
    )
    asked = asked_for(inside)
    other = baseline if isinstance(baseline, tuple) else (baseline,)
    compiled = JitByRest(functools.partial(_edges, sending, receiving, metric, asked))

    def scored(*args: Any, **kwargs: Any) -> Edges:
        given = (f, args, kwargs, other)
        found, output, before = compiled(*rest_and_arrays(given, asked))
        edges = [Edge(s, r, float(score)) for (s, r), score in found.items()]
        program = Pruned(list(found), sending, receiving, metric, asked, given)
        return Edges(tuple(sorted(edges, key=lambda e: -abs(e.score))), float(output), float(before), program)

    return like(scored, f)


def _edges(
    sending: tuple[Pattern, ...],
    receiving: tuple[Pattern, ...],
    metric: Any,
    inside: Any,
    rest: Rest,
    arrays: Any,
) -> Any:
    def number(touch: Any) -> Any:
        def rule(values: list[Any], place: Occurrence) -> list[Any]:
            return values if place.site.in_place else [touched(x, touch) for x in values]

        f, args, kwargs, _ = rest.whole([touched(x, touch) for x in arrays])
        return number_of(metric, placed(f, rule, inside)(*args, **kwargs))

    wanted = (*sending, *receiving)
    (output, _), clean = capture(jax.value_and_grad(number), *wanted, grads=True, inside=inside)(jnp.zeros(()))
    f, _, kwargs, other = rest.whole(arrays)
    result, corrupt = capture(f, *sending, inside=inside)(*other, **kwargs)
    order = {path: i for i, path in enumerate(clean)}
    written = {path: _only(clean, path, "value") - _only(corrupt, path, "value") for path in _chosen(clean, sending)}
    read = {path: _only(clean, path, "grad") for path in _chosen(clean, receiving)}
    found: dict[tuple[str, str], Any] = {}
    for shape in dict.fromkeys(x.shape for x in read.values()):
        from_, to = ([p for p, x in xs.items() if x.shape == shape] for xs in (written, read))
        if not from_:
            continue
        changes = jnp.stack([written[p].reshape(-1) for p in from_])
        gradients = jnp.stack([read[p].reshape(-1) for p in to])
        scores = jnp.matmul(changes, gradients.T, precision="highest")
        for i, sender in enumerate(from_):
            found |= {(sender, r): scores[i, j] for j, r in enumerate(to) if order[sender] < order[r]}
    if not found:
        raise ValueError(
            f"attribute_edges: none of the senders {list(written)} has the shape of a receiver after it; the "
            f"receivers are { {path: list(x.shape) for path, x in read.items()} }"
        )
    return found, output, number_of(metric, result)


def _chosen(records: Records, patterns: Sequence[Pattern]) -> list[str]:
    return [path for path, record in records.items() if any(chooses(p, record) for p in patterns)]


def _only(records: Records, path: str, what: str) -> Any:
    found = getattr(records[path], what)
    if not hasattr(found, "dtype"):
        raise ValueError(f"attribute_edges: a sender or receiver is one array, but {path!r} is {type(found).__name__}")
    return found
