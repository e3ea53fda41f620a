"""Airflow on this machine, and its part of the compose file."""
