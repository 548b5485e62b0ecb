"""What is mutable at module level is state that captures share: all of it is in one table, with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import sonde

SOURCE = Path(sonde.__file__).parent
PAGE = SOURCE.parents[1] / "CONTRIBUTING.md"
CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
# Objects of these classes change, or are there to be changed.
STATEFUL = {
    "ByIdentity",
    "ContextVar",
    "InPlace",
    "InterruptibleLock",
    "JaxprCache",
    "Lock",
    "RLock",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "count",
}
STATEFUL |= {"bytearray", "defaultdict", "deque", "local", "make_user_context"}
CONSTRUCTORS = {"dict", "list", "set"}
CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def trees() -> dict[str, ast.Module]:
    files = sorted(SOURCE.rglob("*.py"))
    return {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text()) for file in files}


def walk_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of all functions of a file, once each."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from (ast.walk if is_function else walk_functions)(node)


def changed_names(nodes: Iterable[ast.AST]) -> dict[bool, set[str | None]]:
    """The last names of what code changes: `a` for `a[0] = 1`, `del a[0]`, `a.b = 1`; for True, also for `a.pop()`."""
    assigned, by_methods = set(), set()
    for node in nodes:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                by_methods.add(last_name(node.func.value))
            continue
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
        targets += [element for target in targets if isinstance(target, ast.Tuple) for element in target.elts]
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
            assigned.add(last_name(node.target))
        assigned |= {last_name(t.value) for t in targets if isinstance(t, (ast.Subscript, ast.Attribute))}
    return {False: assigned, True: assigned | by_methods}


def last_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def changing_classes(modules: dict[str, ast.Module]) -> set[str]:
    """The classes whose objects hold containers, or have attributes that their methods set."""
    classes = [node for tree in modules.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    changing = {"local"} | {node.name for node in classes if holds_state(node)}
    while True:
        more = {node.name for node in classes if {base_name(b) for b in node.bases} & changing} - changing
        if not more:
            return changing
        changing |= more


def base_name(node: ast.expr) -> str | None:
    return last_name(node.value if isinstance(node, ast.Subscript) else node)


def holds_state(cls: ast.ClassDef) -> bool:
    for method in (node for node in cls.body if isinstance(node, ast.FunctionDef) and node.args.args):
        own = method.args.args[0].arg
        for node in ast.walk(method):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
            for target in targets:
                if isinstance(target, ast.Attribute) and last_name(target.value) == own:
                    value = node.value
                    if (
                        method.name != "__init__"
                        or isinstance(value, CONTAINERS)
                        or called(value) in STATEFUL | CONSTRUCTORS
                    ):
                        return True
    return False


def called(value: ast.AST | None) -> str | None:
    """The name of the class or function of a call: `Cache` of `Cache[int](3)`."""
    if not isinstance(value, ast.Call):
        return None
    function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return last_name(function)


def module_state(modules: dict[str, ast.Module] | None = None) -> Iterator[str]:
    """What is mutable at module level, as `file: name`."""
    modules = trees() if modules is None else modules
    stateful = STATEFUL | changing_classes(modules)
    nodes = {file: list(ast.walk(tree)) for file, tree in modules.items()}
    own = {file: changed_names(walk_functions(tree)) for file, tree in modules.items()}
    all_changed = {file: changed_names(of_file) for file, of_file in nodes.items()}
    for file, tree in modules.items():
        for statement in tree.body:
            value = getattr(statement, "value", None)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = [target.id for target in targets if isinstance(target, ast.Name) and target.id != "__all__"]
                is_container = isinstance(value, CONTAINERS) or called(value) in CONSTRUCTORS
                for name in names:
                    others = [changed[is_container] for other, changed in all_changed.items() if other != file]
                    by_others = not name.startswith("_") and any(name in names for names in others)
                    is_changed = name in own[file][is_container] or (by_others and name.isupper())
                    may_change = is_container or isinstance(value, ast.Call)
                    if called(value) in stateful or (may_change and is_changed):
                        yield f"{file}: {name}"
            if isinstance(statement, ast.FunctionDef):
                decorators = {last_name(d.func if isinstance(d, ast.Call) else d) for d in statement.decorator_list}
                if decorators & {"cache", "lru_cache"} and statement.args.args:
                    yield f"{file}: {statement.name}"
        for node in nodes[file]:
            if isinstance(node, ast.Global):
                yield from (f"{file}: {name}" for name in node.names)


def listed_state() -> list[str]:
    """The same, as the table has it."""
    rows = re.findall(r"^\| `([\w/.]+\.py)` \| (.*?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    return [f"{file}: {name}" for file, names in rows for name in re.findall(r"`(\w+)`", names)]


def test_the_table_has_all_that_is_mutable_at_module_level():
    found, listed = set(module_state()), listed_state()
    assert len(listed) == len(set(listed)), "listed twice"
    missing, gone = sorted(found - set(listed)), sorted(set(listed) - found)
    assert not missing, f"mutable at module level, and not in the table of CONTRIBUTING.md with a reason: {missing}"
    assert not gone, f"in the table of CONTRIBUTING.md, but no longer mutable at module level: {gone}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("_known = {}\ndef f(x):\n    _known[x] = 1", ["_known"]),
        ("_known = {1: 2}\ndef f(x):\n    return _known[x]", []),
        ("class A:\n    def __init__(self):\n        self.seen = []\nONE = A()", ["ONE"]),
        ("class A:\n    def set(self, x):\n        self.x = x\nclass B(A):\n    pass\nONE = B()", ["ONE"]),
        ("import threading\nclass A(threading.local):\n    pass\none = A()", ["one"]),
        ("one = None\ndef f():\n    global one\n    one = 1", ["one"]),
        ("import functools\n@functools.cache\ndef f(x):\n    return x", ["f"]),
        ("import weakref\n_known: weakref.WeakSet[int] = weakref.WeakSet()", ["_known"]),
    ],
)
def test_what_counts_as_mutable(text, names):
    assert [line.partition(": ")[2] for line in module_state({"a.py": ast.parse(text)})] == names
