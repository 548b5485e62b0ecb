"""The place of a module, found when it is called.

While a capture runs, every call of a module is a scope. Its path is the chain of attributes that leads to it from the
modules whose calls are open, the outermost first; so a shared module has its first path. A module that none of them
contains is the root if it is the outermost call, and is otherwise named after its class. Nothing is stored in modules,
and a capture does not change the structure of any pytree.

    capture(f)(model, x)          a CallStack, with a Segment; `model` is at ""
      model(x)                    a Frame at ""
        self.blocks[0](x)         a Frame at "blocks/0"
          jitted(self.mlp, x)     another Segment, which starts at "blocks/0" and is given "mlp"
            mlp(x)                a Frame at "mlp", counted from there

JAX traces a function once and uses the result for many calls, so paths inside count from where the function is called,
as those of scopes do. What the trace used beyond that (the places of the modules among its arguments, the place of a
module it closes over) is kept with it, and compared at the next call: if it differs, the function is traced again. See
`boundaries.py`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sonde import _jax
from sonde.core.modules.copies import CopyFinder, CopyKey, CopyKind
from sonde.core.modules.index import (
    Origin,
    copy_kind,
    module_kind,
    says_origin,
)
from sonde.core.modules.places import (
    Move,
    Place,
    Question,
    Segment,
    Setting,
    UnregisteredInside,
    Used,
    depth_of,
    join,
)
from sonde.core.modules.roots import find_roots
from sonde.core.session.session import SESSIONS, CaptureState, Session, capture_state, captures_run, with_capture_state


class CallStack:
    """The calls of modules that are open, as one of the nested captures sees them.

    Args:
        session: The session of the capture.
        roots: The modules that its call is about, with the paths that they have.
        only_roots: Whether nothing outside the first of them belongs to the model.
        trees: Trees that the program is called with, which may hold the arrays of a model.

    Attributes:
        depth: How many captures are nested, this one included.
        handler: What the capture does at sites.
        segments: The outermost first.
        copies: Finds the originals of copies, once there is a module whose library does not say what it is a copy of.
    """

    def __init__(
        self,
        session: Session,
        roots: Sequence[tuple[str, Any]] = (),
        *,
        only_roots: bool = False,
        trees: Sequence[Any] = (),
    ) -> None:
        self.depth = session.depth
        self.handler = session.handler
        self.only_roots = only_roots
        roots_with_places = [(Place(path), root) for path, root in roots]
        self.segments = [Segment(roots_with_places, _jax.count_names(session.open_names), None)]
        self.copies: CopyFinder | None = None
        self._roots, self._trees, self._trace_around = [root for _, root in roots], trees, session.trace_around
        if (kind := next(filter(None, map(copy_kind, self._roots)), None)) is not None:
            self._make_copy_finder(kind)

    @property
    def root(self) -> Any:
        """The module that paths count from, if the capture began with one."""
        known_modules = self.segments[0].known_modules
        return known_modules[0][1] if known_modules else None

    def absolute(self, place: Place, level: int | None = None) -> str:
        """The path of a place in a segment, counted from the capture. Not noted as used."""
        level = len(self.segments) - 1 if level is None else level
        text = place.text
        while level > 0 and not place.absolute:
            level -= 1
            place = self.segments[level].innermost
            text = join(place.text, text)
        return text

    # -- where a module stands -----------------------------------------------------------------------------------------

    def place_of(self, module: Any) -> Place:
        """The place of a module, seen from the innermost segment."""
        return self._find(module) or self._of_unknown(module)

    def _make_copy_finder(self, kind: CopyKind) -> CopyFinder:
        self.copies = kind.finder(self._roots, self._trees, self._trace_around)
        return self.copies

    def _find(self, module: Any, is_called: bool = True) -> Place | None:
        """The place of a module inside the modules around, or of the module that it is a copy of."""
        last = len(self.segments) - 1
        kind = module_kind(module)
        stored_origin = None if kind is None else kind.origin(module)
        # From the innermost segment outwards: the nearest module that contains it gives the path.
        for level in range(last, -1, -1):
            segment = self.segments[level]
            place_in_segment, origin = segment.find(module), stored_origin
            original = module
            while place_in_segment is None and origin is not None:
                if (original := origin.ref()) is not None:
                    place_in_segment = segment.find(original)
                origin = origin.before
            if place_in_segment is not None:
                if level == 0 and self.copies is not None:
                    self.copies.meet(self, original)
                return self._seen_from_inside(place_in_segment, level, original)
        copies: Sequence[CopyKey] = ()
        if (copied_as := copy_kind(module)) is not None:
            copied, copies = (self.copies or self._make_copy_finder(copied_as)).find(self, module, is_called)
            if copied is not None:
                place = self._seen_from_inside(*copied, module, copies)
                self.segments[last].note(place, module)
                return place
        # That it is nowhere is noted too: where the traced function is called next, it may be in the model.
        for level in range(1, len(self.segments)):
            self.segments[level].used[id(module)] = Used(None, weakref.ref(module))
            if copies:
                self.segments[level].used[copies[level]] = Used(None)
        return None

    def has_frames(self) -> bool:
        """Whether a call of a module is open."""
        return any(segment.frames for segment in self.segments)

    def _seen_from_inside(self, place: Place, level: int, module: Any, copies: Sequence[CopyKey] = ()) -> Place:
        for inner in range(level + 1, len(self.segments)):
            place = self._inward(place, inner - 1)
            if module is not None:
                self.segments[inner].used[id(module)] = Used(place, weakref.ref(module))
            if copies:
                self.segments[inner].used[copies[inner]] = Used(place)
        return place

    def _inward(self, place: Place, level: int) -> Place:
        """A place as seen from a segment inside another."""
        base = self.segments[level].innermost
        if place.absolute == base.absolute:
            if not base.text or place.text == base.text:
                return Place(place.text[len(base.text) :], False, place.known)
            if place.text.startswith(base.text + "/"):
                return Place(place.text[len(base.text) + 1 :], False, place.known)
        return Place(self._absolute(place, level), True, place.known)

    def _absolute(self, place: Place, level: int) -> str:
        if place.absolute or level == 0:
            return place.text
        return join(self._start(level), place.text)

    def _start(self, level: int) -> str:
        """Where a segment starts, counted from the capture."""
        start = self._absolute(self.segments[level - 1].innermost, level - 1)
        self.segments[level].used["start"] = Used(start)
        return start

    def _of_unknown(self, module: Any) -> Place:
        """The place of a module that is in no call and no argument."""
        last = len(self.segments) - 1
        segment = self.segments[last]
        place = None
        is_outside_model = bool(self.segments[0].known_modules) and not says_origin(
            module
        )  # not the model of `inside=`
        if segment.frames:
            place = segment.innermost.below(segment.unregistered_now.name(module))
        elif last:
            _, is_in_call, is_known = self._use_setting(last)
            place = Place(self._name_outside(module), known=is_known) if is_in_call or is_outside_model else None
        elif is_outside_model:
            place = Place(segment.unregistered.name(module), known=not self.only_roots)
        if place is None:  # the outermost call: the root, at the current path
            place = Place(self.segments[last].current_path(self.depth), known=not self.only_roots, is_current_path=True)
        return place

    def _name_outside(self, module: Any) -> str:
        """The name of a module that the innermost traced function makes, among those of the call around it."""
        segment = self.segments[-1]
        local = segment.unregistered.name(module)
        return self._name_of(segment.inner_unregistered.setdefault(local, UnregisteredInside(type(module).__name__)))

    def _name_of(self, inner: UnregisteredInside) -> str:
        around = range(len(self.segments) - 2, 0, -1)  # of the innermost traced function
        level = next((i for i in around if self.segments[i].frames), 0)
        name = self.segments[level].unregistered_now.name_of(inner)
        for segment in self.segments[level + 1 :]:
            segment.used[inner] = Used(name)
        return name

    def forget(self, inner: Iterable[UnregisteredInside]) -> None:
        """Releases the names that a traced function would have used if it were called here."""
        for segment in self.segments:
            for unregistered in (segment.unregistered, *(frame.unregistered for frame in segment.frames)):
                for module_inside in inner:
                    unregistered.forget(module_inside)

    def _setting(self, level: int) -> Setting:
        """The setting of a segment."""
        outer = self.segments[level - 1]
        path_around = outer.current_path(self.depth, self.segments[level].names_around)
        n_scopes = depth_of(path_around) - depth_of(outer.innermost.text)
        if outer.frames:
            return Setting(n_scopes, True, outer.innermost.known)
        if level == 1:
            return Setting(n_scopes, False, not self.only_roots)
        above = self._use_setting(level - 1)
        return above._replace(n_scopes=n_scopes + above.n_scopes)

    def _use_setting(self, level: int) -> Setting:
        used = self.segments[level].used
        if "setting" not in used:
            used["setting"] = Used(self._setting(level))
        return used["setting"].answer

    def _scopes(self, level: int) -> str:
        """The scopes that are open around a segment, if no call of a module is open."""
        above = self._scopes(level - 1) if level > 1 else ""
        scopes = join(above, self.segments[level - 1].current_path(self.depth, self.segments[level].names_around))
        self.segments[level].used["scopes"] = Used(scopes)
        return scopes

    # -- for scopes and boundaries -------------------------------------------------------------------------------------

    def move_to(self, place: Place) -> Move:
        """How to get to a place from where the program is."""
        last = len(self.segments) - 1
        segment = self.segments[last]
        current_path = segment.current_path(self.depth)
        # Relative to the current path where possible, so that a trace serves calls under other paths too.
        if place.is_current_path:
            return Move(0, "")
        if place.absolute:
            return Move(None, place.text)
        if segment.innermost.absolute:
            return Move(None, self._absolute(place, last))
        if not current_path or place.text.startswith(current_path + "/") or place.text == current_path:
            down = place.text[len(current_path) :].lstrip("/")
            up = 0
        else:
            up, down = depth_of(current_path), place.text
        if last and not segment.frames:
            n_scopes = self._use_setting(last).n_scopes
            if n_scopes:
                up, down = depth_of(current_path) + n_scopes, place.text
        return Move(up, down)

    def label(self, module: Any) -> Place | None:
        """The place of a module, as seen from a segment that starts here; None if only a call of it will tell."""
        place, last = self._find(module, is_called=False), len(self.segments) - 1
        if place is None:
            if self.copies is not None and self.copies.may_be_model(self, module):
                return None
            place = self._of_unknown(module)
        if place.is_current_path and last:  # the current path: from further inside, it counts from the capture
            place = place._replace(text=join(self._scopes(last), place.text))
        return self._inward(place, last)

    def enter(self, known_modules: Iterable[tuple[Place, Any]], n_names: int = 0, description: Any = None) -> None:
        """Starts a segment here."""
        self.segments.append(Segment(list(known_modules), n_names, _jax.open_names(), description))

    def copy(self, held: Callable[[Any], Any]) -> CallStack:
        """A copy of the stack as it is now, with what `held` makes of each module, without values of the program."""
        copied = copy.copy(self)
        copied.segments = [segment.copy(held) for segment in self.segments]
        copied.handler, copied._roots, copied._trees = None, [], ()
        return copied

    def answer_now(self, question: Question, used: Used, values: Callable[[], Sequence[Any] | None]) -> Any:
        """What a segment that starts here would be answered.

        Args:
            question: What an earlier segment asked.
            used: What it was answered.
            values: Returns the arrays that the program of the segment gets.
        """
        self.enter((), _jax.count_open_names())
        try:
            level = len(self.segments) - 1
            if question == "setting":
                return self._setting(level)
            if question == "start":
                return self._start(level)
            if question == "scopes":
                return self._scopes(level)
            if isinstance(question, UnregisteredInside):
                return self._name_of(question)
            if isinstance(question, CopyKey):
                place_and_level = (self.copies or self._make_copy_finder(question.kind)).find_again(
                    self, question, values()
                )
                return None if place_and_level is None else self._seen_from_inside(*place_and_level, None)
            module = None if used.module is None else used.module()
            return None if module is None else self._find(module)
        finally:
            self.segments.pop()


def origin_for_copies(module: Any, origin: Origin | None) -> Origin | None:
    """The origin to store in copies of a module that are made now; None if no capture runs."""
    return Origin(module, origin) if captures_run() else None


# ---------------------------------------------------------------------------------------------------------------------
# Captures and calls
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleRequest:
    """What a capture wants of modules.

    Attributes:
        root: The module that paths count from; nothing outside it belongs to the model. None: to be found.
        methods: The methods whose arguments and results are sites, `"in"` and `"out"`.
        more: Anything else that the library of the modules needs while they run; hashable.
        sows: Whether it wants what is marked without a tag, by `sonde.sow`.
    """

    root: Any = None
    methods: frozenset[str] = frozenset()
    more: Hashable = None
    sows: bool = True

    @property
    def traced(self) -> Wanted:
        """The part that traced programs depend on."""
        return Wanted(self.methods, self.more)


class Wanted(NamedTuple):
    """See `ModuleRequest`; and the shapes of the arrays whose changes are noted, those of the models of `inside=`."""

    methods: frozenset[str] = frozenset()
    more: Hashable = None
    shapes: frozenset[tuple[int, ...]] = frozenset()


NOTHING = Wanted()


def begin_call_stack(
    session: Session,
    f: Callable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    request: ModuleRequest | None,
    models: Sequence[Any] = (),
) -> CallStack:
    """The call stack of a session that is about to call `f`; `models` are those of `inside=`."""
    root = None if request is None else request.root
    roots = [("", root)] if root is not None else find_roots(f, args, kwargs, models)
    trees = [x for x in (*args, *kwargs.values()) if isinstance(x, Mapping)] if models else []
    session.call_stack = CallStack(session, roots, only_roots=root is not None, trees=trees)
    return session.call_stack


def call_stacks() -> list[CallStack]:
    """The call stacks of the captures that run in this thread, the outermost first.

    A capture that began before any library of modules was loaded gets its own here, when it is first needed.
    """
    session = SESSIONS.current()
    return [] if session is None else [run.call_stack or _begun_late(run) for run in session.runs]


@dataclasses.dataclass(frozen=True, slots=True)
class CalledFrom:
    """Where a function is called that may be traced when the captures have ended.

    JAX keeps it as long as the program, so it refers weakly to the captures and to modules.

    Attributes:
        state: What the captures want.
        runs: The sessions of the captures.
        stacks: Their call stacks, as they are at the call.
        names: The names that are open around the call.
    """

    state: CaptureState | None
    runs: list[weakref.ref[Session]]
    stacks: list[CallStack]
    names: Any

    @classmethod
    def now(cls) -> CalledFrom:
        """A call that is made now."""
        session = SESSIONS.current()
        runs = () if session is None else session.runs
        knows_modules = any(run.call_stack is not None for run in runs)
        stacks = [stack.copy(weakref.ref) for stack in call_stacks()] if knows_modules else []
        return cls(capture_state(), [*map(weakref.ref, runs)], stacks, _jax.open_names())

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """A block in which the function runs: where the captures have ended, in the calls of modules of then."""
        if not any((run := ref()) is None or run.has_ended for ref in self.runs):
            return with_capture_state(self.state)
        stacks = [stack.copy(lambda ref: ref()) for stack in self.stacks]
        for stack in stacks:
            stack.segments.append(Segment([], _jax.count_open_names(), self.names))
        return with_capture_state(self.state, stacks)


def _begun_late(session: Session) -> CallStack:
    session.call_stack = CallStack(session)
    return session.call_stack
