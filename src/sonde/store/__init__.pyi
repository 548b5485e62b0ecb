"""The public names of `sonde.store`, each with the module that has it."""

from sonde.store.format.storage import Storage as Storage
from sonde.store.reading.check import Damage as Damage
from sonde.store.reading.check import check as check
from sonde.store.reading.reader import Store as Store
from sonde.store.reading.reader import StoredArray as StoredArray
from sonde.store.reading.reader import open as open
from sonde.store.records_file import load as load
from sonde.store.records_file import save as save
from sonde.store.streaming.statistics import DataStatistics as DataStatistics
from sonde.store.streaming.statistics import UnitStatistics as UnitStatistics
from sonde.store.streaming.statistics import statistics as statistics
from sonde.store.streaming.stream import stream as stream
from sonde.store.writing.harvest import harvest as harvest
from sonde.store.writing.merge import merge as merge
from sonde.store.writing.repair import repair as repair
