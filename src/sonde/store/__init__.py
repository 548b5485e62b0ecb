"""Activations on disk: harvest them, read them, train on them.

harvest(f, batches, folder, *patterns)   run a program on many batches and store the values at its sites
open(folder)                             lazy arrays by path; `.batches(n, shuffle=seed)` for training
stream(f, batches, size, *patterns)      the same minibatches while the program runs, without a store
statistics(f, batches, *patterns)        mean, covariance, quantiles and samples over a data set, without a store
check(folder)                            read everything and verify the checksums
repair(f, batches, folder, *patterns)    compute damaged rows again
merge(folders, into)                     one store from several
Storage(endpoint_url=..., key=...)       how to reach a bucket, beyond what the environment says
"""

from sonde.store.format.storage import Storage
from sonde.store.reading.check import Damage, check
from sonde.store.reading.reader import Store, StoredArray, open
from sonde.store.records_file import load, save
from sonde.store.streaming.statistics import DataStatistics, UnitStatistics, statistics
from sonde.store.streaming.stream import stream
from sonde.store.writing.harvest import harvest
from sonde.store.writing.merge import merge
from sonde.store.writing.repair import repair

__all__ = [
    "Damage",
    "DataStatistics",
    "Storage",
    "Store",
    "StoredArray",
    "UnitStatistics",
    "check",
    "harvest",
    "load",
    "merge",
    "open",
    "repair",
    "save",
    "statistics",
    "stream",
]
