"""What `sonde mcp` offers to a coding agent: its tools, each a command of this command line, and their parameters.

Descriptions are written for the agent, which reads nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sonde.cli.exit_codes import Unusable

INSTRUCTIONS = """\
Sonde looks inside JAX programs. Most tools take a `target`: file.py:name or package.module:name, relative to the
project. The name may be
- a function or model, called with `args`, an expression of Python such as "jnp.ones((4, 3)), 0.1" (or with
  `example_inputs`, an attribute of it or a name of its module)
- a function without parameters that returns (f, args) or (f, args, kwargs): write one if the inputs need more than an
  expression, such as a batch of data and an initialized model.
Most code has no marked values. Pass `inside` to look into it as it is: ["train.py:loss"] for every variable of a
function, ["package.module"] for a module, ["train.py:model"] for a model of Flax, Equinox, Haiku, Penzai or Keras.
Start with `report`, which says what is wrong. `nonfinite` explains NaN and Inf, `run` does so in a training script,
`trace_back` explains numbers that are too large or zero, `compare` finds where two programs part.
Each call runs the program anew, with the rights of the user.
"""

_TEXT, _TEXTS, _FLAG = "string", "array", "boolean"


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of tools.

    Attributes:
        kind: Its type in JSON.
        description: What it means.
        option: The option of the command that it becomes; empty if it is an argument by position.
    """

    kind: str
    description: str
    option: str = ""

    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        items = {"items": {"type": "string"}} if self.kind == _TEXTS else {}
        return {"type": self.kind, "description": self.description, **items}

    def words(self, value: Any, name: str) -> list[str]:
        """What is typed for a value."""
        if self.kind == _FLAG:
            if not isinstance(value, bool):
                raise Unusable(f"`{name}` is true or false, got {value!r}")
            return [self.option] * value
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise Unusable(f"`{name}` is {'a list of strings' if self.kind == _TEXTS else 'a string'}, got {value!r}")
        if self.kind == _TEXT and len(values) != 1:
            raise Unusable(f"`{name}` is one string, got {value!r}")
        return [f"{self.option}={text}" if self.option else text for text in values]


_TARGET = "file.py:name or package.module:name"
PARAMETERS = {
    "target": Parameter(_TEXT, _TARGET),
    "first": Parameter(_TEXT, _TARGET),
    "second": Parameter(_TEXT, _TARGET),
    "args": Parameter(
        _TEXT, 'The arguments as Python, such as "jnp.ones((4, 3)), 0.1"; may use names of the module', "--args"
    ),
    "input_file": Parameter(_TEXT, "An .npz file with arguments by name", "--input"),
    "inside": Parameter(
        _TEXTS, "Code whose values are looked into: file.py:function, package.module, file.py:model", "--inside"
    ),
    "patterns": Parameter(_TEXTS, 'Only sites whose path matches, such as "blocks/*/attn/**"', "--sites"),
    "gradients": Parameter(_FLAG, "Also the gradients of what the program itself differentiates", "--grads"),
    "page": Parameter(_TEXT, "An .html file to write the report to, for a person", "--out"),
    "where": Parameter(
        _TEXT, "What is asked of each number: '> 1e4', 'abs < 1e-8', '== 0', zero, negative, positive", "--where"
    ),
    "script": Parameter(_TEXT, "A Python file, such as train.py"),
    "script_args": Parameter(_TEXTS, "The arguments of the script"),
    "error": Parameter(_TEXT, "The name of an error of Sonde, such as InsideError; without it, all are listed"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool of the server.

    Attributes:
        command: The command that it runs.
        description: What it does.
        required: The parameters that it needs, in the order of the command's arguments.
        optional: The others.
        fixed: Options that are always given.
        keeps_stderr: Whether all that the command writes to stderr belongs to the answer.
    """

    command: str
    description: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    keeps_stderr: bool = False

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {name: PARAMETERS[name].schema() for name in (*self.required, *self.optional)},
            "required": list(self.required),
            "additionalProperties": False,
        }

    def command_line(self, arguments: Mapping[str, Any]) -> list[str]:
        """What is typed after `sonde`.

        Args:
            arguments: The arguments of the call. Empty ones count as absent: agents fill in what they leave out.
        """
        parameters = (*self.required, *self.optional)
        unknown = [name for name in arguments if name not in parameters]
        if unknown:
            raise Unusable(f"there is no argument `{unknown[0]}`; there are {', '.join(parameters)}")
        filled = {name: value for name, value in arguments.items() if value not in (None, "", [])}
        missing = [name for name in self.required if name not in filled]
        if missing:
            raise Unusable(f"`{missing[0]}` is missing: {PARAMETERS[missing[0]].description}")
        words = {name: PARAMETERS[name].words(filled[name], name) for name in parameters if name in filled}
        options = [word for name in words if PARAMETERS[name].option for word in words[name]]
        positional = [word for name in words if not PARAMETERS[name].option for word in words[name]]
        fixed = [option for option in self.fixed if not (option == _NO_PAGE and "page" in filled)]
        # After `--`, nothing is taken for an option of the command.
        return [self.command, *options, *fixed, "--", *positional]


_NO_PAGE = "--no-page"
_INPUTS = ("args", "input_file", "inside")

TOOLS = {
    "sites": AgentTool(
        "sites",
        "List the values inside a program, with paths, shapes, dtypes, loops and lines of code. The program is traced "
        "and not run.",
        ("target",),
        (*_INPUTS, "patterns", "gradients"),
    ),
    "report": AgentTool(
        "report",
        "Run a program once and say what is wrong with it, problems first: NaN, dead units, exploding or vanishing "
        "values and gradients, saturation; then statistics by site. If the program fails: why, and the values up to "
        "the failure.",
        ("target",),
        (*_INPUTS, "patterns", "gradients", "page"),
        (_NO_PAGE, "--fail-on=never"),
    ),
    "summarize": AgentTool(
        "summarize",
        "Run a program once and capture the statistics of its values, by site, call and iteration of a loop: mean, "
        "standard deviation, range, norm, zeros, dead units, and how many numbers are not finite.",
        ("target",),
        (*_INPUTS, "patterns", "gradients"),
    ),
    "nonfinite": AgentTool(
        "nonfinite",
        "Find the operation that makes the first NaN or Inf of the results: its operands in numbers, its line, the "
        "iteration of every loop, and how it reached the results. Needs no marks; `inside` only adds names.",
        ("target",),
        _INPUTS,
    ),
    "trace_back": AgentTool(
        "trace-back",
        "Find the operation that made numbers of the results too large, zero or negative, such as a gradient of 0.",
        ("target", "where"),
        _INPUTS,
    ),
    "compare": AgentTool(
        "compare",
        "Find where two programs that should do the same differ first: at a site, in results or in gradients, with the "
        "operation and a likely cause. The second may have the arguments of the first.",
        ("first", "second"),
        (*_INPUTS, "patterns"),
    ),
    "run": AgentTool(
        "run",
        "Run a script unchanged and watch its jitted functions: when a result turns NaN or Inf, the script stops and "
        "the operation is named. Also returns what the script printed.",
        ("script",),
        ("script_args", "inside"),
        keeps_stderr=True,
    ),
    "explain": AgentTool("explain", "Show the page about an error of Sonde: its cause and what to do.", (), ("error",)),
}
"""The tools by name."""
