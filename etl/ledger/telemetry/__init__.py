"""What other systems are told from the ledger: OpenLineage events, and metrics."""
