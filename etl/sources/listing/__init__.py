"""Lists the files that a pattern means, and knows local folders in which no name has changed."""
