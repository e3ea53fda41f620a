"""Says why Spark's JVM can't be launched or its session not be made: which variable or setting, what it is, what to do."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etl.common.errors import ServiceAway, SetupError, SluiceError
from etl.common.outcome import without_secrets
from etl.common.wording import visible
from etl.services.jarsets import JAVA_OPTIONS
from etl.spark.java_errors import causes
from etl.spark.launch import jvm_log
from etl.spark.launch.home import is_lean

# What Java, or the script that launches it, reads of the environment.
READ_BY_JAVA = (*JAVA_OPTIONS, "SPARK_SUBMIT_OPTS")
_READ = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", *READ_BY_JAVA)
_SENT = frozenset({"--master", "--deploy-mode", "--class"})
_TELLS = re.compile(r"(?i)error|exception|unrecognized|invalid|unsupported|could not|cannot|can't|no such")
# Objects of Spark whose initialization registers its settings, each with the check of its values.
_ENTRIES = (
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.internal.StaticSQLConf$",
)
# Spark's own forms, as org.apache.spark.SparkMasterRegex has them; of another scheme, a cluster manager of somebody's own
# may be named.
_MASTER = re.compile(
    r"local(?:\[(?:[0-9]+|\*)(?:\s*,\s*[0-9]+)?\])?"
    r"|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]|yarn|[\w.+-]+://.+"
)
_CORE = "jars/spark-core_*.jar"
_UNREACHED = re.compile(
    r"unresponsive|stopped SparkContext|was shut down|Connection|UnknownHost|initialization"
)


def environment_faults() -> Iterator[SetupError]:
    """Yield what of the environment would make Spark's launch fail, or launch another Spark than the installed one."""
    from pyspark import __version__

    if home := os.environ.get("SPARK_HOME"):
        found = _spark_of(Path(home))
        if found != __version__:
            what = f"Spark {found}" if found else "no Spark with bin/spark-submit and jars"
            yield SetupError(
                f"SPARK_HOME={visible(home)} is {what}, and the installed PySpark is {__version__}",
                remedy="`unset SPARK_HOME`, and run again: PySpark brings its own Spark",
            )
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS")
    if arguments is not None and _words(arguments)[-1:] != ["pyspark-shell"]:
        yield SetupError(
            f"PYSPARK_SUBMIT_ARGS={_shown(arguments)} does not end with pyspark-shell, so that no session is launched",
            remedy="`unset PYSPARK_SUBMIT_ARGS`, and give settings of Spark in SLUICE_SPARK_CONF or with --conf",
        )
    elif arguments is not None and (
        sent := _SENT.intersection(one.partition("=")[0] for one in _words(arguments))
    ):
        yield SetupError(
            f"PYSPARK_SUBMIT_ARGS={_shown(arguments)} says where Spark is to run, by {', '.join(sorted(sent))}, and that is"
            " a setting of Sluice",
            remedy="`unset PYSPARK_SUBMIT_ARGS`, and name the master in SLUICE_SPARK_MASTER",
        )
    if port := os.environ.get("PYSPARK_GATEWAY_PORT"):
        yield SetupError(
            f"PYSPARK_GATEWAY_PORT={_shown(port)} names a JVM of somebody else's, and Sluice launches its own",
            remedy="`unset PYSPARK_GATEWAY_PORT PYSPARK_GATEWAY_SECRET`, and run again",
        )


def require_master(master: str) -> None:
    """Raise SetupError for what by its form is no master of Spark; nobody is asked."""
    if not _MASTER.fullmatch(master):
        raise _no_master(master, "it names none of these")


def _no_master(master: str, said: str) -> SetupError:
    return SetupError(
        f"SLUICE_SPARK_MASTER={_shown(master)} is no master of Spark: {said}",
        remedy="local[*] runs on this machine; others are spark://host:7077, yarn and k8s://https://host:6443",
    )


def environment_in_use() -> dict[str, str]:
    """Return the variables that Spark's launch goes by and that a person has set, without secrets."""
    found = {name: os.environ[name] for name in _READ if name in os.environ}
    return {
        name: _shown(value)
        for name, value in found.items()
        if not (name == "SPARK_HOME" and is_lean(Path(value)))
    }


@contextmanager
def telling_of_launch(conf: Mapping[str, str], given: Mapping[str, str]) -> Iterator[None]:
    """Raise SetupError, or ServiceAway for a master that does not answer, where launch or session within fails.

    `given` are the settings of Spark that the user gave, among all of `conf`.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for fault in environment_faults():
        raise fault
    try:
        yield
    except SluiceError:
        raise
    except (OSError, PySparkException, Py4JError) as error:
        raise _fault(error, conf, given) from error


def refuse_values(gateway: Any, given: Mapping[str, str]) -> None:
    """Raise SetupError for the `given` settings whose values Spark does not take, all at once.

    Spark itself reads many of them no sooner than a job needs them. Those that it has no entry of are left alone, and so
    are values that refer to others.
    """
    if not given:
        return
    jvm = gateway.jvm
    for name in _ENTRIES:
        getattr(jvm, "java.lang.Class").forName(name)
    refused = [
        f"{name}={_shown(value)} ({why})"
        for name, value in sorted(given.items())
        if "${" not in value and (why := _refusal(jvm, name, value))
    ]
    if refused:
        raise SetupError(
            f"Spark does not take {', '.join(refused)}, of SLUICE_SPARK_CONF or --conf",
            remedy="correct it, or leave it out",
        )


def _refusal(jvm: Any, name: str, value: str) -> str | None:
    """Return what Spark says against a setting's value; None where it takes it, or knows no such setting."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        entry = getattr(jvm, "org.apache.spark.internal.config.ConfigEntry").findEntry(name)
        if entry is not None:
            entry.valueConverter().apply(value)
    except (PySparkException, Py4JError) as error:
        *_, said = causes(error)
        return visible(without_secrets(re.sub(r"^[\w.$]+: ", "", said)))
    return None


def _fault(error: Exception, conf: Mapping[str, str], given: Mapping[str, str]) -> SluiceError:
    master = conf["spark.master"]
    *_, said = causes(error)
    if type(error).__name__ == "PySparkRuntimeError" or isinstance(error, OSError):
        said = next(filter(_TELLS.search, jvm_log.last_lines()), said)  # of the JVM that never came up
    said = visible(without_secrets(said.strip()))
    if re.search(r"[Mm]aster (?:URL|must)", said):
        return _no_master(master, said)
    if not master.startswith("local") and _UNREACHED.search(said):
        return ServiceAway(
            f"The master {_shown(master)} did not take Spark's driver: {said}",
            remedy="check that it runs and is reachable (SLUICE_SPARK_MASTER); then run again",
        )
    used = [f"{name}={value}" for name, value in environment_in_use().items()]
    used += [f"{name}={_shown(value)}" for name, value in sorted(given.items())]
    where = f"; set by you: {', '.join(used)}" if used else ""
    return SetupError(
        f"Spark can't be started: {said}{where}",
        remedy=f"correct or unset what it names (`sluice doctor` looks at it); its log is {jvm_log.current()}",
    )


def _spark_of(home: Path) -> str | None:
    """Return the version of the Spark in a folder; None where there is none that can be launched."""
    if not (home / "bin/spark-submit").is_file():
        return None
    names = (re.search(r"-(\d[\w.]*)\.jar$", jar.name) for jar in sorted(home.glob(_CORE)))
    return next((name[1] for name in names if name), None)


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:  # a quote that is not closed
        return []


def _shown(value: str) -> str:
    return visible(without_secrets(value))
