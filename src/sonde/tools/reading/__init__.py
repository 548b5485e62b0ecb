"""What does a value say? Lenses, attention heads, probes, features, and pictures of their results."""
