"""What a `sluice` command does in addition when Airflow has started it."""
