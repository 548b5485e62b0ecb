"""The server of `sonde mcp`: lists the tools, and runs the command of each in a process of its own."""

from __future__ import annotations

import asyncio
from importlib import metadata
from pathlib import Path
from typing import Any

from sonde._extras import load
from sonde._version import __version__
from sonde.cli.agent_tools import INSTRUCTIONS, TOOLS
from sonde.cli.exit_codes import FAILED, FINE, FOUND, Unusable
from sonde.cli.limited_process import Limits, run_limited

_MOST_CHARACTERS = 24_000  # of an answer; an agent has to read all of it
_MOST_PRINTED = 3_000  # of what the program printed itself


class CommandFailed(Exception):
    """A command could not do what was asked; the message says why."""


def serve(folder: Path, python: str, limits: Limits) -> None:
    """Serves on stdin and stdout until the client closes them.

    Args:
        folder: Where the programs run.
        python: The interpreter that runs them.
        limits: What each of them may use.
    """
    types = load("mcp.types", extra="mcp", purpose="sonde mcp")
    if int(metadata.version("mcp").partition(".")[0]) < 2:
        raise Unusable(f"sonde mcp needs mcp 2 or later, found {metadata.version('mcp')}: pip install 'sonde-jax[mcp]'")
    from mcp.server.lowlevel import Server  # pyright: ignore[reportMissingImports]
    from mcp.server.stdio import stdio_server  # pyright: ignore[reportMissingImports]

    async def list_tools(context: Any, request: Any) -> Any:
        tools = [types.Tool(name=n, description=t.description, input_schema=t.schema()) for n, t in TOOLS.items()]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, request: Any) -> Any:
        try:
            text, failed = await answer(request.name, request.arguments or {}, folder, python, limits), False
        except (CommandFailed, Unusable) as error:
            text, failed = str(error), True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    server = Server(
        "sonde", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )

    async def connected() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    asyncio.run(connected())


async def answer(name: str, arguments: dict[str, Any], folder: Path, python: str, limits: Limits) -> str:
    """What a tool says.

    Raises:
        Unusable: There is no such tool, or it has no such arguments.
        CommandFailed: It could not do what was asked.
    """
    if name not in TOOLS:
        raise Unusable(f"there is no tool {name!r}; there are {', '.join(TOOLS)}")
    tool = TOOLS[name]
    process = await run_limited([python, "-m", "sonde.cli", "--quiet", *tool.command_line(arguments)], folder, limits)
    stdout, stderr = process.stdout.strip(), process.stderr.strip()
    if process.exceeded:
        raise CommandFailed(
            f"{name} was ended: {process.exceeded}. Take smaller inputs or fewer sites, or start `sonde mcp` with "
            f"another --seconds or --gigabytes.{_printed(stderr)}"
        )
    if tool.keeps_stderr and process.code >= 0:
        heading = "" if process.code == FINE else f"exit code {process.code}\n"
        text = "\n".join(filter(None, [stderr, stdout]))
        return _shortened(heading + (text or "Nothing was printed, and nothing that is not finite was found."))
    if process.code in (FINE, FOUND) or (process.code == FAILED and stdout):
        return _shortened(stdout) + _printed(stderr)
    if process.code < 0:
        raise CommandFailed(f"{name} was ended by signal {-process.code}.{_printed(stderr)}")
    raise CommandFailed(_shortened(stderr or stdout or f"exit code {process.code}", keep_end=True))


def _printed(stderr: str) -> str:
    """What the program printed itself, and hints, to be added to an answer."""
    text = _shortened(stderr, _MOST_PRINTED, keep_end=True)
    return f"\n\nAlso printed:\n{text}" if text else ""


def _shortened(text: str, most: int = _MOST_CHARACTERS, *, keep_end: bool = False) -> str:
    """A text, cut at a line if it is long, which it then says."""
    if len(text) <= most:
        return text
    left_out = f"... {len(text) - most:,} characters left out: fewer `patterns` or a narrower `inside` give less ..."
    if keep_end:
        piece = text[-most:]
        return f"{left_out}\n{piece.partition(chr(10))[2] or piece}"
    piece = text[:most]
    return f"{piece.rpartition(chr(10))[0] or piece}\n{left_out}"
