"""Both sinks, recounted and compared with each other and with the ledger."""
