"""Where pipelines stand, what is decided, and who is asked to stop."""
