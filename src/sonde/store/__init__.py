"""Activations on disk: harvest them, read them, train on them.

harvest(f, batches, folder, *patterns)   run a program on many batches and store what passes its sites
open(folder)                             lazy arrays by path; `.batches(n, shuffle=seed)` for training
check(folder)                            read everything and verify the checksums
merge(folders, into)                     one store from several
"""

from sonde.store.checking import Damage, check
from sonde.store.harvesting import harvest
from sonde.store.merging import merge
from sonde.store.reading import Store, StoredArray, open
from sonde.store.records_file import load, save
from sonde.store.streaming import DataStatistics, UnitStatistics, statistics

__all__ = [
    "Damage",
    "DataStatistics",
    "Store",
    "StoredArray",
    "UnitStatistics",
    "check",
    "harvest",
    "load",
    "merge",
    "open",
    "save",
    "statistics",
]
