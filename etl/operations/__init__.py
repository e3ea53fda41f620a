"""What a person asks for beside runs: one folder a thing, none of which needs another."""
