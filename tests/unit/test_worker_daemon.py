"""The daemon of Python's workers hands them what it has imported, and neither its random numbers nor its faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.environment import REPOSITORY

FORKED = """
import json, os, random, sys
from etl.spark.stacks.worker_daemon import prepare

prepare()

def drawn():
    import numpy
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps([numpy.random.rand(), random.random(), sorted(sys.modules)]).encode())
        os._exit(0)
    os.close(write)
    told = os.fdopen(read).read()
    os.wait()
    return json.loads(told)

print(json.dumps([drawn(), drawn()]))
"""


def forked(*path: Path) -> list[list[object]]:
    """Return what each of two workers has drawn, by NumPy and by Python, and which modules it has."""
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, [*path, REPOSITORY]))}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, check=True
    )
    found: list[list[object]] = json.loads(done.stdout)
    return found


def test_each_worker_draws_numbers_of_its_own() -> None:
    first, second = forked()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_package_that_cannot_be_imported_or_prints_ends_no_daemon(tmp_path: Path) -> None:
    broken = tmp_path / "etl_psycopg2" / "psycopg2"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("print('hello')\nraise ValueError('of another version')\n")
    [(_, _, modules), _] = forked(broken.parent)
    assert isinstance(modules, list)
    assert "pyarrow.parquet" in modules
    assert "etl.delivery.stage" not in modules
