"""How much does a value contribute to a number? By gradients, and by what is written into the logits."""
