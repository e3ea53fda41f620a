"""Reads topics of Kafka."""
