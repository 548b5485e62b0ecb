"""The engine, and the only way into it: other packages import from `sonde.core`, never from the rooms below.

The rooms, in the order in which to read them:

    marks       what a mark is: sites, paths, scopes, axes, and the primitive that makes a site an equation
    interpret   running a program with a handler at its sites: the trace, the rules for loops, branches and calls
    records     from recorded arrays to `Records`: gradients paired with values, branches merged, displays
    edits       new values as part of the program, so that JAX differentiates them
    modules     the paths of modules, of `sonde.nnx`, `sonde.linen` and other libraries
    session     one run: the state of the thread, what is restored when it ends, the programs that are kept
    verbs       what users call: sow, capture, edit, perturb, sites

`make check` holds the door: an import of `sonde.core.records.record` from another package is an error.
"""

from sonde.core.edits.editing import Editing, Rule, Supplied
from sonde.core.edits.hoisting import Hoisted, hoist
from sonde.core.edits.plan import ADDED, REPLACED, Near, Put, added
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import Extra, Item, expand
from sonde.core.interpret.recording import Recording, Reduce
from sonde.core.interpret.trace import SiteTrace, UnwrappedTrace
from sonde.core.interpret.where import Where
from sonde.core.marks.arrays import arrays_in, as_now, flattened, shapes_in, split_arrays
from sonde.core.marks.axes import Axis, spread
from sonde.core.marks.named_loops import STAR, Row, row_path, rows_chosen, starred, unstarred
from sonde.core.marks.operands import operands_of
from sonde.core.marks.path import Pattern, check_pattern, check_patterns, glob_matches, matches, nearest, no_such_site
from sonde.core.marks.primitive import marker_p, plain_p, site_p
from sonde.core.marks.scopes import (
    LoopName,
    RowsName,
    ScopeName,
    check_scopes,
    path_under,
    scope,
    scope_of_function,
    without_functions,
)
from sonde.core.marks.site import LEAF, Site, View, exclude_each_other
from sonde.core.marks.site_search import first_site, sites_inside, without_sites
from sonde.core.modules.call_stack import CallStack, ModuleRequest, call_stacks, origin_for_copies
from sonde.core.modules.calls import (
    NUMBERS,
    are_ends_wanted,
    at_module,
    calling,
    code_of,
    is_part_of_caller,
    mark_arguments,
    mark_arrays,
    mark_result,
    name_of_method,
    note_result,
    overrides_running,
    run_method,
)
from sonde.core.modules.copies import CopyKey, CopyKind
from sonde.core.modules.index import (
    ModuleKind,
    Origin,
    at_path,
    children_of,
    everything_in,
    kind_of_class,
    module_kind,
    path_between,
    paths_below,
    register_modules,
    register_no_modules,
    register_told_apart,
)
from sonde.core.modules.places import Place
from sonde.core.modules.roots import StandIns, stand_ins
from sonde.core.modules.trace_variants import with_converted_modules
from sonde.core.records.branch_merge import merge_choices, tokens_of
from sonde.core.records.build import make_records, record_of
from sonde.core.records.collections import ByPath, Rows
from sonde.core.records.gradient_pairing import Call, calls_of
from sonde.core.records.layout import ArraysSpec, RecordLayout
from sonde.core.records.layout_json import layout_from_json, layout_to_json
from sonde.core.records.loop_rows import CallRow
from sonde.core.records.partial_records import attach_records, partial_records
from sonde.core.records.record import Record, Records
from sonde.core.session.caches import (
    ByIdentity,
    CacheInfo,
    KeptPrograms,
    Meter,
    cache_clear,
    cache_info,
    kept_with,
    set_cache_bound,
)
from sonde.core.session.functionalize import JitByStaticPart, StaticPart, static_and_arrays
from sonde.core.session.inside_protocol import PASSED_SITES, InsideRequest, inside_request
from sonde.core.session.run import run_with
from sonde.core.session.session import (
    SESSIONS,
    CaptureState,
    capture_state,
    captures_run,
    sows_are_seen,
    with_capture_state,
)
from sonde.core.verbs.capture import capture, capture_only, check_callable, wrapped_like
from sonde.core.verbs.edit import Edit, edit, put_by_rule, run_by_rule
from sonde.core.verbs.perturb import added_at, with_perturbations, zero_perturbations
from sonde.core.verbs.sites import SiteInfo, Sites, sites
from sonde.core.verbs.sow import mark, mark_in_place, perturb, sow, through_site
from sonde.core.verbs.uncalled import explains_arguments, two_steps
