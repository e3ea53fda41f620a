"""All that touches Spark's inside: the session and its JVM, checkpoints, plans, errors."""
