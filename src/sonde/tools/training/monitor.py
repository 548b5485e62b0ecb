"""Statistics of a training run, taken inside the step.

Every `n`-th step is compiled together with its statistics; the others run as they are. The numbers are sent to the host
at once, and read when they are written or requested. By then the device has finished them, so a monitored loop does not
wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.core import Pattern, Records, capture, check_callable, check_pattern, inside_request
from sonde.errors import CaptureError
from sonde.tools.execution.host_transfer import Fetching
from sonde.tools.execution.record_values import check_numbers, chooses, each_seen
from sonde.tools.numerics.array_statistics import NAMES, check_names, described, moments_of_parts
from sonde.tools.training.packed_statistics import stacked_capture, worth_stacking
from sonde.tools.training.writers import Writer, json_lines

_GRADIENT = "grad_"
_SCALARS = tuple(name for name in NAMES if name != "histogram")


class Monitored:
    """A monitored training step; call it like the step itself. As a context manager, it flushes at the end.

    Attributes:
        step: How many steps have run.
    """

    def __init__(
        self,
        train_step: Callable,
        wanted: Mapping[Pattern, Collection[str]],
        every: int,
        writers: Sequence[Writer],
        inside: Any = None,
    ) -> None:
        functools.update_wrapper(self, train_step, updated=())
        self.step = 0
        self._latest: dict[str, float] = {}
        self._train_step = train_step
        self._wanted = wanted
        self._every = every
        self._writers = writers
        self._pending: tuple[int, Fetching] | None = None
        self._checked = False
        self._chosen: dict[str, tuple[list[str], list[str]]] = {}
        asked = {name for names in wanted.values() for name in names}
        self._names = tuple(n for n in _SCALARS if n in asked or _GRADIENT + n in asked)
        grads = any(name.startswith(_GRADIENT) for name in asked)
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step and returns its result."""
        step = self.step
        self.step += 1
        if step % self._every:
            return self._train_step(*args, **kwargs)
        result, sent = self._watched(*args, **kwargs)
        if not self._checked:
            self._check_gradients(sent.arrived())
            self._checked = True
        if self._writers:  # while the device is busy with the step
            self.flush()
        self._pending = (step, sent)
        return result

    def _watched(self, *args: Any, **kwargs: Any) -> tuple[Any, Fetching]:
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
            step, sent = self._pending
            self._pending = None
            self._latest = self._numbers(sent.arrived())
            if jax.process_index() == 0:  # all processes have the same numbers
                for write in self._writers:
                    write(step, self._latest)
        return self._latest

    def _numbers(self, records: Records) -> dict[str, float]:
        found: dict[str, float] = {}
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
                        found[f"{at}/{name}"] = float(getattr(statistics, name.removeprefix(_GRADIENT)))
        return found

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

    def _repr_html_(self) -> str:
        from sonde.core import in_notebook

        return in_notebook(self)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.core import WholePaths

        sites: dict[str, dict[str, float]] = {}
        for name, number in self.latest.items():
            path, _, statistic = name.rpartition("/")
            sites.setdefault(path, {})[statistic] = number
        columns = list(dict.fromkeys(statistic for found in sites.values() for statistic in found))
        table = Table("site", *columns, title=repr(self))
        for path, found in sites.items():
            table.add_row(Text(path), *(f"{found[c]:.4g}" if c in found else "-" for c in columns))
        return WholePaths(table)

    def __enter__(self) -> Monitored:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


@accepts_old_keywords("sonde.tools.monitor")
def monitor(
    train_step: Callable,
    statistics: Mapping[str, Sequence[str]] | Mapping[Pattern, Sequence[str]],
    *,
    every: int = 10,
    writers: Writer | str | Path | Sequence[Writer] = (),
    inside: Any = None,
) -> Monitored:
    """A training step that also reports statistics of its sites, every `every` steps.

    Args:
        train_step: Any callable; usually a jitted step, with the gradient inside.
        statistics: For each pattern, names of statistics: `mean`, `std`, `min`, `max`, `norm`, `zeros`, `dead`,
            `nonfinite`; of the gradient with `grad_` in front, as in `grad_norm`.
        every: How many steps apart. The first step is reported.
        writers: Where the numbers go: a file for JSON lines, a writer from `sonde.tools.training.writers`, any function
            of a step and a flat dict, or several of these.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments and results of `train_step`. Numbers are named by path and statistic, as in
        `blocks/0/h/grad_norm`; in a loop `h@3/mean` is iteration 3, and `h[1]/mean` is the second call. They are
        written when the next ones are made, on `flush()`, and at the end of a `with` block.

    Raises:
        ValueError: There is no such statistic, or `every` is less than 1.
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
        wanted[check_pattern(pattern)] = tuple(names)
    several = (writers,) if isinstance(writers, (str, Path)) or callable(writers) else tuple(writers)
    writers = [json_lines(w) if isinstance(w, (str, Path)) else w for w in several]
    return Monitored(train_step, wanted, every, writers, inside)
