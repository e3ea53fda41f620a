"""Where a task or a Python worker is, by its stack as the JVM and faulthandler write it."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import etl
from etl.common.errors import ServiceAway, SluiceError, TaskTooLong
from etl.runs.query import BatchFailure
from etl.runs.slow_tasks import end_of, lasting
from etl.spark.stacks.running_tasks import is_in_python, java_place
from etl.spark.stacks.worker_places import place_of, read_frames

PACKAGES = "/opt/app/.venv/lib/python3.11/site-packages"
SLUICE = Path(etl.__file__).parent
GENERATED = "the code that Spark has made of expressions, those of the transform or of the suite"
BELOW = f"""  File "{PACKAGES}/pyspark/worker.py", line 2884 in _evaluate_batch_udf
  File "{PACKAGES}/pyspark/daemon.py", line 90 in worker
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def place(*calls: str) -> str | None:
    """Return the place of a worker in these calls, the innermost first, that PySpark has called."""
    lines = "".join(f"  File {call}\n" for call in calls)
    found = place_of(read_frames(f"Stack (most recent call first):\n{lines}{BELOW}"))
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (['"/srv/my pipelines/a.py", line 7 in clean'], "clean (/srv/my pipelines/a.py, line 7)"),
        (
            [
                '"/usr/lib/python3.11/threading.py", line 629 in wait',
                f'"{PACKAGES}/pandas/core/series.py", line 3 in map',
                '"/srv/a.py", line 7 in <lambda>',
                '"/srv/a.py", line 20 in outer',
            ],
            "<lambda> (/srv/a.py, line 7), within wait of threading.py",
        ),
        (
            ['"/usr/lib/python3.11/json/decoder.py", line 1 in raw_decode', '"<frozen x>", line 2 in loads'],
            "loads (<frozen x>, line 2), within raw_decode of decoder.py",
        ),
        (
            [f'"{PACKAGES}/etl/sinks/warehouse/table.py", line 9 in copy'],
            f"copy ({PACKAGES}/etl/sinks/warehouse/table.py, line 9)",
        ),
        (
            [
                f'"{PACKAGES}/numpy/core.py", line 1 in f',
                f'"{PACKAGES}/etl/pipelines/flights.py", line 9 in flights',
                f'"{PACKAGES}/etl/delivery/stage.py", line 2 in g',
            ],
            f"flights ({PACKAGES}/etl/pipelines/flights.py, line 9), within f of core.py",
        ),
        ([], None),
        (
            [
                '"/usr/lib/python3.11/socket.py", line 706 in readinto',
                f'"{PACKAGES}/pyarrow/ipc.py", line 187 in open_stream',
            ],
            None,
        ),
        (
            [
                f'"{PACKAGES}/pyspark/serializers.py", line 602 in read_int',
                f'"{SLUICE}/spark/tasks.py", line 34 in run',
            ],
            None,
        ),
    ],
)
def test_a_worker_is_in_the_innermost_call_that_is_no_library_s(
    calls: list[str], expected: str | None
) -> None:
    assert place(*calls) == expected


@pytest.mark.parametrize("own", ["/srv/a.py", f"{SLUICE}/pipelines/a.py"])
def test_a_pipeline_s_own_code_comes_before_sluice_s_and_the_libraries(own: str) -> None:
    files = [f"{PACKAGES}/numpy/core.py", f"{SLUICE}/delivery/stage.py", own]
    places = [place_of(read_frames(f'  File "{file}", line 1 in f\n{BELOW}')) for file in files]
    assert min(one for one in places if one is not None) == places[-1]


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (
            [
                "java.util.regex.Pattern$BackRef.match(Pattern.java:5029)",
                "java.util.regex.Matcher.find(Matcher.java:745)",
                "org.apache.spark.sql.catalyst.expressions.GeneratedClass$X.processNext(Unknown Source)",
                "org.apache.spark.scheduler.Task.run(Task.scala:147)",
            ],
            f"a regular expression, java.util.regex.Pattern$BackRef.match(Pattern.java:5029), called by {GENERATED}",
        ),
        (
            [
                "sun.nio.ch.Net.poll(Native Method)",
                "org.apache.hadoop.X.y(X.java:1)",
                "org.apache.spark.Z.a(Z.scala:2)",
            ],
            "sun.nio.ch.Net.poll(Native Method), called by org.apache.spark.Z.a(Z.scala:2)",
        ),
        (["org.apache.spark.Z.a(Z.scala:2)"], "org.apache.spark.Z.a(Z.scala:2)"),
        (["java.lang.Thread.run(Thread.java:840)"], "java.lang.Thread.run(Thread.java:840)"),
    ],
)
def test_a_task_is_in_its_innermost_call_and_spark_s_that_leads_to_it(
    stack: list[str], expected: str
) -> None:
    assert not is_in_python(stack)
    assert java_place(stack) == expected


def test_a_task_whose_call_of_spark_s_reads_from_a_worker_is_in_python() -> None:
    read = "org.apache.spark.api.python.BasePythonRunner$ReaderInputStream.read(PythonRunner.scala:1274)"
    assert is_in_python(["sun.nio.ch.EPoll.wait(Native Method)", read, "org.apache.spark.Z.a(Z.scala:2)"])


def test_how_long_is_written_as_people_do() -> None:
    spans = [0.04, 1, 1.26, 59.6, 600, 7199, 12_600]
    assert [lasting(one) for one in spans] == ["0.0 s", "1 s", "1.3 s", "60 s", "10 min", "120 min", "3.5 h"]


def test_what_ends_at_its_limit_is_told_by_what_became_of_its_batch() -> None:
    def away() -> int:
        raise ServiceAway("PostgreSQL does not answer", remedy="start it")

    none, seventh, untold = (
        end_of("orders", "orders: batch 3 was slow.", [], one) for one in (lambda: None, lambda: 7, away)
    )
    assert "slow. Nothing of the batch was delivered" in none.seen
    assert "Spark's JVM was ended for it, but the batch had come to its end: it is delivery 7" in seventh.seen
    told = "`sluice status orders` tells whether the batch was delivered, which can't be told now (PostgreSQL"
    assert told in untold.seen
    assert [type(one) for one in (none, seventh, untold)] == [TaskTooLong, SluiceError, TaskTooLong]


def test_the_end_of_a_batch_at_its_commit_is_waited_for() -> None:
    failure, begun, goes_on = BatchFailure(), Event(), Event()

    def commit(_frame: Any, _number: int) -> None:
        begun.set()
        goes_on.wait(60)

    assert failure.await_end(0)
    batch = Thread(target=failure.capturing(commit), args=(None, 0))
    batch.start()
    assert begun.wait(60)
    assert not failure.await_end(0.01)
    goes_on.set()
    assert failure.await_end(60)
    batch.join()
