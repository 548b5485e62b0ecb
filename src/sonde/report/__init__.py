"""A readable report about a model: what is wrong first, then everything that was seen.

examine(f)(*args)       runs `f` once and returns a `Report`
Report                  findings, statistics and pictures; `.write("report.html")` makes a page that opens from disk
Finding                 one thing that is wrong, where, and what usually helps
HeatMap, Lines, Text    what a caller may add to the page with `Report.add`
"""

from sonde.report.examine import examine
from sonde.report.failure import Failure
from sonde.report.findings.finding import Finding
from sonde.report.panels import HeatMap, Lines, Panel, Text
from sonde.report.pictures import Picture
from sonde.report.report import Report

__all__ = ["Failure", "Finding", "HeatMap", "Lines", "Panel", "Picture", "Report", "Text", "examine"]
