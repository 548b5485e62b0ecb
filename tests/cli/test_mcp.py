"""`sonde mcp` with the client of the package `mcp`, over stdin and stdout."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sonde.cli.agent_tools import PARAMETERS, TOOLS
from sonde.cli.exit_codes import Unusable

PROGRAM = """
import jax
import jax.numpy as jnp

print("imported")

def loss(x):
    h = jnp.log(x)
    return (h * 2).sum()

def stable(x):
    h = jnp.log(x + 1)
    return (h * 2).sum()

def fails(x):
    raise ValueError("the program itself")
"""
SCRIPT = """
import sys
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.sqrt(x - 2))
print("argument", sys.argv[1])
x = jnp.float32(3.0)
for i in range(20):
    x = step(x)
print("ended")
"""
LOSS = {"target": "program.py:loss", "args": "jnp.array([0.0, 2.0])", "inside": ["program.py:loss"]}
NO_ARGUMENTS = LOSS | {"args": ""}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool, and what its answer says."""

    tool: str
    arguments: dict[str, Any]
    texts: tuple[str, ...]
    is_error: bool = False


CALLS = [
    Call("sites", LOSS, ("loss/h", "float32[2]", "program.py:8", "Also printed:\nimported")),
    Call("nonfinite", {"target": "program.py:loss", "args": "jnp.zeros(2)"}, ("loss / h", "program.py:8", "log(0)")),
    Call("run", {"script": "train.py", "script_args": ["--fast"]}, ("argument --fast", "sqrt")),
    Call("explain", {"error": "InsideError"}, ("# InsideError", "Cause")),
    Call("report", {}, ("`target` is missing: file.py:name",), is_error=True),
    Call("report", LOSS | {"argss": "1"}, ("no argument `argss`; there are target, args",), is_error=True),
    Call("look", {}, ("there is no tool 'look'; there are sites, report",), is_error=True),
]
MORE_CALLS = [
    Call("report", LOSS, ("problem", "loss/h", "Inf")),
    Call("summarize", LOSS | {"patterns": ["loss/h"]}, ("loss/h", "0.693")),
    Call(
        "trace_back",
        {"target": "program.py:stable", "args": "jnp.ones(2) * 9", "where": "> 2"},
        ("program.py:13", "mul"),
    ),
    Call(
        "compare", {"first": "program.py:loss", "second": "program.py:stable", "args": "jnp.ones(3)"}, ("the result",)
    ),
    Call("sites", {"target": "program.py:loss", "args": "1.0"}, ("--inside program.py:loss",), is_error=True),
    Call(
        "nonfinite", {"target": "program.py:fails", "args": "1.0"}, ("ValueError: the program itself",), is_error=True
    ),
    Call("report", {"target": "absent.py:f"}, ("There is no file 'absent.py'",), is_error=True),
    Call("report", NO_ARGUMENTS, ("needs arguments", "--args"), is_error=True),
    Call("report", LOSS | {"args": "nothing"}, ("NameError", "'nothing'"), is_error=True),
]


def ask(folder: Path, calls: Sequence[Call]) -> tuple[Any, str, list[Any]]:
    """The list of tools, the instructions, and the answers to calls, in one session with a server."""
    from mcp import Client, StdioServerParameters

    (folder / "program.py").write_text(PROGRAM)
    (folder / "train.py").write_text(SCRIPT)

    async def session() -> tuple[Any, str, list[Any]]:
        arguments = ["-m", "sonde.cli", "mcp", "--folder", str(folder), "--seconds", "200", "--gigabytes", "8"]
        server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with Client(server) as client:
            two_at_a_time = asyncio.Semaphore(2)

            async def answer(call: Call) -> Any:
                async with two_at_a_time:
                    return await client.call_tool(call.tool, call.arguments)

            tools = (await client.list_tools()).tools
            return tools, client.instructions or "", await asyncio.gather(*map(answer, calls))

    return asyncio.run(session())


def check(call: Call, answer: Any) -> None:
    (content,) = answer.content
    assert answer.is_error == call.is_error, content.text
    for text in call.texts:
        assert text in content.text, content.text
    assert "\x1b" not in content.text and "…" not in content.text
    assert "Traceback" not in content.text or call.tool == "explain"
    if call.tool == "run":  # it was stopped where it went wrong
        assert "ended" not in content.text


def test_a_session_with_a_client(tmp_path: Path) -> None:
    tools, instructions, answers = ask(tmp_path, CALLS)
    assert [tool.name for tool in tools] == list(TOOLS)
    for tool in tools:
        assert tool.description and tool.input_schema["type"] == "object"
        assert all(parameter["description"] for parameter in tool.input_schema["properties"].values())
    assert "inside" in instructions
    for call, answer in zip(CALLS, answers):
        check(call, answer)


@pytest.mark.thorough
def test_every_tool_and_what_goes_wrong(tmp_path: Path) -> None:
    for call, answer in zip(MORE_CALLS, ask(tmp_path, MORE_CALLS)[2]):
        check(call, answer)


def test_the_command_line_of_a_tool() -> None:
    line = TOOLS["report"].command_line(
        {"target": "-f:g", "args": "-1.0, 'a b'", "inside": "m:f", "gradients": True, "input_file": "", "page": None}
    )
    options = ["--args=-1.0, 'a b'", "--inside=m:f", "--grads", "--no-page", "--fail-on=never"]
    assert line == ["report", *options, "--", "-f:g"]
    assert "--no-page" not in TOOLS["report"].command_line({"target": "m:f", "page": "out.html"})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"target": ["a", "b"]}, "`target` is one string"),
        ({"target": 1}, "`target` is a string, got 1"),
        ({"target": "m:f", "inside": [1]}, "`inside` is a list of strings"),
        ({"target": "m:f", "gradients": "yes"}, "`gradients` is true or false"),
    ],
)
def test_arguments_of_another_type(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(Unusable, match=text):
        TOOLS["report"].command_line(arguments)


def test_every_option_of_a_tool_is_one_of_its_command() -> None:
    from sonde.cli.program import sonde_command

    for tool in TOOLS.values():
        command = sonde_command.commands[tool.command]
        options = {name for parameter in command.params for name in parameter.opts}
        used = {PARAMETERS[name].option for name in (*tool.required, *tool.optional)} - {""}
        assert used | {option.partition("=")[0] for option in tool.fixed} <= options, tool.command


def test_a_python_that_is_not_there(sonde: Any, folder: Path) -> None:
    assert "--python 'no-python' is not a program" in sonde.error("mcp", "--python", "no-python")
