"""Lost checkpoints, lost deliveries and lost state, made anew."""
