"""Tools built on captures: one file, one tool, one verb. They work on functions and paths, not on one module system.

first_nonfinite(f)                      which operation made the first NaN or Inf
trace_back(f, predicate)                which operation gave a result a property: too large, zero
summarize(f)                            statistics of every value and gradient
statistics(f, batches)                  the same over a data set; it is `sonde.store.statistics`
compare(f, g)                           where two programs differ first, down to the operation
compare_parameters(first, second)       which weights are missing, transposed, permuted or different
patch_sweep(f, *patterns, metric=...)   which values carry what a metric measures
patch_paths(f, senders, receivers, ...) the effect of one component through what another reads
attribute(f)                            how much each value contributes to the result
attribute_edges(f, senders, receivers)  the same for the edges between components: a graph
interchange(f, pattern)                 does a value, or a subspace of it, hold a variable of an algorithm?
qk_attribution(f, attention, ...)       which pairs of components made a head look from one position to another
site_gradients(f)                       the gradient of a metric at every site
logit_attribution(f, ...)               what components, heads and neurons write into the logits
attention_heads(f, pattern)             induction, previous-token and duplicate-token scores by head
ablate(f, pattern)                      the program without some of its values
steer(f, {pattern: direction})          the program pushed in a direction
extract(f, {path: name})                values at sites as features, and nothing else computed
logit_lens(f, readout=...)              what the model would say at every layer
example_grad_norms(loss)                the norm of each example's gradient
probe(values, labels)                   what a linear classifier reads off the values at each site
monitor(train_step, {pattern: [...]})   statistics of a training run, inside the step
compare_training(f, g)                  the first step after which two train steps differ
saved_residuals(f)                      what the backward pass keeps, by place, and what a remat policy would
torch_records(module)                   the values and gradients of a PyTorch module, as records
"""

from sonde._lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
