"""What nothing refers to any more is taken away."""
