"""The warehouse: PostgreSQL's tables, staging and views."""
