"""Runs PySpark's daemon of Python workers; each worker writes its traceback to standard error when a signal asks for it.

PySpark can write tracebacks at an interval alone, those of workers that wait for work included.
"""

from __future__ import annotations

import signal

MODULE = "etl.spark.stacks.worker_daemon"
ASK = signal.SIGURG  # a process that does not know it ignores it

if __name__ == "__main__":
    import faulthandler

    from pyspark.daemon import manager

    # The thread that the signal reaches is the main one, which runs what is asked of the worker.
    faulthandler.register(ASK, all_threads=False)
    manager()
