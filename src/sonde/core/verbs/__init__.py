"""What users call: `sow`, `perturb`, `capture`, `edit`, `with_perturbations` and `sites`."""
