"""Makes no Airflow dag: fails, as an import error that the UI shows, while any pipeline's declaration is wrong.

The other pipelines' DAGs, in pipelines.py, stay as they are.
"""

from __future__ import annotations

from etl.pipeline import load_pipelines
from etl.settings import load_settings

load_pipelines(load_settings().pipelines)
