"""Sparse dictionaries of activations: train them, measure them, splice them into programs, exchange them.

Dictionary(d_in, n_features, ...)           a sparse autoencoder, transcoder or skip transcoder
CrossLayerTranscoder(d_in, n_features, ...) transcoders that write to all later layers
train(dictionary, batches, steps=...)       on a store's minibatches, or on batches as they come
evaluate(dictionary, batches)               active features, explained variance, dead features
splice(f, {pattern: dictionary})            a program with a dictionary in place of a value, or of what computes it
attribution_graph(f, transcoders)           which features, errors and tokens the logits come from
loss_recovered(loss, path, dictionary, ...) how much of the loss it recovers
kl_recovered(f, path, dictionary, ...)      how much of the predictions it recovers
absorption(dictionary, vectors, ...)        how much of a property other features have taken over
save(dictionary, folder), load(folder)      in the layout of SAELens
load_cross_layer(folder)                    in the layout of circuit-tracer
"""

from sonde._lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
