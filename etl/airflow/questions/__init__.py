"""A question to a person in Airflow: what is asked, how the task waits, and what becomes of the answer."""
