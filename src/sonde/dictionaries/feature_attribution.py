"""`attribution_graph`: which features, errors and tokens does the model's answer to one text come from?

The graph belongs to a replacement model. Transcoders take the place of MLPs, and an error is added to each of them, so
that all values are those of the model. Attention weights and the factors of norms are held constant. What is left is
linear between a feature and what features, errors and tokens write into the stream. An edge is therefore exact:

    edge = (activation · decoder row) · gradient of the target with respect to what is written there

and the edges into a target, with what biases contribute, add up to the target's value. The run checks that: a program
that is not linear once the sites of `frozen=` are held constant raises an error. One backward pass gives all edges into
a target; a batch of targets shares one compiled pass.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    Records,
    StaticPart,
    Supplied,
    Where,
    arrays_in,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    put_by_rule,
    static_and_arrays,
)
from sonde.dictionaries.cross_layer import Transcoders, coders_of
from sonde.dictionaries.dictionary import Dictionary
from sonde.dictionaries.feature_graph import FeatureGraph
from sonde.dictionaries.feature_search import (
    Choice,
    EdgesInto,
    Sources,
    Target,
    check_sums,
    edges_by_influence,
    graph_of,
    logit_targets,
    probabilities,
)
from sonde.errors import CaptureError
from sonde.tools.circuits.edge_nodes import in_unnamed_loop
from sonde.tools.execution.record_values import Seen, chooses, each_seen
from sonde.tools.intervention.patch_values import in_record, not_differentiated, recorded_here, values_to_place

P = ParamSpec("P")
Place = tuple[tuple[str, int], tuple[int, ...]]  # where a rule meets a value: path and call; rows of named loops
_VERB = "attribution_graph"
_KEPT = 2**14  # how many of the sources of one target are kept, at most
_TOGETHER = 2**31  # bytes of gradients
_ROWS_TOGETHER = 2**12  # decoder rows of active features
FROZEN = ("**/attn/weights", "**/factor")


def attribution_graph(
    f: Callable[P, Any],
    transcoders: Transcoders,
    *,
    logits: Callable[[Any], Any] | None = None,
    tokens: Sequence[int] | None = None,
    embedded: Pattern = "embedded",
    frozen: Pattern | Sequence[Pattern] = FROZEN,
    max_features: int = 4096,
    max_logits: int = 10,
    batch: int = 32,
    mesh: jax.sharding.Mesh | None = None,
    inside: object = None,
) -> AttributionGraph[P]:
    """A function that runs `f` on one text and returns the graph of what its logits come from.

    Args:
        f: Any callable that returns logits. Models are not changed by the runs.
        transcoders: As for `splice`: for pairs of what a transcoder reads and what it replaces, such as
            `("blocks/3/norm2", "blocks/3/mlp/out")`, the transcoder; for a pair of two tuples of sites a
            `CrossLayerTranscoder`. Their order is that of the layers. MLPs without one belong to nothing: they make the
            program nonlinear, which is an error.
        logits: A function of the result of `f` that returns the logits of one position, `(vocabulary,)`. By default the
            last position of the result. If the model caps its logits, this undoes it: capped logits are not linear.
        tokens: Which logits are explained. By default the most probable ones, until they have 95 % of the probability.
        embedded: The site of the embeddings, `(1, length, width)` or `(length, width)`.
        frozen: Sites whose values are held constant: attention weights, and the factors of norms.
        max_features: How many features are targets and nodes, at most: those with the most influence on the logits.
            What all others contribute is `left_out` of a target.
        max_logits: How many logits are explained, at most, if `tokens` does not say which.
        batch: How many targets share a backward pass.
        mesh: Devices over which the targets of a batch are spread, along the mesh's first axis. All else is replicated.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `FeatureGraph`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called: a site is in a loop without a name.
        ValueError: When called: a pattern matches several sites, a value is not of one text, or the program is not
            linear between features with the frozen sites held constant.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, attribution_graph
        >>> def f(tokens):
        ...     x = sonde.sow(jnp.eye(4)[tokens], "embedded")
        ...     read = sonde.sow(x, "mlp/in")
        ...     return x + sonde.sow(jnp.tanh(2 * read), "mlp/out")
        >>> transcoder = Dictionary(4, 8, d_out=4, rngs=nnx.Rngs(0))
        >>> ask = attribution_graph(f, {("mlp/in", "mlp/out"): transcoder}, frozen=(), tokens=[3])
        >>> graph = ask(jnp.array([1, 2, 3]))
        >>> round(float(graph.matrix.sum(1)[-1] + graph.bias[-1]), 4) == round(graph.targets[-1].value, 4)
        True
    """
    check_callable(f, _VERB)
    if max_features < 1 or batch < 1 or max_logits < 1:
        raise ValueError(
            f"{_VERB}: max_features, max_logits and batch are at least 1, got {max_features}, {max_logits} and {batch}"
        )
    (at_start,), constant = (check_patterns(patterns, _VERB) for patterns in (embedded, frozen))
    asked = _Asked(at_start, constant, logits or _last_logits, inside_request(inside))
    choice = Choice(None if tokens is None else tuple(map(int, tokens)), max_features, max_logits, batch, mesh)
    return AttributionGraph(f, coders_of(transcoders, _VERB), asked, choice)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the traced functions depend on, besides the program."""

    embedded: Pattern
    frozen: tuple[Pattern, ...]
    logits: Callable[[Any], Any]
    inside: InsideRequest | None


def _last_logits(result: Any) -> Any:
    return result.reshape(-1, result.shape[-1])[-1]


class AttributionGraph(Generic[P]):
    """What `attribution_graph` returns: a function with the arguments of the program that returns a `FeatureGraph`."""

    def __init__(self, f: Callable[P, Any], coders: Sequence[Any], asked: _Asked, choice: Choice) -> None:
        self._f, self._coders, self._asked, self._choice = f, coders, asked, choice
        self._places = tuple((coder.reads, coder.writes) for coder in coders)
        # On a mesh, the targets that are pulled back together are on different devices.
        edges = functools.partial(_edges_into, most=_TOGETHER if choice.mesh is None else math.inf)
        programs = (_observe, _features, _at_zero, edges)
        self._observe, self._features, self._at_zero, self._edges_into = (
            JitByStaticPart(functools.partial(program, asked, self._places)) for program in programs
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> FeatureGraph:
        """The graph for these arguments."""
        dictionaries = [coder.dictionary for coder in self._coders]
        static, arrays = static_and_arrays((self._f, args, kwargs, dictionaries), self._asked.inside)
        arrays = self._spread(arrays, False)
        logits, records = self._observe(static, arrays)
        acts, errors, embeddings = self._features(static, arrays, records)
        sources = Sources.of([np.asarray(a) for a in acts], len(errors), len(embeddings))
        written = _Written(list(errors), embeddings, *map(jnp.asarray, (sources.position, sources.index, sources.act)))
        zero_reads, zero_logits = self._at_zero(static, arrays, records)
        encoders = [_encoder(d) for d in dictionaries]

        def rows(targets: Sequence[Target]) -> list[EdgesInto]:
            padded = [*targets, *[targets[-1]] * (self._choice.batch - len(targets))]
            directions = np.zeros((len(padded), max(d.d_in for d in dictionaries)), np.float32)
            for i, target in enumerate(padded):
                if target.layer < len(encoders):
                    matrix, _ = encoders[target.layer]
                    directions[i, : len(matrix)] = matrix[:, target.number]
            numbers = np.array([target[:3] for target in padded], np.int32)
            batch = self._spread([numbers, directions], True)
            computed = jax.device_get(self._edges_into(static, arrays, records, written, batch))
            return [EdgesInto(*(x[i] for x in computed)) for i in range(len(targets))]

        def bias(target: Target) -> float:
            if target.layer == len(encoders):
                return float(zero_logits[target.number] - np.mean(zero_logits))
            matrix, biases = encoders[target.layer]
            return float(zero_reads[target.layer][target.position] @ matrix[:, target.number] + biases[target.number])

        zero_reads, zero_logits, logits = jax.device_get((zero_reads, zero_logits, logits))
        exact = float(np.finfo(np.float32).eps if logits.dtype == np.float64 else jnp.finfo(logits.dtype).eps)
        lowest = max([exact, *(float(jnp.finfo(x.dtype).eps) for x in zero_reads)])
        targets = logit_targets(sources, logits, self._choice)
        found = edges_by_influence(sources, targets, rows, self._choice)
        biases = {target: bias(target) for target in found}
        check_sums(found, biases, 4 * math.sqrt(lowest))
        return graph_of(found, biases, sources, probabilities(logits))

    def _spread(self, arrays: list[Any], by_target: bool) -> list[Any]:
        """Arrays on the devices of the mesh: one part of the targets on each, or all of the array on all."""
        mesh = self._choice.mesh
        if mesh is None:
            return arrays
        axis = jax.sharding.PartitionSpec(mesh.axis_names[0]) if by_target else jax.sharding.PartitionSpec()
        return jax.device_put(arrays, jax.sharding.NamedSharding(mesh, axis))


# What runs inside `jax.jit`: the arguments are split into arrays and the rest, which holds the program.

Places = Sequence[tuple[Pattern, Sequence[Pattern]]]


class _Written(NamedTuple):
    """What is written into the stream, apart from biases: errors and embeddings, and features by layer."""

    errors: list[jax.Array]
    embeddings: jax.Array
    position: jax.Array
    feature: jax.Array
    act: jax.Array


def _observe(asked: _Asked, places: Places, static: StaticPart, arrays: list[Any]) -> tuple[Any, Records]:
    """The logits, and records of everything that the linear program needs."""
    f, args, kwargs, _ = static.whole(arrays)
    patterns = [asked.embedded, *asked.frozen, *_reads(places), *_writes(places)]
    result, records = values_to_place(f, *patterns, inside=asked.inside)(*args, **kwargs)
    logits = asked.logits(result)
    if jnp.ndim(logits) != 1:
        raise ValueError(f"{_VERB}: the logits of one position are an array with one axis, got {jnp.shape(logits)}")
    return logits, records


def _features(asked: _Asked, places: Places, static: StaticPart, arrays: list[Any], records: Records) -> Any:
    """Features by layer, what they miss of each value that they replace, and the embeddings."""
    dictionaries: list[Dictionary] = static.whole(arrays)[3]
    reads, writes = (_values(records, patterns) for patterns in (_reads(places), _writes(places)))
    missing = [w - b for w, b in zip(writes, _decoder_biases(places, dictionaries))]
    names = _writes(places)
    acts = []
    for (_, written), dictionary, read in zip(places, dictionaries, reads):
        acts.append(dictionary.activate(dictionary.pre_activations(read)))
        for name, matrix in zip(written, _decoders(dictionary, len(written))):
            missing[names.index(name)] -= acts[-1] @ matrix
        if dictionary.kind == "skip_transcoder":
            missing[names.index(written[0])] -= dictionary.skipped(read)
    return acts, missing, _values(records, [asked.embedded])[0]


def _at_zero(asked: _Asked, places: Places, static: StaticPart, arrays: list[Any], records: Records) -> Any:
    """What is read, and the logits, if features, errors and embeddings write nothing, so that only biases do."""
    biases = _decoder_biases(places, static.whole(arrays)[3])
    written = [jnp.broadcast_to(b, w.shape) for b, w in zip(biases, _values(records, _writes(places)))]
    embeddings = jnp.zeros_like(_values(records, [asked.embedded])[0])
    return _linear(asked, places, static, arrays, records, written, embeddings)


def _edges_into(
    asked: _Asked,
    places: Places,
    static: StaticPart,
    arrays: list[Any],
    records: Records,
    written: _Written,
    targets: list[jax.Array],
    *,
    most: float,
) -> Any:
    """For each target, its largest edges: which sources, and how large; and the sum of all edges, and of their sizes.

    Args:
        asked: What was asked for.
        places: What transcoders read and write.
        static: The program, its arguments and the transcoders, without arrays.
        arrays: The arrays.
        records: What `_observe` returned.
        written: What is written.
        targets: Layer, position and index of each target; and the direction along which it reads.
        most: How many bytes the gradients of targets that are pulled back together may take. Those of one target are
            as large as all values that are written, and all logits at all positions.
    """
    dictionaries: list[Dictionary] = static.whole(arrays)[3]
    names, values = _writes(places), _values(records, _writes(places))
    run = functools.partial(_linear, asked, places, static, arrays, records)
    (reads, logits), pull_back = jax.vjp(run, values, written.embeddings)

    def gradients(numbers: jax.Array, direction: jax.Array) -> Any:
        layer, position, index = numbers
        of_reads = [
            jnp.zeros_like(read)
            .at[position]
            .set(jnp.where(layer == i, direction[: read.shape[1]], 0).astype(read.dtype))
            for i, read in enumerate(reads)
        ]
        # A constant that is added to all logits changes no probability: a logit counts from their mean.
        of_logits = jnp.where(jnp.arange(len(logits)) == index, 1.0, 0.0) - 1 / len(logits)
        return pull_back((of_reads, jnp.where(layer == len(reads), of_logits, 0).astype(logits.dtype)))

    def of_target(gradient: Any) -> Any:
        of_writes, of_embeddings = gradient
        edges = []
        for k, ((_, named), dictionary) in enumerate(zip(places, dictionaries)):
            at, feature = written.position[k], written.feature[k]
            total = jnp.zeros(len(at))
            for name, matrix in zip(named, _decoders(dictionary, len(named))):
                total += _along(matrix, of_writes[names.index(name)], feature, at)
            edges.append(total * written.act[k])
        edges += [jnp.sum(e * g, -1) for e, g in zip(written.errors, of_writes)]
        edges.append(jnp.sum(written.embeddings * of_embeddings, -1))
        every = jnp.concatenate([e.astype(jnp.float32) for e in edges])
        kept = min(_KEPT, len(every))
        which = jnp.arange(kept) if kept == len(every) else jax.lax.top_k(jnp.abs(every), kept)[1]
        return which, every[which], jnp.sum(every), jnp.sum(jnp.abs(every))

    def of_part(part: list[jax.Array]) -> Any:
        return jax.lax.map(of_target, jax.vmap(gradients)(*part))

    of_one = reads[0].shape[0] * (len(logits) + 2 * sum(value.shape[1] for value in values)) * 4
    size = next(n for n in range(len(targets[0]), 0, -1) if len(targets[0]) % n == 0 and (n * of_one <= most or n == 1))
    parts = [x.reshape(-1, size, *x.shape[1:]) for x in targets]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), jax.lax.map(of_part, parts))


def _along(matrix: jax.Array, gradients: jax.Array, rows: jax.Array, positions: jax.Array) -> jax.Array:
    """The products of rows of a matrix with the gradients at some positions, a bounded number at a time."""

    def product(row: jax.Array, position: jax.Array) -> jax.Array:
        return jnp.sum(matrix[row] * gradients[position], -1)

    if len(rows) <= _ROWS_TOGETHER:
        return product(rows, positions)
    return jax.lax.map(lambda pair: product(*pair), (rows, positions), batch_size=_ROWS_TOGETHER)


def _linear(
    asked: _Asked,
    places: Places,
    static: StaticPart,
    arrays: list[Any],
    records: Records,
    written: list[jax.Array],
    embeddings: jax.Array,
) -> tuple[list[Any], Any]:
    """What transcoders read, and the logits, as a function of what is written in place of MLPs and embeddings."""
    f, args, kwargs, dictionaries = static.whole(arrays)
    names = _writes(places)
    seen = {(s.path, s.call): s for s in each_seen(records, stacked=True)}
    new: dict[tuple[str, int], dict[tuple[int, ...], jax.Array]] = {}
    for pattern, value in (*zip(names, written), (asked.embedded, embeddings)):
        key, row = _place(records, pattern)
        new.setdefault(key, {})[row] = value
    supplied = {key: _with_rows(seen[key], rows) for key, rows in new.items()}
    for node in each_seen(records):
        if any(chooses(pattern, records[node.path]) for pattern in asked.frozen):
            key = node.place[0]
            supplied.setdefault(key, seen[key])
    skips = _skips(places, dictionaries, records)
    waiting: dict[tuple[str, int], Any] = {}  # what was read last, by skip transcoders

    def rule(values: Sequence[Any], where: Where) -> Supplied | None:
        key = where.path, where.call
        if any(key == reads for reads, _ in skips.values()):
            waiting[key] = values[0]
        if key not in supplied:
            return None
        not_differentiated(where, _VERB)
        put = recorded_here(supplied[key], where)
        if key in skips:
            reads, matrices = skips[key]
            if reads not in waiting or _jax.has_ended(waiting[reads]):
                raise ValueError(f"{_VERB}: {where.path!r} is computed before, or far from, what its transcoder reads")
            _, steps = in_record(where, supplied[key])
            row = tuple(steps[i] for i, axis in enumerate(supplied[key].axes) if axis.is_loop)
            skipped = waiting[reads] @ _row_of(matrices, supplied[key], row).astype(waiting[reads].dtype)
            put = Supplied([[put.arrays[0][0] + skipped], *put.arrays[1:]])
        return put

    program = put_by_rule(f, rule, paths=list({path for path, _ in supplied} | {r[0] for r, _ in skips.values()}),
                          inside=asked.inside)  # fmt: skip
    result, now = capture(program, *dict.fromkeys(_reads(places)), inside=asked.inside)(*args, **kwargs)
    return _values(now, _reads(places)), asked.logits(result)


def _skips(places: Places, dictionaries: Sequence[Dictionary], records: Records) -> dict[tuple[str, int], Any]:
    """By what is replaced: what the skip transcoder there reads, and its matrices by row of the loops around."""
    found: dict[tuple[str, int], Any] = {}
    for (reads, writes), dictionary in zip(places, dictionaries):
        if dictionary.kind == "skip_transcoder":
            (key, row), (read_key, _) = _place(records, writes[0]), _place(records, reads)
            found.setdefault(key, (read_key, {}))[1][row] = dictionary.skip[...]
    return found


def _row_of(matrices: Mapping[tuple[int, ...], Any], seen: Seen, row: tuple[Any, ...]) -> Any:
    """The matrix for the iteration that runs; zeros where there is none."""
    any_matrix = next(iter(matrices.values()))
    stacked = jnp.stack([matrices.get(numbers, jnp.zeros_like(any_matrix)) for numbers in seen.row_numbers])
    return stacked.reshape(*_lengths(seen), *any_matrix.shape)[row]


def _with_rows(seen: Seen, rows: Mapping[tuple[int, ...], jax.Array]) -> Seen:
    """The record of a site with other values in some rows of the loops around it."""
    whole = arrays_in(seen.value)[0]
    own, flat = whole.shape[seen.loops :], whole.reshape(-1, *whole.shape[seen.loops :])
    new = [rows[row].reshape(own) if row in rows else flat[i] for i, row in enumerate(seen.row_numbers)]
    return dataclasses.replace(seen, value=jnp.stack(new).reshape(whole.shape).astype(whole.dtype))


def _lengths(seen: Seen) -> tuple[int, ...]:
    return tuple(len(axis.rows or ()) for axis in seen.axes if axis.is_loop)


def _reads(places: Places) -> list[Pattern]:
    return [reads for reads, _ in places]


def _writes(places: Places) -> list[Pattern]:
    return list(dict.fromkeys(name for _, names in places for name in names))


def _values(records: Records, patterns: Sequence[Pattern]) -> list[jax.Array]:
    """The values at some sites: positions by width."""
    found = []
    for pattern in patterns:
        node = _only(records, pattern)
        value = arrays_in(node.value)[0]
        if value.ndim < 2 or math.prod(value.shape[:-2]) != 1:
            raise ValueError(
                f"{_VERB}: {node.path!r} ({node.site.source}) has the shape {list(value.shape)}; a graph is of one "
                "text, with values (1, length, width) or (length, width)"
            )
        found.append(value.reshape(value.shape[-2:]))
    return found


def _place(records: Records, pattern: Pattern) -> Place:
    return _only(records, pattern).place


def _only(records: Records, pattern: Pattern) -> Seen:
    """The one value that a pattern chooses."""
    nodes = [s for s in each_seen(records) if not s.gradient and chooses(pattern, records[s.path])]
    if len(nodes) != 1:
        names = ", ".join(dict.fromkeys(node.path for node in nodes[:4]))
        raise ValueError(f"{_VERB}: {pattern!r} must be one value, got {len(nodes)}: {names}")
    node = nodes[0]
    if node.count is not None or any(axis.is_loop for axis in node.axes):
        raise CaptureError(in_unnamed_loop(_VERB, node))
    return node


def _encoder(dictionary: Dictionary) -> tuple[np.ndarray, np.ndarray]:
    """The directions along which active features read, and their biases."""
    matrix, bias = np.asarray(dictionary.encoder[...]), np.asarray(dictionary.encoder_bias[...])
    return matrix * np.exp(np.asarray(dictionary.log_gain[...])) if dictionary.activation == "gated" else matrix, bias


def _decoders(dictionary: Dictionary, count: int) -> list[jax.Array]:
    """A matrix for each value that features write to."""
    return jnp.split(dictionary.decoder[...], count, axis=1)


def _decoder_biases(places: Places, dictionaries: Sequence[Dictionary]) -> list[Any]:
    names = _writes(places)
    total: list[Any] = [0.0] * len(names)
    for (_, named), dictionary in zip(places, dictionaries):
        for name, bias in zip(named, jnp.split(dictionary.decoder_bias[...], len(named))):
            total[names.index(name)] += bias
    return total
