"""Recounts both sinks and compares them with each other and with the ledger."""
