"""Activations on disk: harvest them, read them, train on them.

harvest(f, batches, folder, *patterns)   run a program on many batches and store the values at its sites
open(folder)                             lazy arrays by path; `.batches(n, shuffle=True)` for training
stream(f, batches, size, *patterns)      the same minibatches while the program runs, without a store
statistics(f, batches, *patterns)        mean, covariance, quantiles and samples over a data set, without a store
check(folder)                            read everything and verify the checksums
repair(f, batches, folder, *patterns)    compute damaged rows again
merge(folders, into)                     one store from several
Storage(endpoint_url=..., key=...)       how to reach a bucket, beyond what the environment says
"""

from sonde._lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
