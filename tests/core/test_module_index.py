"""Modules of any library, found by identity among the attributes of others."""

from sonde.core.module_index import ModuleKind, path_between, register_modules


def test_path_between_follows_changes():
    class Loose:
        pass

    register_modules(Loose, ModuleKind(lambda m: list(vars(m).items())))
    root, a, b = Loose(), Loose(), Loose()
    root.items = {"x": [a]}
    assert path_between(root, a) == ("items", "x", 0)
    assert path_between(root, b) is None
    root.items["x"].insert(0, b)
    assert path_between(root, b) == ("items", "x", 0)
    assert path_between(root, a) == ("items", "x", 1)
    root.items = None
    assert path_between(root, a) is None
    root.self = root
    assert path_between(root, root) == ()
