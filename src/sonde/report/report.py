"""What `examine` returns: findings, statistics and pictures of one run, for the terminal, as JSON, and as a page."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from pathlib import Path
from typing import Any

import jax

from sonde._array_text import counted, short_place
from sonde._atomic_files import replaced_file
from sonde._renames import accepts_old_keywords
from sonde._version import __version__
from sonde.report.annotated import AnnotatedFunction, annotated_source
from sonde.report.arguments import Argument
from sonde.report.budget import fitting
from sonde.report.failure import Failure
from sonde.report.findings.finding import Finding
from sonde.report.panels import HeatMap, Panel
from sonde.report.pictures import Picture
from sonde.report.plain_json import plain
from sonde.report.site_data import Examined
from sonde.report.tables import picture_data, sites_data
from sonde.tools.numerics.array_statistics import EDGES
from sonde.tools.numerics.families import families
from sonde.tools.numerics.summarize import Summary
from sonde.tools.reading.heatmap import Drawn
from sonde.tools.reading.token_labels import Labels, TokenNames, words

PICTURE_BYTES = 1_500_000
"""How many bytes of pictures a page holds at most, before they are written as text."""

_MOST_FUNCTIONS = 30  # whose source is on a page


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The report on one run of a program.

    Attributes:
        title: The title of the report.
        findings: What is wrong, most serious first.
        sites: The data of each site, in program order: one entry per array.
        summary: The statistics as `tools.summarize` gives them.
        failure: The failure of the program; None if it did not fail.
        result: What the program returned; None if it failed.
        panels: The panels added with `add`.
        tokens: Labels of the positions, for pictures in which positions are rows or columns.
        arguments: The weights and inputs that the program was given.
    """

    title: str
    findings: tuple[Finding, ...]
    sites: tuple[Examined, ...]
    summary: Summary
    failure: Failure | None
    result: Any = None
    panels: list[Panel] = dataclasses.field(default_factory=list)
    tokens: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()
    made: str = dataclasses.field(default_factory=lambda: f"{datetime.datetime.now():%Y-%m-%d %H:%M}")

    @property
    def result_failed(self) -> bool:
        """Whether the program failed."""
        return self.failure is not None

    @property
    def checked(self) -> str:
        """What the findings are about, in one sentence; what is not named was not looked at."""
        parts = [f"{counted(len(self.paths), 'site')} for NaN, scale and units"]
        with_gradients = len({site.path for site in self.sites if site.gradients})
        parts += [f"the gradients of {with_gradients}"] if with_gradients else []
        weights = sum(argument.is_weight for argument in self.arguments)
        inputs = len(self.arguments) - weights
        parts += [
            f"{counted(weights, 'parameter')} against {'their families' if weights > 1 else 'its family'}"
        ] * bool(weights)
        parts += [f"the scale of {counted(inputs, 'input')}"] * bool(weights and inputs)
        without = "" if with_gradients else " No gradients were looked at."
        return f"Looked at: {', '.join(parts)}.{without}"

    @functools.cached_property
    def source(self) -> tuple[AnnotatedFunction, ...]:
        """The functions that the sites are in, line by line with the statistics of the values; the worst first."""
        return annotated_source(self.sites, self.findings)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Small pictures of values: attention maps, feature maps, matrices."""
        return tuple(picture for site in self.sites for picture in site.pictures)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all sites, in program order."""
        return tuple(dict.fromkeys(site.path for site in self.sites))

    @accepts_old_keywords("sonde.report.Report.add")
    def add(self, panel: Panel | Drawn, *, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> Report:
        """Adds a panel to the page; returns the report itself.

        Args:
            panel: A `HeatMap`, `Lines` or `Text`; or what a tool returned, such as a sweep or a lens, whose positions
                are named by the tokens of the report.
            tokens: Other labels for the positions of what a tool returned: strings, or token ids.
            tokenizer: Turns token ids into strings: a function, a list of strings, or a tokenizer (with `decode`).
        """
        if isinstance(panel, Drawn):
            labels = self.tokens if tokens is None else words(tokens, tokenizer)
            if tokens is not None and len(labels) != len(panel.heat().columns):
                raise ValueError(f"there are {len(labels)} tokens for {len(panel.heat().columns)} columns")
            panel = HeatMap.of(panel, labels, tokenizer)
        if not isinstance(panel, Panel):
            raise TypeError(
                f"Report.add takes a HeatMap, Lines, Text or what a tool returned, got {panel!r} of type "
                f"{type(panel).__name__}"
            )
        self.panels.append(panel)
        return self

    def to_json(self) -> dict[str, Any]:
        """Everything on the page as plain Python data.

        Numbers have six significant digits. Numbers that JSON cannot hold are strings: `"NaN"`, `"Infinity"`,
        `"-Infinity"`.
        """
        failed = self.failure
        return {
            "title": self.title,
            "made": self.made,
            "versions": {"sonde": __version__, "jax": jax.__version__},
            "findings": [
                {name: plain(getattr(f, name)) for name in ("severity", "kind", "path", "text", "help", "also")}
                | {"source": short_place(f.source)}
                for f in self.findings
            ],
            "checked": self.checked,
            "source": [
                {
                    "name": function.name,
                    "place": short_place(f"{function.file}:{function.worst.number}"),
                    "worst": function.worst.number if function.worst.unusual >= 1 else 0,
                    "lines": [[line.number, line.code, line.margin] for line in function.lines],
                }
                for function in self.source[:_MOST_FUNCTIONS]
            ],
            "failure": None
            if failed is None
            else {
                "kind": failed.kind,
                "message": failed.message,
                "source": short_place(failed.source),
                "code": failed.code,
                "last_site": failed.last_site,
            },
            "edges": plain(EDGES),
            "tokens": list(self.tokens),
            "sites": sites_data(self.sites),
            "families": [
                {"name": name, "members": [index for _, index in members]}
                for name, members in families((site.name, i) for i, site in enumerate(self.sites)).items()
                if len(members) > 1
            ],
            "pictures": [picture_data(p) for p in fitting(self.pictures, PICTURE_BYTES)],
            "panels": [panel.data for panel in self.panels],
        }

    def write(self, path: str | Path) -> Path:
        """Writes the page: one HTML file that needs nothing else. Returns its path."""
        from sonde.report.page import page

        target = Path(path)
        text = page(self.to_json())
        with replaced_file(target) as file:
            file.write_text(text, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        from sonde.display import in_notebook
        from sonde.report.page import framed, page

        return framed(page(self.to_json()), in_notebook(self))

    def __rich__(self) -> Any:
        from sonde.report.terminal import shown

        return shown(self)

    def __repr__(self) -> str:
        lines = [f"{self.title}: {counted(len(self.paths), 'site')}, {counted(len(self.findings), 'finding')}"]
        lines += [f"  {f.severity}: {f.text}" for f in self.findings]
        return "\n".join(lines)
