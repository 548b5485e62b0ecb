"""Finds the program that a target names: a function and its arguments.

A target is `module:name` or `path/to/file.py:name`; names may be dotted. Modules are also imported from the current
directory and, for a file, from its own folder. The name may refer to

- a tuple `(f, args)` or `(f, args, kwargs)`,
- a callable that needs no arguments and returns such a tuple or a callable,
- a function that needs no arguments and returns nothing, as `main` in a script: it is run until it calls a jitted
  function for the second time, and that call is the program, or
- a callable with arguments: a function, a model.

If there are no arguments yet, they come from `example_inputs`: an attribute of the callable, or a name in the module.
It is a tuple of arguments, a dict of keyword arguments, a single argument, or a function that returns one of these.
Arguments that were typed (`--args`) take their place; arrays from an input file always replace arguments of the same
name.

All of this runs before the program does: any error is `Unusable`. JAX is not imported before the module of the program
is, which may set environment variables that JAX reads then.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sonde._array_text import short_place
from sonde.cli.exit_codes import Unusable
from sonde.cli.inputs import read_arrays, with_arrays

EXAMPLES = "example_inputs"
_MOST_LINES = 6  # of an error message of the user's code


@dataclasses.dataclass(frozen=True)
class Target:
    """A function with its arguments.

    Attributes:
        name: The target it came from.
        f: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """

    name: str
    f: Callable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def program_at(
    target: str,
    input_file: str | None = None,
    call_arguments: str | None = None,
    *,
    instead: Target | None = None,
) -> Target:
    """The program that a target names.

    Args:
        target: The text that was typed.
        input_file: A file of arrays, which replace arguments.
        call_arguments: The arguments as an expression of Python.
        instead: A program whose arguments are used if the target has none.
    """
    has_inputs = input_file is not None or call_arguments is not None
    module, name = _module_of(target)
    arrays = None if input_file is None else read_arrays(input_file)
    program = _attribute(module, name, target)
    args, kwargs = None, {}
    if _is_call(program):
        program, args, kwargs = _taken_apart(program)
    elif not has_inputs and _runs_by_itself(program):
        program, args, kwargs = _step_of(program, module, target)
    elif _is_maker(program, has_inputs=has_inputs):
        made = _made(program, target)
        if _is_call(made):
            program, args, kwargs = _taken_apart(made)
        elif callable(made):
            program = made
        else:
            raise Unusable(
                f"{target} needs no arguments, so it was called to make a program, but it returned {_kind(made)}. It "
                f"should return (f, args) or (f, args, kwargs). If it is the program itself, give it inputs: "
                f"--args '()' or {name}.{EXAMPLES} = ()."
            )
    if not callable(program):
        raise Unusable(
            f"{target} is {_kind(program)}. A target is a function, a model, or a function that returns (f, args)."
        )
    if call_arguments is not None:
        args, kwargs = _evaluated(call_arguments, module, target)
        _check_fits(program, args, kwargs, f"{target} cannot be called with --args {call_arguments!r}")
    elif args is None:
        examples = _examples(program, module, target)
        if examples is None and arrays is None and instead is not None:
            examples = instead.args, instead.kwargs
        if examples is None and arrays is None and _needs_arguments(program):
            raise Unusable(
                f"{target} needs arguments, but none are known: {_signature(program)}. Give them with --args "
                f"'jnp.ones((4, 3)), 0.1' or --input file.npz, or as {name}.{EXAMPLES} or {EXAMPLES} in the module, or "
                f"name a function that returns (f, args)."
            )
        args, kwargs = examples or ((), {})
    if arrays is not None:
        args, kwargs = with_arrays(program, args, kwargs, arrays, target)
    return Target(target, program, args, kwargs)


def object_at(target: str) -> Any:
    """The object that a target names."""
    module, name = _module_of(target)
    return _attribute(module, name, target)


# ---------------------------------------------------------------------------------------------------------------------
# Finding the object
# ---------------------------------------------------------------------------------------------------------------------


def _module_of(target: str) -> tuple[ModuleType, str]:
    """The module, and the rest of the target."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise Unusable(
            f"A target is module:name or path/to/file.py:name, got {target!r}; for example {where or name or 'model'}:"
            "make_program."
        )
    _importable(Path.cwd())
    if where.endswith(".py") or os.sep in where:
        return _from_file(Path(where), target), name
    return _from_name(where, target), name


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_file(path: Path, target: str) -> ModuleType:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], cutoff=0.4)
        raise Unusable(f"There is no file {str(path)!r} (target {target}).{_nearest(near)}")
    _importable(path.resolve().parent)
    for module in list(sys.modules.values()):  # two targets of one file are one module
        if getattr(module, "__file__", None) == str(path.resolve()):
            return module
    spec = importlib.util.spec_from_file_location(_free_name(path.stem), path.resolve())
    if spec is None or spec.loader is None:
        raise Unusable(f"{str(path)!r} is not a Python file (target {target}).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up here
    _importing(lambda: spec.loader.exec_module(module), str(path), target)  # pyright: ignore[reportOptionalMemberAccess]
    return module


def _free_name(stem: str) -> str:
    """A module name that hides no other module: the user's file may be called `json.py`."""
    return stem if stem not in sys.modules and stem not in sys.stdlib_module_names else f"sonde_target_{stem}"


def _from_name(name: str, target: str) -> ModuleType:
    return _importing(lambda: importlib.import_module(name), name, target)


def _importing(load: Callable[[], Any], name: str, target: str) -> Any:
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            local_names = [p.stem for p in Path.cwd().iterdir() if p.suffix == ".py" or p.is_dir()]
            near = difflib.get_close_matches(error.name, [*local_names, *sys.modules], cutoff=0.6)
            raise Unusable(
                f"There is no module {error.name!r} (target {target}), neither in the current directory "
                f"({Path.cwd()}) nor in this Python environment.{_nearest(near)}"
            ) from error
        raise Unusable(f"{name} cannot be imported (target {target}):\n  {last_line(error)}") from error
    except BaseException as error:  # SystemExit too: the script forgot `if __name__ == "__main__"`
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "\nIt belongs to a package: name it as package.module:name instead of as a file."
        if isinstance(error, SystemExit):
            hint = '\nIt ends the process when it is imported: put what it runs under if __name__ == "__main__".'
        raise Unusable(f"{name} cannot be imported (target {target}):\n  {last_line(error)}{hint}") from error


def last_line(error: BaseException) -> str:
    """The last line of a traceback, and the last line of the user's code in it."""
    message = str(error).strip().splitlines() or ["(no message)"]
    if len(message) > _MOST_LINES:
        message = [*message[:_MOST_LINES], "..."]
    headline = "\n  ".join([f"{type(error).__name__}: {message[0]}", *message[1:]])
    if isinstance(error, SyntaxError):
        line = short_place(f"{error.filename}:{error.lineno}")
        return f"{headline}\n  {line}: {(error.text or '').strip()}"
    from sonde.report.failure import failure

    where = failure(error, "", only_compiled=False)  # pyright: ignore[reportArgumentType]
    return f"{headline}\n  {short_place(where.source)}: {where.code}" if where.source else headline


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    value: Any = module
    reached = target.rpartition(":")[0]
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            public = [n for n in dir(value) if not n.startswith("_")]
            near = difflib.get_close_matches(part, public, cutoff=0.4) or _own_functions(value)
            raise Unusable(f"{reached} has no {part!r} (target {target}).{_nearest(near)}") from None
        reached = f"{reached}.{part}"
    return value


def _own_functions(module: Any) -> list[str]:
    """Names to propose if none is spelled similarly."""
    own = [n for n, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__]
    return [n for n in own if not n.startswith("_")][:5] if isinstance(module, ModuleType) else []


def _nearest(names: list[str]) -> str:
    return f" Nearest: {', '.join(dict.fromkeys(names))}." if names else ""


# ---------------------------------------------------------------------------------------------------------------------
# Finding what it is called with
# ---------------------------------------------------------------------------------------------------------------------


def _is_call(value: Any) -> bool:
    """Whether a value is `(f, args)` or `(f, args, kwargs)`."""
    if not isinstance(value, tuple) or len(value) not in (2, 3) or not callable(value[0]):
        return False
    return isinstance(value[1], (tuple, list)) and (len(value) == 2 or isinstance(value[2], dict))


def _taken_apart(call: tuple) -> tuple[Callable, tuple, dict[str, Any]]:
    return call[0], tuple(call[1]), dict(call[2]) if len(call) == 3 else {}


def _is_maker(value: Any, *, has_inputs: bool) -> bool:
    """Whether to call this to get a program, instead of taking it as the program."""
    if not callable(value) or hasattr(value, EXAMPLES) or _needs_arguments(value):
        return False
    # With inputs, a function with parameters is the program itself.
    return not has_inputs or not _parameters(value)


def _evaluated(expression: str, module: ModuleType, target: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that were typed."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    names = {"jax": jax, "jnp": jnp, "np": np, **vars(module)}
    try:
        # In the brackets of a call, `x` is one argument, `x, y` are two, and `y=x` has a name.
        return eval(f"(lambda *args, **kwargs: (args, kwargs))({expression}\n)", names)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unusable(
            f"The arguments {expression!r} for {target} cannot be evaluated:\n  {last_line(error)}"
        ) from error


def _made(maker: Callable, target: str) -> Any:
    try:
        return maker()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unusable(f"{target} was called to make a program and failed:\n  {last_line(error)}") from error


def _runs_by_itself(function: Any) -> bool:
    """Whether a function needs no arguments and returns nothing, as the `main` of a script does."""
    if not inspect.isfunction(function) or hasattr(function, EXAMPLES) or _needs_arguments(function):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    return isinstance(tree.body[0], ast.FunctionDef) and not any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value is not None)
        for node in _own_nodes(tree.body[0])
    )


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


def _step_of(main: Callable[[], Any], module: ModuleType, target: str) -> tuple[Callable, tuple, dict[str, Any]]:
    """The step that a program of its own repeats: it is run until the second call of a jitted function."""
    from sonde.cli.watched_script import step_of

    try:
        call = step_of(main, vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unusable(f"{target} was run to find its step and failed:\n  {last_line(error)}") from error
    if call is None:
        raise Unusable(
            f"{target} runs by itself and returns nothing, and it calls no jitted function that could be its step. "
            f"Name the step and its inputs: a function that returns (f, args), or a step with {EXAMPLES}."
        )
    return call.f, call.args, call.kwargs


def _examples(program: Any, module: ModuleType, target: str) -> tuple[tuple, dict[str, Any]] | None:
    """The example inputs of a callable; None if there are none."""
    for owner in (program, module):
        examples = getattr(owner, EXAMPLES, None)
        if examples is not None:
            break
    else:
        return None
    if callable(examples):
        examples = _made(examples, f"{EXAMPLES} of {target}")
    if isinstance(examples, tuple):
        return examples, {}
    if isinstance(examples, dict):
        return (), examples
    return (examples,), {}


def _check_fits(function: Callable, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str) -> None:
    """Raises an error that begins with `problem`, if a callable has no such parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise Unusable(f"{problem}: {error}. It is {_signature(function)}.") from error


def _parameters(function: Callable) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return []


def _needs_arguments(function: Callable) -> bool:
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in optional for p in _parameters(function))


def _signature(function: Callable) -> str:
    names = ", ".join(str(p).partition(":")[0].partition("=")[0].strip() for p in _parameters(function))
    return f"{getattr(function, '__name__', type(function).__name__)}({names})"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = "array" if hasattr(value, "dtype") and hasattr(value, "shape") else type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
