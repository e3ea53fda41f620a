"""The command `sluice`: results go to standard output, progress to standard error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from etl.airflow.log_lines import WANTED, LineFormatter, marked
from etl.cli import (
    airflow,
    datasets,
    maintenance,
    replay,
    run,
    services,
    serving,
    status,
    suites,
)
from etl.cli.groups import alerts, quarantine
from etl.cli.project import check, contract, init, new
from etl.cli.shared import (
    Command,
    as_called,
    err,
    no_utf_8,
    shown,
    shown_lines,
)
from etl.common.errors import BatchEndsSpark, SluiceError, Stopped
from etl.common.json_log import JsonHandler, JsonStream, write_json
from etl.common.outages import raising_service_errors
from etl.common.outcome import in_short, without_secrets
from etl.common.settings import logs_json
from etl.spark.launch import jvm_log
from etl.spark.signals import SIGNALS, stop_at_once

app = typer.Typer(
    help="Exactly-once micro-batch ETL: each batch is judged, then lands in S3 Parquet and PostgreSQL together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Run the command; every failure is one message and an exit code, never a traceback of a person's mistake."""
    handler: logging.Handler
    if WANTED not in os.environ and logs_json():  # Airflow's own log has its form
        handler, sys.stderr = write_json(sys.stderr)
        logging.captureWarnings(True)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Lines(marks=WANTED in os.environ))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    in_json = isinstance(sys.stderr, JsonStream)
    logging.getLogger("sluice").setLevel(logging.DEBUG if in_json else logging.INFO)
    # It reports errors that we report ourselves: of a batch by its own logger, of a JVM that is gone by the root's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    handler.addFilter(lambda record: not Path(record.pathname).is_relative_to(PY4J))
    for number in SIGNALS:
        signal.signal(number, stop_at_once)
    code = 0
    try:
        with raising_service_errors():
            app(standalone_mode=True)
    except (Exception, Stopped) as error:  # noqa: BLE001 - the last resort of a command line
        code = _report_failure(error)
    # Outside the clause, which forgets the error: connections to Spark in its frames would outlive Python's modules.
    sys.exit(code)


def _folder_of(package: str) -> Path:
    """Return a package's folder without importing it."""
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


PY4J = _folder_of("py4j")


class _Lines(LineFormatter):
    """Writes the lines of a log with their commands as this process was started."""

    def format(self, record: logging.LogRecord) -> str:
        return as_called(super().format(record))


def _report_failure(error: BaseException) -> int:
    """Tell what ended the command, and return its exit code."""
    if isinstance(error, UnicodeEncodeError) and any(error.object in word for word in sys.argv[1:]):
        error = no_utf_8(error.object)
    if isinstance(sys.stderr, JsonStream):
        return _log_failure(error)
    if stopped := Stopped.behind(error):
        err.print(f"sluice: stopped by {stopped}; {stopped.left}")
        return stopped.exit_code
    code = error.exit_code if isinstance(error, SluiceError) else SluiceError.exit_code
    if code == SluiceError.exit_code or isinstance(error, BatchEndsSpark):
        _tell_of_spark()
    if not isinstance(error, SluiceError):
        return _unexpected(error)
    _tell(f"sluice: {error}")
    for note in getattr(error, "__notes__", []):
        err.print(f"  {note}")
    return code


def _log_failure(error: BaseException) -> int:
    """Write what ended the command as one line of the log, and return its exit code."""
    stopped = Stopped.behind(error)
    known = stopped or (error if isinstance(error, SluiceError) else None)
    code = known.exit_code if known else SluiceError.exit_code
    of_spark = code == SluiceError.exit_code or isinstance(error, BatchEndsSpark)
    logging.getLogger("sluice").error(
        "%s",
        f"stopped by {stopped}; {stopped.left}" if stopped else getattr(error, "seen", in_short(error)),
        exc_info=None if known else error,
        extra={
            "action": "command-failed",
            "error": type(known or error).__name__,
            "exit_code": code,
            "next": getattr(error, "remedy", None),
            "notes": list(getattr(error, "__notes__", [])),
            **({"spark_log": str(jvm_log.current()), "spark_said": jvm_log.last_lines()} if of_spark else {}),
        },
    )
    return code


def _tell(text: str) -> None:
    """Tell of a failure, in red, or with a mark that the task which reads it takes for an error."""
    if WANTED in os.environ:
        text = "\n".join(marked(logging.ERROR, line) for line in text.split("\n"))
    err.print(shown_lines(as_called(text)), style="red")


def _tell_of_spark() -> None:
    """Print the last lines of Spark's log, before the error, whose message is to be the last."""
    if lines := jvm_log.last_lines():
        err.print(shown(f"Spark's log, {jvm_log.current()}, ends with:"))
        for line in lines:
            err.print(shown(f"  {without_secrets(line)}"))


def _unexpected(error: BaseException) -> int:
    logging.getLogger("sluice").debug("unexpected", exc_info=error)
    _tell(f"sluice: unexpected {type(error).__name__}: {in_short(error)}")
    err.print("  next: `sluice --verbose …` shows the traceback")
    return SluiceError.exit_code


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show details and tracebacks.")] = False,
) -> None:
    """Set the options of every command: --verbose shows details and tracebacks."""
    if verbose:
        logging.getLogger("sluice").setLevel(logging.DEBUG)
        for handler in logging.getLogger().handlers:
            if isinstance(handler, JsonHandler):
                handler.verbose = True


# In the order in which help shows them. What follows Airflow's own command is its own, options included.
app.command()(init.init)
app.command()(new.new)
app.command()(check.check)
app.command()(contract.contract)
app.command()(services.up)
app.command()(services.down)
app.command(context_settings={"allow_interspersed_args": False})(airflow.airflow)
app.command()(airflow.trigger)
app.command()(run.stop)
app.command()(replay.replay)
app.command()(serving.publish)
app.add_typer(quarantine.app, name="quarantine")
app.command("try")(suites.try_)
app.command()(suites.whatif)
app.command()(status.state)
app.command()(suites.train)
app.command()(suites.suggest)
app.command()(suites.columns)
app.command()(suites.docs)
app.command()(serving.env)
app.command()(datasets.land)
app.command(cls=Command)(run.run)
app.command()(status.status)
app.command()(status.deliveries)
app.command()(maintenance.audit)
app.command()(serving.files)
app.command()(serving.consumers)
app.command()(serving.lineage)
app.command()(serving.metrics)
app.add_typer(alerts.app, name="alerts")
app.command()(maintenance.recover)
app.command()(status.decide)
app.command(hidden=True)(status.question)
app.command()(status.retire)
app.command()(status.rename)
app.command()(maintenance.sweep)
app.command()(status.doctor)
