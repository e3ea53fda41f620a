"""A package, for pytest to know where the `stack` of these tests ends: without this file, with the session."""
