"""`sluice up` and `sluice down`: start and stop the embedded services."""

from __future__ import annotations

from etl.cli.shared import DONE_SO_FAR, open_workspace, out
from etl.common.settings import load_settings
from etl.spark.signals import leaves


def up() -> None:
    """Start the embedded services; they run until `sluice down`."""
    leaves(DONE_SO_FAR)
    workspace = open_workspace(begins=True)
    out.print(f"PostgreSQL  {_without_secrets(workspace.services.postgres)}")
    out.print(f"S3          {workspace.services.lake} at {workspace.services.s3_endpoint or 'AWS'}")
    out.print('next: `sluice run PIPELINE`; `eval "$(sluice env)"` connects psql, boto3 and DuckDB')


def down() -> None:
    """Stop Airflow and the embedded services; their data stays."""
    from etl import services
    from etl.airflow.local import stack

    leaves(DONE_SO_FAR)
    settings = load_settings()
    stopped = (*stack.stop(settings), *services.down(settings))
    if stopped:
        out.print(f"stopped {', '.join(stopped)}")
    else:
        no_home = "" if settings.home.is_dir() else f": there is no home, {settings.home}"
        out.print(f"nothing was running{no_home}")


def _without_secrets(dsn: str) -> str:
    from psycopg2.extensions import make_dsn, parse_dsn

    shown = {key: value for key, value in parse_dsn(dsn).items() if "pass" not in key}
    return str(make_dsn(**shown))
