"""Making a failing program small: parts are taken out as long as it still fails in the same way."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.core.programs import Body, Call, Node, Program, Sow, SowTwice

# Fields of nodes that have a simpler value than the one they may hold.
SIMPLER = {"reverse": False, "fori": False, "inline": False, "psum": False, "linearize": False, "through": False}
SIMPLER |= {"test_site": None, "replicated_site": None, "length": 1, "times": 1, "exchanged": False, "apart": False}
SIMPLER |= {
    "named": None,
    "axis_name": None,
    "second": "none",
    "checked": True,
    "over": "x",
    "wrt": "x",
    "spread": False,
    "length_outside": False,
    "chosen_outside": False,
    "product": False,
}


def smaller_nodes(node: Node) -> Iterator[Body]:
    """Bodies that can replace a node."""
    fields: dict[str, Any] = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}  # pyright: ignore
    with_other = lambda **changes: (dataclasses.replace(node, **changes),)  # pyright: ignore
    for name in ("body", "left", "right"):
        if name in fields:
            yield fields[name]
            for body in smaller_bodies(fields[name]):
                yield with_other(**{name: body})
    for i, branch in enumerate(fields.get("branches", ())):
        others = fields["branches"][:i], fields["branches"][i + 1 :]
        yield branch
        if len(fields["branches"]) > 2:
            yield with_other(branches=(*others[0], *others[1]))
        for body in smaller_bodies(branch):
            yield with_other(branches=(*others[0], body, *others[1]))
    for name, simple in SIMPLER.items():
        if name in fields and fields[name] != simple:
            yield with_other(**{name: simple})
    if isinstance(node, Sow) and node.kind != "array":
        yield with_other(kind="array")
    if isinstance(node, SowTwice):
        yield (node.first,)
        if node.first.kind != "array":
            yield with_other(first=Sow(node.first.name))


def smaller_bodies(body: Body) -> Iterator[Body]:
    for i, node in enumerate(body):
        yield (*body[:i], *body[i + 1 :])
        for new in smaller_nodes(node):
            yield (*body[:i], *new, *body[i + 1 :])


def smaller_programs(program: Program) -> Iterator[Program]:
    for body in smaller_bodies(program.body):
        yield dataclasses.replace(program, body=body)
    for i, function in enumerate(program.functions):
        for body in smaller_bodies(function):
            yield dataclasses.replace(program, functions=(*program.functions[:i], body, *program.functions[i + 1 :]))
    if program.explicit and "spread=True" not in repr(program):
        yield dataclasses.replace(program, explicit=False)
    for flag in program.upgrades:
        yield dataclasses.replace(program, upgrades=tuple(other for other in program.upgrades if other != flag))
    if program.functions and not calls(program.body):
        yield dataclasses.replace(program, functions=())


def calls(body: Body) -> bool:
    return Call.__name__ in repr(body)


def signature(check: Callable[[Program], object], program: Program) -> str | None:
    """The error of a program, without the numbers and names that change when the program is made smaller."""
    try:
        check(program)
    except Exception as error:  # whatever goes wrong is what is looked for
        text = re.sub(r"\bs\d+\b|again|\b[ab]/|[-\d.e+]+|\s+", "", str(error))
        return f"{type(error).__name__}: {text[:30]}"
    return None


def reduced(check: Callable[[Program], object], program: Program, *, tries: int = 400) -> Program:
    """A program that fails as `program` does and has no part that could be left out."""
    failure = signature(check, program)
    assert failure is not None, "only a program that fails can be made smaller"
    smaller = True
    while smaller:
        smaller = False
        for candidate in smaller_programs(program):
            tries -= 1
            if tries < 0:
                return program
            if signature(check, candidate) == failure:
                program, smaller = candidate, True
                break
    return program
