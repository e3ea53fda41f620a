"""What everything else is built on: errors, settings, database access. A closed list, which imports no other package."""
