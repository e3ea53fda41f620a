"""What a run imports: brought into the process that runs are forked from, and nowhere else."""

# ruff: noqa: E402, F401
import sys

main = sys.modules["__main__"]
if not hasattr(main, "__file__"):  # pyspark would take it for a doctest, and leave
    main.__file__ = __file__

import great_expectations.expectations.core
import great_expectations.expectations.metrics
import pyspark.sql

import etl.opened
import etl.quality.compile
import tests.conftest
import tests.crash.side_by_side
import tests.crash.spark_run
