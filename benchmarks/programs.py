"""The contents of a compiled program, to explain a ratio: kernels, copies, operations, bytes.

Two programs that do the same in the same way have the same kernels. If they differ, the difference is printed: which
kernels, of which shapes, only one of them has.

Sharp edge: bytes and flops are estimates of XLA, and on a GPU they leave out what libraries do (`custom-call`).
"""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
from typing import Any

# These do no work: they are names for existing arrays.
_FREE = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "iota"}
_MOVES = ("copy", "transpose", "convert", "dynamic-update-slice", "dynamic-slice", "concatenate", "pad")
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program in figures.

    Attributes:
        flops: operations, as XLA estimates them.
        touched: bytes that are read and written, as XLA estimates them.
        temporary: bytes that are needed while it runs.
        returned: bytes of its outputs.
        aliased: bytes of outputs that take the place of donated inputs.
        kernels: how often there is a kernel of a kind and shape. Those of a loop's body count once.
    """

    flops: float
    touched: float
    temporary: int
    returned: int
    aliased: int
    kernels: collections.Counter[str]

    def line(self) -> str:
        """The figures as text."""
        kinds = collections.Counter[str]()
        for kernel, count in self.kernels.items():
            kinds[kernel.split(" ", 1)[0]] += count
        moves = sum(count for kind, count in kinds.items() if any(move in kind for move in _MOVES))
        most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
        return (
            f"{self.flops / 1e9:.1f} Gflop, {self.touched / 1e6:.0f} MB touched, {self.temporary / 1e6:.0f} MB "
            f"temporary, {self.returned / 1e6:.0f} MB returned, {self.aliased / 1e6:.0f} MB aliased, "
            f"{self.kernels.total()} kernels of which {moves} move or convert ({most})"
        )


def program_of(compiled: Any) -> Program:
    """Reads a compiled program."""
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Program(
        cost.get("flops", 0.0),
        cost.get("bytes accessed", 0.0),
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        kernels_of(compiled.as_text()),
    )


def kernels_of(text: str) -> collections.Counter[str]:
    """The kernels of an optimized program by kind and shape: instructions that are in no fusion."""
    bodies = _computations(text)
    inside = {name for lines in bodies.values() for line in lines for name in _called(line)}
    found = collections.Counter[str]()
    for name, lines in bodies.items():
        if name in inside:
            continue
        for line in lines:
            read = re.match(r"(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(", line)
            if read and read[3] not in _FREE:
                kind = re.sub(r"[.\d]+$", "", read[1]) if read[3] == "fusion" else read[3]
                found[f"{kind} {_shape(read[2])}"] += 1
    return found


def explain(question: str, by_hand: Any, ours: Any) -> None:
    """Prints the figures of two compiled programs and where they differ."""
    hand, mine = program_of(by_hand), program_of(ours)
    print(f"  {question}\n    by hand: {hand.line()}\n    sonde:   {mine.line()}", file=sys.stderr)
    for title, more in (("by hand", hand.kernels - mine.kernels), ("sonde", mine.kernels - hand.kernels)):
        for kernel, count in more.most_common(_SHOWN):
            print(f"    only {title}: {count} {kernel}", file=sys.stderr)
    sys.stderr.flush()


def _computations(text: str) -> dict[str, list[str]]:
    """The lines of every computation by name."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        if head:
            current = found.setdefault(head[1], [])
        elif line.startswith("  "):
            current.append(line.strip())
    return found


def _called(line: str) -> list[str]:
    """Computations that an instruction holds inside, as part of one kernel: of fusions, reductions, sorts."""
    if re.search(r" (?:while|conditional|call)\(", line):
        return []
    return re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line)


def _shape(kind: str) -> str:
    """A shape without layout; how many arrays there are if it is long."""
    kind = re.sub(r"\{[^}]*\}", "", kind)
    return kind if len(kind) < 60 else f"({kind.count('[')} arrays)"
