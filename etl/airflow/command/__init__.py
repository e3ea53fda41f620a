"""What a command does that Airflow started."""
