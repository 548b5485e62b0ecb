"""Small changes of the source that a test should notice, and whether one does: `make mutants`."""
