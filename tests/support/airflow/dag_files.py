"""What Airflow makes of a folder of DAG files, as JSON, each time in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
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
# Airflow alone is imported before, which is most of what a process costs, and nothing of Sluice.
_FORKS = """
import json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what an import prints is no answer
import airflow.sdk.definitions.param, airflow.serialization.serialized_objects
from airflow.dag_processing.dagbag import DagBag
for line in sys.stdin:
    asked = json.loads(line)
    if (pid := os.fork()) == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = ["-c", *asked["words"]]
        exec(compile(asked["code"], "asked", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answer, flush=True)
"""


def asked(code: str, *words: str, home: Path, **environment: str) -> Any:
    """Run code in a process that has imported Airflow; return the last line that it prints."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as kept:
        out, err = Path(kept, "out"), Path(kept, "err")
        told = {"out": str(out), "err": str(err), "environment": _environment(home, environment)}
        forks = _forks()
        assert forks.stdin is not None
        assert forks.stdout is not None
        forks.stdin.write(json.dumps({**told, "code": code, "words": words}) + "\n")
        forks.stdin.flush()
        ended = forks.stdout.readline()
        assert ended == "0\n", err.read_text()[-3000:]
        return _last_line(out.read_text())


def asked_anew(code: str, *words: str, home: Path) -> Any:
    """Run code in a process that has imported nothing; return the last line that it prints."""
    words = (sys.executable, "-c", code, *words)
    done = subprocess.run(words, env=_environment(home, {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return _last_line(done.stdout)


@cache
def _forks() -> subprocess.Popen[str]:
    """Start the process that forks; it ends with its standard input, and so with this process."""
    home = Path(tempfile.mkdtemp(prefix="sluice-"))
    atexit.register(shutil.rmtree, home)
    words, pipe = [sys.executable, "-c", _FORKS], subprocess.PIPE
    return subprocess.Popen(words, env=_environment(home, {}), stdin=pipe, stdout=pipe, text=True)


def _environment(home: Path, more: dict[str, str]) -> dict[str, str]:
    """Return this process's environment, without what the whole Airflow of a test before has left in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "AIRFLOW"))}
    none = home / "sluice.toml"  # so that no sluice.toml further up is found
    none.touch()
    own = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "SLUICE_CONFIG": str(none)}
    return {**kept, **own, **more}


def _last_line(printed: str) -> Any:
    return json.loads(printed.strip().splitlines()[-1])
