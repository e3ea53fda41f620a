"""What a transform takes beside its rows: lookups, and models that score."""
