"""What delivering a batch costs, beside the usual way and beside its own parts: `make bench`."""
