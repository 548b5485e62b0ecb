"""A program that is looked at, with what is known of it before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde.dictionaries import Dictionary, splice
from sonde.viewer.language import Language


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A program that is looked at.

    Attributes:
        name: Its name on the page.
        f: The program.
        args: Its arguments.
        kwargs: Its keyword arguments.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
        language: What is known of it as a language model; None if it is none.
        prompt: The prompt that is shown first, if it can be typed; the arguments are its tokens.
        dictionaries: Dictionaries that are spliced into the program, by the path of the value that they replace; or
            by a pair of paths, what a transcoder reads and what it replaces.
        about: What was found in it before, in words, such as the answer of a bundle.
        code: Python that makes `f` and `args`, and `kwargs`, `inside` and `dictionaries` if there are any; empty if it
            is not known.
    """

    name: str
    f: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    inside: Any = None
    language: Language | None = None
    prompt: str | None = None
    dictionaries: Mapping[Any, Dictionary] = dataclasses.field(default_factory=dict)
    about: str = ""
    code: str = ""

    def arguments(self, prompt: str | None) -> tuple[Any, ...]:
        """The arguments of a run on a prompt; those that the program was opened with, if it is None."""
        if prompt is None:
            return self.args
        if self.language is None or not self.language.vocabulary:
            raise ValueError("this program takes no prompt: it runs on the arguments that it was opened with")
        return (jnp.asarray([self.language.encoded(prompt)], jnp.int32), *self.args[1:])

    @property
    def program(self) -> Callable[..., Any]:
        """The program with its dictionaries."""
        return self.spliced(self.f, self.dictionaries)

    def spliced(self, f: Callable[..., Any], dictionaries: Mapping[Any, Dictionary]) -> Callable[..., Any]:
        """A program with dictionaries, whose errors are added back: nothing changes until a feature is changed."""
        return splice(f, dict(dictionaries), keep_error=True, inside=self.inside) if dictionaries else f

    @property
    def inside_code(self) -> str:
        """The argument with which copied Python finds the sites."""
        return ", inside=inside" if self.inside else ""

    @property
    def replaced(self) -> dict[str, Dictionary]:
        """The dictionaries by the path of the value that they replace."""
        return {place[-1] if isinstance(place, tuple) else place: d for place, d in self.dictionaries.items()}

    def token_ids(self, prompt: str | None) -> list[int]:
        """The tokens of the first example; none for a program that reads no tokens."""
        if self.language is None:
            return []
        if prompt is not None:
            return self.language.encoded(prompt)
        tokens = np.asarray(self.args[0])
        return [int(token) for token in tokens.reshape(-1, tokens.shape[-1])[0]]
