"""Do two programs do the same? `compare`, from their results down to the operation at which they part."""
