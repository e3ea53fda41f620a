"""An explicit-state model of the delivery protocol: every interleaving of its actors, within a budget of faults."""
