"""The Airflow DAGs of each declared pipeline; pipelines live where SLUICE_PIPELINES says."""

from __future__ import annotations

from etl.airflow.factory import pipeline_dags
from etl.airflow.project import settle

settle(__file__)
globals().update(pipeline_dags())
