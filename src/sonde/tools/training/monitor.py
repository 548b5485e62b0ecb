"""Statistics of a training run, taken inside the step.

Every `n`-th step is compiled together with its statistics; the others run as they are. The numbers are sent to the host
at once, and read when they are written or requested. By then the device has finished them, so a monitored loop does not
wait.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.core import Pattern, Records, capture, check_callable, check_pattern, explains_arguments, inside_request
from sonde.display import InNotebook
from sonde.errors import CaptureError
from sonde.tools.execution.host_transfer import Fetching
from sonde.tools.execution.record_values import check_numbers, chooses, each_seen
from sonde.tools.numerics.array_statistics import ALL_NAMES, check_names, described, moments_of_parts
from sonde.tools.numerics.nonfinite import first_nonfinite
from sonde.tools.training.alerts import LOSS, RULES, Alert, Watchdog, log_alert
from sonde.tools.training.bundle import write_bundle
from sonde.tools.training.packed_statistics import stacked_capture, worth_stacking
from sonde.tools.training.writers import Writer, json_lines

P = ParamSpec("P")
R = TypeVar("R")

_GRADIENT = "grad_"
_COUNTS = ("nonfinite", "zeros", "dead")
_SCALARS = tuple(name for name in ALL_NAMES if name != "histogram")


class Call(NamedTuple):
    """The arguments of a step.

    Attributes:
        step: The number of the step.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """

    step: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Watching:
    """What a monitored step does with its numbers besides writing them.

    Attributes:
        rules: The names of the rules.
        alert: Called with each alert.
        loss: Takes the loss from the result of a step.
        weights: The argument that holds the weights, and the position of the new ones in the result.
        bundle: The folder that the step of the first NaN is written to.
    """

    rules: tuple[str, ...] = ()
    alert: Callable[[Alert], None] = log_alert
    loss: Callable[[Any], Any] | None = None
    weights: tuple[int, int | None] | None = None
    bundle: Path | None = None


class _Pending(NamedTuple):
    """The numbers of a step that are on their way to the host."""

    step: int
    sent: Fetching
    scalars: dict[str, Any]
    call: Call | None


class Monitored(Generic[P, R], InNotebook):
    """A monitored training step; call it like the step itself. As a context manager, it flushes at the end.

    Attributes:
        step: How many steps have run.
        alerts: What the rules have found.
        last_good: The number, the arguments and the keyword arguments of the last monitored step whose numbers were
            all finite; None before there is one, or if no bundle was asked for.
    """

    def __init__(
        self,
        train_step: Callable[P, R],
        wanted: Mapping[Pattern, Collection[str]],
        every: int,
        writers: Sequence[Writer],
        inside: object,
        watching: Watching,
    ) -> None:
        functools.update_wrapper(self, train_step, updated=())
        self.step = 0
        self.alerts: list[Alert] = []
        self.last_good: Call | None = None
        self._watching = watching
        self._watchdog = Watchdog(watching.rules, watching.alert)
        self._inside = inside
        self._latest: dict[str, float] = {}
        self._train_step = train_step
        self._wanted = wanted
        self._every = every
        self._writers = writers
        self._pending: _Pending | None = None
        self._checked = False
        self._chosen: dict[str, tuple[list[str], list[str]]] = {}
        asked = {name for names in wanted.values() for name in names}
        grads = any(name.startswith(_GRADIENT) for name in asked)
        # A gradient that is NaN has no norm, which only the count of such elements tells.
        asked |= {"nonfinite"} if grads else set()
        self._names = tuple(n for n in _SCALARS if n in asked or _GRADIENT + n in asked)
        self._stacked = None
        if worth_stacking() and all(isinstance(pattern, str) for pattern in wanted):
            self._stacked = stacked_capture(
                train_step, tuple(wanted), self._names, grads=grads, inside=inside_request(inside)
            )
        self._captured = capture(
            train_step,
            *wanted,
            grads=grads,
            reduce=functools.partial(moments_of_parts, names=self._names, often=True),
            inside=inside,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a step and returns its result."""
        step = self.step
        self.step += 1
        if step % self._every:
            return self._train_step(*args, **kwargs)
        # The step may donate its arguments; what is to be kept is copied before.
        call = Call(step, *jax.tree.map(_copied, (args, kwargs))) if self._watching.bundle is not None else None
        before = [] if self._watching.weights is None else _leaves_at(args, self._watching.weights[0])
        result, sent = self._watched(*args, **kwargs)
        if not self._checked:
            self._check_gradients(sent.arrived())
            self._checked = True
        if self._writers or self._watching.rules:  # while the device is busy with the step
            self.flush()
        scalars: dict[str, Any] = {}
        if self._watching.loss is not None:
            scalars[LOSS] = self._watching.loss(result)
        if before:
            assert self._watching.weights is not None
            scalars |= _update_ratios(before, _leaves_at(result, self._watching.weights[1]))
        self._pending = _Pending(step, sent, scalars, call)
        return result

    def _watched(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, Fetching]:
        """Runs a step and starts to send its statistics to the host."""
        if self._stacked is not None:
            result, packed = self._stacked(*args, **kwargs)
            check_numbers(packed, "monitor")
            return result, packed.sent()
        result, records = self._captured(*args, **kwargs)
        check_numbers(records, "monitor")
        return result, Fetching.of(records)

    @property
    def latest(self) -> dict[str, float]:
        """The newest numbers. Waits for the step that made them."""
        return self.flush()

    def flush(self) -> dict[str, float]:
        """Reads and writes all outstanding numbers; returns the newest."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            shown, units = self._numbers(pending.sent.arrived())
            shown |= {name: float(np.asarray(number)) for name, number in pending.scalars.items()}
            self._latest = shown
            if jax.process_index() == 0:  # all processes have the same numbers
                for write in self._writers:
                    write(pending.step, self._latest)
            self._watch_over(pending, units)
        return self._latest

    def _watch_over(self, pending: _Pending, units: Mapping[str, float]) -> None:
        """Applies the rules; keeps the call if all is well, and writes the bundle at the first NaN."""
        new = self._watchdog.look(pending.step, {**self._latest, **units})
        is_first = not any(alert.rule == "nan" for alert in self.alerts)
        self.alerts += new
        if pending.call is None:
            return
        if not any(alert.rule == "nan" for alert in new) and is_first:
            self.last_good = pending.call
        elif is_first:
            # Bad arguments are the work of an earlier step: the last good ones lead to it.
            bad = _has_bad((pending.call.args, pending.call.kwargs))
            call = self.last_good if bad and self.last_good is not None else pending.call
            found = None
            if call is pending.call:
                found = first_nonfinite(self._train_step, inside=self._inside)(*call.args, **call.kwargs)
            answer = f"step {call.step}\n{found or new[0]}"
            assert self._watching.bundle is not None
            write_bundle(self._watching.bundle, self._train_step, call.args, call.kwargs, answer=answer)

    def _numbers(self, records: Records) -> tuple[dict[str, float], dict[str, float]]:
        """The numbers by name; and, for the rules, how many units there are where dead ones are counted."""
        found: dict[str, float] = {}
        units: dict[str, float] = {}
        for seen in each_seen(records):
            names = self._names_at(seen.path, records)[seen.gradient]
            if not names:
                continue
            for part, _, moments in seen.numbers():
                place = f"{seen.path}{part and '.' + part}{f'[{seen.call}]' if seen.call else ''}"
                for index, iteration, here in seen.steps(np.shape(moments["counts"])[: seen.loops]):
                    one = {name: x[index] for name, x in moments.items()} if index else moments
                    statistics = described(one, here, self._names)
                    at = f"{place}@{','.join(map(str, iteration))}" if iteration else place
                    for name in names:
                        number = float(statistics.number(name.removeprefix(_GRADIENT)))
                        is_count = name.removeprefix(_GRADIENT) in _COUNTS
                        if seen.gradient and statistics.nonfinite and not is_count:
                            number = math.nan
                        found[f"{at}/{name}"] = number
                    if statistics.units:
                        units[f"{at}/units"] = float(statistics.units)
        return found, units

    def _check_gradients(self, records: Records) -> None:
        """At the first monitored step: raises an error if a requested gradient is missing."""
        for pattern, names in self._wanted.items():
            asked = [name for name in names if name.startswith(_GRADIENT)]
            if asked and not any(record.grads for record in records.values() if chooses(pattern, record)):
                raise CaptureError(
                    f"monitor needs gradients for {', '.join(asked)} of {pattern!r}, but none reached its sites: the "
                    "step must differentiate through them, as `jax.grad` inside it does"
                )

    def _names_at(self, path: str, records: Records) -> tuple[list[str], list[str]]:
        """The requested statistics of the value and of the gradient at a path."""
        if path not in self._chosen:
            names = [n for p, names in self._wanted.items() if chooses(p, records[path]) for n in names]
            unique = list(dict.fromkeys(names))
            gradient = [name for name in unique if name.startswith(_GRADIENT)]
            self._chosen[path] = ([name for name in unique if name not in gradient], gradient)
        return self._chosen[path]

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", repr(self._train_step))
        return f"Monitored({name}, every={self._every}, step={self.step})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        sites: dict[str, dict[str, float]] = {}
        for name, number in self.latest.items():
            path, _, statistic = name.rpartition("/")
            sites.setdefault(path, {})[statistic] = number
        columns = list(dict.fromkeys(statistic for found in sites.values() for statistic in found))
        table = Table("site", *columns, title=repr(self))
        for path, found in sites.items():
            table.add_row(Text(path), *(f"{found[c]:.4g}" if c in found else "-" for c in columns))
        return WholePaths(table)

    def __enter__(self) -> Monitored[P, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


def _copied(x: jax.Array) -> Any:
    return x.copy() if isinstance(x, jax.Array) else x


def _leaves_at(values: Any, position: int | None) -> list[tuple[str, Any]]:
    """Copies of the arrays of floating point at a position, with their paths; of all, if the position is None."""
    chosen = values if position is None else values[position]
    found = jax.tree_util.tree_flatten_with_path(chosen)[0]
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), _copied(leaf))
        for path, leaf in found
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    ]


def _update_ratios(before: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> dict[str, Any]:
    """By how much a step changes each parameter: the norm of the change over that of the parameter."""
    new = dict(after)
    ratios = _ratios([x for path, x in before if path in new], [new[path] for path, _ in before if path in new])
    paths = [path for path, _ in before if path in new]
    return {f"{path or 'weights'}/update_ratio": ratio for path, ratio in zip(paths, ratios)}


@jax.jit
def _ratios(before: list[Any], after: list[Any]) -> list[Any]:
    def norm(x: jax.Array) -> Any:
        return jax.numpy.sqrt(jax.numpy.sum(jax.numpy.square(x.astype(jax.numpy.float32))))

    return [norm(b - a) / jax.numpy.maximum(norm(a), 1e-30) for a, b in zip(before, after)]


def _has_bad(tree: Any) -> bool:
    """Whether an array of floating point in a pytree holds NaN or Inf."""
    floats = [x for x in jax.tree.leaves(tree) if isinstance(x, (jax.Array, np.ndarray))]
    floats = [x for x in floats if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
    return not all(bool(jax.numpy.isfinite(x).all()) for x in floats)


@accepts_old_keywords("sonde.tools.monitor")
@explains_arguments
def monitor(
    train_step: Callable[P, R],
    statistics: Mapping[str, Sequence[str]] | Mapping[Pattern, Sequence[str]],
    *,
    every: int = 10,
    writers: Writer | str | Path | Sequence[Writer] = (),
    inside: object = None,
    rules: Sequence[str] = (),
    alert: Callable[[Alert], None] = log_alert,
    loss: Callable[[Any], Any] | None = None,
    weights: tuple[int, int | None] | None = None,
    bundle: str | Path | None = None,
) -> Monitored[P, R]:
    """A training step that also reports statistics of its sites, every `every` steps.

    Args:
        train_step: Any callable; usually a jitted step, with the gradient inside.
        statistics: For each pattern, names of statistics: `mean`, `std`, `min`, `max`, `norm`, `zeros`, `dead`,
            `nonfinite`, `amax`, and the shares that a narrow format loses, `overflow_float16` and `underflow_float16`
            (or `bfloat16`, `float8_e4m3fn`, `float8_e5m2`); of the gradient with `grad_` in front, as in `grad_norm`.
        every: How many steps apart. The first step is reported.
        writers: Where the numbers go: a file for JSON lines, a writer from `sonde.tools.training.writers`, any function
            of a step and a flat dict, or several of these.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
        rules: Names of rules that watch the numbers: `nan`, `exploding`, `vanishing`, `dead`, `family` (a layer leaves
            its family), `spike` (of the loss). Each alerts once per number.
        alert: Called with each `Alert`; by default, it is logged as a warning.
        loss: Takes the loss from the result of a step; it is one of the numbers, as `loss`.
        weights: Which argument holds the weights, and where in the result the new ones are (None: it is the result).
            Adds `<path>/update_ratio`, the norm of a step's change over that of the parameter.
        bundle: A folder. The arguments of the last monitored step are kept, as copies; at the first NaN the step is
            written there (needs the rule `nan`), or, if its arguments were bad already, the last good one.

    Returns:
        A function with the arguments and results of `train_step`. Numbers are named by path and statistic, as in
        `blocks/0/h/grad_norm`; in a loop `h@3/mean` is iteration 3, and `h[1]/mean` is the second call. They are
        written when the next ones are made, on `flush()`, and at the end of a `with` block.

    Raises:
        ValueError: There is no such statistic or rule, or `every` is less than 1.
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called inside a transform, where there are no numbers yet; or, when called, a statistic of a
            gradient is requested and there is no gradient.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> from sonde.tools import monitor
        >>> @jax.jit
        ... def train_step(w, x):
        ...     loss = lambda w: jnp.sum(sonde.sow(w * x, "h") ** 2)
        ...     return w - 0.1 * jax.grad(loss)(w)
        >>> step = monitor(train_step, {"h": ["mean", "grad_norm"]}, every=2)
        >>> w = jnp.float32(1.0)
        >>> for _ in range(4):
        ...     w = step(w, jnp.array([3.0, 4.0]))
        >>> sorted(step.flush()), step.step
        (['h/grad_norm', 'h/mean'], 4)
    """
    check_callable(train_step, "monitor")
    if not isinstance(statistics, Mapping) or not statistics:
        raise TypeError(f"monitor takes a mapping from patterns to names of statistics, got {statistics!r}")
    if every < 1:
        raise ValueError(f"monitor: every must be at least 1, got {every}")
    wanted: dict[Pattern, tuple[str, ...]] = {}
    for pattern, names in statistics.items():
        if isinstance(names, str):
            raise TypeError(f"monitor: {pattern!r} needs a list of statistics, got the string {names!r}")
        check_names([n.removeprefix(_GRADIENT) for n in names], f"monitor of {pattern!r}", _SCALARS)
        wanted[check_pattern(pattern, "monitor")] = tuple(names)
    several = (writers,) if isinstance(writers, (str, Path)) or callable(writers) else tuple(writers)
    writers = [json_lines(w) if isinstance(w, (str, Path)) else w for w in several]
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"monitor: there is no rule {rule!r}; there are {', '.join(RULES)}")
    if "spike" in rules and loss is None:
        raise ValueError("monitor: the rule 'spike' needs loss=, a function that takes the loss from the result")
    if bundle is not None and "nan" not in rules:
        raise ValueError("monitor: bundle= is written at the first NaN: add the rule 'nan'")
    watching = Watching(tuple(rules), alert, loss, weights, None if bundle is None else Path(bundle))
    return Monitored(train_step, wanted, every, writers, inside, watching)
