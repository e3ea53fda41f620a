"""Both sinks of a batch: the lake and the warehouse. Nothing here imports Spark."""
