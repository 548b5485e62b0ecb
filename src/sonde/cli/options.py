"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

target = click.argument("target")

input_file = click.option(
    "--input",
    "input_file",
    metavar="FILE",
    help="An .npz file with the arguments: arrays named like the parameters, or arg0, arg1, ...",
)

call_arguments = click.option(
    "--args",
    "call_arguments",
    metavar="EXPRESSION",
    help="The arguments, as Python: 'jnp.ones((4, 3)), 0.1'. It may use names of the module, jax, jnp and np.",
)

inputs = input_file, call_arguments

sites = click.option(
    "--sites",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only sites whose path matches, as in 'blocks/*/attn' or '**/mlp'. May be repeated.",
)

inside = click.option(
    "--inside",
    "inside",
    metavar="NAME",
    multiple=True,
    help="Code whose values become sites: package, package.module:function, 'package.*', file.py or file.py:function; "
    "or a model, package.module:model or file.py:model. May be repeated.",
)

grads = click.option("--grads", is_flag=True, help="Record gradients too, where the program computes any.")

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout, for machines.")

show_traceback = click.option("--traceback", "show_traceback", is_flag=True, help="If it fails, show the traceback.")


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, listed in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
