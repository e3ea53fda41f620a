"""Where Spark's tasks are, and the Python workers that they wait for: their stacks while they run."""
