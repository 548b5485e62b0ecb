"""What Flax keeps under `flax.linen.experimental`."""
