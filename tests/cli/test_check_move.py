"""`sonde check-move`: the same tests with Flax and with Sonde."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import Result

from sonde.cli import moved_tests
from sonde.cli.moved_tests import Difference, OneTest, Run, differences, first_difference, known_tests, split_known

TESTS = """
import flax.linen as nn
from flax import nnx


def test_same():
    print("leaves", len(nnx.state(nnx.Dict(a=nnx.Param(1.0)))), nn.Dense(3).features)


def test_private():
    assert nn.module._freeze_attr


def test_prints():
    print("made by", nnx.Linear.__module__.partition(".")[0])


def test_never():
    raise ValueError("in both")
"""


def test_tests_with_flax_and_with_sonde(sonde, write):
    """In one go, since every run starts two processes."""
    write(TESTS, "test_it.py")
    result = sonde("check-move", "--json", sys.executable, "-m", "pytest", "-q", "test_it.py")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    found = {d["test"]: (d["kind"], d["flax"], d["sonde"]) for d in data["differences"]}
    assert found.pop("test_it::test_prints") == ("prints", "made by flax", "made by sonde")
    kind, flax, ours = found.pop("test_it::test_private")
    assert (kind, flax) == ("fails with Sonde", "passed") and "flax.linen.module._freeze_attr does not exist" in ours
    assert not found
    assert {ask["name"] for ask in data["asks"] if ask["answer"] == "missing"} == {"flax.linen.module._freeze_attr"}
    assert set(data["tests"]) == {f"test_it::{n}" for n in ("test_same", "test_private", "test_prints", "test_never")}


def test_known_differences_decide_the_exit_code(sonde, write, monkeypatch):
    known = str(write("test_it::test_private  # a private name\ntest_it::test_same  # nothing", "known.txt"))

    def check(*names: str) -> Result:
        """The command on tests with these names, of which `same` passes with both and the others with Flax alone."""
        flax = {f"test_it::test_{name}": OneTest("passed", 1.0) for name in names}
        ours = {test: one if test.endswith("same") else OneTest("failed", 1.0, "why") for test, one in flax.items()}
        runs = {False: Run(0, 1.0, "", flax, None), True: Run(1, 1.0, "", ours, [])}
        monkeypatch.setattr(moved_tests, "run", lambda command, *, aliased: runs[aliased])
        return sonde("check-move", "--known", known, sys.executable, "-m", "pytest")

    result = check("private", "never")
    assert result.exit_code == 1 and "test_it::test_never: fails with Sonde" in result.stdout
    assert "test_private" not in result.stdout
    result = check("private", "same")
    assert result.exit_code == 1 and f"listed in {known}, but no longer differs: test_it::test_same" in result.stdout
    assert check("private").exit_code == 0


def test_a_command_that_says_nothing(sonde, write):
    result = sonde("check-move", sys.executable, "-c", "print(1)")
    assert result.exit_code == 2 and "never imported Flax, so both runs were the same" in result.stderr
    result = sonde("check-move", sys.executable, "-c", "raise SystemExit('no')")
    assert result.exit_code == 3 and "fails with Flax already" in result.stderr and "no" in result.stderr
    write("def helper(): pass", "test_none.py")
    result = sonde("check-move", sys.executable, "-m", "pytest", "-q", "test_none.py")
    assert result.exit_code == 2 and "ran no test" in result.stderr
    result = sonde("check-move", "no_such_package_here")
    assert result.exit_code == 2 and "'no_such_package_here' is neither a command nor an installed" in result.stderr
    result = sonde("check-move", "no-such-command", "x")
    assert result.exit_code == 2 and "there is no command 'no-such-command'" in result.stderr


def of_tests(**tests):
    return Run(0, 1.0, "", {name: OneTest(*fields) for name, fields in tests.items()}, [])


def test_outcomes():
    flax = of_tests(a=("passed", 1.0), b=("failed", 1.0, "old"), c=("passed", 1.0), d=("skipped", 0.0))
    sonde = of_tests(a=("failed", 1.0, "why"), b=("passed", 1.0), d=("passed", 0.0), e=("passed", 0.0))
    assert differences(flax, sonde, rtol=0.0) == [
        Difference("a", "fails with Sonde", "passed", "why"),
        Difference("b", "fails with Flax", "old", "passed"),
        Difference("c", "not run with Sonde", "passed", ""),
        Difference("d", "skipped with one", "skipped", "passed"),
        Difference("e", "not run with Flax", "", "passed"),
    ]


def test_known_differences(write):
    known = known_tests(write("# a list\n\na # private\nc  # wording\nnot_run # other\nb[x #1]", "known.txt"))
    assert known == ["a", "c", "not_run", "b[x"]
    flax = of_tests(a=("passed", 1.0), b=("passed", 1.0), c=("passed", 1.0))
    sonde = of_tests(a=("failed", 1.0), b=("failed", 1.0, "why"), c=("passed", 1.0))
    unknown, gone = split_known(differences(flax, sonde, rtol=0.0), known, flax)
    assert [difference.test for difference in unknown] == ["b"]
    assert gone == ["c"]


@pytest.mark.parametrize(
    ("flax", "sonde", "expected"),
    [
        (Run(0, 1.0, "loss 1.5\n", None, None), Run(0, 1.0, "loss 1.5000001\n", None, []), []),
        (Run(0, 1.0, "a\nb", None, None), Run(0, 1.0, "a\nc", None, []), [Difference("", "prints", "b", "c")]),
        (Run(0, 1.0, "a", None, None), Run(1, 1.0, "oh", None, []), [Difference("", "exit code", "0: a", "1: oh")]),
    ],
)
def test_commands_that_are_not_pytest(flax, sonde, expected):
    assert differences(flax, sonde, rtol=1e-6) == expected


def test_numbers_in_printed_lines():
    assert first_difference("", "", rtol=0.0) is None
    assert first_difference("x -1e-3 nan", "x -0.001 nan", rtol=0.0) is None
    assert first_difference("1 2", "1 3", rtol=0.1) == ("1 2", "1 3")
    assert first_difference("one", "one\ntwo", rtol=0.0) == ("", "two")
