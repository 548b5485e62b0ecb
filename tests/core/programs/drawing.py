"""Drawing programs at random."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any, get_args

from tests.core.programs.choices import Cond
from tests.core.programs.derivatives import POLICIES, CustomJvp, CustomVjp, Grad, Jvp, Pullbacks, Remat
from tests.core.programs.loops import Loop, LoopKind, While
from tests.core.programs.maps import FACTORS, Grid, Shard, Sides, Vmap
from tests.core.programs.models import WAYS, Model
from tests.core.programs.nodes import (
    COLLECTIVES,
    Body,
    Call,
    Collective,
    Dead,
    Instead,
    Jit,
    Node,
    Op,
    Outer,
    Scope,
    Sow,
    SowTwice,
)
from tests.core.programs.records import SiteKind
from tests.core.programs.whole import UPGRADES, Program


@dataclasses.dataclass(frozen=True)
class Place:
    """The context of a body, as far as it limits the steps in it."""

    depth: int
    n_functions: int = 0
    reverse: bool = True  # reverse mode must be able to go through
    forward: bool = False  # forward mode goes through: no custom_vjp
    shard: bool = True  # no shard_map inside another, or on an explicit mesh
    explicit: bool = False  # on an explicit mesh
    branch: bool = False  # names must differ between branches: no functions, no repeated names
    axis: bool = False  # along an axis with a name
    apart: bool = True  # the input is what is differentiated, if anything is

    def inside(self, **changes: Any) -> Place:
        return dataclasses.replace(self, depth=max(self.depth - 1, 0), **changes)


class Drawing:
    """Draws the parts of a program, with fresh names and now and then one that was used before."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.n_names = 0

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def one_in(self, n: int) -> bool:
        return self.random.randint(1, n) == n

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def name(self, place: Place) -> str:
        if self.n_names and not place.branch and self.one_in(6):
            return "again"
        self.n_names += 1
        return f"s{self.n_names}"

    def program(self, max_depth: int) -> Program:
        functions: tuple[Body, ...] = ()
        for i in range(self.integer(0, 2)):
            body = self.body(Place(1, n_functions=i, shard=False, apart=False))
            if self.one_in(3):  # two leaves, one for each argument
                body = (Sow(self.name(Place(0)), self.of("pair", "mixed")), *body)
            functions = (*functions, body)
        differentiable, explicit = not self.one_in(6), self.one_in(8)
        depth = self.of(*range(1, max_depth + 1), max_depth)
        place = Place(depth, len(functions), reverse=differentiable, shard=not explicit, explicit=explicit)
        body = self.body(place)
        if self.n_names == 0:
            body = (*body, Sow("s0"))
        # With a source of its own, so that a seed is the same program where there are no flags.
        coins = Random(repr(body))
        upgrades = tuple(flag for flag in UPGRADES if coins.random() < 0.4)
        return Program(functions, body, differentiable, explicit, upgrades)

    def body(self, place: Place) -> Body:
        return tuple(self.node(place) for _ in range(self.integer(1, 2)))

    def node(self, place: Place) -> Node:
        if place.depth == 0 or self.one_in(3):
            plain = [self.sow, self.sow, self.plain]
            if place.n_functions and not place.branch and not place.forward:
                plain.append(self.call)
            if place.axis:
                plain.append(self.collective)
            return self.of(*plain)(place)
        kinds = [self.jit, self.scope, self.vmap, self.loop, self.cond, self.remat, self.custom_jvp, self.dead]
        kinds += [self.jvp, self.grad, self.while_loop, self.grid, self.recomputed_loop, self.pullbacks]
        if not place.forward:
            kinds.append(self.custom_vjp)
        if not place.branch:
            kinds += [self.sides, self.model]
        if place.n_functions and not place.branch and not place.forward:
            kinds += [self.function_on_both_sides, self.function_differentiated_twice]
        if place.shard:
            kinds.append(self.shard)
        return self.of(*kinds)(place)

    # Leaves

    def sow(self, place: Place) -> Node:
        site = Sow(self.name(place), self.of(*get_args(SiteKind)))
        return SowTwice(site, self.name(place), self.of(False, True)) if self.one_in(5) else site

    def model(self, place: Place) -> Node:
        return Model(self.of(*WAYS), self.of(False, True))

    def plain(self, place: Place) -> Node:
        return self.of(Op(0), Op(1), Op(2), Outer())

    def collective(self, place: Place) -> Node:
        return Collective(self.of(*COLLECTIVES))

    def call(self, place: Place) -> Node:
        return Call(self.integer(0, place.n_functions - 1), self.integer(1, 2), self.one_in(3))

    # What keeps its body as it is

    def jit(self, place: Place) -> Node:
        return Jit(self.body(place.inside()), self.of(False, True))

    def scope(self, place: Place) -> Node:
        return Scope(self.of("a", "b"), self.body(place.inside()))

    def dead(self, place: Place) -> Node:
        # Nothing goes back through what nothing uses, so that reverse mode does not have to be able to.
        inside = place.inside(reverse=False, forward=place.forward or place.reverse)
        if self.one_in(2):
            return Dead((self.of(self.loop, self.while_loop)(inside),))
        return Dead(self.body(inside))

    def remat(self, place: Place) -> Node:
        return Remat(self.body(place.inside()), self.of(*POLICIES), self.of(False, True))

    # What maps

    def vmap(self, place: Place) -> Node:
        spread = place.explicit and self.one_in(2)  # over the axis of the mesh, once
        name = f"v{place.depth}" if not spread and self.one_in(3) else None
        inside = place.inside(explicit=place.explicit and not spread, axis=place.axis or name is not None)
        factors = FACTORS[:2] if spread else FACTORS
        along, over = (self.integer(0, 1), self.integer(0, 1)), self.of("x", "x", "outer", "both")
        return Vmap(self.body(inside), *along, factors, over, spread, name)

    def grid(self, place: Place) -> Node:
        inside = place.inside()
        kind = self.of(self.while_loop, self.while_loop, self.cond, self.pullbacks, self.body)
        node = kind(inside)
        if isinstance(node, While):
            node = dataclasses.replace(node, length_outside=True)
        elif isinstance(node, Cond):
            node = dataclasses.replace(node, chosen_outside=True)
        return Grid(node if isinstance(node, tuple) else (node,), self.of(False, True))

    def pullbacks(self, place: Place) -> Node:
        body = self.body(place.inside(reverse=True, apart=False))
        return Pullbacks(body, self.of("x", "outer", "nothing"))

    def sides(self, place: Place) -> Node:
        mapped, differentiated = [(self.of(False, True), self.of(False, True)) for _ in range(2)]
        inside = place.inside(reverse=place.reverse or any(differentiated), apart=False)
        return Sides(self.body(inside), self.body(inside), mapped, differentiated, self.of(False, True))

    def function_on_both_sides(self, place: Place) -> Node:
        """One function, called for two arguments that are mapped and differentiated differently."""
        function = self.integer(0, place.n_functions - 1)
        mapped, differentiated = [(self.of(False, True), self.of(False, True)) for _ in range(2)]
        calls = [(Call(function, exchanged=self.one_in(4)),) for _ in range(2)]
        return Sides(calls[0], calls[1], mapped, differentiated, self.of(False, True))

    def function_differentiated_twice(self, place: Place) -> Node:
        """One function, differentiated with respect to each of its arguments."""
        call = Call(self.integer(0, place.n_functions - 1))
        kinds = [self.of("grad", "value_and_grad", "vjp") for _ in range(2)]
        return Sides((Grad((call,), kinds[0], "x"),), (Grad((call,), kinds[1], "outer"),), *[(False, False)] * 2)

    def shard(self, place: Place) -> Node:
        site = self.name(place) if self.one_in(2) else None
        second = self.of("none", "none", "varies", "not mapped")
        body = self.body(place.inside(shard=False, axis=True))
        return Shard(body, self.of(False, True), site, not self.one_in(4), second)

    # What repeats and chooses

    def loop(self, place: Place) -> Node:
        kind: LoopKind = self.of("scan", "scan_without_xs", "map", "fori")
        reverse = kind.startswith("scan") and self.of(False, True)
        name = self.of("rows", "layers") if self.one_in(4) else None
        return Loop(self.body(place.inside()), self.integer(1, 3), kind, reverse, name)

    def recomputed_loop(self, place: Place) -> Node:
        """A loop whose steps are computed again, as deep models are trained."""
        kind: LoopKind = self.of("scan", "scan_without_xs")
        inside = self.remat(place)
        if self.one_in(2):
            inside = Remat((*self.body(place.inside()), self.dead(place.inside())), self.of(*POLICIES))
        return Loop((inside,), self.integer(1, 3), kind)

    def while_loop(self, place: Place) -> Node:
        site = self.name(place) if self.one_in(2) else None
        outside = self.one_in(4)
        return While(self.body(place.inside()), site, self.of(False, True), stop=place.reverse, length_outside=outside)

    def cond(self, place: Place) -> Node:
        shared: Node | None = None
        if self.one_in(2):
            shared = self.sow(place.inside(branch=True))
            if place.n_functions and not place.forward and self.one_in(2):
                shared = self.call(place)
        branches, keeps = [], self.one_in(3)
        for _ in range(self.integer(2, 3)):
            body = self.body(place.inside(branch=True))
            mine = Instead((shared,)) if shared is not None and keeps and self.one_in(2) else shared
            branches.append((mine, *body) if mine is not None and self.one_in(2) else body)
        return Cond(tuple(branches), chosen_outside=self.one_in(4), keeps=keeps)

    # What differentiates

    def custom_jvp(self, place: Place) -> Node:
        through = self.of(False, True)
        return CustomJvp(self.body(place.inside(forward=place.forward or through)), through)

    def custom_vjp(self, place: Place) -> Node:
        rule = self.of("formula", "through", "apart") if place.apart else self.of("formula", "through")
        return CustomVjp(self.body(place.inside(reverse=True)), rule == "through", rule == "apart")

    def grad(self, place: Place) -> Node:
        wrt = self.of("x", "x", "outer", "both")
        body = self.body(place.inside(reverse=True, apart=place.apart and wrt == "x"))
        return Grad(body, self.of("grad", "value_and_grad", "vjp", "vjp_twice"), wrt)

    def jvp(self, place: Place) -> Node:
        linearize = self.of(False, True)
        return Jvp(self.body(place.inside(forward=True, reverse=place.reverse or linearize)), linearize)
