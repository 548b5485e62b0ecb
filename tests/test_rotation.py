"""Cases of `every(n)`: each has its turn, and a run can be repeated."""

import os
import subprocess

import pytest
from tests.rotation import leaves_out, rotation


@pytest.mark.parametrize("n", [2, 5])
def test_every_case_has_its_turn(monkeypatch, n):
    turns = []
    for number in range(n):
        monkeypatch.setenv("ROTATION", str(number))
        turns.append({position for position in range(12) if not leaves_out(position, n)})
    assert set.union(*turns) == set(range(12))
    assert sum(map(len, turns)) == 12  # and one turn only


def test_all_cases_at_once(monkeypatch):
    monkeypatch.setenv("ROTATION", "all")
    rotation()
    assert not any(leaves_out(position, 3) for position in range(12))


def test_the_number_depends_on_the_commit(monkeypatch):
    for commit, number in (("00000010" + "f" * 32, 16), ("ff" * 20, 2**32 - 1)):
        monkeypatch.delenv("ROTATION", raising=False)
        answer = subprocess.CompletedProcess([], 0, stdout=commit + "\n")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
        assert rotation() == number and os.environ["ROTATION"] == str(number)


def test_without_git_there_is_a_number_too(monkeypatch):
    def run(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.delenv("ROTATION", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    assert rotation() == 0
