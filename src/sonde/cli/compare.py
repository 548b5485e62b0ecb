"""`sonde compare`: finds where two programs that should do the same differ first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import busy, hint, quiet_stdout, show, show_json

if TYPE_CHECKING:
    from sonde.cli.target import Target
    from sonde.tools import Comparison


@click.command("compare", epilog=TEXT)
@click.argument("first")
@click.argument("second")
@options.together(*options.inputs, options.grads, options.sites, options.inside)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Compare element by element, with this relative tolerance. Else the tolerance is what rounding explains.",
)
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    default=1e-6,
    show_default=True,
    help="Absolute tolerance; only with --rtol.",
)
@click.option(
    "--match",
    "match_file",
    type=click.Path(exists=True, dir_okay=False),
    help="A JSON file: for paths of FIRST, those of SECOND; {i} stands for the same number in both.",
)
@click.option("--save-matches", type=click.Path(dir_okay=False), help="Write which values were matched, for --match.")
@options.together(options.as_json, options.show_traceback)
@click.pass_context
def compare(
    context: click.Context,
    first: str,
    second: str,
    input_file: str | None,
    call_arguments: str | None,
    grads: bool,
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    rtol: float | None,
    atol: float,
    match_file: str | None,
    save_matches: str | None,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Find where FIRST and SECOND differ first: at a site, in what they return, or in its gradients.

    Sites are matched by path, else by order and value. Each program runs with its own arguments; if SECOND has none,
    with those of FIRST. Sites that only one of them has are listed, but are not differences.

    Both are targets, module:name or file.py:name; `sonde --help` explains what the name may be. One may be a file
    (.onnx, .npz or .safetensors) or a model folder of Hugging Face: it runs with the arguments of the other.
    """
    from sonde.cli.target import Target, program_at
    from sonde.cli.user_program import running
    from sonde.tools import compare as compare_programs
    from sonde.tools.comparison.compare import NothingComparedError

    asked = inside or None
    with quiet_stdout(as_json):
        if _is_path(first) and _is_path(second):
            raise Unusable(f"{first} and {second} are files or folders: at least one must be a target, file.py:name")
        one = None if _is_path(first) else program_at(first, input_file, call_arguments)
        other = None if _is_path(second) else program_at(second, input_file, call_arguments, instead=one)
        known = one or other
        assert known is not None
        both = Target(f"{first} or {second}", known.f, (), {})
        with (
            running(both, show_traceback=show_traceback, usable=(NothingComparedError,)),
            busy("running both programs"),
        ):
            compared = compare_programs(
                _whole(one or dataclasses.replace(known, f=Path(first))),
                _whole(other or dataclasses.replace(known, f=Path(second))),
                *patterns,
                rtol=rtol,
                atol=atol,
                grads=grads or None,
                inside=asked,
                match_paths=match_file,
            )
            try:
                found = compared()
            except NothingComparedError as error:
                raise Unusable(f"{first} and {second}: {error}") from error
    if not found.drifts and not inside:
        options_of_both = " ".join(f"--inside {name}" for name in dict.fromkeys((first, second)) if ":" in name)
        hint(f"No values inside were compared: look into the programs as they are, such as with {options_of_both}.")
    if save_matches:
        found.save_matches(save_matches)
    if as_json:
        show_json(_plain(found))
    else:
        show(found)
    context.exit(FINE if found.first is None else FOUND)


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
