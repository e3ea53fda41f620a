"""What Airflow loads: DAGs made of the declarations, the operator that runs one, and the plugin.

Light to import: no pyspark, no Great Expectations, no pandas. A pipeline runs in a process of its own.
"""
