"""What happens during training? Statistics taken inside the step, and where they are written."""
