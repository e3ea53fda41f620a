"""The daily Airflow DAG that audits both sinks and sweeps what fenced attempts left behind."""

from __future__ import annotations

from etl.airflow.factory import maintained, maintenance_dag
from etl.airflow.project import use_own_settings

use_own_settings(__file__)
sluice_maintenance = maintenance_dag(maintained())
