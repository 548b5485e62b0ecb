"""Rules that watch the numbers of a training run, and alert once for each number, with the step.

nan         a number is not finite, or `nonfinite` elements were counted
exploding   a scale is 1000 times its median so far
vanishing   a scale is a thousandth of its median so far
dead        half of the units that fired at first never fire
family      one layer's scale leaves that of the other layers of its family, 10 times or more
spike       the loss is far above its recent values
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from sonde.tools.numerics.families import families, find_outlier

RULES: tuple[str, ...] = ("nan", "exploding", "vanishing", "dead", "family", "spike")
LOSS = "loss"
_SCALES = ("norm", "std", "amax", "grad_norm", "grad_std", "grad_amax", "update_ratio")
_EARLIER = 3  # how many numbers there must be before one can be unusual
_REMEMBERED = 50
_RATIO = 1000.0
_FAMILY_RATIO, _FAMILY_SPREAD, _MEMBERS = 10.0, 2.5, 4
_SPIKE_RATIO, _SPIKE_DEVIATIONS, _SPIKE_EARLIER = 2.0, 8.0, 8
_LOG = logging.getLogger("sonde")


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """Something that a rule has found.

    Attributes:
        step: The step.
        rule: The name of the rule.
        name: The number, as in `blocks/3/h/grad_norm`.
        text: What was found, in a sentence.
    """

    step: int
    rule: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


def log_alert(alert: Alert) -> None:
    """Writes an alert to the logger `sonde`, as a warning."""
    _LOG.warning("%s", alert)


class Watchdog:
    """Applies rules to the numbers of each monitored step."""

    def __init__(self, rules: Sequence[str], alert: Callable[[Alert], None]) -> None:
        self._rules = {
            "nan": self._nan,
            "exploding": self._exploding,
            "vanishing": self._vanishing,
            "dead": self._dead,
            "family": self._family,
            "spike": self._spike,
        }
        self._chosen = tuple(rules)
        self._alert = alert
        self._history: dict[str, collections.deque[float]] = {}
        self._first: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, step: int, numbers: Mapping[str, float]) -> list[Alert]:
        """The new alerts of one step; each is passed on as well."""
        new: list[Alert] = []
        for rule in self._chosen:
            for name, text in self._rules[rule](numbers):
                if (rule, name) not in self._told:
                    self._told.add((rule, name))
                    new.append(Alert(step, rule, name, text))
        for name, number in numbers.items():
            if math.isfinite(number):
                self._first.setdefault(name, number)
                self._history.setdefault(name, collections.deque(maxlen=_REMEMBERED)).append(number)
        for alert in new:
            self._alert(alert)
        return new

    def _median(self, name: str) -> float | None:
        earlier = self._history.get(name, ())
        return statistics.median(earlier) if len(earlier) >= _EARLIER else None

    def _nan(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for name, number in numbers.items():
            if not math.isfinite(number):
                found.append((name, f"{name} is {number}"))
            elif name.endswith("nonfinite") and number > 0:
                found.append((name, f"{number:g} elements are not finite ({name})"))
        return found

    def _scales(self, numbers: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """The scales, each with its median so far."""
        found: dict[str, tuple[float, float]] = {}
        for name, number in numbers.items():
            usual = self._median(name)
            if name.rpartition("/")[2] in _SCALES and math.isfinite(number) and usual:
                found[name] = number, usual
        return found

    def _exploding(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        return [
            (name, f"{name} explodes: {number:.3g}, before {usual:.3g}")
            for name, (number, usual) in self._scales(numbers).items()
            if number > _RATIO * usual
        ]

    def _vanishing(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        return [
            (name, f"{name} vanishes: {number:.3g}, before {usual:.3g}")
            for name, (number, usual) in self._scales(numbers).items()
            if number < usual / _RATIO
        ]

    def _dead(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for name, number in numbers.items():
            units = numbers.get(name.removesuffix("dead") + "units")
            first = self._first.get(name)
            if name.endswith("/dead") and units and first is not None and number - first >= (units - first) / 2:
                found.append((name, f"{number:g} of {units:g} units never fire at {name.removesuffix('/dead')}"))
        return found

    def _family(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        scales = [(name, number) for name, number in numbers.items() if name.rpartition("/")[2] in _SCALES]
        for family, members in families(scales).items():
            known = [(name, number) for name, number in members if math.isfinite(number) and number > 0]
            if len(known) < _MEMBERS or len(known) < len(members):
                continue
            outlier = find_outlier([number for _, number in known], _FAMILY_RATIO, _FAMILY_SPREAD)
            if outlier is not None:
                name, number = known[outlier.index]
                text = f"{name} has left its family {family}: {number:.3g}, the others {outlier.usual:.3g}"
                found.append((name, text))
        return found

    def _spike(self, numbers: Mapping[str, float]) -> list[tuple[str, str]]:
        number, earlier = numbers.get(LOSS), self._history.get(LOSS, ())
        if number is None or len(earlier) < _SPIKE_EARLIER or not math.isfinite(number):
            return []
        usual = statistics.median(earlier)
        deviation = statistics.median(abs(x - usual) for x in earlier)
        if number > usual + _SPIKE_DEVIATIONS * deviation and number > _SPIKE_RATIO * usual:
            return [(LOSS, f"the loss jumps to {number:.4g}, from a median of {usual:.4g}")]
        return []
