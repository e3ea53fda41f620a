"""Sluice: exactly-once micro-batch ETL."""
