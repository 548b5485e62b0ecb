"""What a mark is: a site, its path, its axes, and the primitive that makes it an equation."""
