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
    choices = Choices(**given)
    with quiet_stdout(choices.as_json):
        comparison = compared(first, second, choices)[0]
    show_comparison(context, comparison, first, second, choices)


@dataclasses.dataclass(frozen=True)
class Choices:
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


def compared(first: str, second: str, choices: Choices) -> tuple[Comparison, Any, Any]:
    """The comparison of two programs by name, and the programs."""
    from sonde.cli.page_file import check_writable
    from sonde.cli.target import Target, program_at
    from sonde.cli.user_program import running

    if choices.out is not None:
        check_writable(choices.out)
    if _is_path(first) and _is_path(second):
        raise Unusable(f"{first} and {second} are files or folders: at least one must be a target, file.py:name")
    one_program = None if _is_path(first) else program_at(first, choices.input_file, choices.call_arguments)
    other_program = (
        None
        if _is_path(second)
        else program_at(second, choices.input_file, choices.call_arguments, instead=one_program)
    )
    from sonde.tools import compare as compare_programs
    from sonde.tools.comparison.compare import NothingComparedError

    either = one_program or other_program
    assert either is not None
    both = Target(f"{first} or {second}", either.f, (), {})
    with running(both, show_traceback=choices.show_traceback, usable=(NothingComparedError,)):
        loaded = [
            program or dataclasses.replace(either, f=_loaded(Path(name)))
            for program, name in ((one_program, first), (other_program, second))
        ]
        with busy("running both programs"):
            comparison = compare_programs(
                *map(_whole, loaded),
                *choices.patterns,
                rtol=choices.rtol,
                atol=choices.atol,
                norm=choices.norm,
                grads=choices.grads or None,
                inside=choices.inside or None,
                match_paths=choices.match_file,
            )
            try:
                return comparison(), loaded[0].f, loaded[1].f
            except NothingComparedError as error:
                raise Unusable(f"{first} and {second}: {error}") from error


def show_comparison(
    context: click.Context,
    comparison: Comparison,
    first: str,
    second: str,
    choices: Choices,
    more: dict[str, Any] | None = None,
) -> None:
    """Shows a comparison, writes what was asked for, and ends the command."""
    if not comparison.drifts and not choices.inside:
        options_of_both = " ".join(
            f"--inside {where}" for where in dict.fromkeys(name.rpartition(":")[0] for name in (first, second)) if where
        )
        hint(f"No values inside were compared: look into the programs as they are, such as with {options_of_both}.")
    if choices.save_matches:
        comparison.save_matches(choices.save_matches)
    if choices.out is not None:
        comparison.write(choices.out)
    if choices.as_json:
        show_json(_plain(comparison) | (more or {}))
    else:
        show(comparison)
    if choices.out is not None:
        show_page(Path(choices.out).resolve())
    context.exit(FINE if comparison.first is None else FOUND)


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


def _plain(comparison: Comparison) -> dict[str, Any]:
    from sonde.report.plain_json import plain

    return {
        "same": comparison.first is None,
        "first": None if comparison.first is None else plain(dataclasses.asdict(comparison.first)),
        "drifts": [plain(dataclasses.asdict(drift)) for drift in comparison.drifts],
        "results": [plain(dataclasses.asdict(drift)) for drift in comparison.results],
        "matches": [dataclasses.asdict(match) for match in comparison.matches],
        "unchecked": list(comparison.unchecked),
        "only_first": [{"path": path, "call": call} for path, call in comparison.only_first],
        "only_second": [{"path": path, "call": call} for path, call in comparison.only_second],
    }
