"""The Airflow DAGs of each declared pipeline; pipelines live where SLUICE_PIPELINES says."""

from __future__ import annotations

from etl.airflow.factory import pipeline_dags

globals().update(pipeline_dags())
