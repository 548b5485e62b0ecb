"""Finds the functions in files that an `inside=` argument means.

Whatever the argument names must be found: otherwise an error says why. Functions that come with a class, a Python
module or a package are left out if they cannot be marked, and listed (`Inside.left_out`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import inspect
import itertools
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from sonde._array_text import short_place
from sonde.errors import InsideError
from sonde.inside.code_swap import functions_of, loaded_as, marks_of
from sonde.inside.instrumented import FunctionMarks
from sonde.inside.messages import nearest, no_function_in, no_module
from sonde.inside.source import CHANGED, SourceFile, file_named, function_of
from sonde.inside.source_texts import no_source
from sonde.inside.unwrap import functions_below, functions_meant, plain_function

_JAX = os.path.dirname(jax.__file__) + os.sep
_SONDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The parts of JAX that compute something. The rest runs the program, and cannot observe itself.
_COMPUTES = re.compile(
    r"(_src/)?(nn|numpy|scipy|image|ops|example_libraries)/|_src/third_party/scipy/|(_src/)?random(/core)?\.py|"
    r"experimental/(?!pallas)"
)


class LeftOut(NamedTuple):
    """A function that cannot be looked into, where it is, and why."""

    name: str
    place: str
    reason: str


class Resolved(NamedTuple):
    """What was found, what had to be left out, and whether a function itself was requested."""

    functions: frozenset[FunctionMarks]
    left_out: tuple[LeftOut, ...]
    by_name: bool = False


def find(thing: Any) -> Resolved:
    """The functions that an `inside=` argument means.

    Raises:
        InsideError: It cannot be looked into.
        TypeError: It has no functions.
    """
    if isinstance(thing, str):
        return _named(thing)
    if isinstance(thing, types.ModuleType):
        if sys.modules.get(thing.__name__) is not thing:
            why = f"sys.modules has another or none of that name; name its functions, inside=[{thing.__name__}.f]"
            raise InsideError(f"inside= cannot look into module {thing.__name__}: {why}")
        return _modules([thing.__name__, *_below(thing.__name__)], {thing.__name__})
    if isinstance(thing, type):
        return _class(thing)
    if isinstance(thing, (jax.stages.Lowered, jax.stages.Compiled, jax.stages.Traced)):
        raise TypeError(no_function_in(thing))
    own, held = functions_meant(thing)
    if not own:
        raise TypeError(no_function_in(thing))
    parts = [_asked_for(function) for function in own]
    for function in held:
        with contextlib.suppress(InsideError):  # it was not named itself
            parts.append(_asked_for(function))
    return Resolved(
        frozenset().union(*(each.functions for each in parts)),
        tuple(out for each in parts for out in each.left_out),
        by_name=True,
    )


def _asked_for(function: types.FunctionType) -> Resolved:
    """A function with those in it; raises InsideError if it cannot be looked into."""
    name = f"{function.__module__}.{function.__qualname__}".removeprefix("None.")
    place = short_place(f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}")
    reason = machinery(function.__code__.co_filename)
    marks = marks_of(function)
    if reason is None:
        written = marks if marks is not None else _written_as(function)
        reason = written if isinstance(written, str) else written.reason
        if reason is None and isinstance(written, FunctionMarks):
            return _with_inner([written])
    raise InsideError(f"inside= cannot look into {name} ({place}): {reason}")


def _written_as(function: types.FunctionType) -> FunctionMarks | str:
    return function_of(function.__code__, function.__globals__, function.__qualname__)


def _with_inner(functions: list[FunctionMarks]) -> Resolved:
    """Functions together with those that are defined in them."""
    every = dict.fromkeys(g for f in functions for g in (f, *f.inner))
    left_out = [LeftOut(f.qualname, f.place, f.reason) for f in every if f.reason is not None]
    return Resolved(frozenset(f for f in every if f.reason is None), tuple(left_out))


def machinery(filename: str) -> str | None:
    """Why the functions of a file must be left alone; None if they need not."""
    if filename.startswith(_SONDE):
        return "it is part of Sonde itself"
    if filename.startswith(_JAX) and not _COMPUTES.match(filename[len(_JAX) :].replace(os.sep, "/")):
        return "it is part of the machinery of JAX, which runs the program"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Classes
# ---------------------------------------------------------------------------------------------------------------------


def _class(cls: type) -> Resolved:
    """The methods that are written in the body of a class."""
    functions: list[FunctionMarks] = []
    left_out: list[LeftOut] = []
    for function in methods_of(cls):
        marks = marks_of(function)
        if marks is not None:
            functions.append(marks)
        else:
            code = function.__code__
            place = short_place(f"{code.co_filename}:{code.co_firstlineno}")
            left_out.append(LeftOut(code.co_qualname, place, str(_written_as(function))))
    usable = [f for f in functions if f.reason is None and machinery(f.filename) is None]
    if not usable:
        name = f"{cls.__module__}.{cls.__qualname__}"
        reasons = [machinery(f.filename) or f.reason for f in functions] + [x.reason for x in left_out]
        why = next(filter(None, reasons), "it has no methods written in Python")
        raise InsideError(f"inside= cannot look into class {name}: {why}")
    whole = _with_inner(functions)
    return Resolved(whole.functions, (*whole.left_out, *left_out))


def methods_of(cls: type) -> list[types.FunctionType]:
    """The functions that are written in the body of a class, without their decorators."""
    methods: dict[types.FunctionType, None] = {}
    for value in list(vars(cls).values()):
        for function in functions_below(value):
            if function.__code__.co_qualname.startswith(cls.__qualname__ + "."):
                methods[function] = None
    return list(methods)


# ---------------------------------------------------------------------------------------------------------------------
# Python modules and packages
# ---------------------------------------------------------------------------------------------------------------------


def _below(name: str) -> list[str]:
    _import_parts(sys.modules[name])
    return [m for m in list(sys.modules) if m.startswith(name + ".")]


def _import_parts(module: types.ModuleType) -> None:
    """Imports what a package of JAX imports on first use (`jax.scipy`): that may be in the captured function."""
    if module.__name__.startswith("jax.") and "__getattr__" in vars(module):
        for name in getattr(module, "__all__", ()):
            getattr(module, name, None)


def _modules(names: list[str], asked: set[str]) -> Resolved:
    """All functions in the files of some modules, and those that these re-export from their own package."""
    functions: dict[FunctionMarks, None] = {}
    left_out: list[LeftOut] = []
    files: dict[str, SourceFile] = {}
    mirrored = [m for name in names for m in _mirror(name)]
    for name in dict.fromkeys([*names, *mirrored]):
        module = sys.modules.get(name)
        filename = getattr(module, "__file__", None)
        if module is not None and name in asked:
            cells, unknown = _in_cells(module)
            functions.update(dict.fromkeys(_with_inner(cells).functions))
            left_out += [*_with_inner(cells).left_out, *unknown]
            if unknown and (cells or filename is not None):  # what was written by hand must not be missing in silence
                warnings.warn(_unknown_text(name, unknown), stacklevel=2)
        if module is None or not isinstance(filename, str) or not filename.endswith(".py"):
            if name in asked and not functions and not left_out:
                left_out.append(
                    LeftOut(name, short_place(str(filename)), "it has no functions that are written in Python")
                )
            continue
        reason = machinery(filename)
        file = file_named(filename, loaded_by=vars(module)) if reason is None else None
        if reason is not None or file is None:
            left_out.append(LeftOut(name, short_place(filename), reason or no_source(filename)))
        else:
            files[filename] = file
    written, changed = _written_in(files)
    functions.update(dict.fromkeys(written))
    left_out += changed
    # A module with a private one behind it has no code, and only shows what is elsewhere, as `jax.scipy.special` does.
    for name in dict.fromkeys([*asked, *filter(_mirror, names)]):
        functions.update(dict.fromkeys(_shown_by(sys.modules[name])))
    usable = frozenset(f for f in functions if f.reason is None)
    left_out += [LeftOut(f.qualname, f.place, f.reason) for f in functions if f.reason is not None]
    if not usable:
        reason = (
            left_out[0].reason
            if left_out
            else "it has no functions; what a package imports later must be imported first"
        )
        raise InsideError(f"inside= cannot look into {', '.join(sorted(asked))}: {reason}")
    return Resolved(usable, tuple(left_out))


def _written_in(files: dict[str, SourceFile]) -> tuple[list[FunctionMarks], list[LeftOut]]:
    """The functions of some files; and those that run, but are not what is written in their file now."""
    live: dict[str, dict[FunctionMarks, None]] = {name: {} for name in files}
    changed: dict[str, dict[LeftOut, None]] = {name: {} for name in files}
    for function, marks in functions_of(files):
        code = function.__code__
        if marks is not None:
            live[marks.filename].update(dict.fromkeys([marks, *marks.inner]))
        elif not files[code.co_filename].has_several(code) and not files[code.co_filename].has_part(code):
            place = short_place(f"{code.co_filename}:{code.co_firstlineno}")
            changed[code.co_filename][LeftOut(code.co_qualname, place, CHANGED)] = None
    functions = [f for name in files for f in (live[name] if changed[name] else {*live[name], *files[name].functions})]
    return functions, [x for name in files for x in changed[name]]


def _in_cells(module: types.ModuleType) -> tuple[list[FunctionMarks], list[LeftOut]]:
    """The functions and methods of a module that are not in its file, such as those of a notebook.

    Returns:
        Those that are known, and those that are not.
    """
    with_marks: dict[FunctionMarks, None] = {}
    without_marks: dict[LeftOut, None] = {}
    filename = getattr(module, "__file__", None)
    if filename is not None and module.__name__ != "__main__":  # a package: what it makes of text is not by hand
        return [], []
    for value in list(vars(module).values()):
        if isinstance(value, type):
            functions = methods_of(value) if value.__module__ == module.__name__ else []
        else:
            functions = [f for f in functions_below(value) if f.__globals__ is vars(module)]
        for function in functions:
            marks, code = marks_of(function), function.__code__
            if code.co_filename == filename or machinery(code.co_filename) is not None:
                continue
            if marks is not None:
                with_marks[marks] = None
            elif not _is_generated(function):
                place = short_place(f"{code.co_filename}:{code.co_firstlineno}")
                without_marks[LeftOut(code.co_qualname, place, str(_written_as(function)))] = None
    return list(with_marks), list(without_marks)


def _is_generated(function: types.FunctionType) -> bool:
    """Whether a package made a method, as `dataclass` makes `__init__`: its text is not by hand."""
    return function.__code__.co_filename == "<string>" and function.__name__.startswith("__")


def _unknown_text(module: str, unknown: list[LeftOut]) -> str:
    each = "; ".join(f"{out.name} ({out.place}): {out.reason}" for out in unknown)
    return f"inside={module!r} leaves out {each}"


def _mirror(name: str) -> list[str]:
    """The private module behind a public name: `jax._src.nn` for `jax.nn`."""
    root, _, below_root = name.partition(".")
    inner = f"{root}._src.{below_root}"
    return [inner, *_below(inner)] if below_root and inner in sys.modules else []


def _shown_by(module: types.ModuleType) -> Iterator[FunctionMarks]:
    """The functions that a module re-exports from elsewhere in its package."""
    root = module.__name__.partition(".")[0]
    top = getattr(sys.modules.get(root), "__file__", None)
    folder = os.path.dirname(top) + os.sep if isinstance(top, str) and os.path.basename(top) == "__init__.py" else None
    if folder is None:
        return
    for name, value in list(vars(module).items()):
        if name.startswith("_") or isinstance(value, (type, types.ModuleType)):
            continue
        function = plain_function(value) if callable(value) else None
        if function is not None and function.__code__.co_filename.startswith(folder):
            marks = marks_of(function) if machinery(function.__code__.co_filename) is None else None
            if marks is not None:
                yield marks
                yield from marks.inner


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


def _named(name: str) -> Resolved:
    """`package.module:Class.method`, `package.module`, `package.*`, `package.module:*norm*`, `file.py`, `file.py:f`."""
    file_name, _, in_file = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    if file_name.endswith(".py"):
        return _in_file(os.path.abspath(file_name), in_file, name)
    module_name, colon, qualname = name.partition(":")
    if any(c in module_name for c in "*?["):
        _import_around(module_name, name)
        patterns = (module_name, module_name.removesuffix(".*"))  # `pkg.*` has `pkg` itself too
        names = [m for m in list(sys.modules) if any(fnmatch.fnmatchcase(m, pattern) for pattern in patterns)]
        if not names:
            raise InsideError(f"inside={name!r}: no module of that name has been imported")
        names_written = set(names)
    else:
        thing = _imported(module_name, name)
        if not isinstance(thing, types.ModuleType):
            return find(thing) if not qualname else find(_attribute(thing, qualname, name))
        names, names_written = [module_name], {module_name}
        if not colon or not qualname:
            return find(thing)
        if not any(c in qualname for c in "*?["):
            written = _written(thing, qualname)
            return find(_attribute(thing, qualname, name)) if written is None else _with_other(written, thing, qualname)
    resolved = _modules(names, names_written)
    return resolved if not colon else _chosen(resolved, qualname, name)


def _import_around(pattern: str, asked: str) -> None:
    """Imports the package that a pattern such as `pkg.*` begins with."""
    whole = list(itertools.takewhile(lambda part: not any(c in part for c in "*?["), pattern.split(".")))
    package = _imported(".".join(whole), asked) if whole else None
    if isinstance(package, types.ModuleType):
        _import_parts(package)


def object_named(name: str) -> Any:
    """The object that a name refers to, if it is not code, such as a model; otherwise None."""
    where, _, qualname = name.rpartition(":")
    if not qualname or name.endswith(".py") or any(c in name for c in "*?["):
        return None
    try:
        if where.endswith(".py"):
            named: Any = next((m for m in list(sys.modules.values()) if _is_loaded_from(m, where)), None)
        else:
            named = _imported(where or qualname, name)
        for part in qualname.split(".") if where else ():
            named = named[int(part)] if part.isdigit() else getattr(named, part)
    except (InsideError, AttributeError, IndexError, TypeError, KeyError):
        return None  # `find` says what is wrong
    return None if isinstance(named, (types.FunctionType, types.ModuleType, type)) else named


def _is_loaded_from(module: Any, path: str) -> bool:
    filename = getattr(module, "__file__", None)
    if not isinstance(filename, str) or not filename.endswith(os.path.basename(path)):
        return False
    return os.path.realpath(filename) == os.path.realpath(path)


def _written(module: types.ModuleType, qualname: str) -> Resolved | None:
    """The functions that are written in a module under a name, whatever their decorators return."""
    filename = getattr(module, "__file__", None)
    if not isinstance(filename, str) or not filename.endswith(".py") or machinery(filename) is not None:
        return None
    file = file_named(filename)
    name = qualname.replace(".<locals>", "")
    functions = [] if file is None else _written_in({filename: file})[0]
    matching = [f for f in functions if f.qualname.replace(".<locals>", "") == name]
    return (
        _with_inner(matching)._replace(by_name=True) if matching and all(f.reason is None for f in matching) else None
    )


def _with_other(written: Resolved, module: types.ModuleType, qualname: str) -> Resolved:
    """Functions that are written under a name, and the one that has the name now, if another was put in their place."""
    try:
        bound_now = _attribute(module, qualname, "")
    except InsideError:  # the name of an inner function
        return written
    if not isinstance(bound_now, types.FunctionType):
        return written
    below = {marks_of(function) for function in functions_below(bound_now)}
    if below & written.functions:  # decorated
        return written
    resolved_now = find(bound_now)
    return Resolved(
        written.functions | resolved_now.functions, (*written.left_out, *resolved_now.left_out), by_name=True
    )


def _in_file(filename: str, qualname: str, asked: str) -> Resolved:
    """The functions of a file."""
    files = {name: file for name in loaded_as(filename) or [filename] if (file := file_named(name)) is not None}
    if not files:
        raise InsideError(f"inside={asked!r}: there is no Python file {filename!r}")
    functions, changed = _written_in(files)
    if changed and not functions:
        raise InsideError(f"inside={asked!r}: cannot look into {changed[0].name} ({changed[0].place}): {CHANGED}")
    resolved = _with_inner(functions)
    resolved = resolved._replace(left_out=(*resolved.left_out, *changed))
    return resolved if not qualname else _chosen(resolved, qualname, asked)


def _chosen(among: Resolved, qualname: str, name: str) -> Resolved:
    """The functions whose name matches."""
    pattern = qualname.replace(".<locals>", "")
    names = {f: f.qualname.replace(".<locals>", "") for f in among.functions}
    chosen = [f for f in names if fnmatch.fnmatchcase(names[f], pattern)]
    is_class = not chosen and any(names[f].rpartition(".")[0] == pattern for f in names)
    if is_class:
        pattern = f"{pattern}.*"
        chosen = [f for f in names if fnmatch.fnmatchcase(names[f], pattern)]
    left_out = [x for x in among.left_out if fnmatch.fnmatchcase(x.name.replace(".<locals>", ""), pattern)]
    if not chosen and left_out:
        out = left_out[0]
        raise InsideError(f"inside={name!r}: cannot look into {out.name} ({out.place}): {out.reason}")
    if not chosen:
        raise InsideError(
            f"inside={name!r}: no function of that name; nearest: {nearest(qualname, list(names.values()))}"
        )
    whole = _with_inner(chosen)
    is_one = not is_class and not any(c in qualname for c in "*?[")
    return Resolved(whole.functions, tuple(dict.fromkeys((*whole.left_out, *left_out))), by_name=is_one)


def _imported(name: str, asked: str) -> Any:
    """A module, or an object in one, by its dotted name."""
    parts = name.split(".")
    if not all(parts):
        raise InsideError(f"inside={asked!r}: not the name of a module; write 'package.module' or 'package.module:f'")
    for n in range(len(parts), 0, -1):
        module = ".".join(parts[:n])
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise
            continue
        return _attribute(imported, ".".join(parts[n:]), asked) if n < len(parts) else imported
    raise InsideError(no_module(name, asked))


def _attribute(owner_of_part: Any, qualname: str, asked: str) -> Any:
    for part in qualname.split("."):
        try:
            inner = inspect.getattr_static(owner_of_part, part)
        except AttributeError:
            near = nearest(part, [n for n in dir(owner_of_part) if part.startswith("__") or not n.startswith("__")])
            owner = getattr(owner_of_part, "__name__", owner_of_part)
            raise InsideError(f"inside={asked!r}: {owner!r} has no {part!r}; nearest: {near}") from None
        owner_of_part = inner if isinstance(owner_of_part, type) else getattr(owner_of_part, part)
    return owner_of_part
