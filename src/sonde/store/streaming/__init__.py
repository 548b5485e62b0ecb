"""Values of a program over a data set without a store: minibatches and statistics as it runs."""
