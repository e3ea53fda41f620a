"""The Airflow DAGs of each declared pipeline; pipelines live where SLUICE_PIPELINES says."""

from __future__ import annotations

from etl.airflow.factory import pipeline_dags
from etl.airflow.project import use_own_settings

use_own_settings(__file__)
globals().update(pipeline_dags())
