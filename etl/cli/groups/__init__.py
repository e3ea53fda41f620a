"""Commands that have commands of their own: `sluice quarantine …` and `sluice alerts …`."""
