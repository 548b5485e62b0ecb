"""Random clicks on two pages of a real server give what `sonde.edit` and `sonde.capture` give in Python.

A page is a prompt and a list of changes, as in its address. Each step changes one of them and looks: at the tokens or
the result, at a part of some value, at its gradient, at how far every site has moved, at the Python of the changes.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import websockets.sync.client
from tests.viewer.conftest import CONFIG, OTHERS, TOKENS, unpacked

import sonde
from sonde import models
from sonde.viewer.changes import KINDS
from sonde.viewer.open import subject_of
from sonde.viewer.runs import Runs
from sonde.viewer.server import Served

FROM_PROMPTS = ("patch", "steer")
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def everything(x: Any, w: Any) -> Any:
    """Sites of every kind: pytrees, several calls, loops, maps, branches, and elements of many types."""
    x = sonde.sow(jnp.tanh(x @ w), "first")
    parts = sonde.sow({"a": x * 2, "b": (x.sum(1), None), "c": jnp.arange(3)}, "tree")
    x = parts["a"] + parts["b"][0][:, None] + parts["c"]
    for _ in range(3):
        x = sonde.sow(jnp.sin(x), "again")

    def body(carry: Any, factor: Any) -> Any:
        carry = sonde.sow(jnp.tanh(carry * factor), "step")
        carry = jax.lax.cond(factor > 1.5, lambda c: sonde.sow(c * 2, "high"), lambda c: sonde.sow(c + 1, "low"), carry)
        return carry, carry.sum()

    x, _ = jax.lax.scan(body, x, jnp.array([1.0, 2.0, 3.0]))
    with sonde.scope("mapped"):
        x = jax.vmap(lambda row: sonde.sow(row - row.mean(), "row"))(x)
    held = jax.lax.stop_gradient(x)  # reverse mode does not go through such a loop
    times = 2 + (held.sum() > 1e6).astype(int)
    last = jax.lax.fori_loop(0, times, lambda _, c: sonde.sow(c * 1.5, "last"), held)
    small = sonde.sow((x + last).astype(jnp.bfloat16), "small").astype(jnp.float32)
    whole = sonde.sow((10 * small).astype(jnp.int32), "whole")
    never = jax.lax.cond(whole.sum() > 10**6, lambda c: sonde.sow(c * 3, "never"), lambda c: c, small)
    turned = sonde.sow(jnp.exp(1j * never), "turned")
    key = sonde.sow(jax.random.key(0), "key")
    return (turned.real * whole).sum() + small.sum() + 0 * jax.random.normal(key)


@dataclasses.dataclass(frozen=True)
class Opened:
    """A program on the page, and what the test knows of it.

    Attributes:
        f: The program.
        args: Its arguments, for each prompt.
        number: The number whose gradients are shown, of the result.
    """

    f: Callable[..., Any]
    args: Mapping[str | None, tuple[Any, ...]]
    number: Callable[[Any], Any]


def prompt_of(tokens: Any) -> str:
    return " ".join(map(str, tokens))


def programs() -> dict[str, Opened]:
    prompts = [TOKENS, OTHERS, [7, 7, 1, 30, 2, 9]]
    args = {prompt_of(tokens): (jnp.asarray([tokens]),) for tokens in prompts}
    language = {
        f"model as {layers}": Opened(
            models.from_config(CONFIG, layers=layers),
            {None: (jnp.asarray([TOKENS]),), **args},
            lambda logits: logits[0, -1, 3],
        )
        for layers in ("scan", "list")
    }
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)
    return {"everything": Opened(jax.jit(everything), {None: (x, jnp.eye(3) + 0.3)}, lambda result: result), **language}


PROGRAMS = programs()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    opened = Served({name: Runs(subject_of(p.f, p.args[None], title=name)) for name, p in PROGRAMS.items()})
    yield opened
    opened.close()


class Page:
    """A page that is open: its connection, and its state."""

    def __init__(self, socket: Any, name: str) -> None:
        self.socket = socket
        self.name, self.opened = name, PROGRAMS[name]
        self.prompt: str | None = None
        self.changes: list[dict[str, Any]] = []
        self.asked = 0

    def ask(self, op: str, **data: Any) -> dict[str, Any]:
        self.asked += 1
        arguments = {"subject": self.name, "prompt": self.prompt, **data}
        self.socket.send(json.dumps({"id": self.asked, "op": op, "args": arguments}))
        while True:
            message = json.loads(self.socket.recv(timeout=300))
            if message["id"] == self.asked and "news" not in message:
                return message

    def told(self, op: str, **data: Any) -> Any:
        message = self.ask(op, **data)
        assert "result" in message, (op, data, message)
        return message["result"]

    # ------------------------------------------------------------------------------------------------ in Python

    @property
    def args(self) -> tuple[Any, ...]:
        return self.opened.args[self.prompt]

    @property
    def active(self) -> list[dict[str, Any]]:
        return [change for change in self.changes if change["on"]]

    def changed(self) -> Callable[..., Any]:
        f = self.opened.f
        for change in self.active:
            site = next(site for site in self.sites() if all(site[k] == change[k] for k in ("path", "call", "part")))
            f = sonde.edit(f, {change["path"]: self._edit(change, site)})
        return f

    def sites(self) -> list[dict[str, Any]]:
        return self.told("sites")["sites"]

    def _edit(self, change: dict[str, Any], site: dict[str, Any]) -> sonde.Edit:
        kind, factor, lead = change["kind"], change["factor"], site["lead"]
        units = site["axes"].index("heads") if "heads" in site["axes"] else len(site["shape"]) - 1
        means = tuple(axis - lead for axis in range(lead, len(site["shape"]) - 1) if axis != units)
        prompts = (change["prompt"], self.prompt) if kind in FROM_PROMPTS else ()
        recorded = [self._recorded(site, prompt) for prompt in prompts]

        def new(x: Any) -> Any:
            chosen = np.zeros(x.shape, bool)
            at = {int(axis) - lead: indices for axis, indices in change["chosen"].items()}
            chosen[np.ix_(*(at.get(axis, range(size)) for axis, size in enumerate(x.shape)))] = True
            dtype = jnp.result_type(x)
            factor_here = jnp.asarray(factor).astype(dtype)
            replaced = {
                "ablate": lambda: 0 * x,
                "scale": lambda: x * factor_here,
                "gradient": lambda: x * factor_here,
                "add": lambda: x + factor_here,
                "mean": lambda: x.mean(means, keepdims=True) + 0 * x,
                "patch": lambda: recorded[0],
                "steer": lambda: x + factor * jnp.subtract(*(y.mean(means, keepdims=True) for y in recorded)),
            }[kind]()
            return jnp.where(chosen, jnp.asarray(replaced).astype(dtype), x)

        def new_value(value: Any) -> Any:
            leaves, tree = jax.tree.flatten(value)
            leaves[change["part"]] = new(leaves[change["part"]])
            return jax.tree.unflatten(tree, leaves)

        calls = change["call"]
        return sonde.Edit(grad=new_value, calls=calls) if kind == "gradient" else sonde.Edit(new_value, calls=calls)

    def _recorded(self, site: dict[str, Any], prompt: str | None) -> Any:
        value = sonde.capture(self.opened.f, site["path"])(*self.opened.args[prompt])[1][site["path"]]
        return jax.tree.leaves(value.values[site["call"]])[site["part"]]

    # --------------------------------------------------------------------------------------------------- clicks

    def click(self, rng: np.random.Generator) -> None:
        """Changes the state of the page."""
        clicks = [self.add_change, self.add_change, self.switch, self.remove, self.take_prompt]
        rng.choice(np.array(clicks, object))(rng)

    def add_change(self, rng: np.random.Generator) -> None:
        site = self.some_site(rng)
        impossible = self.told("site", **_place(site))["impossible"]
        kinds = [kind for kind in KINDS if kind not in impossible and (self.takes_prompts or kind not in FROM_PROMPTS)]
        if not kinds:
            return
        size = dict(enumerate(site["shape"]))
        axes = [axis for axis in range(site["lead"], len(size)) if size[axis] and rng.random() < 0.5]
        chosen = {
            str(axis): sorted({int(i) for i in rng.integers(size[axis], size=rng.integers(1, 3))}) for axis in axes
        }
        factor = float(rng.choice([-2.0, 0.0, 2.0, 3.0] if "int" in site["dtype"] else [-1.5, 0.5, 2.0]))
        prompt = str(rng.choice([p for p in self.opened.args if p])) if self.takes_prompts else ""
        kind = str(rng.choice(kinds))
        change = {"on": True, "kind": kind, **_place(site), "chosen": chosen, "factor": factor, "prompt": prompt}
        self.changes = [*self.changes[-2:], change]

    def switch(self, rng: np.random.Generator) -> None:
        if self.changes:
            change = self.changes[rng.integers(len(self.changes))]
            change["on"] = not change["on"]

    def remove(self, rng: np.random.Generator) -> None:
        if self.changes:
            del self.changes[rng.integers(len(self.changes))]

    def take_prompt(self, rng: np.random.Generator) -> None:
        prompts = [*self.opened.args]
        self.prompt = prompts[rng.integers(len(prompts))]

    @property
    def takes_prompts(self) -> bool:
        return len(self.opened.args) > 1

    def some_site(self, rng: np.random.Generator) -> dict[str, Any]:
        sites = self.sites()
        return sites[rng.integers(len(sites))]

    # --------------------------------------------------------------------------------------------------- looks

    def look(self, rng: np.random.Generator) -> None:
        """Compares what the page shows with Python; a change that the page refuses is refused for a reason."""
        result, records = sonde.capture(self.changed())(*self.args)
        self._compare_results(result)
        site = self.some_site(rng)
        value = _numbers(records, site)
        ran = _ran(records, site)
        drawn = dict(zip(("rows", "columns", "each"), map(int, rng.permutation(len(site["shape"])))))
        drawn = {"rows": -1, "columns": -1, "each": None} | drawn
        index = [int(rng.integers(size)) if size else 0 for size in site["shape"]]
        question = {**_place(site), **drawn, "index": index, "changes": self.changes}
        if 0 in site["shape"]:
            return
        shown = unpacked(self.told("picture", **question)["values"])
        np.testing.assert_allclose(
            shown, _cut(np.where(ran, value, np.nan), drawn, index), **CLOSE, err_msg=str(question)
        )
        statistics = self.told("site", **_place(site), changes=self.changes)["statistics"]
        assert statistics["size"] == ran.sum()
        if ran.any() and np.isfinite(value[ran]).all():
            assert float(statistics["norm"]) == pytest.approx(np.linalg.norm(value[ran].astype(np.float64)), rel=1e-2)
        if rng.random() < 0.4:
            self._compare_gradient(site, question)

    def _compare_results(self, result: Any) -> None:
        reading = self.told("read", changes=self.changes)
        code = self.told("python", changes=self.changes)["code"]
        names: dict[str, Any] = {"f": self.opened.f, "args": self.args}
        exec(code, names)
        np.testing.assert_allclose(np.asarray(names["result"]), np.asarray(result), **CLOSE, err_msg=code)
        if not self.takes_prompts:
            assert float(reading["result"][0].partition(": ")[2]) == pytest.approx(float(result), rel=1e-3, abs=1e-3), (
                code
            )
            return
        for token, logits in zip(reading["tokens"], np.asarray(result)[0], strict=True):
            likeliest = token["next"][0]
            assert likeliest["logit"] == pytest.approx(logits[likeliest["id"]], rel=1e-3, abs=1e-3), code
            assert likeliest["logit"] >= logits.max() - 1e-3

    def _compare_gradient(self, site: dict[str, Any], question: dict[str, Any]) -> None:
        if not site["dtype"].startswith(("float", "bfloat")):
            return
        explained = {"position": -1, "token": 3}
        if site["path"] == "last":
            error = self.ask("picture", **question, explained=explained)["error"]
            assert "Reverse-mode differentiation does not work for lax.while_loop" in error["text"]
            return
        find = sonde.tools.site_gradients(self.changed(), site["path"], metric=self.opened.number)
        expected = _numbers({site["path"]: find(*self.args)[1][site["path"]]}, site, gradient=True)
        shown = unpacked(self.told("picture", **question, explained=explained)["values"])
        cut = _cut(expected, question, question["index"])
        np.testing.assert_allclose(np.where(np.isnan(shown), cut, shown), cut, **CLOSE, err_msg=str(question))


def _place(site: Mapping[str, Any]) -> dict[str, Any]:
    return {name: site[name] for name in ("path", "call", "part")}


def _numbers(records: Any, site: dict[str, Any], *, gradient: bool = False) -> np.ndarray:
    record = records[site["path"]]
    x = jax.tree.leaves((record.grads if gradient else record.values)[site["call"]])[site["part"]]
    x = np.asarray(jax.random.key_data(x) if site["dtype"].startswith("key") else x)
    return np.abs(x) if np.iscomplexobj(x) else x.astype(np.float32)


def _ran(records: Any, site: dict[str, Any]) -> np.ndarray:
    """Which elements were computed."""
    record, call = records[site["path"]], site["call"]
    ran = np.ones(site["shape"], bool)
    if record.taken[call] is not None:
        ran = (ran.T & np.asarray(record.taken[call]).T).T
    return ran


def _cut(value: np.ndarray, drawn: Mapping[str, Any], index: list[int]) -> np.ndarray:
    """Rows by columns, or several of them, one element after the other."""
    axes = [drawn[name] for name in ("each", "rows", "columns") if drawn[name] is not None and drawn[name] >= 0]
    fixed = [slice(None) if axis in axes else i for axis, i in enumerate(index)]
    cut = value[tuple(fixed)].transpose([sorted(axes).index(axis) for axis in axes])
    return cut.reshape((1,) * (2 - cut.ndim) + cut.shape)


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_clicks_give_what_python_gives(seed: int, served: Served) -> None:
    _click(served, seed, clicks=3)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_clicks_give_what_python_gives(seed: int, served: Served) -> None:
    _click(served, seed, clicks=8)


def _click(served: Served, seed: int, *, clicks: int) -> None:
    """Two pages on the same programs, at the same time."""
    failed: list[BaseException] = []
    address = served.address.replace("http", "ws", 1).replace("/?", "/ws?")

    def use(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        try:
            with websockets.sync.client.connect(address, max_size=None) as socket:
                page = Page(socket, list(PROGRAMS)[rng.integers(len(PROGRAMS))])
                for _ in range(clicks):
                    page.click(rng)
                    page.look(rng)
        except BaseException as error:  # raised again by the test
            failed.append(error)

    users = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    if failed:
        raise failed[0]
