"""Tells people of troubles where they are, again until somebody hears or the trouble is over, and then that it is over."""
