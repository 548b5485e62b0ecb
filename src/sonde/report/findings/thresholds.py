"""The thresholds of findings. docs/concepts/findings.md explains each.

They are wide on purpose: a newly initialized network that will train well must not cause any finding.
"""

DEAD_SHARE = 0.3
"""Which share of the units must never fire."""
DEAD_EXAMPLES = 64
"""In how many examples and positions at least: with few, a unit may be inactive by chance."""
DEPTH = 3
"""How many layers a family of paths must have for its scale over depth to be judged."""
DEPTH_RATIO = 1e3
"""How many times larger or smaller the scale must be at one end of the depth than at the other."""
DEPTH_RATIO_SEVERE = 1e6
"""The ratio above which it is a problem and not a warning."""
LOOP_RATIO = 1e3
"""How many times the scale of a value must grow from the first to the last iteration, and ten times their number."""
LOOP_GRADIENT_RATIO = 1e6
"""How many times smaller or larger a gradient must become over the iterations of a loop."""
JUMP_RATIO = 1e4
"""How many times the scale must change from one site to the next."""
JUMP_SIZE = 16
"""How many elements both sites must have for that: a loss has another scale than the activations before it."""
SATURATED_SHARE = 0.5
"""Which share of the outputs of a tanh or sigmoid must be at its ends."""
OVERFLOW_MARGIN = 16
"""How near to the largest number of the dtype: within this factor."""
SUBNORMAL_SHARE = 0.5
"""Which share of the non-zero elements of a half precision gradient must be too small for full precision."""
CONSTANT_SIZE = 16
"""How many elements a constant value must have to be reported."""
ATTENTION_SHARE = 0.95
"""Which share of the queries must have the problem."""
ATTENTION_QUERIES = 8
"""How many queries there must be in all."""
MEMBERS = 4
"""How many layers a family must have for one of them to be an outlier."""
OUTLIER_RATIO = 4.0
"""How many times the scale of a value or gradient must differ from the median of the other layers."""
GRADIENT_OUTLIER_RATIO = 10.0
"""The same for gradients, which differ more from layer to layer."""
END_RATIO = 25.0
"""The same for the first and the last layer, whose neighbors are not layers of the family; also from the next layer."""
WEIGHT_RATIO = 6.0
"""The same for weights."""
MATRIX_RATIO = 15.0
"""The same among all matrices of a model whose layers are too few for families, by their gain."""
OUTLIER_SPREAD = 2.5
"""How many times farther from the median, in logarithms, an outlier must be than all others."""
FEW_ELEMENTS = 0.05
"""Which share of the sum of squares one element must have for a value to be one of few large elements."""
UNIT_SHARE = 0.9
"""Which share of the rows must have an rms near one for a site to count as normalized."""
CORRUPT_PEAK = 0.5
"""Which share of the sum of squares one element must have to be called corrupt."""
INPUT_RMS = 30.0
"""The rms of inputs above which they are called unscaled."""
INPUT_OFFSET = 20.0
"""How many times larger than the deviation the mean of inputs must be."""
FEATURE_RATIO = 100.0
"""How many times larger than the median feature the largest must be."""
ENTROPY_RATIO = 4.0
"""How many times smaller than the median of the layers the entropy of attention must be."""
