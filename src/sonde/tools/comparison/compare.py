"""`compare` runs two programs that should do the same, and finds where they differ first.

What they return and its gradients are always compared; so are the values at the sites of both, which `matching.py`
pairs whatever they are called. How much rounding alone may change a value is measured (`sonde.port.rounding`). All
values of both programs are in memory at once; choose sites with patterns if that is too much.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde._array_text import counted, short_place
from sonde._renames import accepts_old_keywords
from sonde.core import Pattern, check_patterns, inside_request, two_steps, wrapped_like
from sonde.display import Badges, Leaf, tree_html
from sonde.port.difference import Distance, distance, epsilon, wide
from sonde.port.parting import Parting, find_parting
from sonde.port.widening import is_narrow
from sonde.tools.comparison.differences import Drift, Tolerance, judge
from sonde.tools.comparison.gradients import Gradients, gradient_pairs
from sonde.tools.comparison.matching import Match, Pair, Points, match, match_results, rows_of
from sonde.tools.comparison.page import page_of
from sonde.tools.comparison.runs import RESULT, Point, Run
from sonde.tools.comparison.sides import ProgramSide, Side, side_of
from sonde.tools.reading.heatmap import Drawn, Heat

_COARSE = 0.1  # a comparison that allows more than this part of the norm has not seen much
_EXPLAINED = "rounding alone explains them"
_DRAWS = 3  # of the noise of each program, at most: one alone may be small by chance


class NothingComparedError(ValueError):
    """Two programs have nothing that could be compared."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Comparison(Drawn):
    """What `compare` found.

    Attributes:
        drifts: One per site, call and iteration that both programs have, in the order of the first program: forward
            before backward; in a loop, one iteration after the other.
        only_first: Path and call of the sites that only the first program has.
        only_second: Path and call of the sites that only the second program has.
        names: What the second program calls a value, by what the first calls it, where that is not the same. It can be
            given to `compare` as `match_paths`.
        results: What the programs returned, then the gradients of that.
        matches: Which values were matched, and why.
        unchecked: What could not be compared, and why.
        parting: The operation at which the programs part, and why, if they differ and that is known.
        precision: What computing in single precision shows, if a program computes in less; `""` otherwise.
    """

    drifts: tuple[Drift, ...]
    only_first: tuple[tuple[str, int], ...]
    only_second: tuple[tuple[str, int], ...]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    results: tuple[Drift, ...] = ()
    matches: tuple[Match, ...] = ()
    unchecked: tuple[str, ...] = ()
    parting: Parting | None = None
    precision: str = ""

    @property
    def first(self) -> Drift | None:
        """Where they differ first: at a site, else in what they return, else in its gradient; None if nowhere."""
        return next((d for d in (*self.drifts, *self.results) if d.differs), None)

    def save_matches(self, path: str | Path) -> None:
        """Writes which values were matched to a JSON file, for `compare(match_paths=path)`."""
        Path(path).write_text(json.dumps({m.first: m.second for m in self.matches}, indent=1), encoding="utf-8")

    def write(self, path: str | Path) -> None:
        """Writes a page that opens from disk: the verdict, the error over the depth, both programs side by side."""
        Path(path).write_text(page_of(self), encoding="utf-8")

    def jumps(self, n: int = 5) -> list[tuple[Drift, float]]:
        """Where the error grows most from one value to the next, in the order of the first program.

        Args:
            n: How many.

        Returns:
            The value after each jump, and how many times its relative norm is that of the values before it.
        """
        jumps, before = [], 0.0
        for drift in self.drifts:
            if drift.gradient or not np.isfinite(drift.rel_norm):
                continue
            # Rounding alone is not a jump.
            floor = max(before, float(np.finfo(np.float32).eps) if drift.limit is None else drift.limit / 8)
            if drift.rel_norm > floor:
                jumps.append((drift, drift.rel_norm / floor))
            before = max(before, drift.rel_norm)
        return sorted(jumps, key=lambda jump: -jump[1])[:n]

    def _heat(self) -> Heat:
        columns = ("rel_norm", "max_rel")
        everything = (*self.drifts, *self.results)
        values = np.array([[getattr(d, c) for c in columns] for d in everything], float).reshape(-1, 2)
        return Heat(values, [d.place for d in everything], columns, str(self), by_column=True)

    def _repr_html_(self) -> str:
        leaves = [_leaf(drift) for drift in (*self.drifts, *self.results)]
        headers = ("kind", "beyond", "max abs", "max rel", "rel norm", "allowed")
        return tree_html(str(self), leaves, headers=headers, badges=Badges("differs at", "not compared at"))

    def __repr__(self) -> str:
        return f"Comparison({len(self.drifts)} values, {len(self.results)} results, first difference: {self.first})"

    def __str__(self) -> str:
        first = "no difference"
        if self.first is not None:
            source = self.first.source and f" ({short_place(self.first.source)})"
            first = f"first difference at {self.first}{source}"
        gradients = sum(d.gradient for d in self.results)
        counts = [counted(len(self.drifts), "value")]
        counts += [counted(len(self.results) - gradients, "result")] if len(self.results) > gradients else []
        counts += [counted(gradients, "gradient")] if gradients else []
        lines = [f"{first}; {' and '.join([', '.join(counts[:-1]), counts[-1]] if counts[:-1] else counts)} compared"]
        lines += [str(self.parting)] if self.parting is not None else []
        lines += [self.precision] if self.precision else []
        lines += [f"also: {d}" for d in self.results if d.note and d is not self.first]
        lines += [f"not compared: {reason}" for reason in self.unchecked]
        for which, only in (("first", self.only_first), ("second", self.only_second)):
            if only:
                lines.append(f"only in the {which}: {_some([f'{path}[{call}]' for path, call in only])}")
        if self.names:
            lines.append(f"matched: {_some([f'{a} = {b}' for a, b in self.names.items()])}")
        return "\n".join(lines)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        jumps = {id(drift): times for drift, times in self.jumps()}
        columns = ("site", "iteration", "kind", "beyond", "of", "max abs", "max rel", "rel norm", "allowed", "jump", "")
        table = Table(*columns, title=str(self))
        for d in (*self.drifts, *self.results):
            name = d.place if d.result else f"{d.path}{d.part and '.' + d.part}" + (f"[{d.call}]" if d.call else "")
            kind = "gradient" if d.gradient else "result" if d.result else "value"
            cells = [name, ",".join(map(str, d.iteration)), kind, str(d.beyond), str(d.size)]
            style = "red" if d.differs else ""
            jump = f"x{jumps[id(d)]:.3g}" if id(d) in jumps else ""
            allowed = "" if d.limit is None else f"{d.limit:.3g}"
            cells += [f"{d.max_abs:.3g}", f"{d.max_rel:.3g}", f"{d.rel_norm:.3g}", allowed, jump, d.note or d.layout]
            table.add_row(*map(Text, cells), style=style)
        return WholePaths(table)


def _some(texts: Sequence[str], most: int = 8) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _leaf(drift: Drift) -> Leaf:
    """The line of a value in a notebook."""
    kind = (
        "gradient" if drift.gradient else "result" if drift.result else f"call {drift.call}" if drift.call else "value"
    )
    kind += f"[{','.join(map(str, drift.iteration))}]" if drift.iteration else ""
    numbers = [f"{x:.3g}" for x in (drift.max_abs, drift.max_rel, drift.rel_norm)]
    allowed = "" if drift.limit is None else f"{drift.limit:.3g}"
    cells = [kind, f"{drift.beyond:,} of {drift.size:,}", *numbers, allowed]
    alarm = drift.note or ("differs" if drift.differs else "")
    path = f"{drift.path}{drift.part if drift.result else drift.part and '.' + drift.part}"
    return Leaf(
        path, cells, alarm, drift.differs, last=" ".join(filter(None, [drift.layout, short_place(drift.source)]))
    )


@accepts_old_keywords("sonde.tools.compare")
@two_steps
def compare(
    f: Any,
    g: Any,
    *patterns: Pattern,
    rtol: float | None = None,
    atol: float = 1e-6,
    norm: float | None = None,
    match_paths: Mapping[str, str] | str | Path | None = None,
    grads: bool | None = None,
    inside: object = None,
) -> Callable[..., Comparison]:
    """A function that runs `f` and `g` with the same arguments and returns where they differ.

    Their results are compared, the gradients of these, and the values at sites. By default, two arrays differ if the
    norm of their difference is larger than four times what rounding alone explains: one unit in the last place of their
    dtype, or what came out where both programs ran with each operation rounded differently.

    Args:
        f: A callable.
        g: Another, with the same arguments.
        *patterns: Which sites, as in `sonde.capture`; each must match in both programs. All, if none are given.
        rtol: If it is given, elements are compared one by one: they differ if they are further apart than
            `atol + rtol * abs(second)`. NaN is equal to NaN.
        atol: The absolute tolerance; only with `rtol`.
        norm: How large the norm of a difference may be, relative to that of the value of `g`.
        match_paths: For paths of `f`, the corresponding paths of `g`, or a file that `Comparison.save_matches` wrote.
            `{i}` stands for the same number on both sides (`"layers/{i}/attn": "blocks/{i}/self_attn"`), and what
            follows a path is kept. Usually not needed: see `Comparison.matches`.
        grads: Whether to compare gradients at the sites too; the programs, or a part of them, are then differentiated
            by themselves. None: the gradients of the results with respect to everything that goes into the programs,
            and those at sites if these differ. False: none at all.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `Comparison`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site of one of the programs.
        CaptureError: When called inside a transform, where there are no numbers yet.
        ValueError: When called: the programs have nothing in common that could be compared, or a path of `match_paths`
            does not occur.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import compare
        >>> def model(x, dtype=jnp.float32):
        ...     x = sonde.sow(x.astype(dtype) * 2, "double")
        ...     return sonde.sow(x + 1 / 3, "shifted")
        >>> found = compare(lambda x: model(x, jnp.bfloat16), model, rtol=1e-4)(jnp.ones(4))
        >>> found.first.path, found.first.beyond
        ('shifted', 4)
        >>> print(compare(lambda x: model(x, jnp.bfloat16), model)(jnp.ones(4)).first)
        None
    """
    patterns = check_patterns(patterns, "compare")
    first, second = (side_of(x, patterns, bool(grads), inside_request(inside)) for x in (f, g))
    given = _given_paths(match_paths)

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        sides = first.called(args, kwargs), second.called(args, kwargs)
        comparing = _Comparing(sides, given, Tolerance(rtol, atol, norm), grads)
        found = comparing.comparison()
        if rtol is not None or norm is not None:
            return found
        wide = comparing.in_single_precision()
        return found if wide is None else _with_sharper(found, wide)

    return wrapped_like(compared, f) if callable(f) else compared


def assert_same_program(
    f: Any, g: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Comparison:
    """Fails, with what `compare` found, if two programs do not do the same; for tests.

    Args:
        f: The first program, as in `compare`.
        g: The second.
        args: The arguments of both.
        kwargs: Their keyword arguments.
        **options: As in `compare`.

    Returns:
        What was compared.

    Raises:
        AssertionError: They differ. The text says where, and why if that is known.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde.tools import assert_same_program
        >>> found = assert_same_program(lambda x: x + x, lambda x: 2 * x, (jnp.ones(3),))
    """
    found = compare(f, g, **options)(*args, **(kwargs or {}))
    if found.first is not None:
        raise AssertionError(str(found))
    return found


def _given_paths(match_paths: Mapping[str, str] | str | Path | None) -> dict[str, str]:
    if isinstance(match_paths, str | Path):
        return dict(json.loads(Path(match_paths).read_text(encoding="utf-8")))
    return dict(match_paths or {})


class _Comparing:
    """One comparison on its way."""

    def __init__(
        self, sides: tuple[Side, Side], given: Mapping[str, str], tolerance: Tolerance, grads: bool | None
    ) -> None:
        self.sides, self.given, self.tolerance, self.grads = sides, given, tolerance, grads
        self.runs = _with_results_as_points((sides[0].run(), sides[1].run()))
        self.unchecked: list[str] = []
        self._noise: dict[bool, _Noise] = {}

    def comparison(self) -> Comparison:
        points, others = (Points(run.points) for run in _stacked_alike(self.runs))
        pairs = match(points, others, self.given)
        drifts = self.judged(pairs, points, others)
        results = self.result_drifts()
        # Where values differ, gradients follow.
        if self.grads is None and not any(d.differs and d.by != "order" for d in (*drifts, *results)):
            gradients = self.gradient_drifts()
            if any(d.differs for d in gradients):
                drifts += self.gradients_at_sites()
            results += gradients
        drifts = _without_guesses(drifts, results)
        kept = {(d.path, d.part, d.call, d.iteration, d.gradient) for d in drifts}
        pairs = [p for p in pairs if _key(p.first) in kept or p.by != "order"]
        matches = tuple(Match(points.label(p.first), others.label(p.second), p.by) for p in pairs)
        if not any((d.size and not (d.result and d.gradient)) or d.note for d in (*drifts, *results)):
            raise NothingComparedError(_nothing(*self.runs))
        parting = self.parting(pairs, drifts, results)
        if all(not d.differs for d in (*drifts, *results)):
            self.unchecked += self.blind_spots(pairs, results)
        return Comparison(
            tuple(drifts),
            _only(points, [p.first for p in pairs]),
            _only(others, [p.second for p in pairs]),
            {m.first: m.second for m, pair in zip(matches, pairs) if pair.first.path != pair.second.path},
            tuple(results),
            matches,
            tuple(self.unchecked),
            parting,
        )

    def in_single_precision(self) -> Comparison | str | None:
        """The comparison of the same programs in single precision, or why there is none.

        None if neither computes in less, or if that is not known.
        """
        narrow = [is_narrow(side.coarsest_dtype(run)[0]) for side, run in zip(self.sides, self.runs)]
        if not any(narrow):
            return None
        try:
            numbers = [side.numbers() for side in self.sides]
            if numbers[0] is None or numbers[1] is None:
                return None
            wide = (self.sides[0].in_single_precision(numbers[1]), self.sides[1].in_single_precision(numbers[0]))
            return _Comparing(wide, self.given, self.tolerance, self.grads).comparison()
        except Exception as error:  # what the programs do in their own precision is known
            return f"{type(error).__name__}: {str(error)[:150]}"

    def blind_spots(self, pairs: list[Pair], results: list[Drift]) -> list[str]:
        """What a comparison that found no difference could not have seen."""
        spots = []
        of_results = match_results(*[run.results or () for run in self.runs]) or []
        for pair in (*of_results, *(pairs if not of_results else ())):
            a, b = pair.first.array, pair.second.array
            name = f"{pair.first.path}{pair.first.part}"
            if a.dtype != b.dtype:
                spots.append(f"the dtype of {name}: {a.dtype} against {b.dtype}")
            if not a.size:
                spots.append(f"{name}: it has no elements")
            elif not_finite := int(np.sum(~np.isfinite(wide(a)))):
                spots.append(f"{not_finite} of {a.size} elements of {name}: they are NaN or infinite in both")
        for drift in results:
            limit = None if drift.gradient or not drift.size else drift.limit
            if limit is not None and _COARSE < limit < np.inf:
                spots.append(f"differences of {drift.place} below {limit:.2g} of its norm: {_EXPLAINED}")
        one, other = (run.texts for run in self.runs)
        for place in [place for place in one if place in other and one[place] != other[place]]:
            spots.append(f"{RESULT}{place}, which is no array: {one[place]!r} against {other[place]!r}")
        (dtype, line), (other_dtype, other_line) = (
            side.coarsest_dtype(run) for side, run in zip(self.sides, self.runs)
        )
        if dtype is not None and other_dtype is not None and dtype != other_dtype:
            at = [f" ({short_place(source)})" if source else "" for source in (line, other_line)]
            spots.append(
                f"what is lost in the coarser precision: the first program computes in {dtype}{at[0]}, "
                f"the second in {other_dtype}{at[1]}"
            )
        return spots

    def judged(self, pairs: list[Pair], points: Points, others: Points) -> list[Drift]:
        both = [pair for pair in pairs if pair.first.taken or pair.second.taken]
        named = [(pair, others.label(pair.second)) for pair in both]
        return [self.judge(pair, "" if name == points.label(pair.first) else name) for pair, name in named]

    def judge(self, pair: Pair, second: str = "", *, result: bool = False) -> Drift:
        """The drift of a pair. Noise is only measured for what differs by more than the last digits."""
        drift = judge(pair, self.tolerance, [], second, result=result)
        if not drift.differs or self.tolerance.rtol is not None or self.tolerance.norm is not None:
            return drift
        # In another shape, arrays agree if the numbers do in some layout, which the noise decides.
        one, other = pair.first.array, pair.second.array
        if drift.note and (one.shape == other.shape or one.size != other.size):
            return drift
        noise = self.noise(gradients=pair.first.gradient and not self.sides_have_gradients)
        return _least_drift(pair, self.tolerance, noise.distances(pair), self.fallback, second, result=result)

    def fallback(self) -> float:
        """The limit where noise cannot be measured: eight times the precision of the coarsest dtype, at least 1e-4."""
        arrays = [p.array for run in self.runs for p in (*run.points, *(run.results or ()))]
        return max(1e-4, 8 * epsilon(*arrays))

    @property
    def sides_have_gradients(self) -> bool:
        """Whether the programs, as they run, have gradients at their sites."""
        return bool(self.grads)

    def noise(self, *, gradients: bool) -> _Noise:
        """What the points are where the arithmetic rounds differently, with gradients at the sites or without."""
        if gradients not in self._noise:
            self._noise[gradients] = _Noise(self.sides, gradients, self.noise_is_unknown)
        return self._noise[gradients]

    def noise_is_unknown(self, side: int, problem: str) -> None:
        """Writes down that the noise of a program could not be measured."""
        reason = f"the noise of the {('first', 'second')[side]} program's arithmetic: {problem}"
        self.unchecked.append(f"{reason}; values may differ by {self.fallback():.2g} of their norm")

    def result_drifts(self) -> list[Drift]:
        ours, theirs = (run.results or () for run in self.runs)
        pairs = match_results(ours, theirs)
        if pairs is None:
            whole = Point(RESULT, "", 0, (), False, np.zeros(0), "")
            return [_missing(whole, f"{len(ours)} arrays against {len(theirs)}")]
        names = [p.second.part and f"{RESULT}{p.second.part}" for p in pairs]
        same = [p.first.part == p.second.part or p.by != "path" for p in pairs]
        drifts = [self.judge(p, "" if is_same else name, result=True) for p, name, is_same in zip(pairs, names, same)]
        parts = {p.first.part for p in pairs}, {p.second.part for p in pairs}
        for which, side, paired in (("first", ours, parts[0]), ("second", theirs, parts[1])):
            drifts += [_missing(p, f"only the {which} program returns it") for p in side if p.part not in paired]
        return drifts

    def gradient_drifts(self) -> list[Drift]:
        shapes = [[p.array.shape for p in run.results or ()] for run in self.runs]
        if shapes[0] != shapes[1]:
            self.unchecked.append("gradients: the results have different structures")
            return []
        gradients = gradient_pairs(*self.sides)
        if isinstance(gradients, str):
            self.unchecked += [gradients] if gradients else []
            return []
        self.unchecked += gradients.unchecked
        drifts = []
        for pair in gradients.pairs:
            drift = self.judge_gradient(gradients, pair)
            padded = gradients.with_padding(pair) if drift.differs else None
            if padded is not None:
                again = self.judge_gradient(gradients, padded[0], noise_of=pair)
                if not again.differs:
                    self.unchecked.append(f"{drift.path} where PyTorch leaves it at zero: {padded[1]}")
                    drift = again
            drifts.append(drift)
        return drifts

    def judge_gradient(self, gradients: Gradients, pair: Pair, *, noise_of: Pair | None = None) -> Drift:
        """The drift of the gradients of results, with the noise of another pair if one is given."""
        drift = judge(pair, self.tolerance, [], result=True)
        if not drift.differs or self.tolerance.rtol is not None or self.tolerance.norm is not None:
            return drift
        noise = _gradient_noise(gradients, noise_of or pair)
        return _least_drift(pair, self.tolerance, noise, self.fallback, result=True)

    def parting(self, pairs: list[Pair], drifts: list[Drift], results: list[Drift]) -> Parting | None:
        """The operation at which the programs part, if they differ."""
        first = next((d for d in (*drifts, *results) if d.differs), None)
        if first is None or (first.result and first.note):  # a note says what there is to say: other shapes
            return None
        wanted = (first.path, first.part, first.call, first.iteration, first.gradient)
        at = [(p.first.array, p.second.array) for p in pairs if _key(p.first) == wanted and not first.note]
        allowed = max((d.limit or 0.0 for d in results if not d.gradient), default=0.0)
        try:
            tapes = [side.tape(gradient=first.gradient) for side in self.sides]
            return None if tapes[0] is None or tapes[1] is None else find_parting(tapes[0], tapes[1], at, allowed)
        except Exception as error:  # a helper to the answer, which is known: an operation may not run alone
            self.unchecked.append(f"single operations: {type(error).__name__}: {str(error)[:150]}")
            return None

    def gradients_at_sites(self) -> list[Drift]:
        runs = [side.run_with_gradients() for side in self.sides]
        points, others = (Points(p for p in run.points if p.gradient) for run in _stacked_alike((runs[0], runs[1])))
        return self.judged(match(points, others, {}), points, others)


def _with_sharper(found: Comparison, wide: Comparison | str) -> Comparison:
    """What a comparison found, with what the same programs show in single precision."""
    if isinstance(wide, str):
        reason = f"what low precision hides: the programs cannot be computed in single precision ({wide})"
        return found if found.first else dataclasses.replace(found, unchecked=(*found.unchecked, reason))
    if wide.first is not None:
        return dataclasses.replace(wide, precision="seen with both programs computed in float32")
    agreement = max((d.rel_norm for d in wide.results), default=0.0)
    text = f"computed in float32, the programs agree to {agreement:.1g}"
    if found.first is not None:
        return dataclasses.replace(found, precision=f"{text}: low precision alone makes the difference")
    seen = [spot for spot in found.unchecked if not spot.endswith(_EXPLAINED)]
    seen += [spot for spot in wide.unchecked if spot.endswith(_EXPLAINED)]
    return dataclasses.replace(found, unchecked=tuple(seen), precision=text)


class _Noise:
    """What points are where the arithmetic rounds differently.

    A program runs again for each draw, so there are no more draws than a pair of points needs.

    Args:
        sides: The programs.
        gradients: Whether to run them with gradients at the sites.
        unknown: Called with the number of a side and the reason, if its noise cannot be measured.
    """

    def __init__(self, sides: tuple[Side, Side], gradients: bool, unknown: Callable[[int, str], None]) -> None:
        self.sides, self.gradients, self.unknown = sides, gradients, unknown
        # A program of JAX has to be traced first, so the other side is asked before it.
        order = sorted((0, 1), key=lambda i: isinstance(sides[i], ProgramSide))
        self._todo = [(side, draw) for draw in range(_DRAWS) for side in order]
        self._arrays: tuple[dict[Any, list[np.ndarray]], ...] = ({}, {})
        self._is_known = True

    def distances(self, pair: Pair) -> Iterator[list[Distance] | None]:
        """How far rounding moved the points of a pair: as far as known, then after each draw; None if it is unknown."""
        yield self._of(pair)
        while self._todo:
            self._draw(*self._todo.pop(0))
            yield self._of(pair)

    def _draw(self, side: int, draw: int) -> None:
        run = self.sides[side].rounded_otherwise(draw, gradients=self.gradients)
        if isinstance(run, str):
            self._todo = [(other, number) for other, number in self._todo if other != side]
            if run:
                self._is_known = False
                self.unknown(side, run)
            return
        for point in (*run.points, *(run.results or ())):
            self._arrays[side].setdefault(point.key, []).append(point.array)

    def _of(self, pair: Pair) -> list[Distance] | None:
        if not self._is_known:
            return None
        distances = []
        for point, arrays in zip((pair.first, pair.second), self._arrays):
            for whole in arrays.get(point.key, ()):
                moved = whole if point.row is None else whole[point.row]
                if moved.shape == point.array.shape:
                    distances.append(distance(moved, point.array))
        return distances


def _gradient_noise(gradients: Gradients, pair: Pair) -> Iterator[list[Distance]]:
    """How far rounding moved two gradients, after each draw."""
    distances: list[Distance] = []
    for draw in range(_DRAWS):
        for point in (pair.first, pair.second):
            moved = gradients.moved(point, draw)
            distances += [distance(moved, point.array)] if moved.shape == point.array.shape else []
            yield distances


def _least_drift(
    pair: Pair,
    tolerance: Tolerance,
    noise: Iterable[list[Distance] | None],
    fallback: Callable[[], float],
    second: str = "",
    *,
    result: bool = False,
) -> Drift:
    """The drift of a pair, with more and more draws of the noise until it agrees: each can only allow more."""
    drift = None
    for distances in noise:
        allowed = tolerance if distances is not None else dataclasses.replace(tolerance, fallback=fallback())
        drift = judge(pair, allowed, distances or [], second, result=result)
        if not drift.differs or distances is None:
            break
    assert drift is not None
    return drift


def _with_results_as_points(runs: tuple[Run, Run]) -> tuple[Run, Run]:
    """If what one side returned is not known, what the other did is compared with its values."""
    if all(run.results is not None for run in runs):
        return runs
    new = [Run((*run.points, *(run.results or ())), ()) for run in runs]
    return new[0], new[1]


def _missing(point: Point, note: str) -> Drift:
    """The drift of a result that has no counterpart."""
    empty = dataclasses.replace(point, array=np.zeros(0))
    drift = judge(Pair(empty, empty, "path"), Tolerance(None, 0.0, None), [], result=True)
    return dataclasses.replace(drift, note=note, differs=True)


def _key(p: Point) -> tuple[Any, ...]:
    return p.path, p.part, p.call, p.iteration, p.gradient


def _without_guesses(drifts: list[Drift], results: list[Drift]) -> list[Drift]:
    """Without values that differ and may not correspond, if what follows from them does not differ."""
    agreeing = [i for i, d in enumerate(drifts) if not d.differs and d.by != "order"]
    certain = any(d.differs for d in results) or any(d.differs and not _is_guess(d) for d in drifts)
    last = (agreeing[-1] if agreeing else -1) if certain or not results else len(drifts)
    return [d for i, d in enumerate(drifts) if not d.differs or not _is_guess(d) or i > last]


def _is_guess(drift: Drift) -> bool:
    """Whether values were matched by their order alone, or by fingerprints that no layout bears out."""
    return drift.by == "order" or (drift.by == "value" and bool(drift.note))


def _only(points: Points, paired: list[Point]) -> tuple[tuple[str, int], ...]:
    used = {id(p) for p in paired}
    return tuple(dict.fromkeys((p.path, p.call) for p in points.all if id(p) not in used))


def _stacked_alike(runs: tuple[Run, Run]) -> tuple[Run, Run]:
    """The same, where a value of one program that has all rows of a loop of the other is taken apart into these."""
    counts = [_by_path(run) for run in runs]
    new = []
    for run, other in zip(runs, reversed(counts)):
        own = _by_path(run)
        points: list[Point] = []
        for p in run.points:
            rows = other.get((p.path, p.part, p.gradient), [])
            alone = len(own[p.path, p.part, p.gradient]) == 1
            is_stack = alone and len(rows) > 1 and all(p.array.shape == (len(rows), *r.array.shape) for r in rows)
            points += rows_of(p) if is_stack else [p]
        new.append(dataclasses.replace(run, points=tuple(points)))
    return new[0], new[1]


def _by_path(run: Run) -> dict[Any, list[Point]]:
    groups: dict[Any, list[Point]] = {}
    for p in run.points:
        groups.setdefault((p.path, p.part, p.gradient), []).append(p)
    return groups


def _nothing(ours: Run, theirs: Run) -> str:
    has = [
        f"the {which} returns no {'arrays with elements' if run.results else 'arrays'} and has "
        + (", ".join(dict.fromkeys(p.path for p in run.points)) if run.points else "no sites with arrays")
        for which, run in (("first", ours), ("second", theirs))
    ]
    return (
        f"compare has nothing to compare: {'; '.join(has)}. Return arrays, mark values with sonde.sow(value, name), or "
        "say which sites correspond with match_paths={...}."
    )
