"""`sonde compare`: finds where two programs that should do the same differ first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import busy, hint, quiet_stdout, show, show_json, show_page

if TYPE_CHECKING:
    from sonde.cli.target import Target
    from sonde.tools import Comparison


OPTIONS = options.together(
    *options.inputs,
    options.grads,
    options.sites,
    options.inside,
    click.option(
        "--rtol",
        type=click.FloatRange(min=0),
        help="Compare element by element, with this relative tolerance. Else the tolerance is what rounding explains.",
    ),
    click.option(
        "--atol",
        type=click.FloatRange(min=0),
        default=1e-6,
        show_default=True,
        help="Absolute tolerance; only with --rtol.",
    ),
    click.option(
        "--norm",
        type=click.FloatRange(min=0),
        help="How large the norm of a difference may be, relative to that of the value.",
    ),
    click.option(
        "--match",
        "match_file",
        type=click.Path(exists=True, dir_okay=False),
        help="A JSON file: for paths of the first, those of the second; {i} stands for the same number in both.",
    ),
    click.option(
        "--save-matches", type=click.Path(dir_okay=False), help="Write which values were matched, for --match."
    ),
    click.option("--out", metavar="FILE", help="Write a page with both programs side by side."),
    options.as_json,
    options.show_traceback,
)


@click.command("compare", epilog=TEXT)
@click.argument("first")
@click.argument("second")
@OPTIONS
@click.pass_context
def compare(context: click.Context, first: str, second: str, **given: Any) -> None:
    """Find where FIRST and SECOND differ first: at a site, in what they return, or in its gradients.

    Sites are matched by path, else by order and value. Each program runs with its own arguments; if SECOND has none,
    with those of FIRST. Sites that only one of them has are listed, but are not differences.

    Both are targets, module:name or file.py:name; `sonde --help` explains what the name may be. One may be a file
    (.onnx, .npz or .safetensors) or a model folder of Hugging Face: it runs with the arguments of the other.
    """
    asked = Asked(**given)
    with quiet_stdout(asked.as_json):
        found = compared(first, second, asked)[0]
    show_comparison(context, found, first, second, asked)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What was typed besides the programs; see `OPTIONS`."""

    input_file: str | None
    call_arguments: str | None
    grads: bool
    patterns: tuple[str, ...]
    inside: tuple[str, ...]
    rtol: float | None
    atol: float
    norm: float | None
    match_file: str | None
    save_matches: str | None
    out: str | None
    as_json: bool
    show_traceback: bool


def compared(first: str, second: str, asked: Asked) -> tuple[Comparison, Any, Any]:
    """The comparison of two programs by name, and the programs."""
    from sonde.cli.page_file import check_writable
    from sonde.cli.target import Target, program_at
    from sonde.cli.user_program import running
    from sonde.tools import compare as compare_programs
    from sonde.tools.comparison.compare import NothingComparedError

    if asked.out is not None:
        check_writable(asked.out)
    if _is_path(first) and _is_path(second):
        raise Unusable(f"{first} and {second} are files or folders: at least one must be a target, file.py:name")
    one = None if _is_path(first) else program_at(first, asked.input_file, asked.call_arguments)
    other = None if _is_path(second) else program_at(second, asked.input_file, asked.call_arguments, instead=one)
    known = one or other
    assert known is not None
    both = Target(f"{first} or {second}", known.f, (), {})
    with running(both, show_traceback=asked.show_traceback, usable=(NothingComparedError,)):
        loaded = [
            program or dataclasses.replace(known, f=_loaded(Path(name)))
            for program, name in ((one, first), (other, second))
        ]
        with busy("running both programs"):
            comparison = compare_programs(
                *map(_whole, loaded),
                *asked.patterns,
                rtol=asked.rtol,
                atol=asked.atol,
                norm=asked.norm,
                grads=asked.grads or None,
                inside=asked.inside or None,
                match_paths=asked.match_file,
            )
            try:
                return comparison(), loaded[0].f, loaded[1].f
            except NothingComparedError as error:
                raise Unusable(f"{first} and {second}: {error}") from error


def show_comparison(
    context: click.Context, found: Comparison, first: str, second: str, asked: Asked, more: dict[str, Any] | None = None
) -> None:
    """Shows a comparison, writes what was asked for, and ends the command."""
    if not found.drifts and not asked.inside:
        options_of_both = " ".join(
            f"--inside {where}" for where in dict.fromkeys(name.rpartition(":")[0] for name in (first, second)) if where
        )
        hint(f"No values inside were compared: look into the programs as they are, such as with {options_of_both}.")
    if asked.save_matches:
        found.save_matches(asked.save_matches)
    if asked.out is not None:
        found.write(asked.out)
    if asked.as_json:
        show_json(_plain(found) | (more or {}))
    else:
        show(found)
    if asked.out is not None:
        show_page(Path(asked.out).resolve())
    context.exit(FINE if found.first is None else FOUND)


def _loaded(path: Path) -> Any:
    """A model folder as its model, so that it is read once; other files as their paths."""
    from sonde.port.torch import model_of_folder

    return model_of_folder(path) if path.is_dir() else path


def _is_path(text: str) -> bool:
    return ":" not in text and Path(text).exists()


def _whole(program: Target) -> Any:
    """The program with its arguments bound: two programs may take different ones."""
    from sonde.tools.comparison.sides import Call

    return Call(program.f, program.args, program.kwargs)


def _plain(found: Comparison) -> dict[str, Any]:
    from sonde.report.plain_json import plain

    return {
        "same": found.first is None,
        "first": None if found.first is None else plain(dataclasses.asdict(found.first)),
        "drifts": [plain(dataclasses.asdict(drift)) for drift in found.drifts],
        "results": [plain(dataclasses.asdict(drift)) for drift in found.results],
        "matches": [dataclasses.asdict(match) for match in found.matches],
        "unchecked": list(found.unchecked),
        "only_first": [{"path": path, "call": call} for path, call in found.only_first],
        "only_second": [{"path": path, "call": call} for path, call in found.only_second],
    }
