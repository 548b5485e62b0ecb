"""The public names of `sonde.dictionaries`, each with the module that has it."""

from sonde.dictionaries.absorbed_features import Absorption as Absorption
from sonde.dictionaries.absorbed_features import absorption as absorption
from sonde.dictionaries.cross_layer import CrossLayerTranscoder as CrossLayerTranscoder
from sonde.dictionaries.crosscoder import Crosscoder as Crosscoder
from sonde.dictionaries.dictionary import Dictionary as Dictionary
from sonde.dictionaries.feature_attribution import attribution_graph as attribution_graph
from sonde.dictionaries.feature_graph import FeatureGraph as FeatureGraph
from sonde.dictionaries.feature_graph import GraphNode as GraphNode
from sonde.dictionaries.figures import Figures as Figures
from sonde.dictionaries.figures import evaluate as evaluate
from sonde.dictionaries.figures import kl_recovered as kl_recovered
from sonde.dictionaries.figures import loss_recovered as loss_recovered
from sonde.dictionaries.saelens_format import load as load
from sonde.dictionaries.saelens_format import load_cross_layer as load_cross_layer
from sonde.dictionaries.saelens_format import save as save
from sonde.dictionaries.splicing import splice as splice
from sonde.dictionaries.training import History as History
from sonde.dictionaries.training import train as train
