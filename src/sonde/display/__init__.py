"""How results look: tables in terminals, trees and tables in notebooks, what an array is like at a glance.

Everything here is given texts and arrays, and knows neither records nor sites. Results with paths look alike wherever
they come from: paths are never cut, layers that are alike share a line, and what is wrong is in red.
"""

from sonde.display.path_table import WholePaths
from sonde.display.rich_output import InNotebook, as_text, in_notebook
from sonde.display.tree_view import Badges, Leaf, tree_html

__all__ = ["Badges", "InNotebook", "Leaf", "WholePaths", "as_text", "in_notebook", "tree_html"]
