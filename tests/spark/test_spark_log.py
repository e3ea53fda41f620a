"""What Spark writes into the log of its JVM can be read in a terminal."""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql import SparkSession

from etl.spark.launch import jvm_log


def test_no_text_of_a_message_or_an_error_commands_a_terminal_and_stack_traces_keep_their_lines(
    spark: SparkSession,
) -> None:
    jvm: Any = spark._jvm
    mark = uuid.uuid4().hex
    error = jvm.java.lang.RuntimeException(f"{mark} in\x1b[2J an error\x9b2J")
    jvm.org.apache.logging.log4j.LogManager.getLogger("vendor").error(
        f"{mark} é\tin\x1b]0;pwned\x07 a\rmessage\nof two lines", error
    )
    log = jvm_log.current()
    assert log is not None
    said = log.read_text().partition(mark)[2].split("\n")
    assert said[:3] == [
        " é\tin?]0;pwned? a?message",
        "of two lines",
        f"java.lang.RuntimeException: {mark} in?[2J an error?2J",
    ]
    assert said[3].startswith("\tat ")
    assert sum(mark in line for line in said) == 1, "the error is written once"
