"""A project of one's own: checked without a run, and what a person writes in it drafted."""
