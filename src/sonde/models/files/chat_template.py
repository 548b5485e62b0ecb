"""Chat templates: programs in Jinja that come with a model, so what they may do is bounded.

Jinja's sandbox keeps them from other objects of the process, but not from running forever or taking all memory. So a
step is counted before every statement, and what makes large values from small ones takes no large numbers.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde import _extras
from sonde.errors import ModelFileError

try:
    import resource
except ImportError:  # Windows
    resource = None

_LONGEST = 1 << 18  # characters; the longest templates of known models have some twenty thousand
_SECONDS = 1.0  # of the thread
_MEMORY = 1 << 28  # bytes more than the process had
_LARGEST = 1_000_000  # a number that an operation may take, and the length of a result
_SIZED = ("do_batch", "do_center", "do_indent", "do_slice", "sync_do_slice", "do_truncate", "do_wordwrap", "_as_json")
_LONG_NUMBER = re.compile(r"\d{7}")


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template.

    Raises:
        ModelFileError: The template refuses the messages, or does not end within some seconds and some memory.
    """
    sandbox = _extras.load("jinja2.sandbox", extra="models", purpose="A chat template")
    nodes = _extras.load("jinja2.nodes", extra="models", purpose="A chat template")
    if len(template) > _LONGEST:
        raise ModelFileError(f"the chat template has {len(template)} characters; at most {_LONGEST} are read.")
    start, memory = time.thread_time(), _peak_memory()

    def step() -> str:
        if time.thread_time() - start > _SECONDS or _peak_memory() - memory > _MEMORY:
            raise ModelFileError("the chat template takes too long, or too much memory.")
        return ""

    class Environment(sandbox.ImmutableSandboxedEnvironment):
        """Counts steps, and checks the numbers that operations take."""

        intercepted_binops = frozenset({"*", "**", "%"})

        def _parse(self, *source: Any) -> Any:
            tree = super()._parse(*source)
            blocks = [node for node in tree.find_all(nodes.Node) if isinstance(getattr(node, "body", None), list)]
            for node in (tree, *blocks):
                node.body = [part for one in node.body for part in (_call_of(nodes, "sonde_step"), one)]
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            whole = [n for n in (left, right) if isinstance(n, int)]
            if operator == "**" and len(whole) == 2:
                _check(left.bit_length() * abs(right))
            elif operator == "*" and len(whole) == 1:
                other = right if whole[0] is left else left
                _check(len(other) * whole[0] if hasattr(other, "__len__") else 0)
            elif operator == "%":
                _check_text(left)
            return super().call_binop(context, operator, left, right)

        def wrap_str_format(self, value: Any) -> Any:
            _check_text(getattr(value, "__self__", None))
            return super().wrap_str_format(value)

        def call(self, context: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            _check_arguments(f, args, kwargs)
            return super().call(context, f, *args, **kwargs)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _as_json
    environment.filters = {name: _checked(f) for name, f in environment.filters.items()}
    environment.globals.pop("lipsum")
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now, "sonde_step": step}
    return environment.from_string(template).render(values)


def _call_of(nodes: Any, name: str) -> Any:
    return nodes.Output([nodes.Call(nodes.Name(name, "load"), [], [], None, None)], lineno=1)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes no large numbers. `wraps` also copies what Jinja says about it."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function, args, kwargs)
        return function(*args, **kwargs)

    return checked


def _check_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if isinstance(owner, str) or name in _SIZED:
        for value in (*args, *kwargs.values()):
            _check(value if isinstance(value, int) else 0)
    texts = [value for value in (owner, *args) if isinstance(value, str)]
    if name == "do_format":
        _check_text(texts[0] if texts else "")
    elif name in ("replace", "do_replace"):
        _check(math.prod(map(len, (texts[0], texts[-1]))) if texts else 0)
    elif name in ("join", "sync_do_join", "do_join"):
        longest = max(map(len, texts), default=0)
        for value in args:
            if isinstance(value, Sequence) and not isinstance(value, str):
                _check(sum(len(str(part)) + longest for part in value))


def _check(size: int) -> None:
    if abs(size) > _LARGEST:
        raise ModelFileError(f"the chat template computes with numbers or texts of {size}, which is too much.")


def _check_text(form: Any) -> None:
    """A text with places for values, which may ask for a width."""
    if isinstance(form, str) and _LONG_NUMBER.search(form):
        raise ModelFileError("the chat template asks for a text of millions of characters.")


def _peak_memory() -> int:
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _refuse(message: str) -> None:
    raise ModelFileError(f"the chat template refuses these messages: {message}")


def _as_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
