"""The engine: sites, and everything that can be done at them."""

from sonde.core.capture import capture
from sonde.core.context import scope
from sonde.core.record import Record, Records
from sonde.core.site import Axis, Site
from sonde.core.sow import mark, perturb, sow

__all__ = ["Axis", "Record", "Records", "Site", "capture", "mark", "perturb", "scope", "sow"]
