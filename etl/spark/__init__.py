"""Everything that touches Spark's internals: the session and its JVM, checkpoints, plans, errors."""
