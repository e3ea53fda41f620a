"""The commands for a project of one's own."""
