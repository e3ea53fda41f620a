"""Judges a batch by its suite in the pass that writes it, with the verdict of Great Expectations."""
