"""`attribute_edges`: which component feeds which? Scores every edge between components.

In a residual network, all later components read what one component writes. An edge from a sender to a receiver exists
if what the sender writes is a term of what the receiver reads (`terms.py`). Its score says what the metric would lose
if only this receiver got the sender's output from another run: estimated from gradients, or measured.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, overload

import jax
import numpy as np

from sonde.core import JitByStaticPart, Pattern, check_callable, check_patterns, inside_request, static_and_arrays
from sonde.tools.circuits.edge_runs import Asked
from sonde.tools.circuits.edge_scores import METHODS, Method, Scores, scores
from sonde.tools.circuits.known_circuits import circuit_of
from sonde.tools.circuits.pruning import Curve, Pruned, Search
from sonde.tools.reading.heatmap import Drawn, Heat

P = ParamSpec("P")


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
        from sonde.display import in_notebook

        return in_notebook(self)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Edges(Sequence[Edge], Drawn):
    """The edges of a program, the strongest first.

    Attributes:
        edges: All of them.
        output: The metric of the run that is explained.
        baseline: The metric of the other run.
        alone: Senders that no receiver reads, such as the last, and receivers that read no sender.
        program: Runs the program with some of the edges; None for edges that were made by hand.
    """

    edges: tuple[Edge, ...]
    output: float
    baseline: float
    alone: tuple[str, ...] = ()
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
        senders = sorted({e.sender for e in self.edges})
        receivers = sorted({e.receiver for e in self.edges})
        rows, columns = ({name: i for i, name in enumerate(names)} for names in (senders, receivers))
        table = np.full((len(senders), len(receivers)), np.nan)
        for edge in self.edges:
            table[rows[edge.sender], columns[edge.receiver]] = edge.score
        return senders, receivers, table

    def _heat(self) -> Heat:
        senders, receivers, table = self.matrix
        return Heat(table, senders, receivers, f"{len(self)} edges", "receiver")

    def prune(self, share: float = 0.9, *, faithfulness: float | None = None, search: Search = "threshold") -> Edges:
        """Some of the edges: a given share of all scores, or as few as the metric needs.

        Args:
            share: From 0 to 1: how much of the sum of all scores, by magnitude. The scores are estimates: the program
                with these edges alone may do worse than the share says.
            faithfulness: How close the metric must stay to that of the whole program when all other edges are cut: with
                0.9, `measured` returns a number between 0.9 and 1.1. The program is run to measure it.
            search: How edges are chosen for `faithfulness`. `"threshold"`: the strongest ones, the fewest that are
                enough; since more edges may be worse, all smaller numbers are measured. `"greedy"`: starting with all
                edges, from the weakest to the strongest, each is cut if the rest is enough without it. `"exact"`: the
                fewest edges of all sets of edges, for graphs of at most 16 edges.

        Returns:
            The edges. `measured()` says how faithful they are.

        Raises:
            ValueError: A number is not from 0 to 1; or these edges do not come from `attribute_edges`; or there are too
                many for an exact search; or not even all edges together are enough.
        """
        for name, x in (("a share", share), ("faithfulness=", faithfulness)):
            if x is not None and not 0 <= x <= 1:
                raise ValueError(f"prune: {name} is a number from 0 to 1, got {x}")
        if faithfulness is not None:
            away = 1 - faithfulness + 1e-5  # rounding: the uncut program does not give the same last digit
            kept = self._runs().search(search, self._pairs, away)
            return dataclasses.replace(self, edges=tuple(self.edges[i] for i in kept))
        sizes = np.abs([e.score for e in self.edges])
        total = sizes.sum()
        enough = int(np.searchsorted(np.cumsum(sizes), share * total * (1 - 1e-12))) + 1 if share and total else 0
        return self[:enough]

    def measured(self) -> float:
        """How faithful the program is with these edges alone: 1 is the run that is explained, 0 the baseline.

        Along every other edge between the senders and receivers, the receiver gets what the sender writes in the
        baseline run. Over several batches, the metrics are added up first.

        Raises:
            ValueError: The edges do not come from `attribute_edges`.
        """
        return self._runs().faithfulness(self._pairs)

    def curve(self, shares: Sequence[float] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)) -> Curve:
        """How faithful the strongest edges are, for several numbers of edges.

        Args:
            shares: How many edges, as fractions of all of these, rounded down. By default those of the benchmark MIB,
                whose figures CPR and CMD are then `area` and `distance`.

        Raises:
            ValueError: The edges do not come from `attribute_edges`.
        """
        return self._runs().curve(self._pairs, shares)

    def completeness(self) -> float:
        """How faithful the program is without these edges: 0 if nothing is left that they do not explain.

        Raises:
            ValueError: The edges do not come from `attribute_edges`.
        """
        runs = self._runs()
        return runs.faithfulness(runs.pairs.difference(self._pairs))

    @property
    def _pairs(self) -> list[tuple[str, str]]:
        return [(edge.sender, edge.receiver) for edge in self.edges]

    def _runs(self) -> Pruned:
        if self.program is None:
            raise ValueError("Edges that were made by hand have no program to run: use what attribute_edges returns")
        return self.program

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
        alone = f"; without an edge: {', '.join(self.alone)}" if self.alone else ""
        return f"Edges({len(self)} edges, {self.baseline:.4g} to {self.output:.4g}; strongest: {strongest}{alone})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("from", "to", "score", title=f"{len(self)} edges, {self.baseline:.4g} to {self.output:.4g}")
        for e in self.edges[:40]:
            table.add_row(Text(e.sender), Text(e.receiver), f"{e.score:.4g}")
        if len(self) > 40:
            table.add_row(f"... and {len(self) - 40} more", "", "")
        return WholePaths(table)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


class EdgeAttribution(Generic[P]):
    """What `attribute_edges` returns: a function with the arguments of the program that returns `Edges`."""

    def __init__(
        self, f: Callable[P, Any], asked: Asked, baseline: Any, method: Method, steps: int, inputs: Any
    ) -> None:
        self._f, self._asked, self._baseline = f, asked, baseline
        self._compiled = JitByStaticPart.shared(functools.partial(scores, asked, method, steps, inputs), f)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Edges:
        """The edges for these arguments."""
        return self._edges([(self._f, args, kwargs, _other_run(self._baseline))])

    def over(self, batches: Iterable[tuple[Any, Any]]) -> Edges:
        """The edges over several batches: mean scores, and metrics that are added up.

        Args:
            batches: For each batch the arguments of the run that is explained, and those of the other run: each a
                tuple, or the only one. In place of the other run, a number.
        """
        return self._edges([(self._f, _several_arguments(x), {}, _other_run(y)) for x, y in batches])

    def _edges(self, calls: Sequence[tuple[Any, ...]]) -> Edges:
        if not calls:
            raise ValueError("attribute_edges: there are no batches")
        split = [static_and_arrays(call, self._asked.inside) for call in calls]
        tables: list[Scores] = [jax.device_get(self._compiled(*parts)) for parts in split]
        first = tables[0]
        if any((t.senders, t.receivers) != (first.senders, first.receivers) for t in tables):
            raise ValueError("attribute_edges: the batches have different senders or receivers")
        exists = np.array(first.exists)
        table = np.mean([t.table for t in tables], 0)
        numbers = (table[s, r] for s, r in np.argwhere(exists))
        edges = [
            Edge(first.senders[s], first.receivers[r], float(x)) for (s, r), x in zip(np.argwhere(exists), numbers)
        ]
        sides = (first.senders, exists), (first.receivers, exists.T)
        alone = tuple(name for names, rows in sides for name, row in zip(names, rows) if not row.any())
        output, baseline = (float(np.mean([getattr(t, x) for t in tables])) for x in ("output", "baseline"))
        program = Pruned(first.senders, first.receivers, exists, self._asked, split, output, baseline)
        return Edges(tuple(sorted(edges, key=lambda e: -abs(e.score))), output, baseline, alone, program)


def attribute_edges(
    f: Callable[P, Any],
    senders: Pattern | Sequence[Pattern] | None = None,
    receivers: Pattern | Sequence[Pattern] | None = None,
    *,
    baseline: Any = 0.0,
    metric: Callable[[Any], Any] | None = None,
    split: Mapping[Pattern, int] | None = None,
    method: Method = "gradient",
    steps: int = 5,
    inputs: Pattern | Sequence[Pattern] | None = None,
    inside: object = None,
) -> EdgeAttribution[P]:
    """A function that runs `f` and scores the edges from senders to receivers.

    Args:
        f: Any callable. Models are not changed by the runs.
        senders: Where components write: sites whose values are added to the stream. None for models that know theirs:
            those of `sonde.models`.
        receivers: Where single components read the stream, such as `blocks/*/attn_in` in `sonde.models`; not the stream
            itself, which all later components get. With `inside=model` the input of a module is one:
            `blocks/*/norm1/in`. None for models that know theirs.
        baseline: The arguments of the other run: a tuple, or the only one. Or a number that stands for "no value", such
            as 0: then it is what receivers get along cut edges, and the baseline's metric is that of the program with
            all edges cut.
        metric: A function of the result of `f` that returns a number. None if the result is one.
        split: For sites whose values have an axis for heads, over which senders are summed: the axis. Each index along
            it is a sender or receiver of its own, as in `blocks/3/attn/results/5`. None for models that know theirs.
        method: `"gradient"`: the change of what the sender writes, times the gradient at what the receiver reads; one
            backward pass for all edges. `"inputs"`: the same with the mean of the gradients for inputs between those of
            the two runs. `"activations"`: the same with the mean for values of the sender between those of the two
            runs. `"exact"`: one run for every edge, in which only this edge is cut.
        steps: How many points between the two runs to use.
        inputs: For `"inputs"`: the sites of the inputs, such as `embedded`. By default the first sender.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns `Edges`: one from every sender to every receiver whose value
        is a sum with what the sender writes as a term. Its method `over` takes several batches.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called: a sender or receiver is in a loop without a name.
        ValueError: When called: senders or receivers have no edges, or a receiver is the stream itself.

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
    if method not in METHODS:
        raise ValueError(f"attribute_edges: the method is one of {', '.join(METHODS)}, got {method!r}")
    if steps < 1:
        raise ValueError(f"attribute_edges: steps must be at least 1, got {steps}")
    sending, receiving, axes = circuit_of(f, senders, receivers, split, "attribute_edges")
    asked = Asked(sending, receiving, tuple(axes.items()), metric, inside_request(inside))
    first = sending[:1] if inputs is None else check_patterns(inputs, "attribute_edges")
    return EdgeAttribution(f, asked, baseline, method, steps, first)


def _other_run(baseline: Any) -> tuple[Any, ...] | float:
    return float(baseline) if isinstance(baseline, (int, float)) else _several_arguments(baseline)


def _several_arguments(x: jax.Array) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)
