"""The environment of the local Airflow's processes: variables instead of a cfg file, and the files of their secrets.

A cfg with parts left out would leave secrets empty, or different in each process.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from psycopg2.extensions import parse_dsn
from pydantic import SecretStr

from etl.common.settings import Settings, config_file, same_place
from etl.services import Services
from etl.services.process import HOST, by_no_proxy, make_folder, write_secret

if TYPE_CHECKING:
    from etl.airflow.local.installation import Airflow

DATABASE = "airflow"
URL_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
EXECUTION_URL = "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"
BASE_URL = "AIRFLOW__API__BASE_URL"
MARK = "AIRFLOW_LOCAL_STACK"  # in the environment of every process of the stack: its folder
USERS = {"admin": "admin", "viewer": "viewer"}  # name: role
KEYS = {  # option: its file and how many random bytes it is
    "AIRFLOW__CORE__FERNET_KEY": ("airflow-fernet-key", 32),
    "AIRFLOW__API_AUTH__JWT_SECRET": ("airflow-jwt-secret", 64),
    "AIRFLOW__API__SECRET_KEY": ("airflow-secret-key", 64),
}


def write_secrets(airflow: Airflow) -> None:
    """Write the passwords and keys on the first start, and keep them.

    Another Fernet key could read no connection.
    """
    folder = make_folder(airflow.login.parent, 0o700)
    if not airflow.login.is_file():
        write_secret(airflow.login, json.dumps({user: secrets.token_urlsafe(18) for user in USERS}))
    for name, size in KEYS.values():
        if not (folder / name).is_file():
            write_secret(folder / name, urlsafe_b64encode(secrets.token_bytes(size)).decode())


def environment(airflow: Airflow, settings: Settings, services: Services) -> dict[str, str]:
    """Return the variables of every process of the stack: no secret of ours, only files that have them."""
    ours = _airflow_variables(airflow, settings)
    if settings.embedded_postgres:
        ours[URL_VARIABLE] = _database_url(services.postgres)
    taken = {_option(name) for name in ours}
    inherited = {name: value for name, value in os.environ.items() if _option(name) not in taken}
    if settings.embedded_postgres:
        inherited = {
            name: inherited[name] for name in inherited if not name.startswith("AIRFLOW__DATABASE__")
        }
    file = config_file()
    # secrets are in the file, or inherited
    no_secrets = {name: None for name, value in settings if isinstance(value, SecretStr)}
    return {
        **inherited,
        **services.environment,
        **same_place(settings.model_copy(update=no_secrets)),
        **({"SLUICE_CONFIG": str(file)} if file else {}),
        **ours,
        MARK: str(airflow.folder),
        "SPT_NOENV": "1",  # else setproctitle writes over the environment, and the mark is lost
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        **by_no_proxy(),
        "GX_ANALYTICS_ENABLED": "false",
    }


def _option(name: str) -> str:
    """Return the name without the endings by which Airflow takes an option's value from elsewhere."""
    return name.removesuffix("_CMD").removesuffix("_SECRET")


def _airflow_variables(airflow: Airflow, settings: Settings) -> dict[str, str]:
    keys = airflow.login.parent
    return {
        "AIRFLOW_HOME": str(airflow.folder),
        "AIRFLOW_CONFIG": str(airflow.folder / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(airflow.folder / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",  # tasks at once; each may be a Spark driver
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # the default asks the DNS
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager"
        ".SimpleAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{role}" for n, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "false",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(airflow.login),
        EXECUTION_URL: f"{airflow.address}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(airflow.port),
        BASE_URL: airflow.address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__ENABLE_SWAGGER_UI": "false",  # its page loads scripts from elsewhere
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "false",  # it listens on all interfaces
        # a task whose runner or component died is tried again within about a minute, not after five
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",  # seconds until a new file is seen
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(airflow.folder / "logs"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(
            airflow.folder / "logs" / "dag_processor"
        ),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "false",
        # a command, so that the key is not in the environment of every task
        **{f"{option}_CMD": shlex.join(["cat", str(keys / name)]) for option, (name, _) in KEYS.items()},
    }


def _database_url(dsn: str) -> str:
    """Return SQLAlchemy's form of the connection string; both drivers find the password in the passfile."""
    known = parse_dsn(dsn)
    where = f"{quote(known['user'])}@{known['host']}:{known['port']}/{DATABASE}"
    return f"postgresql+psycopg2://{where}?{urlencode({'passfile': known['passfile']}, quote_via=quote)}"
