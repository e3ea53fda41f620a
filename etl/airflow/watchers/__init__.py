"""What Airflow's triggerer calls where an asset watches for what arrives: docs/airflow.md, "Start on arrival"."""
