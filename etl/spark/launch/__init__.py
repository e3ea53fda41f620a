"""Launches the JVM of a Spark driver: its command, its log, what keeps it from starting."""
