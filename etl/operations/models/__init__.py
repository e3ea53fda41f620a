"""Trains models on delivered rows."""
