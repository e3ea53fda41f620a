"""What keeps a suite from being used: in the arguments of a rule, or between two rules."""
