"""Models, trained on what was delivered."""
