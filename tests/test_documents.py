"""README and docs are executed: what a page shows is what a reader gets.

The `python` blocks of a page run in order in one namespace. A `text` block right after one is what it prints, or the
end of the traceback that it ends with; `...` stands for anything. A block that prints something the page does not
show fails, and so does one that raises something the page does not announce.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.demo.training_once import use_one_training

import sonde

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "AGENTS.md",
    *sorted(DOCS.rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the number of lines of the page before it, and where it is."""

    language: str
    text: str
    line: int
    start: int
    end: int


def blocks_of(page: str) -> list[Block]:
    return [Block(m[1], m[2], page.count("\n", 0, m.start(2)), m.start(), m.end()) for m in FENCE.finditer(page)]


def examples_of(page: str) -> Iterator[tuple[Block, Block | None]]:
    """Every python block, with the text block that shows what it prints."""
    blocks = blocks_of(page)
    for block, after in zip(blocks, [*blocks[1:], None]):
        if block.language == "python":
            shown = after is not None and after.language == "text" and not page[block.end : after.start].strip()
            yield block, after if shown else None


def run(block: Block, name: str, namespace: dict[str, object]) -> str:
    """Runs a block as lines of its page; returns what it prints, and the last line of a traceback."""
    printed = io.StringIO()
    code = compile("\n" * block.line + block.text, name, "exec")
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, namespace)
        except sonde.errors.SondeError as error:
            where = f"{type(error).__module__}.{type(error).__qualname__}"
            printed.write(f"Traceback (most recent call last):\n  ...\n{where}: {error}\n")
    return printed.getvalue()


def tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def agrees(expected: str, got: str) -> bool:
    """Whether a text is as shown, with `...` standing for anything."""
    pattern = ".*?".join(map(re.escape, tidy(expected).split("...")))
    return re.fullmatch(pattern, tidy(got), re.DOTALL) is not None


def test_comparing_output() -> None:
    assert agrees("a ... c\n", "a b\nb c")
    assert agrees("a  \nb", "a\nb\n")
    assert not agrees("a ... c", "a b d")
    assert not agrees("", "a")
    assert not agrees("a.c", "abc")


@contextlib.contextmanager
def page_module(name: str) -> Iterator[dict[str, object]]:
    """The namespace of a page, which is that of a module: dataclasses look theirs up."""
    module = types.ModuleType(re.sub(r"\W", "_", name))
    sys.modules[module.__name__] = module
    try:
        yield vars(module)
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "README.md" else pytest.mark.every(2))
        for name, page in zip(NAMES, PAGES)
        if "```python" in page.read_text()
    ],
)
def test_page_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    use_one_training(monkeypatch)
    page = (ROOT / name).read_text()
    # The page is a file of Python to those who look for the source of a function on it, as a cell of a notebook is.
    lines = [""] * page.count("\n")
    for block, _ in examples_of(page):
        lines[block.line : block.line + block.text.count("\n")] = block.text.splitlines()
    monkeypatch.setitem(linecache.cache, name, (len(page), None, [f"{line}\n" for line in lines], name))
    with page_module(name) as namespace, np.printoptions():  # which a page may set
        for block, shown in examples_of(page):
            got, expected = run(block, name, namespace), shown.text if shown else ""
            assert agrees(expected, got), f"{name}:{block.line} prints\n{got}\nand the page shows\n{expected}"


@pytest.mark.parametrize("name", NAMES)
def test_page_is_well_formed(name: str) -> None:
    page = (ROOT / name).read_text()
    assert page.startswith("# ")
    blocks = blocks_of(page)
    assert len(re.findall("^```", page, re.MULTILINE)) == 2 * len(blocks)
    outputs = {after for _, after in examples_of(page)}
    for block in blocks:
        assert block.language in ("python", "text", "sh", "")
        assert block.language != "text" or block in outputs, f"{name}:{block.line}: output of which code?"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if not target.startswith("https://"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    linked = {(DOCS / target).resolve() for target in LINK.findall((DOCS / "index.md").read_text())}
    assert linked >= {page for page in DOCS.rglob("*.md") if page.name != "index.md"}


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert {a or b for a, b in named} <= targets, page


def test_the_changelog_begins_with_the_version_that_is_being_made() -> None:
    first = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None and first[1] == sonde.__version__.partition(".dev")[0]


def test_every_error_of_the_engine_has_a_page_that_raises_it() -> None:
    """`LinenError` stands for a family with the names of `flax.errors`; it has one page."""
    for error in sonde.errors.SondeError.__subclasses__():
        raised = [e.__name__ for e in (error, *error.__subclasses__())]
        page = (DOCS / "errors" / f"{error.__name__}.md").read_text()
        outputs = [shown.text for _, shown in examples_of(page) if shown]
        assert any(f"sonde.errors.{e}: " in text for e in raised for text in outputs), error


def test_reference_has_every_public_name_once() -> None:
    reference = (DOCS / "reference.md").read_text()
    listed = re.findall(r"^\| `(\w+)[^`]*` \|", reference.partition("## Members")[0], re.MULTILINE)
    packages = ["dictionaries", "errors", "flax", "linen", "nnx", "store"]
    assert sorted(listed) == sorted([*sonde.__all__, *packages])


def test_reference_members_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert len({owner for owner, _ in rows}) == len(rows) >= 9
    for owner, members in rows:
        kind = getattr(sonde, owner)
        there = set(dir(kind)) | set(getattr(kind, "__dataclass_fields__", ()))
        assert set(re.findall(r"`(\w+)`", members)) <= there, owner


# ---------------------------------------------------------------------------------------------------------------------
# What `docs/concepts/compared.md` says about Flax
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_what_the_comparison_says_about_flax_nnx() -> None:
    from flax import nnx

    class Scale(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.float32(2.0))

        def __call__(self, x: jax.Array) -> jax.Array:
            self.sow(nnx.Intermediate, "h", x * self.w[...])
            return x * self.w[...]

    def sown(fn) -> dict:
        return nnx.to_pure_dict(nnx.capture(fn, nnx.Intermediate)(Scale(), jnp.float32(3.0))[1])

    def transformed(transform):
        return sown(lambda model, x: transform(lambda x: model(x), x))

    plain = sown(lambda model, x: model(x))["h"][0]
    assert float(plain) == 6.0
    under_jit = transformed(lambda f, x: jax.jit(f)(x))["h"][0]
    under_scan = transformed(lambda f, x: jax.lax.scan(lambda c, _: (f(c), None), x, length=3)[0])["h"][0]
    under_vmap = transformed(lambda f, x: jax.vmap(f)(x[None]))["h"][0]
    under_remat = transformed(lambda f, x: jax.checkpoint(f)(x))["h"][0]
    assert all(isinstance(h, jax.core.Tracer) for h in (under_jit, under_scan, under_vmap, under_remat))
    assert sown(lambda model, x: jax.jit(lambda m, x: m(x))(model, x)) == {}


@pytest.mark.filterwarnings("ignore")
def test_what_the_comparison_says_about_flax_linen() -> None:
    from flax import linen as nn

    class Scale(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = x * self.param("w", lambda key: jnp.float32(2.0))
            self.sow("intermediates", "h", h)
            return h

    class Lifted(nn.Module):
        axes: dict

        @nn.compact
        def __call__(self, x):
            loop = nn.scan(
                lambda m, c, _: (m(c), None),
                variable_broadcast="params",
                variable_axes=self.axes,
                split_rngs={"params": False},
                length=3,
            )
            return loop(Scale(), x, None)[0]

    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            scale = Scale()
            return jax.lax.scan(lambda c, _: (scale(c), None), scale(x), length=3)[0]

    def sown(model) -> dict:
        variables = model.init(jax.random.key(0), jnp.float32(3.0))
        return model.apply(variables, jnp.float32(3.0), mutable="intermediates")[1]

    assert not sown(Lifted({}))
    assert sown(Lifted({"intermediates": 0}))["intermediates"]["Scale_0"]["h"][0].tolist() == [6.0, 12.0, 24.0]
    assert isinstance(sown(Plain())["intermediates"]["Scale_0"]["h"][1], jax.core.Tracer)
