"""Makes no Airflow dag: fails, as an import error that the UI shows, while any pipeline's declaration is wrong.

So it does while Airflow refuses a schedule, or another option, that the declaration's own check let through.

The other pipelines' DAGs, in pipelines.py, stay as they are. Where Airflow wants one DAG alone nothing is checked.
"""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from etl.airflow.factory import require_dags
from etl.airflow.project import use_own_settings
from etl.common.settings import load_settings
from etl.pipeline import load_pipelines

use_own_settings(__file__)
if get_parsing_context().dag_id is None:
    require_dags(load_pipelines(load_settings().pipelines))
