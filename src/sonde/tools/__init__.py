"""Tools built on captures: one file, one tool, one verb. They work on functions and paths, not on one module system.

first_nonfinite(f)                      which operation made the first NaN or Inf
trace_back(f, predicate)                which operation gave a result a property: too large, zero
summarize(f)                            statistics of every value and gradient
compare(f, g)                           where two programs differ first, down to the operation
compare_parameters(first, second)       which weights are missing, transposed, permuted or different
patch_sweep(f, clean, corrupt, ...)     which values carry what a metric measures
patch_paths(f, clean, corrupt, ...)     what one component makes of what another writes
attribute(f)                            how much each value contributes to the result
attribute_edges(f, senders, receivers)  the same for the edges between components: a graph
site_gradients(f)                       the gradient of a metric at every site
logit_attribution(f, ...)               what components, heads and neurons write into the logits
attention_heads(f, pattern)             induction, previous-token and duplicate-token scores by head
ablate(f, pattern)                      the program without some of its values
steer(f, {pattern: direction})          the program pushed in a direction
extract(f, {path: name})                values at sites as features, and nothing else computed
logit_lens(f, readout=...)              what the model would say at every layer
example_grad_norms(loss)                which examples pull hardest
probe(values, labels)                   what a linear classifier reads off the values at each site
monitor(train_step, {pattern: [...]})   statistics of a training run, inside the step
torch_records(module)                   the values and gradients of a PyTorch module, as records
"""

import importlib
from typing import TYPE_CHECKING, Any

from sonde.tools.nonfinite import NonFinite, first_nonfinite

if TYPE_CHECKING:
    from sonde.port.parameters import compare_parameters
    from sonde.port.torch import torch_records
    from sonde.tools.ablation import ablate
    from sonde.tools.attribution import Attribution, attribute
    from sonde.tools.comparison import Comparison, assert_same_program, compare
    from sonde.tools.direct_logits import LogitAttribution, logit_attribution
    from sonde.tools.drifts import Drift
    from sonde.tools.edges import Edge, Edges, attribute_edges
    from sonde.tools.example_gradients import example_grad_norms
    from sonde.tools.extraction import extract
    from sonde.tools.gradients import site_gradients
    from sonde.tools.heads import HeadScores, attention_heads
    from sonde.tools.lens import Lens, Reading, logit_lens
    from sonde.tools.monitoring import Monitored, monitor
    from sonde.tools.patching import patch_sweep
    from sonde.tools.path_patching import Paths, patch_paths
    from sonde.tools.probing import Probe, probe
    from sonde.tools.pruning import Curve
    from sonde.tools.steering import steer
    from sonde.tools.summary import Summary, summarize
    from sonde.tools.sweep import Sweep
    from sonde.tools.tracing_back import TracedBack, trace_back

__all__ = [
    "Attribution",
    "Comparison",
    "Curve",
    "Drift",
    "Edge",
    "Edges",
    "HeadScores",
    "Lens",
    "LogitAttribution",
    "Monitored",
    "NonFinite",
    "Paths",
    "Probe",
    "Reading",
    "Summary",
    "Sweep",
    "TracedBack",
    "ablate",
    "assert_same_program",
    "attention_heads",
    "attribute",
    "attribute_edges",
    "compare",
    "compare_parameters",
    "example_grad_norms",
    "extract",
    "first_nonfinite",
    "logit_attribution",
    "logit_lens",
    "monitor",
    "patch_paths",
    "patch_sweep",
    "probe",
    "site_gradients",
    "steer",
    "summarize",
    "torch_records",
    "trace_back",
]

# Loaded when first used: looking for a NaN does not wait for the rest.
_LATER = {
    "Attribution": "attribution",
    "Comparison": "comparison",
    "Curve": "pruning",
    "Drift": "drifts",
    "Edge": "edges",
    "Edges": "edges",
    "HeadScores": "heads",
    "Lens": "lens",
    "LogitAttribution": "direct_logits",
    "Paths": "path_patching",
    "Monitored": "monitoring",
    "Probe": "probing",
    "Reading": "lens",
    "Summary": "summary",
    "Sweep": "sweep",
    "TracedBack": "tracing_back",
    "ablate": "ablation",
    "attention_heads": "heads",
    "attribute": "attribution",
    "attribute_edges": "edges",
    "compare": "comparison",
    "example_grad_norms": "example_gradients",
    "extract": "extraction",
    "logit_attribution": "direct_logits",
    "logit_lens": "lens",
    "monitor": "monitoring",
    "patch_paths": "path_patching",
    "patch_sweep": "patching",
    "probe": "probing",
    "site_gradients": "gradients",
    "steer": "steering",
    "summarize": "summary",
    "trace_back": "tracing_back",
    "assert_same_program": "comparison",
    "compare_parameters": "sonde.port.parameters",
    "torch_records": "sonde.port.torch",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'sonde.tools' has no attribute {name!r}")
    module = _LATER[name]
    return getattr(importlib.import_module(module if "." in module else f"sonde.tools.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
