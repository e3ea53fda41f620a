"""Lands input to try the shipped pipelines with."""
