"""What Airflow makes of a folder of DAG files, as JSON, each time in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from etl.pipeline.checks import SHIPPED_DAGS

ALWAYS = SHIPPED_DAGS - {"sluice_alerts"}  # which there is once the settings name somebody to tell
BAG = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
bag = DagBag(sys.argv[1])
dags = {name: DagSerialization.to_dict(dag)["dag"] for name, dag in bag.dags.items()}
errors = {name.rpartition("/")[2]: text for name, text in bag.import_errors.items()}
print("\\n" + json.dumps({"dags": dags, "errors": errors}, default=str))
"""


def asked(code: str, *words: str, home: Path, **environment: str) -> Any:
    """Run code in a process of its own; return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
