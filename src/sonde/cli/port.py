"""`sonde port`: whether a port does what its original does: its parameters first, then its values and operations."""

from __future__ import annotations

from typing import Any

import click

from sonde.cli.compare import OPTIONS, Choices, compared, show_comparison
from sonde.cli.exit_codes import TEXT
from sonde.cli.output import hint, quiet_stdout, show


@click.command("port", epilog=TEXT)
@click.argument("original")
@click.argument("port")
@click.option("--code", is_flag=True, help="Print a function that makes the port's parameters of the original's.")
@OPTIONS
@click.pass_context
def port(context: click.Context, original: str, port: str, code: bool, **given: Any) -> None:
    """Find where PORT leaves ORIGINAL, such as a model folder of Hugging Face: in a parameter or at an operation.

    Parameters are matched by their elements, also transposed, stacked and fused. Then both programs run with the
    arguments of PORT, as in `sonde compare`; the options are the same.
    """
    from sonde.port.parameters import map_parameters, parameters_of

    choices = Choices(**given)
    with quiet_stdout(choices.as_json):
        comparison, *programs = compared(original, port, choices)
        parameters = [parameters_of(program) for program in programs]
    more: dict[str, Any] = {"parameters": None}
    if parameters[0] and parameters[1]:
        mapped = map_parameters(parameters[0], parameters[1])
        rows = [{"first": a, "second": b, "layout": how} for a, b, how in mapped.rows()]
        more["parameters"] = {"matched": rows, "missing": list(mapped.missing), "surplus": list(mapped.surplus)}
        if not choices.as_json:
            show(mapped)
            print(mapped.code()) if code else None
    else:
        side = "original" if not parameters[0] else "port"
        hint(f"Parameters are not compared: the {side} is no model with parameters; a model itself has them.")
    show_comparison(context, comparison, original, port, choices, more)
