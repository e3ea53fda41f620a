"""The daily Airflow DAG that audits both sinks and sweeps what fenced attempts left behind."""

from __future__ import annotations

from etl.airflow.factory import maintenance_dag
from etl.common.settings import load_settings
from etl.pipeline import loadable

sluice_maintenance = maintenance_dag(loadable(load_settings().pipelines).values())
