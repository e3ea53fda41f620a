"""The settings: one frozen, fully checked object from the environment (SLUICE_*) and sluice.toml.

Nothing else in Sluice reads SLUICE_* names. Every problem of both sources is reported together, unknown
names included, and no message ever shows the value of a secret.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from psycopg2 import ProgrammingError
from psycopg2.extensions import parse_dsn
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from etl.common.errors import SetupError
from etl.common.record_bounds import Bounds
from etl.common.shipped import shipped
from etl.common.wording import meant

PREFIX = "SLUICE_"
CONFIG_VARIABLE = "SLUICE_CONFIG"
CONFIG_NAME = "sluice.toml"

_BROKER = re.compile(r"[^\s:,/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")

Port = Annotated[int, Field(ge=0, le=65535)]
Folders = Annotated[tuple[Path, ...], NoDecode]


def config_file() -> Path | None:
    """Find the sluice.toml in force: SLUICE_CONFIG, else the nearest one upwards from the working directory.

    Returns None where there is none; the file that SLUICE_CONFIG names may be missing.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        try:
            return _expanded(Path(named)).absolute()
        except ValueError as error:
            raise SetupError(f"{CONFIG_VARIABLE}: {error}", remedy="write the whole path") from error
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise SetupError(
            "The working directory is no longer there: somebody has removed it", remedy="`cd` to another one"
        ) from error
    return next(
        (folder / CONFIG_NAME for folder in (here, *here.parents) if (folder / CONFIG_NAME).is_file()), None
    )


class _Toml(TomlConfigSettingsSource):
    """A file of TOML, whether or not it begins with the mark that a Windows editor writes."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return tomllib.loads(file_path.read_bytes().decode("utf-8-sig"))


_MAY_BE_NONE = ("quality_retention", "task_limit")


# What Airflow's Connections may tell of.
CONNECTIONS = frozenset({"postgres", "s3", "kafka", "webhook", "slack", "teams", "pagerduty", "smtp"})


class Settings(BaseSettings):
    """What a command runs with. Paths are absolute; a relative one counts from the folder of sluice.toml,
    or from the working directory when there is no such file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    home: Path = Path(".sluice")
    jars: Path = Path()  # default: <home>/jars
    landing: str = ""  # default: <home>/landing; a folder or s3a://bucket/prefix
    checkpoints: str = ""  # default: <home>/checkpoints; a folder or s3a://bucket/prefix
    pipelines: Folders = (shipped("pipelines"),)
    suites: Folders = (shipped("expectations"),)
    dags: Path = shipped("dags")  # what the local Airflow loads
    postgres: SecretStr | None = None  # libpq URI or keywords; None: embedded
    postgres_port: Port = 0  # embedded only; 0: choose one and remember it
    lake: str | None = None  # s3://bucket[/prefix]; None: embedded
    s3_endpoint: str | None = None  # None: AWS itself
    s3_region: Annotated[str, Field(min_length=1)] = "us-east-1"
    s3_port: Port = 0  # embedded only; 0: choose one and remember it
    kafka: str | None = None  # host:port[,host:port…] to ask first; None: no pipeline reads topics
    kafka_properties: Path | None = None  # a file of Kafka's client settings: TLS, SASL and its secrets
    spark_master: Annotated[str, Field(min_length=1)] = "local[*]"
    spark_conf: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    backup_horizon: timedelta = timedelta(days=7)  # how far back a restored backup may take PostgreSQL
    quality_retention: timedelta | None = None  # of reports and sketches, which `sluice sweep` then takes out
    alert_webhook: SecretStr | None = None  # http(s) address that alerts are posted to; often a secret itself
    alert_slack: SecretStr | None = None  # likewise, of an incoming webhook of Slack
    alert_teams: SecretStr | None = None  # likewise, of a webhook of Microsoft Teams' Workflows
    alert_pagerduty: SecretStr | None = None  # the key of an integration with PagerDuty's Events API v2
    alert_pagerduty_address: str = "https://events.pagerduty.com"
    log: Literal["text", "json"] = "text"  # what a command writes to standard error
    otlp: str | None = None  # http(s) address that the spans and metrics of a run go to; None: none
    openlineage: SecretStr | None = (
        None  # http(s) address or file that an event of each delivery goes to; None: none
    )
    alert_email: str | None = None  # who gets alerts by mail, with commas between
    # smtp[s]://[user:password@]host[:port] that mails go through; None: by Airflow's connection smtp_default
    alert_smtp: SecretStr | None = None
    pg_connections: Annotated[int, Field(ge=1)] = 16  # of the tasks that stage rows at once, one each
    slow_task: timedelta = timedelta(minutes=10)  # of a task of Spark, then the run warns
    task_limit: timedelta | None = timedelta(hours=6)  # of a task of Spark, then the run ends; None: never
    releases_per_hour: Annotated[int, Field(ge=1)] = 100  # of held rows, of one pipeline
    airflow_port: Port = 0  # of the local Airflow; 0: choose one and remember it
    # Airflow's Connections by what they tell of, one of CONNECTIONS. Airflow's processes ask for them.
    connections: Annotated[dict[str, str], NoDecode] = Field(default_factory=dict)
    python: Path | None = None  # by which Airflow's tasks run `sluice`; None: by Airflow's own
    # What one record may have at most: `Bounds` says of what, docs/reading.md why no more.
    record_bytes: Annotated[int, Field(ge=1 << 10, le=1 << 27)] = Bounds.record_bytes
    record_fields: Annotated[int, Field(ge=1_000, le=10_000_000)] = Bounds.record_fields
    record_depth: Annotated[int, Field(ge=1, le=250)] = Bounds.record_depth
    number_digits: Annotated[int, Field(ge=100, le=100_000)] = Bounds.number_digits
    number_exponent: Annotated[int, Field(ge=99, le=100_000)] = Bounds.number_exponent

    @property
    def embedded_postgres(self) -> bool:
        return self.postgres is None

    @property
    def lacks_home(self) -> bool:
        """Tell whether a service is to run in a home that nobody has made yet."""
        return (self.embedded_postgres or self.embedded_s3) and not self.home.is_dir()

    @property
    def embedded_s3(self) -> bool:
        return self.lake is None

    @property
    def bounds(self) -> Bounds:
        return Bounds(**{one.name: getattr(self, one.name) for one in fields(Bounds)})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file()
        if file is None:
            return init_settings, env_settings
        return init_settings, env_settings, _Toml(settings_cls, toml_file=file)

    @field_validator("home", "dags")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return _absolute(value)

    @field_validator("python")
    @classmethod
    def _program(cls, value: Path | None) -> Path | None:
        return value and _absolute(value)

    @field_validator("jars")
    @classmethod
    def _jars(cls, value: Path, info: ValidationInfo) -> Path:
        return _home(info) / "jars" if value == Path() else _absolute(value)

    @field_validator("landing", "checkpoints")
    @classmethod
    def _folder_or_uri(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return str(_home(info) / cast("str", info.field_name))
        if "://" not in value:
            return str(_absolute(Path(value)))
        scheme, _, rest = value.partition("://")
        if scheme not in ("s3", "s3a") or not rest.strip("/"):
            raise ValueError(f"{value!r} is neither a folder nor s3a://bucket/prefix")
        return f"s3a://{rest.rstrip('/')}"

    @field_validator("pipelines", "suites", mode="before")
    @classmethod
    def _folders(cls, value: object) -> object:
        if isinstance(value, str):
            value = _json(value, list) if value.lstrip().startswith("[") else value.split(os.pathsep)
        if not isinstance(value, list) or not value:
            return value
        named = [folder for folder in value if folder != ""]  # an empty one would be the working directory
        if not named:
            raise ValueError("names no folder")
        return named

    @field_validator("pipelines", "suites")
    @classmethod
    def _absolute_folders(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(_absolute(folder) for folder in value)

    @field_validator("postgres")
    @classmethod
    def _postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                parse_dsn(value.get_secret_value())
            except ProgrammingError:
                # libpq's own message quotes the string, password included
                raise ValueError(
                    "is no libpq connection string (postgresql://… or host=… dbname=…)"
                ) from None
        return value

    @field_validator("kafka")
    @classmethod
    def _brokers(cls, value: str | None) -> str | None:
        if value is not None and not all(_BROKER.fullmatch(one) for one in value.split(",")):
            raise ValueError(f"{value!r} is not host:port, or several of them with commas between")
        return value

    @field_validator("kafka_properties")
    @classmethod
    def _properties(cls, value: Path | None) -> Path | None:
        if value is not None and not _absolute(value).is_file():
            raise ValueError(f"there is no file {_absolute(value)}")
        return value and _absolute(value)

    @field_validator("lake")
    @classmethod
    def _lake(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith("s3://") or not value.removeprefix("s3://").strip("/"):
            raise ValueError(f"{value!r} is not s3://bucket or s3://bucket/prefix")
        return value.rstrip("/")

    @field_validator("s3_endpoint")
    @classmethod
    def _endpoint(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("lake", "wrong") is None:
            raise ValueError("an endpoint without a lake: name the bucket too, as lake = s3://bucket/prefix")
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is not an http:// or https:// address")
        return value and value.rstrip("/")

    @field_validator("alert_webhook", "alert_slack", "alert_teams")
    @classmethod
    def _webhook(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("is not an http:// or https:// address")
        return value

    @field_validator("alert_email")
    @classmethod
    def _mail_addresses(cls, value: str | None) -> str | None:
        if value and not value.strip(" ,"):
            raise ValueError(f"{value!r} has no address")
        return value

    @field_validator("alert_smtp")
    @classmethod
    def _mail_server(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.match(r"smtps?://[^/]", value.get_secret_value()):
            raise ValueError("is not an smtp:// or smtps:// address")
        return value

    @field_validator("otlp", "alert_pagerduty_address")
    @classmethod
    def _http_address(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/]", value):
            raise ValueError(f"{value!r} is not an http:// or https:// address")
        return value and value.rstrip("/")

    @field_validator("openlineage")
    @classmethod
    def _receiver(cls, value: SecretStr | None) -> SecretStr | None:
        address = value.get_secret_value() if value is not None else ""
        if address and not re.match(r"https?://[^/]|file:///.", address):
            raise ValueError("is neither an http:// or https:// address nor file:///…")
        return value

    @field_validator("connections", mode="before")
    @classmethod
    def _connections(cls, value: object) -> object:
        value = _json(value, dict) if isinstance(value, str) else value
        if isinstance(value, Mapping) and (unknown := sorted(map(str, value.keys() - CONNECTIONS))):
            raise ValueError(
                f"names {', '.join(unknown)}, and a Connection is of {', '.join(sorted(CONNECTIONS))}"
            )
        return value

    @field_validator("spark_conf", mode="before")
    @classmethod
    def _conf(cls, value: object) -> object:
        if isinstance(value, str):
            value = _json(value, dict)
        if not isinstance(value, Mapping):
            return value
        return {
            name: json.dumps(item) if isinstance(item, bool | int | float) else item
            for name, item in value.items()
        }

    @field_validator("backup_horizon", "quality_retention", "slow_task", "task_limit", mode="before")
    @classmethod
    def _iso_duration(cls, value: object, about: ValidationInfo) -> object:
        if value == "none" and about.field_name in _MAY_BE_NONE:
            return None
        if value is not None and not isinstance(value, timedelta) and not str(value).startswith("P"):
            raise ValueError(f"{value!r} is not an ISO 8601 duration such as P7D or PT36H")
        return value

    @field_validator("backup_horizon", "quality_retention", "slow_task", "task_limit")
    @classmethod
    def _forwards(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value <= timedelta():
            raise ValueError("must be longer than nothing")
        return value


def load_settings() -> Settings:
    """Load the settings in force. Raises one SetupError, which names every problem of environment and file."""
    problems = _unknown_in_environment()
    file = config_file()
    try:
        settings = Settings()
    except ValidationError as error:
        problems += [_problem(item, file) for item in error.errors(include_url=False, include_input=False)]
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: {error}")
    except UnicodeDecodeError as error:
        problems.append(f"{file} is not UTF-8, as TOML has to be: {error.reason} at byte {error.start}")
    except OSError as error:
        problems.append(f"{file} can't be read: {error.strerror}")
    if file is not None and not file.is_file():
        problems.append(f"{CONFIG_VARIABLE}={file}: there is no such file")
    if problems:
        seen = "the settings can't be used:" + "".join(f"\n  - {problem}" for problem in problems)
        raise SetupError(seen, remedy=f"correct them in the environment or in {file or CONFIG_NAME}")
    return settings


def logs_json() -> bool:
    """Tell whether a command is to write its log as JSON, also where other settings are wrong."""
    try:
        return load_settings().log == "json"
    except SetupError:
        return os.environ.get(f"{PREFIX}LOG") == "json"


def with_spark_conf(settings: Settings, pairs: Iterable[str]) -> Settings:
    """Return the settings with some of Spark's replaced, each given as NAME=VALUE.

    Raises SetupError for a pair that is no setting of Spark.
    """
    conf = dict(settings.spark_conf)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise SetupError(
                f"--conf {pair!r} is no setting of Spark", remedy="write it as --conf spark.driver.memory=4g"
            )
        conf[name] = value
    return settings.model_copy(update={"spark_conf": conf})


def _unknown_in_environment() -> list[str]:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {CONFIG_VARIABLE}
    unknown = sorted(
        name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known
    )
    return [f"{name} in the environment is not a setting{meant(name.upper(), known)}" for name in unknown]


def _problem(item: Any, file: Path | None) -> str:
    if not item["loc"]:
        return str(item["msg"]).removeprefix("Value error, ")
    name = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        return f"{name} in {file} is not a setting{meant(name, set(Settings.model_fields))}"
    place = f"{PREFIX}{name.upper()}" if os.environ.get(PREFIX + name.upper()) else f"{name} in {file}"
    inner = "".join(f"[{part}]" for part in item["loc"][1:])
    return f"{place}{inner}: {_in_words(item)}"


def _in_words(item: Any) -> str:
    """Say what is wrong with a value; the value itself may be a secret."""
    limits = item.get("ctx") or {}
    words = {
        "greater_than_equal": f"must be at least {limits.get('ge', 0):,}",
        "less_than_equal": f"must be at most {limits.get('le', 0):,}",
        "string_too_short": "must not be empty",
        "literal_error": f"must be {limits.get('expected')}",
    }
    kinds = {
        "int": "a whole number",
        "string": "a text",
        "tuple": "a list",
        "dict": "a table",
        "path": "a path",
    }
    kind = kinds.get(str(item["type"]).partition("_")[0], "")
    if kind and item["type"] not in words:
        return f"must be {kind}"
    return words.get(item["type"], str(item["msg"]).removeprefix("Value error, "))


def _absolute(path: Path) -> Path:
    file = config_file()
    return Path(os.path.normpath((file.parent if file else Path.cwd()) / _expanded(path)))


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home directory for {path.parts[0]} in {path}") from None


def _home(info: ValidationInfo) -> Path:
    home = info.data.get("home")
    if home is None:
        raise ValueError("can't be placed while home is wrong")
    return cast("Path", home)


def _json(text: str, kind: type[list[Any] | dict[str, Any]]) -> object:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"is JSON, but not a {'list' if kind is list else 'table'}")
    return value


def same_place(settings: Settings) -> dict[str, str]:
    """Return all settings in force as environment variables from which another command takes them.

    Secrets among them are in the clear.
    """
    values = settings.model_dump(exclude_none=True)
    if settings.task_limit is None:
        values["task_limit"] = "none"  # which is not its default
    return {f"SLUICE_{name.upper()}": _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return _folders(value)
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, timedelta):
        return f"PT{value.total_seconds():.0f}S"
    return str(value)


def _folders(folders: tuple[Path, ...]) -> str:
    """Join the folders as PATH does, or as JSON where PATH's form would read back as other folders."""
    names = [str(folder) for folder in folders]
    joined = os.pathsep.join(names)
    return joined if joined.split(os.pathsep) == names else json.dumps(names)
