"""How the stream of a pipeline goes on, by the kind of its sources."""
