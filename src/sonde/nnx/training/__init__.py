"""Training: optimizers, metrics, averages of parameters, and a train state for functional code."""
