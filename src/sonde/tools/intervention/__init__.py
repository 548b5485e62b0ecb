"""What if a value were another one? Ablation, steering, activation patching and path patching."""
