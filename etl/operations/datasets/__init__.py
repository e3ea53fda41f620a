"""Input to try the shipped pipelines with."""
