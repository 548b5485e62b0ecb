"""`sonde sites`: list the sites of a program and the cost of capturing them, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import TEXT
from sonde.cli.output import busy, quiet_stdout, show, show_json

if TYPE_CHECKING:
    import sonde


@click.command("sites", epilog=TEXT)
@options.together(options.target, *options.inputs, options.grads, options.sites, options.inside)
@options.together(options.as_json, options.show_traceback)
def sites(
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    grads: bool,
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    as_json: bool,
    show_traceback: bool,
) -> None:
    """List the sites of TARGET, with shapes and bytes.

    The program is traced, not run: this is quick, and needs only the shapes of its inputs.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    import sonde
    from sonde.cli.target import program_at
    from sonde.cli.user_program import no_sites, running

    inside_names = inside or None
    with quiet_stdout(as_json):
        program = program_at(target, input_file, call_arguments)
        with running(program, show_traceback=show_traceback), busy("tracing the program"):
            listed = sonde.sites(program.f, *patterns, grads=grads, inside=inside_names)(
                *program.args, **program.kwargs
            )
    if not listed.paths:
        raise no_sites(target)
    if as_json:
        show_json({"bytes": listed.bytes, "sites": [_plain(info) for info in listed]})
    else:
        show(listed)


def _plain(info: sonde.SiteInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "call": info.call,
        "gradient": info.gradient,
        "arrays": [{"shape": list(a.shape), "dtype": str(a.dtype)} for a in info.arrays],
        "axes": [{"kind": str(axis.kind), "size": axis.size, "name": axis.name} for axis in info.axes],
        "bytes": info.bytes,
        "source": info.source,
    }
