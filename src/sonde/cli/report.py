"""`sonde report`: look inside a program, report what is wrong, write a page."""

from __future__ import annotations

import traceback

import click

from sonde.cli import options
from sonde.cli.exit_codes import FAILED, FINE, FOUND, TEXT
from sonde.cli.output import busy, hint, quiet_stdout, show, show_json, show_page

PAGE = "report.html"
_MOST_SHOWN = 3  # functions whose source is shown
LEVELS = ("problem", "warning", "note")


@click.command("report", epilog=TEXT)
@options.together(options.target, *options.inputs, options.grads, options.sites, options.inside)
@click.option("--out", metavar="FILE", help=f"File of the page; {PAGE} by default, and none with --json.")
@click.option("--no-page", is_flag=True, help="Write no page.")
@click.option(
    "--tokens",
    "token_file",
    metavar="FILE",
    help="Labels of the positions, for the pictures: a JSON list of strings, or a text file with one per line.",
)
@click.option("--title", help="Title of the report; the target by default.")
@click.option(
    "--fail-on",
    type=click.Choice([*LEVELS, "never"]),
    default="warning",
    show_default=True,
    help="Lowest severity of findings for which the exit code is 1.",
)
@click.option("--source", "with_source", is_flag=True, help="Show the source of the worst functions, line by line.")
@options.together(options.as_json, options.show_traceback)
@click.pass_context
def report(
    context: click.Context,
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    grads: bool,
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    out: str | None,
    no_page: bool,
    token_file: str | None,
    title: str | None,
    fail_on: str,
    with_source: bool,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Look inside TARGET and report what is wrong.

    Runs the program once, prints the findings and the statistics of every site, and writes a page that opens from disk.
    If the program fails, the report has the values up to the failure.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    from sonde.cli.inputs import read_tokens
    from sonde.cli.page_file import check_writable, write_page
    from sonde.cli.target import program_at
    from sonde.cli.user_program import no_sites, running

    page = None if no_page or (as_json and out is None) else check_writable(out or PAGE)
    inside_names = inside or None
    tokens = read_tokens(token_file) if token_file else None
    with quiet_stdout(as_json):
        program = program_at(target, input_file, call_arguments)
        from sonde.report import examine

        with running(program, show_traceback=show_traceback, reports=True), busy("running the program") as say:
            options = {"grads": grads, "inside": inside_names, "title": title or target, "tokens": tokens}
            look = examine(program.f, *patterns, progress=say, **options)
            examined = look(*program.args, **program.kwargs)
    if all(finding.kind == "no-sites" for finding in examined.findings) and not examined.sites:
        raise no_sites(target)
    if page is not None:
        write_page(examined, page)
    if as_json:
        show_json(examined.to_json() | {"page": None if page is None else str(page)})
    else:
        show(examined, *(examined.source[:_MOST_SHOWN] if with_source else ()))
        if page is not None:
            show_page(page)
    if grads and examined.failure is None and not any(site.gradients for site in examined.sites):
        hint(f"There are no gradients: {target} differentiates nothing. Name a training step, or jax.grad of a loss.")
    if examined.failure is not None:
        if show_traceback:
            traceback.print_exception(examined.failure.error)
        context.exit(FAILED)
    serious = LEVELS[: LEVELS.index(fail_on) + 1] if fail_on != "never" else ()
    context.exit(FOUND if any(f.severity in serious for f in examined.findings) else FINE)
