"""What commands and runs import: brought into the process that they are forked from, and nowhere else."""

# ruff: noqa: E402, F401
from tests.support.environment import give_main_a_file

give_main_a_file()

import gc

import great_expectations.expectations.core
import great_expectations.expectations.metrics
import pyspark.sql

import etl.cli.app
import etl.quality.compile
import etl.runs.opened
import tests.support.killed.side_by_side
import tests.support.killed.spark_run

gc.freeze()  # a process that is forked looks through none of it, and goes on sharing it
