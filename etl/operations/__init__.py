"""Everything that a person asks for apart from a run: one folder each, none of which needs another."""
