"""The Airflow DAG that tells people of troubles until they hear; there is none while the settings name nobody to tell."""

from __future__ import annotations

from etl.airflow.factory import alerts_dag
from etl.airflow.project import use_own_settings

use_own_settings(__file__)
if (made := alerts_dag()) is not None:
    sluice_alerts = made
