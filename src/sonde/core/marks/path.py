"""Paths of sites and the patterns that choose among them.

A path is names joined by slashes: `blocks/3/attn/scores`. A pattern is a glob (`*` and `?` stay inside one part, `**`
crosses parts, `{10..14}` matches one of these numbers, `{a,b}` one of these words, `{0..3,7}` both) or a predicate that
is called with the `Site`. A backslash before `*`, `?`, `{`, `}` or another one makes it an ordinary character; and a
glob matches the path that is written like it.
"""

from __future__ import annotations

import difflib
import functools
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from sonde._array_text import counted, describe
from sonde.core.marks.site import Site
from sonde.core.session.caches import by_identity, given_as
from sonde.errors import NoSuchSiteError, SiteNameError

Pattern = str | Callable[[Site], bool]

STAR = "*"  # in a path, the number of an iteration; see `rows.py`


def checked_name(name: object) -> str:
    """Returns `name` if it can name a site or a scope.

    Raises:
        SiteNameError: `name` is not a string, is empty, or has an empty part (`a//b`) or a part `*`.

    Example:
        >>> checked_name("attn/scores")
        'attn/scores'
    """
    if not isinstance(name, str):
        raise SiteNameError(f"the name of a site or scope must be a str, got {short_repr(name)}")
    parts = name.split("/")
    if "" in parts:
        raise SiteNameError(f"the name of a site or scope must not be empty or have an empty part, got {name!r}")
    if STAR in parts:
        raise SiteNameError(
            f"the name of a site or scope must not have a part '*', got {name!r}: in paths it is the number of an "
            "iteration, of a loop inside `sonde.scope('blocks/*')`"
        )
    return name


# The parts of a glob that do not match themselves. Braces of any other kind do.
_SPECIAL = re.compile(
    r"""\\(?P<escaped>[*?{}\\])
    | (?P<across>\*\*/) | (?P<anything>\*\*) | (?P<part>\*) | (?P<one>\?)
    | \{(?P<first>\d+)\.\.(?P<last>\d+)\}
    | \{(?P<words>[^{}/]*,[^{}/]*)\}""",
    re.VERBOSE,
)
_REGEXES = {"across": "(?:.*/)?", "anything": ".*", "part": "[^/]*", "one": "[^/]"}


def _one_of(choices: Iterable[str]) -> str:
    return f"(?:{'|'.join(choices) or '(?!)'})"


def _range(first: str, last: str) -> str:
    return _one_of(map(str, range(int(first), int(last) + 1)))


def _word(word: str) -> str:
    """One of the words of `{0..2,5,last}`, which may be a range."""
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", word)
    return _translated(word) if ends is None else _range(ends[1], ends[2])


def _translated(glob: str) -> str:
    """A glob as a regular expression."""
    text, start = "", 0
    for special in _SPECIAL.finditer(glob):
        text += re.escape(glob[start : special.start()])
        start = special.end()
        kind: str = special.lastgroup or ""
        if kind == "escaped":
            text += re.escape(special[kind])
        elif kind == "last":
            text += _range(special["first"], special["last"])
        elif kind == "words":
            text += _one_of(map(_word, special["words"].split(",")))
        else:
            text += _REGEXES[kind]
    return text + re.escape(glob[start:])


@functools.lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    return re.compile(_translated(glob), re.DOTALL)


def glob_matches(glob: str, path: str) -> bool:
    r"""Whether a whole path matches a glob.

    Example:
        >>> glob_matches("blocks/*/attn", "blocks/3/attn"), glob_matches("*", "blocks/3")
        (True, False)
        >>> glob_matches("**/attn", "attn"), glob_matches("**/attn", "blocks/3/attn")
        (True, True)
        >>> [n for n in range(9) if glob_matches("blocks/{2..4}/{attn,mlp}", f"blocks/{n}/mlp")]
        [2, 3, 4]
        >>> [n for n in range(9) if glob_matches("blocks/{0..2,5}/mlp", f"blocks/{n}/mlp")]
        [0, 1, 2, 5]
        >>> glob_matches("f{x,y}", "f{x,y}"), glob_matches(r"f\{x,y\}/*", "f{x,y}/h")
        (True, True)
    """
    return glob == path or _compiled(glob).fullmatch(path) is not None


class PatternsByPath:
    """Patterns, found by the path of a site if they are written like it: records as edits have one for every site."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._others: list[tuple[int, Pattern]] = []
        self._paths: dict[str, list[tuple[int, Pattern]]] = {}
        for entry in enumerate(patterns):
            pattern = entry[1]
            if isinstance(pattern, str) and not _SPECIAL.search(pattern):
                self._paths.setdefault(pattern, []).append(entry)
            else:
                self._others.append(entry)

    def for_path(self, path: str) -> list[Pattern]:
        """The patterns that may choose a path, in the order given."""
        entries = self._paths.get(path)
        ordered = self._others if entries is None else sorted([*entries, *self._others], key=lambda entry: entry[0])
        return [pattern for _, pattern in ordered]


def matches(pattern: Pattern, site: Site) -> bool:
    """Whether a site is chosen by a glob or a predicate."""
    return glob_matches(pattern, site.path) if isinstance(pattern, str) else bool(pattern(site))


def check_pattern(pattern: object, verb: str = "capture") -> Pattern:
    """Returns `pattern` if it is a glob or a predicate, raises TypeError otherwise.

    A predicate that has no hash is wrapped in one that is compared by identity.

    Args:
        pattern: The pattern.
        verb: The function that was given it.
    """
    if isinstance(pattern, str) or callable(pattern):
        return cast(Pattern, by_identity(pattern))
    if isinstance(pattern, (list, tuple, set)) and pattern and all(isinstance(p, str) for p in pattern):
        patterns = ", ".join(map(repr, pattern))
        raise TypeError(f"{verb}: patterns are given one by one, {verb}(f, {patterns}), got a {type(pattern).__name__}")
    raise TypeError(
        f"{verb}: a pattern must be a glob over paths or a predicate of a site, got {short_repr(pattern)}; to run the "
        f"function with it, call what it returns: {verb}({'f, g' if verb == 'compare' else 'f'})(x)"
    )


def check_patterns(patterns: Pattern | Iterable[object], verb: str) -> tuple[Pattern, ...]:
    """One or several patterns, checked as by `check_pattern`."""
    several = (patterns,) if isinstance(patterns, str) or callable(patterns) else patterns
    return tuple(check_pattern(pattern, verb) for pattern in several)


def short_repr(thing: object) -> str:
    """A few words for an object in a message: never all of a model or an array."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
    if isinstance(getattr(thing, "shape", None), tuple) and hasattr(thing, "dtype"):
        return f"{describe(thing)} of type {type(thing).__name__}"
    if isinstance(thing, (str, int, float, complex, bytes, type(None))):
        return f"{reprlib.repr(thing)} of type {kind}"
    return f"an object of type {kind}"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names that may be meant by a name, the likeliest first: alike as a whole, or in their last part.

    Example:
        >>> nearest("atn/weights", ["attn/weights", "embedding"]), nearest("weights", ["attn/weights", "embedding"])
        (['attn/weights'], ['attn/weights'])
        >>> nearest("zzz", ["attn/weights", "embedding"])
        []
    """
    candidates = list(dict.fromkeys(names))
    last = name.rpartition("/")[2]
    by_last: dict[str, list[str]] = {}
    for each in candidates:
        by_last.setdefault(each.rpartition("/")[2], []).append(each)
    near = difflib.get_close_matches(name, candidates, n=_MOST_NEAR, cutoff=0.6) + by_last.get(last, [])
    near = near or [path for part in difflib.get_close_matches(last, by_last, cutoff=0.7) for path in by_last[part]]
    if not near and len(last) > 2:
        near = [path for path in candidates if last.lower() in path.lower()]
    return list(dict.fromkeys(near))[:_MOST_NEAR]


NOTHING_MARKED = "nothing is marked; mark values with sonde.sow(value, name), or look into code as it is with inside=f"


def no_such_site(pattern: Pattern, paths: Iterable[str]) -> NoSuchSiteError:
    """The error for a pattern that matched nothing, with the nearest names.

    A predicate of Sonde's own says in its attribute `no_site` what to do about it.
    """
    site_paths = list(dict.fromkeys(paths))
    if isinstance(explained := getattr(pattern, "no_site", None), str):
        return NoSuchSiteError(
            f"{explained}; the program has the sites: {', '.join(map(repr, site_paths[:10])) or 'none'}"
        )
    as_written = given_as(pattern)
    pattern_text = as_written
    if not isinstance(as_written, str):
        pattern_text = getattr(as_written, "__name__", None) or short_repr(as_written)
    if not site_paths:
        return NoSuchSiteError(
            f"pattern {pattern_text!r} matches no site: the program has no sites at all; {NOTHING_MARKED}"
        )
    near = nearest(pattern_text, site_paths)
    if near:
        text = f"nearest: {', '.join(map(repr, near))}"
    else:
        more = f" and {len(site_paths) - _MOST_LISTED} more" if len(site_paths) > _MOST_LISTED else ""
        are = "it is" if len(site_paths) == 1 else "they are"
        text = f"{are} {', '.join(map(repr, site_paths[:_MOST_LISTED]))}{more}"
    matched = f"pattern {pattern_text!r} matches none of the program's {counted(len(site_paths), 'site')}"
    return NoSuchSiteError(f"{matched}; {text}")


_MOST_LISTED, _MOST_NEAR = 10, 5
