"""What all other packages are built on: errors, settings, database access. A closed list, which imports no other package."""
