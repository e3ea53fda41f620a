"""A suite judges a batch in the pass that writes it, and its verdict is Great Expectations' own."""
