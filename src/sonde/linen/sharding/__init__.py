"""Axis names of variables: boxes with metadata, logical names with rules, and names in a collection of their own."""
