"""The changes that are made to the source: the ones that are meant, and nothing else."""

import ast
from pathlib import Path

from tests.mutants.changes import mutants_of

SOURCE = '''
def f(x, y, *, flag=False):
    """Says `not x`."""
    if x and not y:
        return g(x + 1, option=y)
    return [
        i
        for i in x
        if i < 2
    ]
'''


def test_every_change_is_made_alone(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    mutants = list(mutants_of(tmp_path, file))
    changes = {(mutant.before, mutant.after) for mutant in mutants}
    assert changes == {
        ("x and (not y)", "x"),
        ("x and (not y)", "not y"),
        ("not y", "y"),
        ("x + 1", "x - 1"),
        ("1", "2"),
        ("2", "3"),
        ("g(x + 1, option=y)", "g(x + 1)"),
        ("i < 2", "i <= 2"),
        ("[i for i in x if i < 2]", "[i for i in x]"),
    }
    for mutant in mutants:
        ast.parse(mutant.source)
        assert len(mutant.source.splitlines()) == len(SOURCE.splitlines())  # lines keep their numbers
        assert (mutant.file, mutant.function, mutant.line) == ("module.py", "f", 2)
    assert len({mutant.source for mutant in mutants}) == len(mutants)
