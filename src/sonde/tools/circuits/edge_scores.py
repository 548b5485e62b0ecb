"""The scores of all edges of a program, as one matrix: senders by receivers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import Pattern, Records, StaticPart
from sonde.tools.circuits.edge_nodes import values_of
from sonde.tools.circuits.edge_runs import Asked, Program

Method = Literal["gradient", "inputs", "activations", "exact"]
METHODS = ("gradient", "inputs", "activations", "exact")
_AT_A_TIME = 16  # runs with an edge cut


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["table", "output", "baseline"],
    meta_fields=["senders", "receivers", "exists"],
)
@dataclasses.dataclass(frozen=True)
class Scores:
    """The scores of all edges.

    Attributes:
        table: Senders by receivers.
        output: The metric of the run that is explained.
        baseline: The metric of the other run.
        senders: The names of the senders.
        receivers: The names of the receivers.
        exists: Which edges there are.
    """

    table: Any
    output: Any
    baseline: Any
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    exists: tuple[tuple[bool, ...], ...]


def scores(
    asked: Asked, method: Method, steps: int, inputs: Sequence[Pattern], rest: StaticPart, arrays: Sequence[jax.Array]
) -> Scores:
    """The scores of a traced call: a program, its arguments and keyword arguments, the arguments of the other run."""
    program = Program(asked, rest, arrays)
    graph = program.graph
    output, clean = program.gradients()
    if method == "gradient":
        table = _products(program, clean, clean)
    elif method == "inputs":
        table = _mean(
            lambda part: _products(program, clean, program.gradients(program.between(inputs, part))[1]), steps
        )
    elif method == "activations":
        table = _by_sender(program, clean, steps)
    else:
        table = _one_by_one(program, output)
    exists = tuple(tuple(map(bool, row)) for row in graph.exists)
    senders, receivers = (tuple(node.name for node in nodes) for nodes in (graph.senders, graph.receivers))
    return Scores(table, output, program.baseline, senders, receivers, exists)


def _products(program: Program, values: Records, gradients: Records) -> Any:
    """The change of what each sender writes, times the gradient at what each receiver reads."""
    graph = program.graph
    table = jnp.zeros(graph.exists.shape, jnp.float32)
    for shape in dict.fromkeys(node.shape for node in graph.receivers):
        to = np.array([i for i, node in enumerate(graph.receivers) if node.shape == shape])
        from_ = np.flatnonzero(graph.exists[:, to].any(1))
        if not len(from_):
            continue
        changes = program.changes(from_, shape, values)
        found = values_of([graph.receivers[i] for i in to], gradients, shape, gradients=True)
        products = jnp.matmul(changes, found.T, precision="highest")
        table = table.at[np.ix_(from_, to)].set(products)
    return table


def _mean(of_part: Callable[[Any], Any], steps: int) -> Any:
    """The mean over points from just after the other run to this run."""
    parts = jnp.arange(1, steps + 1, dtype=jnp.float32) / steps
    return jnp.mean(jax.lax.map(of_part, parts), 0)


def _by_sender(program: Program, clean: Records, steps: int) -> Any:
    """For each sender, the mean over points between its two values; all other values are those of this run."""
    sites = program.sender_sites
    of_sender = np.array([sites.index((node.key, node.row)) for node in program.graph.senders])

    def of_site(site: Any) -> Any:
        def of_part(part: Any) -> Any:
            return _products(program, clean, program.gradients(program.sender_between(clean, site, part))[1])

        return _mean(of_part, steps)

    tables = jax.lax.map(of_site, jnp.arange(len(sites)))
    return tables[of_sender, np.arange(len(of_sender))]


def _one_by_one(program: Program, output: Any) -> Any:
    """What the metric loses in a run in which only one edge is cut, for every edge."""
    shape = program.graph.exists.shape
    pairs = np.argwhere(program.graph.exists)

    def lost(pair: Any) -> Any:
        return output - program.metric_with(jnp.zeros(shape).at[pair[0], pair[1]].set(1))

    found = jax.lax.map(lost, jnp.asarray(pairs), batch_size=min(_AT_A_TIME, len(pairs)))
    return jnp.zeros(shape).at[pairs[:, 0], pairs[:, 1]].set(found)
