"""Which component feeds which? The edges between components, their scores, and the few that are enough."""
