"""Runs PySpark's daemon of Python workers, which are forked from it with what they need already imported.

Each worker writes its traceback to standard error when a signal asks for it: PySpark can write tracebacks at an interval
alone, those of workers that wait for work included.
"""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout, suppress

MODULE = "etl.spark.stacks.worker_daemon"
ASK = signal.SIGURG  # a process that does not know it ignores it
# What tasks run, and what PySpark hands them their rows by. By name: the daemon must know nothing of it to do its work.
IMPORTED = (
    *("pyspark.sql.pandas.serializers", "pyspark.sql.pandas.types", "pyarrow.parquet", "pandas"),
    *("etl.delivery.stage", "etl.sources.json_records.files", "etl.sources.csv_records.files"),
)


def prepare() -> None:
    """Import what each worker would import again: pandas too, by which Arrow looks at the first list that it is given.

    Spark reads the daemon's port from its standard output.
    """
    import gc
    import os
    from importlib import import_module

    with redirect_stdout(sys.stderr):
        for name in IMPORTED:
            with suppress(Exception):  # where a task needs it, it says so itself
                import_module(name)
        with suppress(Exception):
            import numpy
            import pyarrow

            pyarrow.array([0])
            # HAZARD: or all workers would draw the same numbers; Python's own `random` does so by itself.
            os.register_at_fork(after_in_child=numpy.random.seed)
    gc.freeze()  # or the workers' collections of garbage would write to all pages that they share with the daemon


if __name__ == "__main__":
    import faulthandler

    from pyspark.daemon import manager

    # The thread that the signal reaches is the main one, which runs what is asked of the worker.
    faulthandler.register(ASK, all_threads=False)
    prepare()
    manager()
