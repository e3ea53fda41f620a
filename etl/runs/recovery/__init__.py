"""Recovery of lost checkpoints, lost deliveries and lost state."""
