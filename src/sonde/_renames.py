"""Public names of the last release that have a new name: they work for one release more, with a warning.

The tables are all there is to know about them; `docs/renamed.md` is tested against them. A name of a package is looked
up by `lazy_names`; a keyword or a form of call is translated by a decorator on the function that has it.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

GONE_WITH = "0.2"

MODULES = {
    "sonde.bridge": "sonde.flax.bridge",
    "sonde.serialization": "sonde.flax.serialization",
    "sonde.struct": "sonde.flax.struct",
    "sonde.training": "sonde.flax.training",
    "sonde.training.train_state": "sonde.flax.training.train_state",
    "sonde.traverse_util": "sonde.flax.traverse_util",
}

# By package. A new name may be a call with one argument: the old name then stands for a function without arguments.
NAMES: Mapping[str, Mapping[str, str]] = {
    "sonde": {
        "perturbations": "zero_perturbations",
        "perturbed": "with_perturbations",
        "records_before": "partial_records",
    },
    "sonde.models": {
        "minilm": 'path("minilm")',
        "new": "from_config",
        "smollm2": 'path("smollm2")',
    },
}

# By function or class; those of a class are its attributes too.
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "sonde.Edit": {"axis": "position_axis"},
    "sonde.dictionaries.loss_recovered": {"to": "value"},
    "sonde.models.sentence_vectors": {"normalise": "normalize"},
    "sonde.report.Report.add": {"names": "tokenizer"},
    "sonde.report.examine": {"names": "tokenizer"},
    "sonde.store.Store.batches": {"axes": "row_axes"},
    "sonde.store.statistics": {"axes": "row_axes"},
    "sonde.store.stream": {"axes": "row_axes"},
    "sonde.tools.Lens.table": {"names": "tokenizer"},
    "sonde.tools.ablate": {"axis": "unit_axis", "to": "value"},
    "sonde.tools.attention_heads": {"tokens": "token_ids"},
    "sonde.tools.compare": {"names": "match_paths"},
    "sonde.tools.logit_attribution": {"stream": "residual"},
    "sonde.tools.monitor": {"to": "writers"},
    "sonde.tools.probe": {"test": "test_fraction"},
    "html, heat and plot of what tools return": {"names": "tokenizer"},
}

# Keywords that took a seed or None, and take a bool now, beside `seed=`.
SEEDS: Mapping[str, str] = {
    "sonde.store.Store.batches": "shuffle",
    "sonde.store.stream": "shuffle",
    "sonde.tools.ablate": "resample",
}

# Tools that ran at once, and now return a function like all others.
CALLS: Mapping[str, tuple[str, str]] = {
    "sonde.tools.patch_paths": (
        "patch_paths(f, clean, corrupt, senders, receivers, metric)",
        "patch_paths(f, senders, receivers, metric=metric)(clean, corrupt)",
    ),
    "sonde.tools.patch_sweep": (
        "patch_sweep(f, clean, corrupt, sites, metric, axis)",
        "patch_sweep(f, *sites, metric=metric, axis=axis)(clean, corrupt)",
    ),
}


def warn_of(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Says that an old name was used; `stacklevel` counts from here to the line that used it."""
    text = f"`{old}` is now `{new}`; the old form goes with {GONE_WITH}."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def renamed(package: str, old: str) -> tuple[str, str | None] | None:
    """The new name of an old name of a package, and the argument to call it with; None if it is no old name."""
    new = NAMES.get(package, {}).get(old)
    if new is None:
        return None
    call = re.fullmatch(r'(\w+)\("(\w+)"\)', new)
    return (new, None) if call is None else (call[1], call[2])


def accepts_old_keywords(function: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function takes its old keywords too, with a warning. Type checkers see the new ones.

    Args:
        function: Its public name, or another key of `KEYWORDS`.
    """
    keywords, seed_keyword = KEYWORDS.get(function, {}), SEEDS.get(function)
    short_name = function.removeprefix("sonde.") if function.startswith("sonde.") else ""

    def decorate(f: Callable[P, R]) -> Callable[P, R]:
        name = short_name or f.__name__

        @functools.wraps(f)
        def with_new_keywords(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in keywords.keys() & kwargs.keys():
                new = keywords[old]
                if new in kwargs:
                    raise TypeError(f"{name}: {old}= is the old name of {new}=, and both are given")
                warn_of(f"{name}({old}=...)", f"{name}({new}=...)")
                kwargs[new] = kwargs.pop(old)
            if (
                seed_keyword is not None
                and seed_keyword in kwargs
                and type(kwargs[seed_keyword]).__name__ != "bool"  # of Python or NumPy, which is not imported here
            ):
                _translate_seed(name, seed_keyword, kwargs)
            return f(*args, **kwargs)

        return with_new_keywords

    return decorate


def _translate_seed(function: str, keyword: str, kwargs: dict[str, Any]) -> None:
    """Makes `shuffle=seed` or `shuffle=None` of the last release `shuffle=True, seed=seed` or `shuffle=False`."""
    seed = kwargs[keyword]
    if seed is None:
        new = f"{keyword}=False"
    else:
        if "seed" in kwargs:
            raise TypeError(f"{function}: {keyword}= is True or False if seed= is given, got {seed!r}")
        new = f"{keyword}=True, seed={seed!r}"
        kwargs["seed"] = seed
    warn_of(f"{function}({keyword}={seed!r})", f"{function}({new})", stacklevel=4)
    kwargs[keyword] = seed is not None


def with_old_attributes(name: str) -> Callable[[C], C]:
    """A class decorator: the constructor takes old keywords too, and the attributes have their old names too."""

    def decorate(cls: C) -> C:
        cls.__init__ = accepts_old_keywords(name)(cls.__init__)
        for old, new in KEYWORDS[name].items():
            setattr(cls, old, _old_attribute(cls.__name__, old, new))
        return cls

    return decorate


def accepts_inputs_first(function: str, parameters: tuple[str, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the tool can also be called as in the last release, with the clean and the corrupt input, and runs.

    Args:
        function: Its public name.
        parameters: What followed the two inputs, in order. `sites` stands for the patterns.
    """
    old_form, new_form = CALLS[function]

    def decorate(tool: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(tool)
        def with_inputs_last(*args: Any, **kwargs: Any) -> Any:
            if not _has_inputs(args[1:], kwargs, parameters):
                return tool(*args, **kwargs)
            warn_of(old_form, new_form)
            options = dict(zip(("clean", "corrupt", *parameters), args[1:])) | kwargs
            clean, corrupt, sites = options.pop("clean"), options.pop("corrupt"), options.pop("sites", ())
            patterns = (sites,) if isinstance(sites, str) or callable(sites) else tuple(sites)
            run: Any = tool
            return run(args[0], *patterns, **options)(clean, corrupt)

        return with_inputs_last

    return decorate


def _has_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: tuple[str, ...]) -> bool:
    """Whether the clean and the corrupt input are among the arguments of a tool."""
    if kwargs.keys() & {"clean", "corrupt", "sites"}:
        return True
    if "sites" in parameters:  # any number of patterns may follow `f`; inputs are no patterns
        return len(args) > 1 and not all(isinstance(x, str) or callable(x) for x in args[:2])
    return len(args) + len(kwargs.keys() & {"senders", "receivers"}) > 2


def _old_attribute(owner: str, old: str, new: str) -> property:
    def read(self: object) -> Any:
        warn_of(f"{owner}.{old}", f"{owner}.{new}")
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")
