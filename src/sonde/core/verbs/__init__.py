"""What users call: `sow`, `perturb`, `capture`, `edit`, `perturbed` and `sites`."""
